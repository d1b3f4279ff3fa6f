"""Models of facebookresearch/transformer-sequential: conversion of settings, weights and gradients.

This is the released code of Expire-Span, Adaptive-Span and their baselines. All share a backbone: plain
learned embeddings, no absolute positions, untied output, one position table for all layers.
"""

from typing import Any

import numpy as np

from longmem_jax.config.base import base, stack
from longmem_jax.errors import UsageError

# theirs -> (ours, kind); layers carry 'layers.L.' and 'block_L/' before these.
_LAYER = {
    'attn.proj_query.weight': ('attention/projections/query/kernel', 'heads_in'),
    'attn.proj_key.weight': ('attention/projections/key/kernel', 'heads_in'),
    'attn.proj_val.weight': ('attention/projections/value/kernel', 'heads_in'),
    'attn.proj_out.weight': ('attention/projections/out/kernel', 'heads_out'),
    'attn.attn.expire_span.span_predictor.weight': ('attention/span_kernel', 'flat'),
    'attn.attn.expire_span.span_predictor.bias': ('attention/span_bias', 'scalar'),
    'attn.attn.adaptive_span.mask.size_ratio': ('attention/span_share', 'flat'),
    'ff.fc1.weight': ('feed_forward/up/kernel', 'linear'),
    'ff.fc1.bias': ('feed_forward/up/bias', 'plain'),
    'ff.fc2.weight': ('feed_forward/down/kernel', 'linear'),
    'ff.fc2.bias': ('feed_forward/down/bias', 'plain'),
    'norm1.weight': ('attention_norm/scale', 'plain'),
    'norm1.bias': ('attention_norm/bias', 'plain'),
    'norm2.weight': ('feed_forward_norm/scale', 'plain'),
    'norm2.bias': ('feed_forward_norm/bias', 'plain'),
}
_MODEL = {
    'in_emb.weight': ('embedding/table_0', 'plain'),
    'out.out_emb.weight': ('embedding/out_table_0', 'plain'),
    'out.out_emb.bias': ('embedding/out_bias_0', 'plain'),
    'out_norm.weight': ('final_norm/scale', 'plain'),
    'out_norm.bias': ('final_norm/bias', 'plain'),
}
_TABLE = 'attn.attn.key_pe'  # stored with the first layer, used by all


def _expire_span(settings: dict[str, Any]) -> dict[str, Any]:
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


def _adaptive_span(settings: dict[str, Any]) -> dict[str, Any]:
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


def _compressive(settings: dict[str, Any]) -> dict[str, Any]:
    rate = settings['compress_rate']
    return dict(
        memory_length=settings['attn_lim'],
        compressed_length=settings['compress_size'] // rate,
        rate=rate,
        compression='mean',
        reading='sliding',
        position='none',
        reconstruction='none',
        start='zeros',
    )


# Fields that the weights do not depend on: the config may set them freely.
FREE = (
    'expire_span.capacity',
    'expire_span.initial_share',
    'expire_span.num_sizes',
    'expire_span.shorten',
    'adaptive_span.initial_share',
    'adaptive_span.num_sizes',
    'adaptive_span.trim_memory',
)

LAYERS = {
    'expire_span': ('expire_span', _expire_span),
    'adaptive_span': ('adaptive_span', _adaptive_span),
    'compressive_mean': ('compressive', _compressive),
}


def model_config(settings: dict[str, Any], system: str) -> Any:
    """`config.model` of a released model.

    Args:
      system: 'expire_span', 'adaptive_span' (also their fixed span) or 'compressive_mean'.

    Raises:
      UsageError: `system` is none of these.
    """
    if system not in LAYERS:
        raise UsageError(f'system = {system!r}: allowed are {", ".join(LAYERS)}')
    name, fields = LAYERS[system]
    model = base().model
    stack(model, settings['nlayers'], name)
    model.vocab_size = settings['vocab_sz']
    model.d_model = model.d_embed = settings['hid_sz']
    model.num_heads, model.head_dim = settings['nheads'], settings['head_dim']
    model.d_feed_forward = settings['inner_hid_sz']
    model[name] = fields(settings)
    model.pre_norm = model.final_norm = bool(settings['pre_norm'])
    model.scale_embedding = model.tie_weights = False
    model.layer_drop = float(settings.get('expire_span_layerdrop', 0.0))
    return model


def our_path(name: str, model: Any) -> tuple[str, str]:
    """Our path of their tensor `name`, and its kind of layout."""
    if name in _MODEL:
        return _MODEL[name]
    layer, _, suffix = name.removeprefix('layers.').partition('.')
    if suffix == _TABLE and layer == '0':
        return f'shared_{model.attention[0]}/table', 'table'
    if suffix not in _LAYER:
        raise UsageError(f'{name}: not a parameter of a supported released model.')
    path, kind = _LAYER[suffix]
    return f'block_{layer}/{path}', kind


def _to_ours(array: np.ndarray, kind: str, model: Any) -> np.ndarray:
    """Their array in our layout."""
    heads = (model.num_heads, model.head_dim)
    if kind == 'heads_in':
        return array.T.reshape(-1, *heads)
    if kind == 'heads_out':
        return array.T.reshape(*heads, -1)
    if kind == 'linear':
        return array.T
    if kind == 'table':
        return array[0].T[::-1]
    return array.reshape({'flat': (-1,), 'scalar': (), 'plain': array.shape}[kind])


def import_parameters(theirs: dict[str, np.ndarray], model: Any) -> dict[str, Any]:
    """Our nested float32 parameters from theirs (torch names, Linear [out, in])."""
    params: dict[str, Any] = {}
    for name, array in theirs.items():
        path, kind = our_path(name, model)
        *parents, last = path.split('/')
        node = params
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = np.array(_to_ours(np.asarray(array, np.float32), kind, model), order='C')
    return params
