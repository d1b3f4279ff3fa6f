"""Conversion of the authors' PyTorch Transformer-XL (`MemTransformerLM`, attention type 0).

Names and layouts are those of their `state_dict`; files are read as safetensors, never pickle.
"""

import re
from collections.abc import Mapping
from typing import Any

import ml_collections
import numpy as np
from flax import traverse_util

from longmem_jax.config.base import base
from longmem_jax.errors import UsageError

# Its layer type here, whose lengths and biases the weights fit or do not depend on.
LAYER = 'transformer_xl'
FREE = (LAYER,)


def model_config(settings: Mapping[str, Any]) -> ml_collections.ConfigDict:
    """`config.model` for the authors' arguments.

    Args:
      settings: `n_token, n_layer, n_head, d_model, d_head, d_inner, mem_len` and, if used,
        `d_embed, tie_weight, cutoffs, div_val, tie_projs, pre_lnorm, same_length, clamp_len,
        dropout, dropatt`, named as in their code.

    Raises:
      UsageError: settings that cannot be imported.
    """
    values = dict(settings)
    if values.get('attn_type', 0) != 0 or values.get('ext_len', 0) != 0:
        raise UsageError('Only models with attn_type 0 and ext_len 0 can be imported.')
    cutoffs = tuple(values.get('cutoffs', ()))
    d_model = values['d_model']
    clamp = values.get('clamp_len', -1)
    tied = values.get('tie_projs') or [False] * (len(cutoffs) + 1)
    num_layers = values['n_layer']
    model = base().model
    model.update(
        dict(
            vocab_size=values['n_token'],
            num_layers=num_layers,
            d_model=d_model,
            d_embed=values.get('d_embed') or d_model,
            num_heads=values['n_head'],
            head_dim=values['d_head'],
            d_feed_forward=values['d_inner'],
            attention=('transformer_xl',) * num_layers,
            feed_forward=('dense',) * num_layers,
            transformer_xl=dict(
                memory_length=values['mem_len'],
                same_length=bool(values.get('same_length', False)),
                clamp_length=max(clamp, 0),
                position='transformer_xl',
                share_biases=True,
                block_size=0,
            ),
            dense=dict(activation='relu', bias=True),
            norm='layernorm',
            pre_norm=bool(values.get('pre_lnorm', False)),
            final_norm=False,
            scale_embedding=True,
            tie_weights=bool(values.get('tie_weight', True)),
            cutoffs=cutoffs,
            div_val=values.get('div_val', 1),
            tie_projections=tuple(bool(flag) for flag in tied),
            dropout=float(values.get('dropout', 0.0)),
            attention_dropout=float(values.get('dropatt', 0.0)),
        )
    )
    return model


def names(model: Any) -> dict[str, tuple[str, str]]:
    """Their name -> (our path, layout) for every parameter of a model.

    Layouts: 'same', 'transposed' (Linear [out, in] to [in, out]), 'heads_in' (three of them stacked
    in `qkv_net` become query, key and value), 'heads_out'.
    """
    projected = model.div_val > 1 or model.d_embed != model.d_model
    tables = len(model.cutoffs) + 1 if model.div_val > 1 else 1
    xl = 'shared_transformer_xl'
    paths = {'r_w_bias': (f'{xl}/content', 'same'), 'r_r_bias': (f'{xl}/position', 'same')}
    for i in range(tables):
        paths[f'word_emb.emb_layers.{i}.weight'] = (f'embedding/table_{i}', 'same')
        paths[f'crit.out_layers.{i}.bias'] = (f'embedding/out_bias_{i}', 'same')
        if not model.tie_weights:
            paths[f'crit.out_layers.{i}.weight'] = (f'embedding/out_table_{i}', 'same')
        if projected:
            paths[f'word_emb.emb_projs.{i}'] = (f'embedding/projection_{i}', 'transposed')
    if projected:
        for i, tied in enumerate(model.tie_projections):
            if not tied:
                paths[f'crit.out_projs.{i}'] = (f'embedding/out_projection_{i}', 'transposed')
    if len(model.cutoffs):
        paths['crit.cluster_weight'] = ('embedding/cluster_table', 'same')
        paths['crit.cluster_bias'] = ('embedding/cluster_bias', 'same')
    for i in range(model.num_layers):
        theirs, ours = f'layers.{i}', f'block_{i}'
        attention = f'{ours}/attention'
        projections = f'{attention}/projections'
        for part, norm in (('dec_attn', 'attention_norm'), ('pos_ff', 'feed_forward_norm')):
            paths[f'{theirs}.{part}.layer_norm.weight'] = (f'{ours}/{norm}/scale', 'same')
            paths[f'{theirs}.{part}.layer_norm.bias'] = (f'{ours}/{norm}/bias', 'same')
        paths[f'{theirs}.dec_attn.qkv_net.weight'] = (projections, 'heads_in')
        paths[f'{theirs}.dec_attn.r_net.weight'] = (
            f'{attention}/attention/relation/project/kernel',
            'heads_in',
        )
        paths[f'{theirs}.dec_attn.o_net.weight'] = (f'{projections}/out/kernel', 'heads_out')
        for index, layer in ((0, 'up'), (3, 'down')):
            core = f'{theirs}.pos_ff.CoreNet.{index}'
            paths[f'{core}.weight'] = (f'{ours}/feed_forward/{layer}/kernel', 'transposed')
            paths[f'{core}.bias'] = (f'{ours}/feed_forward/{layer}/bias', 'same')
    return paths


def _heads_in(weight: np.ndarray, model: Any) -> np.ndarray:
    """[heads * head_dim, d_model] to [d_model, heads, head_dim]."""
    return weight.T.reshape(model.d_model, model.num_heads, model.head_dim)


def import_parameters(theirs: Mapping[str, np.ndarray], model: Any) -> dict[str, Any]:
    """Our parameters, a nested dictionary of float32 arrays, from theirs.

    Raises:
      UsageError: missing or unknown names.
    """
    paths = names(model)
    # Buffers and tied copies that a state_dict also holds.
    ignored = re.compile(r'pos_emb\.inv_freq|crit\.out_(layers|projs)\.\d+(\.weight)?$')
    missing = sorted(set(paths) - set(theirs))
    extra = sorted(name for name in set(theirs) - set(paths) if not ignored.match(name))
    if missing or extra:
        raise UsageError(
            f'Not a Transformer-XL checkpoint of these settings: missing {missing}, '
            f'unknown {extra}.'
        )
    params = {}
    for name, (path, layout) in paths.items():
        value = np.asarray(theirs[name])
        if layout == 'heads_in' and name.endswith('qkv_net.weight'):
            of = ('query', 'key', 'value')
            for projection, weight in zip(of, np.split(value, 3), strict=True):
                params[f'{path}/{projection}/kernel'] = _heads_in(weight, model)
        elif layout == 'heads_in':
            params[path] = _heads_in(value, model)
        elif layout == 'heads_out':
            params[path] = value.T.reshape(model.num_heads, model.head_dim, model.d_model)
        else:
            params[path] = value.T if layout == 'transposed' else value
    params = {path: np.asarray(value, np.float32) for path, value in params.items()}
    return traverse_util.unflatten_dict(params, sep='/')
