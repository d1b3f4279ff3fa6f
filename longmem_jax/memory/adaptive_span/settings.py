"""The settings of Adaptive-Span: their rules, and how they follow from the sizes of a model."""

from typing import Any

from longmem_jax.contract import STARTS, Recipe, Scale
from longmem_jax.faults import at_least, between, one_of

PER = ('head', 'layer', 'none')


def check(fields: Any, model: Any, segment_length: int) -> list[str]:
    """Checks that sizes are positive and that `initial_share` is from 0 to 1."""
    return [
        *at_least(fields, 1, 'max_span', 'ramp', 'num_sizes'),
        *one_of(fields, per=PER, start=STARTS),
        *between(fields, 0, 1, 'initial_share'),
    ]


def recipe(scale: Scale) -> Recipe:
    """Spans up to `scale.reach`, initially half of it; a ramp of a quarter of a segment."""
    fields = dict(max_span=scale.reach, ramp=max(scale.segment // 4, 1), initial_share=0.5)
    return Recipe({'adaptive_span': fields}, loss_weights={'adaptive_span': 1e-6})
