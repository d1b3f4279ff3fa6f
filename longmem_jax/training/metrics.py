"""Metrics of training and evaluation: sums over tokens, and the numbers that are made of them.

A new metric is a field of `layers.scores.Scores`, its sum in `sums_of`, and a row of `METRICS`. Metrics
files, TensorBoard, `results.json` and tables take it from there.
"""

import dataclasses
import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from longmem_jax.data.lanes import Batch
from longmem_jax.layers.scores import Scores

LN2 = math.log(2.0)
TEXT, ANSWERS = 'text', 'answers'  # tables of results: of texts, and of tasks with answers


def sums_of(scores: Scores, inputs: Batch) -> dict[str, jax.Array]:
    """Sums over a segment of all lanes, float32 scalars.

    Over scored tokens `nll` (nats), `log_z_squared`, `right` and their number `scored`; over all
    valid ones their number `tokens` and `num_bytes`.
    """
    scored = inputs.scored > 0
    factor = scored.astype(scores.nll.dtype)
    return {
        'nll': (scores.nll * factor).sum(),
        'log_z_squared': (jnp.square(scores.log_z) * factor).sum(),
        'right': (scores.right & scored).sum().astype(jnp.float32),
        'scored': scored.sum().astype(jnp.float32),
        'tokens': inputs.valid.sum().astype(jnp.float32),
        'num_bytes': inputs.num_bytes.sum(),
    }


@dataclasses.dataclass(frozen=True)
class Metric:
    """A number of a training step or an evaluation.

    Attributes:
      total: name of a sum; where it was not measured, the metric is left out.
      per: name of the count that the sum is divided by.
      label: in tables.
      form: of the number in tables, for `str.format`.
      tables: tables of results that have a column for it.
      factor: of the quotient.
      exponential: the metric is the exponential of the quotient; not computed in training.
      higher: the metric is better if it is higher.
      without: the metric where the count is 0 although tokens were scored.
    """

    total: str
    per: str
    label: str
    form: str
    tables: tuple[str, ...]
    factor: float = 1.0
    exponential: bool = False
    higher: bool = False
    without: float = math.nan

    def value(self, sums: Mapping[str, float]) -> float:
        """From the sums of an evaluation; nan if no token was scored."""
        if not sums['scored'] or not sums[self.per]:
            return self.without if sums['scored'] else math.nan
        mean = sums[self.total] * self.factor / sums[self.per]
        if not self.exponential:
            return mean
        return math.inf if mean >= 700 else math.exp(mean)


# In the order of the columns of tables.
METRICS = {
    'exact_match': Metric('exact', 'answers', 'exact match', '{:.2%}', (ANSWERS,), higher=True),
    'accuracy': Metric('right', 'scored', 'accuracy', '{:.2%}', (ANSWERS,), higher=True),
    # A task has no bytes.
    'bits_per_byte': Metric(
        'nll', 'num_bytes', 'bits/byte', '{:.4f}', (TEXT,), factor=1 / LN2, without=0.0
    ),
    'loss': Metric('nll', 'scored', 'nats/token', '{:.4f}', (TEXT, ANSWERS)),
    'perplexity': Metric('nll', 'scored', 'perplexity', '{:,.2f}', (TEXT,), exponential=True),
}


def of_step(sums: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """The metrics of a training step from its sums (scalars); 0 where there is nothing to count."""
    return {
        name: jnp.where(
            sums[metric.per] > 0,
            sums[metric.total] * metric.factor / jnp.maximum(sums[metric.per], 1.0),
            0.0,
        )
        for name, metric in METRICS.items()
        if metric.total in sums and metric.per in sums and not metric.exponential
    }
