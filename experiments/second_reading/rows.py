"""The rows of the second reading: a memory with flags of the command."""

from typing import Any, NamedTuple

from configs import second_reading
from longmem_jax.config import checks, overrides
from longmem_jax.config.recipes import recipes


class Row(NamedTuple):
    """A memory in the backbone of `configs/second_reading.py`.

    Attributes:
      memory: of `:memory=NAME`.
      flags: of the command line.
    """

    memory: str
    flags: tuple[str, ...] = ()


BASELINE = 'local'  # no memory
# Tests a store that is larger than in training, where documents are short.
MORE_ROWS = '--config.evaluate.model.memorizing.memory_size=8192'
# The other half of the paper's Infini-attention: unit keys, and what is already there is corrected token
# by token (DeltaNet's rule).
DELTA = ('features=normalized', 'normalizer=none', 'rule=delta_sequential')
NAMED = {
    'memorizing': Row('memorizing', (MORE_ROWS,)),
    'infini_delta': Row('infini', tuple(f'--config.model.infini.{field}' for field in DELTA)),
}
SHOWN = (
    BASELINE, 'transformer_xl', 'expire_span', 'compressive', 'memorizing', 'infini', 'infini_delta',
    'linear', 'delta_net', 'gated_delta_net', 'mamba2', 'rwkv7', 'infinity_former', 'memformer',
)  # fmt: skip


def row(name: str) -> Row:
    """The row of a name: one of `NAMED`, or a memory of the library."""
    return NAMED.get(name, Row(name))


def names() -> list[str]:
    """Every row that can be asked for."""
    return sorted({*recipes(), *NAMED})


def config_of(name: str, flags: list[str]) -> Any:
    """The configuration of a row, with further flags.

    Raises:
      UsageError: it cannot be trained.
    """
    chosen = row(name)
    config = second_reading.get_config(f'tiny,memory={chosen.memory}')
    overrides.apply(config, overrides.split_arguments([*chosen.flags, *flags])[1])
    checks.require_runnable(config, 1)
    return config
