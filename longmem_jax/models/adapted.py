"""A model of any kind with low-rank parts (LoRA) in its linear maps; see `layers.low_rank`."""

import dataclasses
import re
from typing import Any

import flax.linen as nn

from longmem_jax.layers import low_rank
from longmem_jax.problems import at_least, of_section


def check(fields: Any) -> list[str]:
    """Problems of `config.model.lora`."""
    wrong = of_section(fields, {'rank': int, 'alpha': float, 'targets': str})
    if wrong:
        return wrong
    try:
        re.compile(fields['targets'])
    except re.error as error:
        wrong = [f'targets = {fields["targets"]!r}: must be a regular expression ({error})']
    return wrong + at_least(fields, 0, 'alpha')


@dataclasses.dataclass(frozen=True)
class Adapted:
    """A linen model whose `init` and `apply` know of low-rank parts; all else is the model's.

    Attributes:
      model: the model, unchanged.
      rank, alpha, targets: `config.model.lora`, see `low_rank.add`.
    """

    model: nn.Module
    rank: int
    alpha: float
    targets: str

    def __getattr__(self, name: str) -> Any:
        if name.startswith('__'):  # asked of a copy before its fields are there
            raise AttributeError(name)
        return getattr(self.model, name)

    def init(self, key: Any, *inputs: Any, **options: Any) -> Any:
        """`nn.Module.init`, and the low-rank parts."""
        with low_rank.noting_maps() as maps:
            variables = self.model.init(key, *inputs, **options)
        params = low_rank.add(
            variables['params'],
            maps,
            rank=self.rank,
            alpha=self.alpha,
            targets=self.targets,
            key=key,
        )
        return {**variables, 'params': params}

    def apply(self, variables: Any, *inputs: Any, **options: Any) -> Any:
        """`nn.Module.apply` with the low-rank parts in `variables`."""
        with nn.intercept_methods(low_rank.intercept):
            return self.model.apply(variables, *inputs, **options)
