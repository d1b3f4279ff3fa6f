"""The neural memory of Titans: a small network per head that is trained while the text is read.

Behrouz, Zhong and Mirrokni (2025). The memory is the weights M of a network f. A token's surprise is the
slope of how badly f maps its key to its value; it is gathered over a block of tokens, with momentum S:

    u = - sum_t theta_t grad |f(k_t; W) - v_t|^2      surprise of a block (Eqs. 8, 12)
    S <- eta S + u                                   (Eq. 10)
    M <- (1 - alpha) M + S                           (Eq. 13)
    y_t = f(q_t; M)                                  (Eq. 15)

theta, eta and alpha are given by the tokens. W is M after the last `batch` tokens. A token reads M after
the last whole block; the last token of a block reads its own block.
"""

import dataclasses

import flax.struct
import jax
import jax.numpy as jnp

from longmem_jax.author import Sight
from longmem_jax.memory.titans import inner
from longmem_jax.memory.titans.inner import Weights
from longmem_jax.segment import select_lanes


class Neural(flax.struct.PyTreeNode):
    """The state of one lane and head; all zeros at the begin of a document.

    Weights are differences to those that a document begins with, which are parameters.

    Attributes:
      memory: M.
      momentum: S; None without momentum.
      base: W; None where it is M, or always what a document begins with.
      surprise: u of the tokens of the block that is not whole yet; None if a block is a token.
      logits: [2], sums over these tokens of the logits of eta and alpha; None likewise.
    """

    memory: Weights
    momentum: Weights | None
    base: Weights | None
    surprise: Weights | None
    logits: jax.Array | None


@dataclasses.dataclass(frozen=True)
class Rule:
    """How blocks are written.

    Attributes:
      block: tokens of a block.
      batch: tokens after which W becomes M; 0 = never.
      momentum: with S; else u takes its place.
      muon: what is added to M has singular values of about 1.
      most: largest norm of u, per array, see `inner.squashed`; 0 = any.
      loss, power, threshold: see `inner.distance`.
      epsilon: see `inner.predicted`.
    """

    block: int
    batch: int
    momentum: bool
    muon: bool
    most: float
    loss: str
    power: float
    threshold: float
    epsilon: float

    def learned(self) -> tuple[str, float, float, float]:
        """The last arguments of `inner.surprise`."""
        return self.loss, self.power, self.threshold, self.epsilon


def _read(state: Neural, first: Weights, q: jax.Array, rule: Rule) -> jax.Array:
    """What q [n, d] read of M (Eq. 15)."""
    return inner.predicted(_sum(first, state.memory), q, rule.epsilon)


def _sum(first: Weights, second: Weights) -> Weights:
    return jax.tree.map(jnp.add, first, second)


def empty(weights: Weights, rule: Rule) -> Neural:
    """The state at the begin of a document, for weights of these shapes."""
    zeros = jax.tree.map(jnp.zeros_like, weights)
    parts = rule.block > 1
    return Neural(
        memory=zeros,
        momentum=zeros if rule.momentum else None,
        base=zeros if rule.batch > rule.block else None,
        surprise=zeros if parts else None,
        logits=jnp.zeros_like(zeros['gamma'], shape=(2,)) if parts else None,
    )


def written(
    state: Neural, first: Weights, u: Weights, logits: jax.Array, refresh: jax.Array, rule: Rule
) -> Neural:
    """The state after a whole block.

    Args:
      state: before it.
      first: weights that a document begins with.
      u: its surprise.
      logits: [2], sums over its tokens of the logits of eta and alpha.
      refresh: bool, a batch ends with it.
      rule: how it is written.
    """
    eta, alpha = jax.nn.sigmoid(logits / rule.block)
    if rule.most:
        u = jax.tree.map(lambda array: inner.squashed(array, rule.most), u)
    S = state.momentum
    if S is not None:
        u = S = jax.tree.map(lambda S, u: eta * S + u, S, u)
    if rule.muon:
        u = inner.orthogonal(u)
    # (1 - alpha) (first + M) + u, less `first`.
    memory = jax.tree.map(
        lambda M, first, u: (1 - alpha) * M - alpha * first + u, state.memory, first, u
    )
    zeros = empty(first, rule)
    base = None if state.base is None else select_lanes(refresh, memory, state.base)
    return Neural(memory, S, base, zeros.surprise, zeros.logits)


def _of_tokens(
    state: Neural,
    k: jax.Array,
    v: jax.Array,
    theta: jax.Array,
    logits: jax.Array,
    first: Weights,
    rule: Rule,
) -> tuple[Neural, Weights, jax.Array]:
    """The state with tokens of its block that do not end it, and surprise and logits of the block."""
    at = state.memory if rule.batch == rule.block else state.base
    at = first if at is None else _sum(first, at)
    u = inner.surprise(at, k, v, theta, *rule.learned())
    if state.surprise is None or state.logits is None:  # every token ends a block
        return state, u, logits
    u, logits = _sum(state.surprise, u), state.logits + logits
    return state.replace(surprise=u, logits=logits), u, logits


def chunked(
    state: Neural,
    sight: Sight,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    theta: jax.Array,
    logits: jax.Array,
    place: jax.Array,
    first: Weights,
    *,
    rule: Rule,
) -> tuple[Neural, jax.Array]:
    """Reads and writes n tokens of which only the last can end a block.

    Args:
      state: before them.
      sight: documents that begin among them begin with the state before them, but for its surprise.
      q, k, v: [n, d].
      theta: [n], sizes of the steps.
      logits: [n, 2], of eta and alpha.
      place: [n], tokens of the document up to each, modulo `rule.batch` or `rule.block`, from 1; 0 =
        padding.
      first: weights that a document begins with.
      rule: how blocks are written.

    Returns:
      The new state, and y [n, d].
    """
    y = _read(state, first, q, rule)
    # The last token, its document, and whether that continues after the chunk.
    is_token = place > 0
    is_last = (is_token & ~jnp.pad(is_token, (0, 1))[1:]).astype(q.dtype)
    own = is_last @ sight.pairs.astype(q.dtype)
    kept = jnp.where(is_token.any(), is_last @ sight.at_end, sight.before[-1])
    if state.surprise is not None and state.logits is not None:  # not of an earlier document
        goes_on = jnp.where(is_token.any(), is_last @ sight.before, 1.0)
        surprise = jax.tree.map(lambda leaf: goes_on * leaf, state.surprise)
        state = state.replace(surprise=surprise, logits=goes_on * state.logits)
    unfinished, u, sums = _of_tokens(state, k, v, theta * own, own @ logits, first, rule)
    ends = is_last * (place % rule.block == 0)
    refresh = (is_last @ place) % max(rule.batch, 1) == 0
    block = written(state, first, u, sums, refresh, rule)
    new = select_lanes(ends.any(), block, unfinished)
    y_last = _read(new, first, (is_last @ q)[None], rule)
    y = jnp.where(ends[:, None] > 0, y_last, y)
    return jax.tree.map(lambda leaf: kept * leaf, new), y


def step(
    state: Neural,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    theta: jax.Array,
    logits: jax.Array,
    place: jax.Array,
    first: Weights,
    *,
    rule: Rule,
) -> tuple[Neural, jax.Array]:
    """One token: the definition. See `chunked`, without the axis of tokens."""
    unfinished, u, sums = _of_tokens(state, k[None], v[None], theta[None], logits, first, rule)
    refresh = place % max(rule.batch, 1) == 0
    block = written(state, first, u, sums, refresh, rule)
    state = select_lanes(place % rule.block == 0, block, unfinished)
    return state, _read(state, first, q[None], rule)[0]
