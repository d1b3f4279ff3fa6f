"""The key-value cache of a plain decoder: as long as the texts of a run need, and what it takes.

A decoder's window says how far its tokens see, often 32,768 tokens and more. Its cache needs room for
what is read before the last segment of the longest text, which is less for most texts.
"""

from typing import Any

import flax.linen as nn
import jax
import ml_collections

from longmem_jax.errors import number_of
from longmem_jax.memory.registry import LAYERS
from longmem_jax.models.language_model import LanguageModel
from longmem_jax.models.parameters import abstract_parameters, unbox
from longmem_jax.models.stack import longest_of


def has_cache(config: Any) -> bool:
    """Whether a layer of a `config.model` has a decoder's key-value cache for its memory."""
    entries = (LAYERS.get(name) for name in config.attention)
    return any(entry is not None and entry.layer.context is not None for entry in entries)


def for_texts(model: LanguageModel, longest: int) -> LanguageModel:
    """The same model with a cache for texts of `longest` tokens: all numbers are the same for these."""
    if not has_cache(model.config):
        return model
    # What is read before the segment of the last token.
    length = model.segment_length
    tokens = max(longest - 1, 0) // length * longest_of(model.config, length)
    # `as_configdict` is no copy: a change of it would be one of the model, which programs are kept by.
    config = model.config.to_dict() | {'cache_tokens': max(tokens, 1)}
    return model.clone(config=ml_collections.FrozenConfigDict(config))


def num_tokens(config: Any) -> int:
    """Tokens that the longest cache of a `config.model` has room for."""
    windows = [config[name].window for name in {*config.attention} if LAYERS[name].layer.context]
    return min(max(windows), config.cache_tokens or max(windows))


def in_words(model: nn.Module, lanes: int) -> str:
    """What the caches of `lanes` texts take: 'cache: 512 tokens x 8 texts, float32, 0.94 GB'."""
    params = unbox(abstract_parameters(model))
    state = jax.eval_shape(
        lambda params: model.apply({'params': params}, lanes, method='initial_state'), params
    )
    config = model.config
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    dtype = config.cache_dtype or config.dtype
    tokens, texts = number_of(num_tokens(config), 'token'), number_of(lanes, 'text')
    return f'cache: {tokens} x {texts}, {dtype}, {in_bytes(size)}'


def in_bytes(size: int) -> str:
    """'1 byte', '999 bytes', '1.00 kB', with a unit that two decimals do not round to 1,000 of it."""
    for unit, name in ((1e9, 'GB'), (1e6, 'MB'), (1e3, 'kB')):
        if size >= 0.999995 * unit:
            return f'{size / unit:,.2f} {name}'
    return number_of(size, 'byte')
