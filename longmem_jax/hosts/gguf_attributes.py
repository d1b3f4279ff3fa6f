"""The metadata of a GGUF file as the attributes of a Hugging Face `config.json`.

Every setting of the architecture is used, checked, or refused by its name.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from longmem_jax.errors import UsageError, unknown
from longmem_jax.hosts.attributes import Attributes
from longmem_jax.untrusted.gguf_file import Header
from longmem_jax.untrusted.schema import shown

_ROTARY = {
    'block_count': ('num_hidden_layers', int),
    'context_length': ('max_position_embeddings', int),
    'embedding_length': ('hidden_size', int),
    'feed_forward_length': ('intermediate_size', int),
    'attention.head_count': ('num_attention_heads', int),
    'attention.layer_norm_rms_epsilon': ('rms_norm_eps', float),
}
_GPT2 = {
    'block_count': ('n_layer', int),
    'context_length': ('n_positions', int),
    'embedding_length': ('n_embd', int),
    'feed_forward_length': ('n_inner', int),
    'attention.head_count': ('n_head', int),
    'attention.layer_norm_epsilon': ('layer_norm_epsilon', float),
}
# Architecture of the file, which is the `model_type` too, to its settings: attribute and type.
ARCHITECTURES = {'llama': _ROTARY, 'qwen2': _ROTARY, 'qwen3': _ROTARY, 'gpt2': _GPT2}
# Settings that change nothing here.
HARMLESS = ('vocab_size', 'rope.scaling.finetuned', 'tensor_data_layout', 'expert_used_count')
SCALINGS = ('linear', 'yarn')
TABLE, HEAD, FREQUENCIES = 'token_embd.weight', 'output.weight', 'rope_freqs.weight'
# The bands of Llama 3's scaling, and the context before it, are the same in all releases. A file has
# only the factors by frequency that follow from them.
LLAMA3 = dict(low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192)


def attributes_of(header: Header, path: Path, frequencies: np.ndarray | None) -> dict[str, Any]:
    """The attributes, to be checked like any others by `model_fields.model_of`.

    Args:
      header: of the file.
      path: for messages.
      frequencies: the tensor `FREQUENCIES`, float32 [head_dim / 2]; None if the file has none.

    Raises:
      UsageError: another architecture, a setting that is missing or not supported.
    """
    metadata = header.metadata
    kind = metadata.get('general.architecture')
    if metadata.get('general.type', 'model') != 'model':
        raise UsageError(f'{path}: general.type = {shown(metadata["general.type"])}, not a model.')
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        raise UsageError(f'{path}: {unknown("general.architecture", kind, ARCHITECTURES)}.')
    if TABLE not in header.tensors:
        raise UsageError(f'{path}: has no tensor {TABLE}; give the file of a whole model.')
    start = f'{kind}.'
    left = Attributes(
        {n.removeprefix(start): v for n, v in metadata.items() if n.startswith(start)},
        f'{path}: {kind}',
    )
    given: dict[str, Any] = dict(
        model_type=kind,
        vocab_size=header.tensors[TABLE].shape[0],
        tie_word_embeddings=HEAD not in header.tensors,
        dtype='float32',
    )
    for name, (theirs, number) in ARCHITECTURES[kind].items():
        given[theirs] = _plain(left.number(name, number))
    if kind != 'gpt2':
        _complete(given, left)
        given |= _scaling(given, left, frequencies)
    if kind == 'llama':
        given['attention_bias'] = 'blk.0.attn_q.bias' in header.tensors
        given['mlp_bias'] = 'blk.0.ffn_up.bias' in header.tensors
    for name in HARMLESS:
        left.take(name, object, None)
    left.finish()
    return given


def _plain(value: Any) -> Any:
    """A number as it is written: 32 bits of .00001 are .00001, not .00000999999974."""
    if not isinstance(value, float):
        return value
    with np.errstate(over='ignore'):
        return float(str(np.float32(value)))


def _complete(given: dict[str, Any], left: Attributes) -> None:
    """Adds what rotary models may leave out."""
    heads, width = given['num_attention_heads'], given['hidden_size']
    given['num_key_value_heads'] = left.number('attention.head_count_kv', int, heads)
    given['head_dim'] = left.number('attention.key_length', int, width // heads)
    given['rope_theta'] = _plain(left.number('rope.freq_base', float, 10000.0))
    left.require('attention.value_length', given['head_dim'])
    left.require('rope.dimension_count', given['head_dim'])
    left.require('expert_count', 0)


def _scaling(
    given: Mapping[str, Any], left: Attributes, frequencies: np.ndarray | None
) -> dict[str, Any]:
    """The attribute `rope_scaling`, if there is any scaling."""
    kind = left.take('rope.scaling.type', str, 'none')
    if kind not in ('none', *SCALINGS) or (kind != 'none' and frequencies is not None):
        why = f'none, {", ".join(SCALINGS)} are supported, and none beside {FREQUENCIES}'
        raise left.refusal('rope.scaling.type', kind, why)
    if frequencies is not None:
        return dict(rope_scaling=_llama3(given, left.source, frequencies))
    if kind == 'none':
        return {}
    scaling = dict(rope_type=kind, factor=_plain(left.number('rope.scaling.factor', float)))
    original = left.number('rope.scaling.original_context_length', int, None)
    if original and kind == 'yarn':
        scaling['original_max_position_embeddings'] = original
    return dict(rope_scaling=scaling)


def _llama3(given: Mapping[str, Any], where: str, frequencies: np.ndarray) -> dict[str, Any]:
    """The scaling of Llama 3 that gives these factors; they divide the frequencies of the rotations."""
    half = len(frequencies)
    exponents = np.arange(half) / half
    turns = (
        LLAMA3['original_max_position_embeddings'] / math.tau * given['rope_theta'] ** -exponents
    )
    low, high = LLAMA3['low_freq_factor'], LLAMA3['high_freq_factor']
    share = np.clip((turns - low) / (high - low), 0, 1)
    factor = float(frequencies.max())
    with np.errstate(all='ignore'):
        wanted = 1 / ((1 - share) / factor + share)
        same = np.allclose(frequencies, wanted, rtol=1e-3)
    if not same or half != given['head_dim'] // 2:
        raise UsageError(f'{where} with {FREQUENCIES}: only the factors of Llama 3 are supported.')
    return dict(rope_type='llama3', factor=_plain(factor), **LLAMA3)
