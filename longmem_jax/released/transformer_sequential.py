"""Models of facebookresearch/transformer-sequential: conversion of settings, weights and gradients.

The layers that its authors released there share a backbone: plain learned embeddings, no absolute
positions, untied output, one position table for all layers. What is a layer's own is in its entry.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from flax import traverse_util

from longmem_jax.config.base import base, stack
from longmem_jax.errors import UsageError, unknown
from longmem_jax.memory.registry import LAYERS as REGISTERED

# theirs -> (ours, kind); layers carry 'layers.L.' and 'block_L/' before these.
_LAYER = {
    'attn.proj_query.weight': ('attention/projections/query/kernel', 'heads_in'),
    'attn.proj_key.weight': ('attention/projections/key/kernel', 'heads_in'),
    'attn.proj_val.weight': ('attention/projections/value/kernel', 'heads_in'),
    'attn.proj_out.weight': ('attention/projections/out/kernel', 'heads_out'),
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


LAYERS = {name: entry.released for name, entry in REGISTERED.items() if entry.released}
# Fields that the weights do not depend on: the config may set them freely.
FREE = tuple(f'{name}.{field}' for name, layer in LAYERS.items() for field in layer.free)


def model_config(settings: Mapping[str, Any], name: str) -> Any:
    """`config.model` of a released model.

    Args:
      settings: the arguments it was trained with, by the names of the program.
      name: of our layer.

    Raises:
      UsageError: the program has no such layer.
    """
    if name not in LAYERS:
        raise UsageError(unknown('layer', name, LAYERS))
    model = base().model
    stack(model, settings['nlayers'], name)
    model.vocab_size = settings['vocab_sz']
    model.d_model = model.d_embed = settings['hid_sz']
    model.num_heads, model.head_dim = settings['nheads'], settings['head_dim']
    model.d_feed_forward = settings['inner_hid_sz']
    model[name] = LAYERS[name].fields(settings)
    model.pre_norm = model.final_norm = bool(settings['pre_norm'])
    model.scale_embedding = model.tie_weights = False
    rates = [rate for argument, rate in settings.items() if argument.endswith('_layerdrop')]
    model.layer_drop = float(rates[0]) if rates else 0.0
    return model


def our_path(name: str, model: Any) -> tuple[str, str]:
    """Our path of their tensor `name`, and its kind of layout."""
    if name in _MODEL:
        return _MODEL[name]
    layer, _, suffix = name.removeprefix('layers.').partition('.')
    if suffix == _TABLE and layer == '0':
        return f'shared_{model.attention[0]}/table', 'table'
    tensors = _LAYER | dict(LAYERS[model.attention[0]].tensors)
    if suffix not in tensors:
        raise UsageError(f'{name}: not a parameter of a supported released model.')
    path, kind = tensors[suffix]
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
    params = {}
    for name, array in theirs.items():
        path, kind = our_path(name, model)
        params[path] = np.array(_to_ours(np.asarray(array, np.float32), kind, model), order='C')
    return traverse_util.unflatten_dict(params, sep='/')
