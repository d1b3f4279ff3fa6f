"""Gated DeltaNet as layers of released decoders: Qwen3-Next, OLMo-Hybrid.

Both have heads and widths of their own for these layers, a short convolution, one gate per head, and no
norms of queries and keys; in `config.json` their attributes begin with `linear_`.
"""

from typing import Any

from longmem_jax.contract import Fields
from longmem_jax.host_layer import HostLayer

# Attribute of `config.json` to our field.
SIZES = dict(
    linear_num_key_heads='key_heads',
    linear_num_value_heads='value_heads',
    linear_key_head_dim='key_dim',
    linear_value_head_dim='value_dim',
    linear_conv_kernel_dim='convolution',
)


def _fields(attributes: Any, sizes: dict[str, int], **others: Any) -> dict[str, Any]:
    """The fields for these sizes, by attribute."""
    keys, values = sizes['linear_num_key_heads'], sizes['linear_num_value_heads']
    if values % keys:
        why = f'must be a multiple of linear_num_key_heads, which is {keys}'
        raise attributes.refusal('linear_num_value_heads', values, why)
    size = sizes['linear_conv_kernel_dim']
    if size < 2:
        raise attributes.refusal('linear_conv_kernel_dim', size, 'must be at least 2')
    named = {ours: sizes[theirs] for theirs, ours in SIZES.items()}
    return dict(gate='head', output_gate='silu', head_norm=False, **named, **others)


def _qwen3_next(attributes: Any, model: Any) -> dict[str, Any]:
    """The fields in Qwen3-Next."""
    defaults = dict(zip(SIZES, (16, 32, 128, 128, 4), strict=True))
    sizes = {name: attributes.number(name, int, value) for name, value in defaults.items()}
    return _fields(attributes, sizes, epsilon=model.norm_epsilon)


def _olmo_hybrid(attributes: Any, model: Any) -> dict[str, Any]:
    """The fields in OLMo-Hybrid, where sizes that are missing follow from those of the model."""
    sizes = {name: attributes.number(name, int, None) for name in tuple(SIZES)[:4]}
    keys = sizes['linear_num_key_heads'] or model.num_heads
    width = sizes['linear_key_head_dim'] or int(0.75 * model.d_model / keys)
    sizes = dict(
        linear_num_key_heads=keys,
        linear_num_value_heads=sizes['linear_num_value_heads'] or model.num_heads,
        linear_key_head_dim=width,
        linear_value_head_dim=sizes['linear_value_head_dim'] or 2 * width,
        linear_conv_kernel_dim=attributes.number('linear_conv_kernel_dim', int, 4),
    )
    turns = attributes.take('linear_allow_neg_eigval', bool, True)
    return _fields(attributes, sizes, negative_eigenvalues=turns, epsilon=1e-5)


def _write(fields: Fields) -> dict[str, Any]:
    """The attributes that both families have."""
    return {theirs: fields[ours] for theirs, ours in SIZES.items()}


_LAYER, _MAPS = 'attention/', 'attention/projections/'
_KERNELS = tuple(f'{_MAPS}{name}/kernel' for name in ('query', 'key', 'value'))
_CONVOLUTIONS = tuple(f'{_LAYER}{name}_convolution/kernel' for name in ('query', 'key', 'value'))
_HEADS, _OUT = '(h k) d -> d h k', 'd (h k) -> h k d'
_SHARED: list[tuple[Any, ...]] = [
    (
        'linear_attn.conv1d.weight',
        _CONVOLUTIONS,
        ' + '.join(['(h k) 1 s -> s h k'] * len(_CONVOLUTIONS)),
        ' + '.join(f'linear_attn.{name}_conv1d.weight' for name in 'qkv'),
    ),
    ('linear_attn.A_log', _LAYER + 'log_rate', 'h -> h'),
    ('linear_attn.dt_bias', _LAYER + 'decay_bias', 'h -> h'),
]


def _rows_of_qwen3_next(fields: Fields) -> list[tuple[Any, ...]]:
    """All maps in two tensors, with a block for every head of keys and the values that share it."""
    blocks = f' by {fields["key_heads"]}'
    return [
        *_SHARED,
        (
            'linear_attn.in_proj_qkvz.weight',
            (*_KERNELS, _LAYER + 'shown/kernel'),
            ' + '.join([_HEADS] * 4) + blocks,
        ),
        (
            'linear_attn.in_proj_ba.weight',
            (_LAYER + 'write', _LAYER + 'decay'),
            'h d -> d h + h d -> d h' + blocks,
        ),
        ('linear_attn.norm.weight', _LAYER + 'norm/scale', 'd -> d'),
        ('linear_attn.out_proj.weight', _MAPS + 'out/kernel', _OUT),
    ]


def _rows_of_olmo_hybrid(fields: Fields) -> list[tuple[Any, ...]]:
    """A tensor for every map; norms of these layers have names that attention has for others."""
    return [
        *_SHARED,
        *(
            (f'linear_attn.{name}_proj.weight', path, _HEADS)
            for name, path in zip('qkvg', (*_KERNELS, _LAYER + 'shown/kernel'), strict=True)
        ),
        ('linear_attn.b_proj.weight', _LAYER + 'write', 'h d -> d h'),
        ('linear_attn.a_proj.weight', _LAYER + 'decay', 'h d -> d h'),
        ('linear_attn.o_norm.weight', _LAYER + 'norm/scale', 'd -> d'),
        ('linear_attn.o_proj.weight', _MAPS + 'out/kernel', _OUT),
        (
            'input_layernorm.weight',
            'attention_norm/scale',
            'd -> d',
            'attention_layer_norm.weight',
        ),
        (
            'post_attention_layernorm.weight',
            'feed_forward_norm/scale',
            'd -> d',
            'feedforward_layer_norm.weight',
        ),
    ]


FAMILIES = {
    'qwen3_next': HostLayer(_qwen3_next, _write, _rows_of_qwen3_next),
    'olmo_hybrid': HostLayer(
        _olmo_hybrid,
        lambda fields: _write(fields) | {'linear_allow_neg_eigval': fields['negative_eigenvalues']},
        _rows_of_olmo_hybrid,
    ),
}
