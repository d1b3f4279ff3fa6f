"""The entry of Adaptive-Span: rules of its settings, and how they follow from the sizes of a model."""

from collections.abc import Mapping
from typing import Any

from longmem_jax.attention import near_positions
from longmem_jax.contract import STARTS, Entry, Fields, Graft, LayerType, Recipe, Recipes, Scale
from longmem_jax.host_layer import ReleasedLayer
from longmem_jax.kernels import fused_spans
from longmem_jax.memory.adaptive_span.layer import AdaptiveSpan
from longmem_jax.memory.adaptive_span.view import held, read
from longmem_jax.problems import at_least, between, one_of
from longmem_jax.views import View

PER = ('head', 'layer', 'none')


def check(fields: Fields, model: Any, segment_length: int) -> list[str]:
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


def released(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Fields for the arguments of the released program."""
    adaptive = settings.get('adapt_span', True)
    per = 'layer' if settings.get('adapt_span_layer') else 'head'
    return dict(
        max_span=settings['attn_lim'],
        ramp=settings['adapt_span_len'],
        per=per if adaptive else 'none',
        initial_share=float(settings['adapt_span_init']),
        start='zeros',
        trim_memory=False,
        num_sizes=3,
    )


ENTRY = Entry(
    name='adaptive_span',
    layer=LayerType(
        AdaptiveSpan,
        check=check,
        shared=lambda fields: near_positions.shared_table(fields, 'max_span'),
        losses=lambda fields: () if fields['per'] == 'none' else ('adaptive_span',),
        reach=lambda fields, segment: fields['max_span'],
        bounded=('span_share',),
        fused=fused_spans.no_problem,
    ),
    recipe=Recipes({'adaptive_span': recipe}),
    graft=Graft(
        lambda scale, position: {},
        exact=False,
        how='projections and embeddings are kept; attention within learned spans must be tuned',
        positions='its own scores by distance; rotary ones are lost',
    ),
    released=ReleasedLayer(
        released,
        {'attn.attn.adaptive_span.mask.size_ratio': ('attention/span_share', 'flat')},
        free=('initial_share', 'num_sizes', 'trim_memory'),
    ),
    view=View(held, read, lengths={'max_span': 'span '}),
    toy=dict(max_span=8, ramp=3, initial_share=0.3, num_sizes=2),
    variants=dict(trimmed=dict(start='zeros', per='layer', trim_memory=True)),
)
