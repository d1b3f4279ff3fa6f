"""RWKV-7: a delta rule that erases one vector and writes another, each channel at its own rate.

Peng et al. (2025). A matrix per head maps keys to values. With c, a unit vector, as what is erased:

    S <- (diag(w) - (a c) c^T) S + k v^T
    o  = S^T r

Delta rules erase what their own key gives, after the memory has faded; here c is a vector of its own,
what it gives is read before the memory fades, and every channel of it has a rate a.
Each of the six inputs is a mixture of the token and the one before it. Values of later layers are drawn
to those of the first one (`Lane.hand_on`).
"""

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from longmem_jax.author import Lane, RecurrentMemory, Sight, field, memory, param
from longmem_jax.contract import Graft, ModelSettings, Scale
from longmem_jax.layers import initializers
from longmem_jax.layers.decayed_scores import decayed_scores
from longmem_jax.layers.projections import Projections
from longmem_jax.layers.token_shift import mixed
from longmem_jax.layers.triangular import solve_unit_lower

SLOWEST = math.exp(-0.5)  # a channel keeps at least exp(-exp(-1/2)) = 0.545 of itself
# How much of the token before an input begins with, by channels c from 0 to 1: 1 - c^power. The powers
# are those that the release has in the middle of its layers.
MIXES = dict(r=0.1, w=0.45, k=0.35, v=0.35, a=0.45, g=0.1)


