"""The entry of Expire-Span: rules of its settings, and how they follow from the sizes of a model."""

from collections.abc import Mapping
from typing import Any

from longmem_jax.attention import near_positions
from longmem_jax.contract import STARTS, Entry, Fields, Graft, LayerType, Recipe, Recipes, Scale
from longmem_jax.host_layer import ReleasedLayer
from longmem_jax.kernels import fused_spans
from longmem_jax.memory.expire_span.layer import ExpireSpan
from longmem_jax.memory.expire_span.view import held, kept, read, series
from longmem_jax.problems import above, at_least, between, one_of
from longmem_jax.views import View

CAPACITY = 4096  # at most, in recipes: four times what the paper reports to be alive (Sec. 5.2)


def reach(fields: Fields) -> int:
    """The longest span that a memory can be given, with its ramp, in tokens."""
    return min(fields['max_span'], fields['limit'] or fields['max_span']) + fields['ramp']


def full_capacity(fields: Fields) -> int:
    """The smallest capacity with which a layer with these fields never drops a live memory."""
    return reach(fields) + fields['position_length']


def check(fields: Fields, model: Any, segment_length: int) -> list[str]:
    """Checks that the capacity holds the segment and the window, and the values of all fields."""
    capacity = fields['capacity'] or full_capacity(fields)
    problems = at_least(fields, 1, 'max_span', 'ramp', 'position_length', 'num_sizes')
    problems += between(fields, 0, 1, 'initial_share', ends='()') + above(fields, 0, 'pre_div')
    problems += one_of(fields, start=STARTS)
    if capacity < segment_length:
        problems.append(
            f'capacity = {capacity}: must be at least the segment length {segment_length}; the last '
            'segment is always kept'
        )
    if fields['position_length'] >= capacity:
        problems.append(
            f'position_length = {fields["position_length"]}: must be below capacity = {capacity}, '
            'which holds that window and the memories before it'
        )
    return problems


def check_training(fields: Fields, model: Any, segment_length: int) -> list[str]:
    """Checks that spans can be learned: that the first ones reach old memories, which all find room.

    A span has a gradient only while its memory expires in front of a query. Where no memory lives for
    more than a segment, none of them is ever old enough to be missed.
    """
    first = fields['initial_share'] * fields['max_span'] + fields['ramp']
    initial = f'initial_share * max_span + ramp = {first:g}'
    if first < segment_length:
        return [
            f'initial_share = {fields["initial_share"]}: entries are seen for {initial} tokens at '
            f'first, less than a segment of {segment_length}, and spans that never reach beyond the '
            f'segment cannot grow; use {min(0.75, 3 * segment_length / fields["max_span"]):.2g}, or a '
            'larger max_span or ramp'
        ]
    if fields['capacity'] and fields['capacity'] < min(first, full_capacity(fields)):
        return [
            f'capacity = {fields["capacity"]}: entries are kept for {initial} tokens at first, so '
            'some would be dropped from the beginning; raise the capacity or lower initial_share'
        ]
    return []


def recipe(scale: Scale) -> Recipe:
    """Spans of `scale.reach`, a window of one segment, and spans that begin at three segments.

    The released settings begin at 3.2 segments, with a ramp of a quarter to half of one. Adam needs
    tens of tokens to cross, so short segments get a ramp of two.
    """
    segment = scale.segment
    fields = dict(
        max_span=scale.reach,
        ramp=max(segment // 4, min(64, 2 * segment), 1),
        position_length=segment,
        initial_share=min(0.75, 3 * segment / scale.reach),
    )
    if full_capacity(fields | {'limit': 0}) > CAPACITY:
        fields['capacity'] = max(CAPACITY, 2 * segment, scale.evaluated)
    elif full_capacity(fields | {'limit': 0}) < scale.evaluated:
        fields['capacity'] = scale.evaluated  # the last segment is always kept
    return Recipe({'expire_span': fields}, loss_weights={'expire_span': 1e-6})


def released(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Fields for the arguments of the released program."""
    span, block = settings['attn_lim'], settings['mem_sz']
    return dict(
        max_span=span,
        ramp=settings['expire_span_ramp'],
        capacity=span + settings['expire_span_ramp'] + block,
        position_length=block,
        pre_div=float(settings['expire_span_pre_div']),
        initial_share=float(settings['expire_span_init_percentage']),
        shorten=bool(settings['expire_span_noisy']),
        start='zeros',
        num_sizes=3,
    )


ENTRY = Entry(
    name='expire_span',
    layer=LayerType(
        ExpireSpan,
        check=check,
        shared=lambda fields: near_positions.shared_table(fields, 'position_length'),
        losses=lambda fields: ('expire_span',),
        reach=lambda fields, segment: reach(fields),
        fused=fused_spans.no_problem,
    ),
    recipe=Recipes(
        {'expire_span': recipe},
        check=check_training,
        trained={
            'max_span': 'spans are learned as shares of it, so another value would change all spans; to '
            'cut long spans in evaluation, set limit',
            'pre_div': 'the spans are learned with it',
        },
        warnings={
            'dropped': 'the buffer is full, and entries are dropped before their span is over; raise '
            'capacity, or loss_weights.expire_span to shorten spans'
        },
    ),
    graft=Graft(
        lambda scale, position: {},
        exact=False,
        how='projections and embeddings are kept; attention within learned spans must be tuned',
        positions='its own scores by distance; rotary ones are lost',
    ),
    released=ReleasedLayer(
        released,
        {
            'attn.attn.expire_span.span_predictor.weight': ('attention/span_kernel', 'flat'),
            'attn.attn.expire_span.span_predictor.bias': ('attention/span_bias', 'scalar'),
        },
        free=('capacity', 'initial_share', 'num_sizes', 'shorten'),
    ),
    view=View(held, read, series, lengths={'max_span': 'span '}, kept=kept),
    toy=dict(max_span=12, ramp=3, capacity=14, position_length=4, initial_share=0.4, num_sizes=2),
    variants=dict(
        zeros=dict(start='zeros', capacity=12, pre_div=2.0), blocks=dict(block_size=3, limit=9)
    ),
)
