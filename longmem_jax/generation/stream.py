"""Reading documents token by token, with the same numbers as reading whole segments.

Memories are written at segment borders, so a stream holds the memories at the start of the open
segment, and the caches of the tokens since. What is known of the open segment is read at once.
"""

import functools
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from longmem_jax import stopping
from longmem_jax.generation.lanes import (
    lane_by_lane,
    lane_by_lane_in_place,
    lane_of,
    one_by_one,
    with_lane,
)
from longmem_jax.in_place import reset_lanes
from longmem_jax.models.language_model import LanguageModel
from longmem_jax.models.stack import is_plain
from longmem_jax.segment import select_lanes


class Stream(flax.struct.PyTreeNode):
    """Documents being read; every leaf [batch, ...].

    Attributes:
      state: memories at the start of the open segment.
      cache: what the open segment reads and will write.
      index: int32 [batch], tokens of the document in the open segment read so far.
      begin: int32 [batch], position of the first of them in the segment: 0 unless a document started
        inside it. The segment is full after `segment_length - begin` tokens.
    """

    state: Any
    cache: Any
    index: jax.Array
    begin: jax.Array


def open_stream(model: LanguageModel, params: Any, state: Any, batch_size: int) -> Stream:
    """Begins a segment after the memories `state` (every leaf [batch_size, ...])."""
    cache = model.apply({'params': params}, state, batch_size, method='open_segment')
    zeros = jnp.zeros((batch_size,), jnp.int32)
    return Stream(state, cache, zeros, zeros)


# Tokens of an open segment that a plain decoder reads at once: it may be as long as the text.
PIECE = 512


def room(longest: int, most: int) -> int:
    """How many tokens, at most `most`, a program takes that reads up to `longest` at once.

    There are few such programs, one per power of two and one between; below a third is padding.
    """
    sizes = (size << doublings for doublings in range(32) for size in (8, 12))
    return min(next(size for size in sizes if size >= longest), most)


def read_open_segment(
    model: LanguageModel, params: Any, state: Any, tokens: np.ndarray, counts: np.ndarray
) -> tuple[jax.Array, Stream]:
    """Begins a segment and reads its first tokens: all at once, or in pieces where all are many.

    Args:
      state: memories before the segment, every leaf [batch, ...]; donated, the stream has them.
      tokens: int32 [batch, n], n at most a segment.
      counts: int32 [batch], the first `counts` are tokens, the others padding.

    Returns:
      float32 logits [batch, vocab_size] of the following token, without meaning where there are no
      tokens, and the stream.
    """
    count, length = tokens.shape[1], model.segment_length
    first = room(count, min(length, PIECE) if is_plain(model.config) else length)
    padded = np.pad(tokens.astype(np.int32), [(0, 0), (0, max(first - count, 0))])
    logits, stream = _read_first(model, params, state, padded[:, :first], np.minimum(counts, first))
    for start in range(first, count, PIECE):
        size = room(min(count - start, PIECE), min(PIECE, length))
        # Where a piece with its padding does not fit, some tokens are read twice.
        begin = min(start, length - size)
        piece = np.zeros((tokens.shape[0], size), np.int32)
        piece[:, : count - begin] = tokens[:, begin : begin + size]
        stopping.poll()
        logits, stream = _read_next(
            model, params, logits, stream, piece, np.clip(counts - begin, 0, size), np.int32(begin)
        )
    return logits, stream


@functools.partial(jax.jit, static_argnums=0, donate_argnums=2)
def _read_first(
    model: LanguageModel, params: Any, state: Any, tokens: jax.Array, counts: jax.Array
) -> tuple[jax.Array, Stream]:
    """Opens a segment and reads its first tokens at once; see `read_open_segment`."""

    def read(state: Any, tokens: jax.Array, counts: jax.Array) -> tuple[jax.Array, Any]:
        cache = open_stream(model, params, state, tokens.shape[0]).cache
        logits, cache = model.apply({'params': params}, tokens, cache, 0, counts, method='extend')
        return logits[:, 0].astype(jnp.float32), cache

    logits, cache = lane_by_lane(read, tokens.shape[1], state, tokens, counts)
    return logits, Stream(state, cache, counts, jnp.zeros_like(counts))