def step(
    S: jax.Array,
    r: jax.Array,
    log_w: jax.Array,
    k: jax.Array,
    v: jax.Array,
    c: jax.Array,
    a: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """One token of one head: the definition.

    Args:
      S: [head_dim of keys, head_dim of values].
      r, k, c, a: [head_dim].
      log_w: [head_dim], at most 0, the log of what is left of every channel.
      v: [head_dim].

    Returns:
      The new S, and what the token reads of it, [head_dim].
    """
    S = jnp.exp(log_w)[:, None] * S - jnp.outer(a * c, c @ S) + jnp.outer(k, v)
    return S, r @ S


def within(
    sight: Sight,
    r: jax.Array,
    log_w: jax.Array,
    k: jax.Array,
    v: jax.Array,
    c: jax.Array,
    a: jax.Array,
) -> tuple[jax.Array, ...]:
    """What n tokens of a chunk, arrays [n, ...], do to each other, whatever S is.

    What each erases, u = S^T c, solves a triangular system:
    `u_i = (c_i A_(i-1))^T S + sum_(j < i) (c_i^T A_(i-1)j k_j) v_j - (c_i^T A_(i-1)j a_j c_j) u_j`, with
    A_ij what is left at token i of the write of token j.

    Returns:
      The matrix [n, n] that solves it; c [n, head_dim] as it meets S, and what the chunk adds there;
      r as it meets S, what it reads of the chunk, and its shares [n, n] of all u; what is left of S,
      what the chunk adds to it, and what of it each u takes away.
    """
    n = len(r)
    total = jnp.tril(jnp.ones((n, n), log_w.dtype)) @ log_w
    # What is erased at token i is read from the state of token i - 1: its row is one higher.
    later = jnp.concatenate([c[1:], jnp.zeros_like(c[:1])])
    both = jax.vmap(decayed_scores, (None, 0, None))
    (of_r, of_c), (of_r_erased, of_c_erased) = both((r, later), jnp.stack([k, a * c]), total)
    pairs, none = sight.pairs, jnp.zeros((1, n), log_w.dtype)

    def seen(scores: jax.Array) -> jax.Array:
        return jnp.where(pairs, scores, jnp.zeros_like(scores))

    def one_later(scores: jax.Array) -> jax.Array:
        return seen(jnp.concatenate([none, scores[:-1]]))

    before = sight.before[:, None] * jnp.exp(total)
    before_token = sight.before[:, None] * jnp.exp(total - log_w)
    at_end = sight.at_end[:, None] * jnp.exp(total[-1] - total)
    solving = solve_unit_lower(one_later(of_c_erased), jnp.eye(n, dtype=log_w.dtype))
    erasing = solving, before_token * c, one_later(of_c) @ v
    reading = before * r, seen(of_r) @ v, seen(of_r_erased)
    return *erasing, *reading, before[-1], (at_end * k).T @ v, at_end * a * c


def chunked(
    S: jax.Array,
    sight: Sight,
    solving: jax.Array,
    c: jax.Array,
    own_u: jax.Array,
    r: jax.Array,
    own: jax.Array,
    of_u: jax.Array,
    share: jax.Array,
    added: jax.Array,
    taken: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """`step` for the n tokens of `within`."""
    u = solving @ (c @ S + own_u)
    return share[:, None] * S + added - taken.T @ u, r @ S + own - of_u @ u


class TokenBefore(nn.Module):
    """The vector of the token before, zeros at the begin of a document; see `Lane.mixed`.

    Attributes:
      settings: sizes of the model.
    """

    settings: ModelSettings

    def initial_state(self, batch_size: int) -> jax.Array:
        """Zeros [batch_size, 1, d_model]."""
        return jnp.zeros((batch_size, 1, self.settings.d_model), self.settings.dtype)

    def __call__(self, *given: Any) -> tuple[jax.Array, jax.Array]:
        """Arguments and results of `layers.token_shift.mixed` for x [batch, n, d_model]."""
        return mixed(lambda shifted: shifted(0), *given)


def drawn_mixes(
    key: jax.Array, shape: tuple[int, ...], dtype: DTypeLike = jnp.float32
) -> jax.Array:
    """Initial shares of the token before, [kinds, d_model] in the order of `MIXES`; nothing is drawn."""
    channel = jnp.arange(shape[1], dtype=dtype) / shape[1]
    powers = jnp.asarray(list(MIXES.values()), dtype)
    return 1 - channel[None] ** powers[:, None]


def drawn_rates(
    key: jax.Array, shape: tuple[int, ...], dtype: DTypeLike = jnp.float32
) -> jax.Array:
    """Initial logits of the decay, from slow to fast over all channels; nothing is drawn."""
    channel = jnp.linspace(0, 1, shape[0] * shape[1], dtype=dtype) ** 1.557
    return (5 * channel - 5.5).reshape(shape)


zeros, ones = jax.nn.initializers.zeros, jax.nn.initializers.ones


class FirstShare(nn.Module):
    """How far values are drawn to those of the first layer, which has no parameters for it.

    Attributes:
      settings: sizes of the model.
      rank: numbers between its two maps.
    """

    settings: ModelSettings
    rank: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Shares [heads, n, head_dim] for x [n, d_model]."""
        heads, width = self.settings.num_heads, self.settings.head_dim
        axes, kernel = initializers.with_axes, initializers.kernel(self.settings)
        first = self.param('in', axes(zeros, ('embed', None)), (x.shape[-1], self.rank))
        out = axes(kernel, (None, 'heads', 'head_dim'))
        second = self.param('out', out, (self.rank, heads, width))
        bias = self.param('bias', axes(ones, ('heads', 'head_dim')), (heads, width))
        return jax.nn.sigmoid(through(x @ first, second) + bias[:, None])


def through(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """x [n, rank] by a map [rank, heads, width]: [heads, n, width]."""
    return jnp.einsum('nr,rhd->hnd', x, kernel)


class RWKV7(RecurrentMemory):
    """A matrix per head that fades by channel, erases one vector and writes another."""

    decay_rank: int = field(64, 'numbers between the two maps to the decay', least=1)
    erase_rank: int = field(64, 'numbers between the two maps to how fast channels erase', least=1)
    value_rank: int = field(32, "numbers between the two maps to the first layer's share", least=1)
    gate_rank: int = field(128, 'numbers between the two maps to the output gate', least=1)
    epsilon: float = field(64e-5, 'added to the variance in the norm of what is read', above=0)

    def parts(self) -> None:
        self.projections = Projections(self.settings)
        self.before = TokenBefore(self.settings)
        self.mixes = param(len(MIXES), 'd_model', init=drawn_mixes)
        # The maps to decay and erasing begin at 0, so their biases alone count.
        self.decay_in = param('d_model', 'decay_rank', init=zeros)
        self.decay_out = param('decay_rank', 'heads', 'head_dim')
        self.decay_bias = param('heads', 'head_dim', init=drawn_rates)
        self.erase_in = param('d_model', 'erase_rank', init=zeros)
        self.erase_out = param('erase_rank', 'heads', 'head_dim')
        self.erase_bias = param('heads', 'head_dim', init=zeros)
        self.first_share = FirstShare(self.settings, self.value_rank)
        self.shown_in = param('d_model', 'gate_rank')
        self.shown_out = param('gate_rank', 'heads', 'head_dim')
        self.erased = param('heads', 'head_dim', init=jax.nn.initializers.constant(0.85))
        self.slowed = param('heads', 'head_dim', init=ones)
        self.own = param('heads', 'head_dim', init=zeros)
        self.scale = param('heads', 'head_dim', init=ones)
        self.bias = param('heads', 'head_dim', init=zeros)

    def state(self) -> jax.Array:
        """S [head_dim of keys, head_dim of values]."""
        width = self.settings.head_dim
        return jnp.zeros((width, width), self.float32)

    def inputs(self, x: jax.Array, lane: Lane) -> tuple[jax.Array, ...]:
        """r, log w, k, v, c, a, the gate of the output; all [heads, n, head_dim]."""
        moved = lane.mixed(self.before, x) - x
        shares = self.mixes.astype(x.dtype)
        of = {name: x + share * moved for name, share in zip(MIXES, shares, strict=True)}
        maps = self.projections
        r, k, v = (
            part.astype(self.float32)
            for part in (maps.queries(of['r']), maps.keys(of['k']), maps.values(of['v']))
        )
        w, a, g, of_v = (of[name].astype(self.float32) for name in 'wagv')
        logits = through(jnp.tanh(w @ self.decay_in), self.decay_out) + self.decay_bias[:, None]
        log_w = -SLOWEST * jax.nn.sigmoid(logits)
        logits = through(a @ self.erase_in, self.erase_out) + self.erase_bias[:, None]
        a = jax.nn.sigmoid(logits)
        gate = through(jax.nn.sigmoid(g @ self.shown_in), self.shown_out)
        if 'v_first' in lane.carried:
            v = v + (lane.carried['v_first'] - v) * self.first_share(of_v)
        else:
            lane.hand_on(v_first=v)
        c = k * self.erased[:, None]
        c = c / jnp.maximum(jnp.sqrt(jnp.sum(c * c, axis=-1, keepdims=True) + TINY), 1e-12)
        k = k * (1 + (a - 1) * self.slowed[:, None])
        lane.log(share_kept=jnp.exp(log_w).mean(-1), share_erased=a.mean(-1))
        return r, log_w, k, v, c, a, gate

    def step(self, state: Any, *inputs: Any, **named: Any) -> tuple[Any, Any]:
        """See `rwkv7.step`."""
        return step(state, *inputs[:-1])

    def within(self, sight: Sight, *inputs: jax.Array) -> tuple[jax.Array, ...]:
        """See `rwkv7.within`; the last input is for `output` alone."""
        return within(sight, *inputs[:-1])

    def chunked(self, S: jax.Array, sight: Sight, *ready: jax.Array) -> tuple[Any, Any]:
        """See `rwkv7.chunked`."""
        return chunked(S, sight, *ready)

    def output(self, x: jax.Array, y: jax.Array, *inputs: jax.Array) -> jax.Array:
        """`W_o ((norm(o) + (r . (u k)) v) g)`, with a norm over each head."""
        r, _, k, v, _, _, gate = inputs
        y = y - y.mean(-1, keepdims=True)
        y = y * jax.lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + self.epsilon)
        y = y * self.scale[:, None] + self.bias[:, None]
        y = y + (r * k * self.own[:, None]).sum(-1, keepdims=True) * v
        return self.projections.out((y * gate).astype(self.settings.dtype))


def recipe(scale: Scale) -> dict[str, int]:
    """The ranks that the release has for a width, multiples of 32; at most a quarter of the width."""

    def rank(number: float) -> int:
        return max(1, min(32 * max(1, round(number / 32)), scale.d_model // 4))

    root = scale.d_model**0.5
    return dict(
        chunk=min(scale.segment, 32),
        decay_rank=rank(1.8 * root),
        erase_rank=rank(1.8 * root),
        value_rank=rank(1.3 * root),
        gate_rank=rank(0.6 * scale.d_model**0.8),
    )


TINY = 1e-24  # the square of the least norm, so that a vector of zeros has a gradient

ENTRY = memory(
    'rwkv7',
    RWKV7,
    recipe=recipe,
    graft=Graft(
        lambda scale, position: {},
        exact=False,
        how='projections and embeddings are kept; the recurrence replaces the softmax, so it must be '
        'tuned',
        positions='the token before and how much has faded; rotary ones are lost',
    ),
    # The first tokens of a document read tiny numbers; divided by them, rounding would decide.
    toy=dict(decay_rank=2, erase_rank=2, value_rank=2, gate_rank=3, epsilon=1e-2),
)
