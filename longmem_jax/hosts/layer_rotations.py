"""How `config.json` says that layers rotate otherwise than the model: one way per family.

Functions map attributes to `rotary_bases` of `config.model`, and back.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from longmem_jax.hosts.attributes import Attributes
from longmem_jax.hosts.layer_windows import KINDS, Windows

Bases = tuple[float, ...]
AS_MODEL = -1.0


class Rotations(NamedTuple):
    """One way.

    Attributes:
      read: `(attributes, windows of the layers) -> a base per layer`; it leaves the attributes of the
        model's own rotation.
      write: `(rope_parameters, bases, windows) -> attributes`.
    """

    read: Callable[[Attributes, Windows], Bases]
    write: Callable[[dict[str, Any], Bases, Windows], dict[str, Any]]


def of_windows(base: float | None) -> Rotations:
    """Gemma 3, OLMo 3: layers with a window have a base of their own, and are not scaled.

    `base`: where the file has none; None = that of the model.
    """

    def read(given: Attributes, windows: Windows) -> Bases:
        whole = given.peek('rope_parameters')
        default = base or given.peek('rope_theta') or 5e5
        if isinstance(whole, dict) and {*whole} & {*KINDS}:
            parts = Attributes(
                given.take('rope_parameters', dict), f'{given.source}: rope_parameters'
            )
            full, sliding = (dict(parts.take(kind, dict, None) or {}) for kind in KINDS)
            parts.finish()
            given.put('rope_parameters', full)
            name = f'{given.source}: rope_parameters.{KINDS[1]}'
            of_sliding = Attributes(sliding, name)
            of_sliding.require('rope_type', 'default')
            own = of_sliding.number('rope_theta', float, default)
            of_sliding.finish()
        else:
            own = given.number('rope_local_base_freq', float, default)
        if own <= 1:
            raise given.refusal('the base of layers with a window', own, 'must be above 1')
        return tuple(own if window else AS_MODEL for window in windows)

    def write(parameters: dict[str, Any], bases: Bases, windows: Windows) -> dict[str, Any]:
        own = max(bases, default=AS_MODEL)
        own = parameters['rope_theta'] if own == AS_MODEL else own
        parts = (parameters, dict(rope_theta=own, rope_type='default'))
        return {'rope_parameters': dict(zip(KINDS, parts, strict=True))}

    return Rotations(read, write)


def _unrotated(given: Attributes, windows: Windows) -> Bases:
    """SmolLM3: a list of 0 and 1, or every fourth layer is not rotated."""
    every = given.number('no_rope_layer_interval', int, 4)
    rotated = given.take('no_rope_layers', list, None)
    if rotated is None:
        rotated = [bool((layer + 1) % every) for layer in range(len(windows))]
    if len(rotated) < len(windows) or not all(each in (0, 1) for each in rotated):
        why = f'{len(windows)} numbers are needed, 0 or 1'
        raise given.refusal('no_rope_layers', rotated, why)
    return tuple(AS_MODEL if each else 0.0 for each in rotated[: len(windows)])


def _write_unrotated(parameters: dict[str, Any], bases: Bases, windows: Windows) -> dict[str, Any]:
    rotated = [int(base != 0) for base in bases or (AS_MODEL,) * len(windows)]
    return {'rope_parameters': parameters, 'no_rope_layers': rotated}


UNROTATED = Rotations(_unrotated, _write_unrotated)
