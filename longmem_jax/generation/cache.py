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
from longmem_jax.models.stack import context_of, has_table, is_plain, longest_of

# A segment that holds a whole text has room for a multiple of this: several texts, which are read with
# one program, and one, whose program serves others of other lengths.
ROOM, ROOM_OF_ONE = 64, 256


def has_cache(config: Any) -> bool:
    """Whether a layer of a `config.model` has a decoder's key-value cache for its memory."""
    entries = (LAYERS.get(name) for name in config.attention)
    return any(entry is not None and entry.layer.context is not None for entry in entries)


def for_texts(model: LanguageModel, longest: int, *, in_one_segment: int = 0) -> LanguageModel:
    """The same model with a cache for texts of `longest` tokens: all numbers are the same for these.

    Args:
      longest: tokens of the longest text.
      in_one_segment: number of texts at a time that a plain decoder keeps in the open segment alone, if
        all its layers see all of them: half of what it keeps with segments before. Its memories hold
        nothing then. 0 = it reads segments.
    """
    if not has_cache(model.config):
        return model
    length = model.segment_length
    if in_one_segment and 0 < longest <= (most := _shortest_view(model.config)):
        room = ROOM if in_one_segment > 1 else ROOM_OF_ONE
        length = min(-(-longest // room) * room, most)
    # What is read before the segment of the last token.
    tokens = max(longest - 1, 0) // length * longest_of(model.config, length)
    # `as_configdict` is no copy: a change of it would be one of the model, which programs are kept by.
    config = model.config.to_dict() | {'cache_tokens': max(tokens, 1)}
    return model.clone(config=ml_collections.FrozenConfigDict(config), segment_length=length)


def _shortest_view(config: Any) -> int:
    """Tokens of the longest text that all layers of a plain decoder see all of.

    0 = it is not plain, or its numbers depend on where segments begin.
    """
    restarts = config.position != 'none' and not has_table(config)
    if not is_plain(config) or restarts:
        return 0
    if any(config[name].position == 'alibi_beyond' for name in {*config.attention}):
        return 0
    shortest = min(config[name].window for name in {*config.attention})
    return min(shortest, context_of(config) or shortest)


def num_tokens(config: Any) -> int:
    """Tokens that the longest cache of a `config.model` has room for before a segment."""
    windows = [config[name].window for name in {*config.attention} if LAYERS[name].layer.context]
    return min(max(windows), config.cache_tokens or max(windows))


def in_words(model: nn.Module, lanes: int, *, drawn: bool = False) -> str:
    """What the caches of `lanes` texts take: 'cache: 512 tokens x 8 texts, float32, 0.94 GB'.

    `drawn`: with the open segment of texts that are continued, and what it reads of the cache.
    """
    params, config = unbox(abstract_parameters(model)), model.config

    def arrays(params: Any) -> Any:
        bound = model.bind({'params': params})
        state = bound.initial_state(lanes)
        return state, bound.open_segment(state, lanes) if drawn else None

    held = jax.tree.leaves(jax.eval_shape(arrays, params))
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in held)
    number = num_tokens(config)
    if drawn:  # one is the least that a cache has
        number = model.segment_length + (number if number > 1 else 0)
    dtype, tokens = config.cache_dtype or config.dtype, number_of(number, 'token')
    return f'cache: {tokens} x {number_of(lanes, "text")}, {dtype}, {in_bytes(size)}'


def in_bytes(size: int) -> str:
    """'1 byte', '999 bytes', '1.00 kB', with a unit that two decimals do not round to 1,000 of it."""
    for unit, name in ((1e9, 'GB'), (1e6, 'MB'), (1e3, 'kB')):
        if size >= 0.999995 * unit:
            return f'{size / unit:,.2f} {name}'
    return number_of(size, 'byte')
