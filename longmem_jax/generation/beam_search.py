"""Beam search over any model that is read token by token (Graves, 2012; length penalty as fairseq's)."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from longmem_jax.attention.rules import NEVER
from longmem_jax.segment import Tree

StepFunction = Callable[[jax.Array, Any, jax.Array], tuple[jax.Array, Any]]


class _Beams(flax.struct.PyTreeNode):
    """Hypotheses of every lane, best first.

    Attributes:
      step: int32 scalar, tokens read.
      cache: caches of the open hypotheses, every leaf [batch, beams, ...].
      alive: int32 [batch, beams, max_length], open hypotheses.
      alive_log: float32 [batch, beams], their log-probabilities.
      ended: int32 [batch, beams, max_length], finished hypotheses.
      ended_score: float32 [batch, beams], their scores.
    """

    step: jax.Array
    cache: Any
    alive: jax.Array
    alive_log: jax.Array
    ended: jax.Array
    ended_score: jax.Array


@dataclasses.dataclass(frozen=True)
class _Settings:
    """Arguments of `beam_search`."""

    batch_size: int
    begin: int | jax.Array
    ends: tuple[int, ...]
    beams: int
    max_length: int
    length_penalty: float

    def score(self, log: jax.Array, length: int | jax.Array) -> jax.Array:
        """Log-probability divided by the length penalty; same shape as `log`."""
        return log / jnp.asarray(length, jnp.float32) ** self.length_penalty


def _pick(tree: Tree, index: jax.Array) -> Tree:
    """Entries `index` [batch, n] of every leaf [batch, m, ...]."""
    pick = jax.vmap(lambda entries, chosen: entries[chosen])
    return jax.tree.map(lambda leaf: pick(leaf, index), tree)


def _fold(tree: Tree, batch: int, beams: int) -> Tree:
    """[batch * beams, ...] to [batch, beams, ...]."""
    return jax.tree.map(lambda leaf: leaf.reshape(batch, beams, *leaf.shape[1:]), tree)


def _flat(tree: Tree) -> Tree:
    """[batch, beams, ...] to [batch * beams, ...]."""
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), tree)


def _first_beams(cache: Any, settings: _Settings) -> _Beams:
    """The beams before the first token, from `cache` [batch, ...]."""
    shape = (settings.batch_size, settings.beams)
    # All beams are equal at first, so only one of them may count.
    only_first = jnp.where(jnp.arange(settings.beams) == 0, 0.0, NEVER)
    tokens = jnp.full((*shape, settings.max_length), settings.ends[0], jnp.int32)
    return _Beams(
        step=jnp.zeros((), jnp.int32),
        cache=jax.tree.map(lambda leaf: jnp.repeat(leaf[:, None], settings.beams, axis=1), cache),
        alive=tokens,
        alive_log=jnp.broadcast_to(only_first, shape).astype(jnp.float32),
        ended=tokens,
        ended_score=jnp.full(shape, NEVER, jnp.float32),
    )


def _expand(step: StepFunction, state: _Beams, settings: _Settings) -> _Beams:
    """Extends every open hypothesis by one token and keeps the best."""
    batch_size, beams, position = settings.batch_size, settings.beams, state.step
    last = jax.lax.dynamic_index_in_dim(
        state.alive, jnp.maximum(position - 1, 0), axis=2, keepdims=False
    )
    tokens = jnp.where(position == 0, settings.begin, last).reshape(-1)
    logits, cache = step(tokens, _flat(state.cache), position)
    logs = jax.nn.log_softmax(logits.astype(jnp.float32)).reshape(batch_size, beams, -1)
    vocab = logs.shape[-1]
    ends = jnp.isin(jnp.arange(vocab), jnp.asarray(settings.ends))
    # The last position can only hold the end.
    at_last = position == settings.max_length - 1
    logs = jnp.where(at_last & ~ends[None, None], NEVER, logs)
    total = (state.alive_log[..., None] + logs).reshape(batch_size, -1)
    # Every beam ends in as many candidates as there are ends, so enough open ones remain.
    most = (1 + len(settings.ends)) * beams
    log, chosen = jax.lax.top_k(total, min(most, beams * vocab))
    parent, token = chosen // vocab, (chosen % vocab).astype(jnp.int32)
    candidates = _pick(state.alive, parent)
    candidates = jax.lax.dynamic_update_slice_in_dim(candidates, token[..., None], position, axis=2)
    is_end = jnp.isin(token, jnp.asarray(settings.ends))
    # Hypotheses that end now compete with those that ended earlier.
    score = settings.score(log, position + 1)
    score = jnp.where(is_end & (log > NEVER / 2), score, NEVER)
    scores = jnp.concatenate([state.ended_score, score], axis=1)
    # After the end, every position holds an end.
    after = jnp.arange(settings.max_length)[None, None] > position
    ended = jnp.concatenate([state.ended, jnp.where(after, settings.ends[0], candidates)], axis=1)
    ended_score, best_ended = jax.lax.top_k(scores, beams)
    alive_log, best_alive = jax.lax.top_k(jnp.where(is_end, NEVER, log), beams)
    return _Beams(
        step=position + 1,
        cache=_pick(_fold(cache, batch_size, beams), _pick(parent, best_alive)),
        alive=_pick(candidates, best_alive),
        alive_log=alive_log,
        ended=_pick(ended, best_ended),
        ended_score=ended_score,
    )


def _unfinished(state: _Beams, settings: _Settings) -> jax.Array:
    """Whether an open hypothesis of any lane can still beat a finished one (bool scalar)."""
    # Log-probabilities only fall; with a positive penalty the maximum length gives the best score.
    length = settings.max_length if settings.length_penalty > 0 else state.step + 1
    best_possible = settings.score(state.alive_log.max(axis=1), length)
    worst_ended = state.ended_score.min(axis=1)
    return (state.step < settings.max_length) & (best_possible > worst_ended).any()


def beam_search(
    step: StepFunction,
    cache: Any,
    batch_size: int,
    *,
    begin: int | jax.Array,
    end: int | Sequence[int],
    beams: int,
    max_length: int,
    length_penalty: float,
) -> tuple[jax.Array, jax.Array]:
    """The best continuations of every lane.

    Args:
      step: `(tokens [n], cache, position) -> (logits [n, vocab], cache)` for n = batch_size * beams;
        `position` is an int32 scalar.
      cache: of lanes that have read nothing, every leaf [batch_size, ...].
      end: token that it ends with, or several.
      beams: hypotheses kept per lane.
      max_length: most tokens, including the end, which is forced there.
      length_penalty: hypotheses are ranked by log-probability / length ** length_penalty.

    Returns:
      tokens, int32 [batch_size, beams, max_length], after its end the first `end`; scores, float32
      [batch_size, beams], best first.
    """
    ends = (end,) if isinstance(end, int) else tuple(end)
    settings = _Settings(batch_size, begin, ends, beams, max_length, length_penalty)
    last = jax.lax.while_loop(
        lambda state: _unfinished(state, settings),
        lambda state: _expand(step, state, settings),
        _first_beams(cache, settings),
    )
    return last.ended, last.ended_score
