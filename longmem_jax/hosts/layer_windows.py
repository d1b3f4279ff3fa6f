"""How `config.json` says which layers see a window, and which the whole context: one way per family.

Every pair of functions maps attributes to a window per layer, 0 = the whole context, and back. None = a
layer of hybrids that is not attention.
"""

from collections.abc import Callable
from typing import Any

from longmem_jax.hosts.attributes import Attributes

KINDS = ('full_attention', 'sliding_attention')
_HYBRID = ('full_attention', 'linear_attention')
Windows = tuple[int | None, ...]


def _largest(windows: Windows) -> int:
    return max(window or 0 for window in windows)


def alternating(given: Attributes, layers: int) -> tuple[int, ...]:
    """GPT-Neo: every layer global or local."""
    kinds = given.take('attention_layers', list, None)
    types = given.take('attention_types', list, [[['global', 'local'], layers // 2 or 1]])
    if kinds is None:
        try:
            kinds = [
                kind for pattern, times in types for _ in range(int(times)) for kind in pattern
            ]
        except (TypeError, ValueError) as error:
            why = 'pairs of a list of layers and a number are needed'
            raise given.refusal('attention_types', types, why) from error
    window = given.take('window_size', int, 256)
    return _by_kind(given, 'attention_types', kinds, layers, ('global', 'local'), window)


def _by_kind(
    given: Attributes,
    name: str,
    kinds: list[Any],
    layers: int,
    names: tuple[str, str],
    window: int | None,
) -> tuple[int, ...]:
    """Windows of layers whose kinds are `names`: without and with a window."""
    if len(kinds) != layers or not set(map(str, kinds)) <= set(names):
        raise given.refusal(name, kinds, f'{layers} layers of the kinds {names} are needed')
    if names[1] in kinds and not window:
        raise given.refusal(name, kinds, 'its window is missing')
    return tuple(window if window and kind == names[1] else 0 for kind in kinds)


def write_alternating(windows: Windows) -> dict[str, Any]:
    kinds = ['local' if window else 'global' for window in windows]
    size = {'window_size': _largest(windows)} if any(windows) else {}
    return {'attention_types': [[kinds, 1]], 'attention_layers': kinds, **size}


def all_sliding(given: Attributes, layers: int) -> tuple[int, ...]:
    """Mistral: all layers have the window, or none has."""
    window = given.take('sliding_window', int, None) if given.has('sliding_window') else 4096
    kinds = given.take('layer_types', list, None)
    if kinds is not None:
        return _by_kind(given, 'layer_types', kinds, layers, KINDS, window)
    return (window or 0,) * layers


def maybe_sliding(given: Attributes, layers: int) -> tuple[int, ...]:
    """Phi 3: a window in all layers, if the file has one that is not longer than all texts."""
    window, longest = given.take('sliding_window', int, None), given.peek('max_position_embeddings')
    hides = window and (not isinstance(longest, int) or window <= longest)
    return (window if hides else 0,) * layers


def sliding_but_every(number: int) -> Callable[[Attributes, int], tuple[int, ...]]:
    """Gemma 3, OLMo 3: layers by name, or all but every `number`th have the window."""

    def read(given: Attributes, layers: int) -> tuple[int, ...]:
        window = given.take('sliding_window', int, None) if given.has('sliding_window') else 4096
        every = number
        for spelling in ('sliding_window_pattern', '_sliding_window_pattern'):
            every = given.number(spelling, int, every)
        kinds = given.take('layer_types', list, None)
        if kinds is None:
            kinds = [KINDS[bool((layer + 1) % every)] for layer in range(layers)]
        return _by_kind(given, 'layer_types', kinds, layers, KINDS, window)

    return read


def write_sliding_but(windows: Windows) -> dict[str, Any]:
    return dict(
        sliding_window=_largest(windows) or None,
        layer_types=[KINDS[bool(window)] for window in windows],
    )


def write_all_sliding(windows: Windows) -> dict[str, Any]:
    return {'sliding_window': windows[0] or None}


def upper_sliding(given: Attributes, layers: int) -> tuple[int, ...]:
    """Qwen 2 and 3: layers by name, or those from `max_window_layers` on."""
    used = given.take('use_sliding_window', bool, False)
    window = given.take('sliding_window', int, None) if given.has('sliding_window') else 4096
    first = given.take('max_window_layers', int, 28)
    kinds = given.take('layer_types', list, None)
    window = window if used else None
    if kinds is None:
        kinds = [KINDS[bool(window) and layer >= first] for layer in range(layers)]
    return _by_kind(given, 'layer_types', kinds, layers, KINDS, window)


def write_upper_sliding(windows: Windows) -> dict[str, Any]:
    return dict(
        use_sliding_window=any(windows),
        sliding_window=_largest(windows) or None,
        layer_types=[KINDS[bool(window)] for window in windows],
    )


def no_windows(given: Attributes, layers: int) -> tuple[int, ...]:
    """Llama: a file may say that all layers see everything."""
    given.require('sliding_window', None)
    given.require('use_sliding_window', False)
    given.require('layer_types', [KINDS[0]] * layers)
    return (0,) * layers


def hybrid(given: Attributes, layers: int) -> Windows:
    """Qwen3-Next, OLMo-Hybrid: attention in layers by name, or in every fourth."""
    every = given.number('full_attention_interval', int, 4)
    kinds = given.take('layer_types', list, None)
    if kinds is None:
        kinds = [_HYBRID[bool((layer + 1) % every)] for layer in range(layers)]
    found = _by_kind(given, 'layer_types', kinds, layers, _HYBRID, 1)
    if all(found):
        raise given.refusal('layer_types', kinds, f'at least one {_HYBRID[0]} is needed')
    return tuple(None if own else 0 for own in found)


def write_hybrid(windows: Windows) -> dict[str, Any]:
    return {'layer_types': [_HYBRID[window is None] for window in windows]}
