"""Beam search over any model that is read token by token (Graves, 2012; length penalty as fairseq's)."""

from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from longmem_jax.layers.attention_rules import NEVER


@flax.struct.dataclass
class _Beams:
    """Hypotheses of every lane, best first; `alive` ones are open, `ended` ones have their end."""

    step: jax.Array
    cache: Any
    alive: jax.Array  # int32 [batch, beams, max_length]
    alive_log: jax.Array  # [batch, beams]
    ended: jax.Array  # int32 [batch, beams, max_length]
    ended_score: jax.Array  # [batch, beams]


def _pick(tree, index):
    """Rows `index` [batch, n] of every leaf [batch, m, ...]."""
    pick = jax.vmap(lambda rows, chosen: rows[chosen])
    return jax.tree.map(lambda leaf: pick(leaf, index), tree)


def _fold(tree, batch, beams):
    """[batch * beams, ...] to [batch, beams, ...]."""
    return jax.tree.map(lambda leaf: leaf.reshape(batch, beams, *leaf.shape[1:]), tree)


def _flat(tree):
    """[batch, beams, ...] to [batch * beams, ...]."""
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), tree)


def beam_search(
    step: Callable[[jax.Array, Any, jax.Array], tuple[jax.Array, Any]],
    cache: Any,
    batch_size: int,
    *,
    begin: int,
    end: int,
    beams: int,
    max_length: int,
    length_penalty: float,
) -> tuple[jax.Array, jax.Array]:
    """The best continuations of every lane.

    Args:
      step: `(tokens [n], cache, place) -> (logits [n, vocab], cache)` for n = batch_size * beams;
        `place` is an int32 scalar.
      cache: of lanes that have read nothing, every leaf [batch_size, ...].
      batch_size: lanes.
      begin, end: tokens that a sequence begins and ends with.
      beams: hypotheses kept per lane.
      max_length: tokens at most, the end among them; it is forced there.
      length_penalty: hypotheses are ranked by log-probability / length ** length_penalty.

    Returns:
      tokens, int32 [batch_size, beams, max_length], `end` from the end on; scores, float32
      [batch_size, beams], best first.
    """

    def score(log, length):
        return log / jnp.asarray(length, jnp.float32) ** length_penalty

    def expand(state):
        place = state.step
        last = jax.lax.dynamic_index_in_dim(
            state.alive, jnp.maximum(place - 1, 0), axis=2, keepdims=False
        )
        tokens = jnp.where(place == 0, begin, last).reshape(-1)
        logits, cache = step(tokens, _flat(state.cache), place)
        logs = jax.nn.log_softmax(logits.astype(jnp.float32)).reshape(batch_size, beams, -1)
        vocab = logs.shape[-1]
        ends = jnp.arange(vocab) == end
        # The last place is the end's.
        logs = jnp.where((place == max_length - 1) & ~ends[None, None], NEVER, logs)
        total = (state.alive_log[..., None] + logs).reshape(batch_size, -1)
        # Of twice as many at most half can end.
        log, chosen = jax.lax.top_k(total, min(2 * beams, beams * vocab))
        parent, token = chosen // vocab, (chosen % vocab).astype(jnp.int32)
        rows = _pick(state.alive, parent)
        rows = jax.lax.dynamic_update_slice_in_dim(rows, token[..., None], place, axis=2)
        is_end = token == end
        # Ended ones compete with those that ended before.
        ended_score = jnp.where(is_end & (log > NEVER / 2), score(log, place + 1), NEVER)
        scores = jnp.concatenate([state.ended_score, ended_score], axis=1)
        # What stands behind the end is the end.
        behind = jnp.arange(max_length)[None, None] > place
        ended = jnp.concatenate([state.ended, jnp.where(behind, end, rows)], axis=1)
        best, index = jax.lax.top_k(scores, beams)
        alive_log, kept = jax.lax.top_k(jnp.where(is_end, NEVER, log), beams)
        return _Beams(
            step=place + 1,
            cache=_pick(_fold(cache, batch_size, beams), _pick(parent, kept)),
            alive=_pick(rows, kept),
            alive_log=alive_log,
            ended=_pick(ended, index),
            ended_score=best,
        )

    def unfinished(state):
        # Log-probabilities only fall; the longest length is the mildest for a penalty above 0.
        longest = max_length if length_penalty > 0 else state.step + 1
        hope = score(state.alive_log.max(axis=1), longest)
        worst = state.ended_score.min(axis=1)
        return (state.step < max_length) & (hope > worst).any()

    repeated = jax.tree.map(lambda leaf: jnp.repeat(leaf[:, None], beams, axis=1), cache)
    # All beams are the same at first: only one may count.
    first = jnp.where(jnp.arange(beams) == 0, 0.0, NEVER)
    start = _Beams(
        step=jnp.zeros((), jnp.int32),
        cache=repeated,
        alive=jnp.full((batch_size, beams, max_length), end, jnp.int32),
        alive_log=jnp.broadcast_to(first, (batch_size, beams)).astype(jnp.float32),
        ended=jnp.full((batch_size, beams, max_length), end, jnp.int32),
        ended_score=jnp.full((batch_size, beams), NEVER, jnp.float32),
    )
    last = jax.lax.while_loop(unfinished, expand, start)
    return last.ended, last.ended_score