@functools.partial(jax.jit, static_argnums=0, donate_argnums=(2, 3))
def _read_next(
    model: LanguageModel,
    params: Any,
    logits: jax.Array,
    stream: Stream,
    tokens: jax.Array,
    counts: jax.Array,
    begin: jax.Array,
) -> tuple[jax.Array, Stream]:
    """Reads the next `counts` of a piece, int32 [batch, n], that begins at the same place in all lanes.

    Lanes without tokens keep their `logits`.
    """

    def read(lanes: Any, tokens: jax.Array, counts: jax.Array) -> Any:
        before, cache = lanes
        after, cache = model.apply(
            {'params': params}, tokens, cache, begin, counts, method='extend'
        )
        after = jnp.where((counts > 0)[:, None], after[:, 0].astype(jnp.float32), before)
        return after, cache

    lanes = lane_by_lane_in_place(read, tokens.shape[1], (logits, stream.cache), tokens, counts)
    index = jnp.maximum(stream.index, jnp.where(counts > 0, begin + counts, 0))
    return lanes[0], stream.replace(cache=lanes[1], index=index)


def close_stream(model: LanguageModel, params: Any, stream: Stream) -> Any:
    """Writes the tokens of the open segment to the memories and returns the memories."""
    return model.apply(
        {'params': params}, stream.state, stream.cache, stream.index, method='close_segment'
    )


def read_token(
    model: LanguageModel,
    params: Any,
    tokens: jax.Array,
    stream: Stream,
    start: jax.Array | None = None,
    *,
    in_turn: bool | None = None,
) -> tuple[jax.Array, Stream]:
    """Reads the next token of every lane; a lane whose segment is full writes it first.

    Args:
      tokens: int32 [batch].
      start: bool [batch]; a new document begins with this token, so the memories are reset first.
        The segment ends where it would have ended, as in `segment.split_at_starts`. None = in no lane.
      in_turn: lanes begin their segments one after the other; None = on CPUs, see `lanes`.

    Returns:
      logits [batch, vocab_size] of the following token, and the stream.
    """
    full = stream.begin + stream.index == model.segment_length
    opens = full if start is None else full | start

    def all_at_once(carry: tuple[jax.Array, Stream]) -> tuple[jax.Array, Stream]:
        _, stream = carry
        opened = _next_segment(model, params, stream, start)
        return jnp.bool_(False), select_lanes(opens, opened, stream)

    def one_lane(carry: tuple[jax.Array, Stream]) -> tuple[jax.Array, Stream]:
        # Memories and caches of other lanes need no second place.
        opens, stream = carry
        lane = jnp.argmax(opens).astype(jnp.int32)
        old, begins = lane_of((stream, start), lane)
        opened = _next_segment(model, params, old, begins)
        return opens.at[lane].set(False), with_lane(stream, lane, opened)

    in_turn = tokens.shape[0] == 1 or (one_by_one() if in_turn is None else in_turn)
    # Unlike a `cond`, a loop of no turn or one copies neither memories nor caches.
    if in_turn:
        _, stream = jax.lax.while_loop(lambda carry: carry[0].any(), one_lane, (opens, stream))
    else:
        some = opens.any()
        _, stream = jax.lax.while_loop(lambda carry: carry[0], all_at_once, (some, stream))
    logits, cache = model.apply(
        {'params': params}, tokens[:, None], stream.cache, stream.index, method='extend'
    )
    return logits[:, 0], stream.replace(cache=cache, index=stream.index + 1)


def _next_segment(
    model: LanguageModel, params: Any, stream: Stream, start: jax.Array | None
) -> Stream:
    """The next segments of lanes that are full or start; of others, without meaning."""
    position = stream.begin + stream.index
    full, batch_size = position == model.segment_length, position.shape[0]

    def write_full(stream: Stream) -> Any:
        return select_lanes(full, close_stream(model, params, stream), stream.state)

    if start is None:
        state = close_stream(model, params, stream)
    else:
        state = jax.lax.cond(full.any(), write_full, lambda stream: stream.state, stream)
        fresh = model.apply({'params': params}, batch_size, method='initial_state')
        state = reset_lanes(start, fresh, state)
    opened = open_stream(model, params, state, batch_size)
    return opened.replace(begin=position % model.segment_length)
