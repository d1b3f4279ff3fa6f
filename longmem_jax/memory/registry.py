"""The names that `config.model.attention` and `config.model.feed_forward` may hold.

Adding a memory: its file, one line here, one config. The conformance suite and the checks of
configs pick it up from here.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from longmem_jax.layers import feed_forward
from longmem_jax.layers.near_positions import shared_table
from longmem_jax.layers.relative_position import RelativeBiases
from longmem_jax.memory import (
    adaptive_span,
    infini,
    linear_attention,
    local,
    memory_tokens,
    memsizer,
    product_key,
    transformer_xl,
)
from longmem_jax.memory.compressive import layer as compressive_transformer
from longmem_jax.memory.expire_span import layer as expire_span
from longmem_jax.memory.infinity_former import layer as infinity_former
from longmem_jax.memory.memorizing import layer as memorizing
from longmem_jax.memory.memorizing import normalized_attention
from longmem_jax.memory.memorizing import without_memory as normalized_xl

# Attributes that the model gives; all others are fields of the sub-config.
GIVEN = ('settings', 'normalize', 'shared', 'parent', 'name')


@dataclasses.dataclass(frozen=True)
class Entry:
    """One layer type.

    Attributes:
      layer: its linen module, see `memory.contract.MemoryLayer`.
      example: a complete small sub-config, with which the conformance suite runs.
      check: `(fields, config.model, segment_length) -> faults` of a sub-config; None = nothing to
        check.
      losses: `fields -> names` in its `Aux.losses`, each with a weight in
        `config.train.loss_weights`.
      more: changes of `example`, by name, with which the suite runs too.
      shared: `fields -> module class` of parameters shared by all layers of this type, or None.
      around: module class of rows that are put around a segment, and its fields; or None.
    """

    layer: type
    example: dict[str, Any]
    check: Callable[[Any, Any, int], list[str]] | None = None
    shared: Callable[[Any], Any] | None = None
    losses: Callable[[Any], tuple[str, ...]] = lambda fields: ()
    more: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    around: tuple[type, tuple[str, ...]] | None = None

    def fields(self) -> dict[str, Any]:
        """Names and types of the fields of the sub-config."""
        return {
            field.name: field.type
            for field in dataclasses.fields(self.layer)
            if field.name not in GIVEN
        }


def _xl_shared(fields):
    wanted = fields.get('share_biases', True) and fields['position'] == 'transformer_xl'
    return RelativeBiases if wanted else None


ATTENTION = {
    'local': Entry(local.Local, dict(position='rotary')),
    'transformer_xl': Entry(
        transformer_xl.TransformerXL,
        dict(
            memory_length=6,
            same_length=False,
            clamp_length=0,
            position='transformer_xl',
            share_biases=True,
            block_size=0,
        ),
        check=transformer_xl.check,
        shared=_xl_shared,
    ),
    'adaptive_span': Entry(
        adaptive_span.AdaptiveSpan,
        dict(
            max_span=8,
            ramp=3,
            per='head',
            initial_share=0.3,
            start='empty',
            trim_memory=False,
            num_sizes=2,
        ),
        check=adaptive_span.check,
        losses=lambda fields: () if fields['per'] == 'none' else ('adaptive_span',),
        shared=lambda fields: shared_table(fields, 'max_span'),
        more=dict(trimmed=dict(start='zeros', per='layer', trim_memory=True)),
    ),
    'compressive': Entry(
        compressive_transformer.CompressiveTransformer,
        dict(
            memory_length=6,
            compressed_length=3,
            rate=2,
            compression='convolution',
            reading='segment',
            position='transformer_xl',
            reconstruction='attention',
            start='empty',
        ),
        check=compressive_transformer.check,
        losses=lambda fields: () if fields['reconstruction'] == 'none' else ('compression',),
        shared=compressive_transformer.shared,
        more=dict(
            sliding=dict(
                compression='mean', reading='sliding', position='none', reconstruction='none'
            ),
            most_used=dict(compression='most_used', reconstruction='none', position='rotary'),
        ),
    ),
    'expire_span': Entry(
        expire_span.ExpireSpan,
        dict(
            max_span=12,
            ramp=3,
            capacity=14,
            position_length=4,
            pre_div=1.0,
            initial_share=0.4,
            shorten=False,
            start='empty',
            num_sizes=2,
        ),
        check=expire_span.check,
        losses=lambda fields: ('expire_span',),
        shared=lambda fields: shared_table(fields, 'position_length'),
        more=dict(zeros=dict(start='zeros', capacity=12, pre_div=2.0)),
    ),
}

ATTENTION['infinity_former'] = Entry(
    infinity_former.InfinityFormer,
    dict(
        memory_length=3,
        position='rotary',
        num_basis=8,
        widths=(0.15, 0.3),
        num_samples=8,
        tau=0.5,
        ridge=0.5,
        sigma_sq_min=1e-4,
        density='gaussian',
        padding=True,
        write_length=5,
        memory_threshold=0,
        threshold_kind='fill',
        sticky='sampled',
        num_bins=16,
        kl='true',
        sigma_0=0.05,
    ),
    check=infinity_former.check,
    shared=_xl_shared,
    losses=lambda fields: () if fields['kl'] == 'none' else ('kl',),
    more=dict(
        no_short_memory=dict(memory_length=0, sticky='quantile', density='parabola'),
        clearing=dict(memory_threshold=10, threshold_kind='clear', sticky='none', kl='none'),
    ),
)

ATTENTION['infini'] = Entry(
    infini.InfiniAttention,
    dict(
        position='rotary',
        num_kv_heads=0,
        features='elu',
        rule='delta',
        normalizer='sum',
        guard='clamp',
        epsilon=1e-6,
        gate_init=0.0,
        skip_gate_when_empty=False,
        rotate_memory=False,
        scale_scores=True,
        gradients=True,
    ),
    check=infini.check,
    more=dict(
        linear_grouped=dict(rule='linear', num_kv_heads=1, rotate_memory=True, gradients=False),
        sequential=dict(
            features='normalized',
            rule='delta_sequential',
            normalizer='none',
            position='t5',
            skip_gate_when_empty=True,
        ),
    ),
)

_NORMALIZED = dict(
    position='t5', memory_length=4, window=0, attend_self=True, start='empty', scale_init=1.0
)

ATTENTION['normalized_xl'] = Entry(
    normalized_xl.NormalizedXL, _NORMALIZED, check=normalized_attention.check
)

ATTENTION['memorizing'] = Entry(
    memorizing.Memorizing,
    _NORMALIZED
    | dict(
        memory_size=12,
        top_k=3,
        search='exact',
        recall_target=0.95,
        block_size=4,
        cache_dtype='float32',
        unwritten='masked',
        gate_init=0.0,
    ),
    check=memorizing.check,
    more=dict(
        released=dict(
            search='bucketed', unwritten='zeros', start='zeros', attend_self=False, window=5
        ),
        int8=dict(cache_dtype='int8', memory_length=0, position='none', block_size=12),
    ),
)

ATTENTION['linear'] = Entry(
    linear_attention.LinearAttention,
    dict(
        features='elu',
        size=6,
        tau=1.0,
        random='normal',
        redraw=False,
        seed=0,
        learned_scale=True,
        gate=False,
        guard='add',
        epsilon=1e-6,
        bias=True,
        chunk=3,
        carry=True,
        gradients=True,
    ),
    check=linear_attention.check,
    more=dict(
        rfa_gate=dict(features='rfa', random='orthogonal', gate=True, guard='clamp', epsilon=1.0),
        t2r=dict(features='t2r', guard='clamp', epsilon=0.01, chunk=16, gradients=False),
    ),
)

ATTENTION['memsizer'] = Entry(
    memsizer.MemSizer,
    dict(num_slots=4, bias=True, chunk=3, carry=True, gradients=True),
    check=memsizer.check,
    more=dict(paper=dict(bias=False, chunk=8, gradients=False)),
)

ATTENTION['memory_tokens'] = Entry(
    memory_tokens.MemoryTokensLayer,
    dict(
        num_tokens=2,
        at_end=True,
        carry=True,
        gradients=True,
        read_cache=False,
        look_ahead='nearest',
        memory_length=6,
        same_length=False,
        clamp_length=0,
        position='transformer_xl',
    ),
    check=memory_tokens.check,
    shared=_xl_shared,
    around=(memory_tokens.MemoryTokens, ('num_tokens', 'at_end', 'carry', 'gradients')),
    more=dict(
        leading=dict(at_end=False, carry=False, same_length=True, read_cache=True),
        recurrent=dict(memory_length=0, position='rotary', gradients=False),
    ),
)

FEED_FORWARD = {
    'dense': Entry(
        feed_forward.Dense, dict(activation='relu', bias=True), check=feed_forward.check
    ),
}

FEED_FORWARD['product_key'] = Entry(
    product_key.ProductKeyMemory,
    dict(
        num_keys=6,
        num_heads=2,
        top_k=3,
        query_dim=8,
        query_hidden=(),
        query_norm='batch',
        normalize_query=False,
        temperature=1.0,
        keys='product',
        chunk=0,
    ),
    check=product_key.check,
    more=dict(
        flat=dict(keys='flat', num_keys=10, query_hidden=(12,), query_norm='layer', chunk=4),
    ),
)

LAYERS = {**ATTENTION, **FEED_FORWARD}
