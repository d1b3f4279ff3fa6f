"""Delta rules: DeltaNet, Gated DeltaNet, Kimi delta attention.

Schlag et al. (2021), Yang et al. (2024, 2025), Kimi Team (2025). A matrix per head maps keys to values.
A token first lets it fade, then moves what its key gives towards its value:

    S <- diag(a) S
    S <- S + b k (v - S^T k)^T          the same as (1 - b k k^T) S + b k v^T
    o  = S^T q

This is one step of gradient descent on |S^T k - v|^2 / 2, of the size b. The memory fades not at all
(DeltaNet), by one number a per head (Gated DeltaNet), or by one per channel of the key (Kimi).
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from longmem_jax.author import Lane, RecurrentMemory, Sight, field, memory, param
from longmem_jax.contract import Fields, Graft, Recipe, Recipes, Scale
from longmem_jax.layers import initializers
from longmem_jax.layers.delta_rule import chunked, step, unit, within
from longmem_jax.layers.norms import Norm
from longmem_jax.layers.projections import Projections
from longmem_jax.memory import delta_in_hosts
from longmem_jax.problems import ranges

GATES = ('none', 'head', 'channel')
OUTPUT_GATES = ('none', 'silu', 'sigmoid')
FIRST_RATES, STEPS = (1.0, 16.0), (0.001, 0.1)


def through(x: jax.Array, first: jax.Array, second: jax.Array) -> jax.Array:
    """x [n, d_model] by maps [d_model, rank] and [rank, heads, width]: [heads, n, width]."""
    return jnp.einsum('nr,rhd->hnd', x @ first, second)


class DeltaNet(RecurrentMemory):
    """A matrix per head that is corrected by the delta rule; it may fade by a learned gate."""

    gate: str = field(
        'head',
        "how the memory fades: 'none' (DeltaNet), by 'head' (Gated DeltaNet), by 'channel' of the key "
        '(Kimi)',
        among=GATES,
    )
    key_dim: int = field(0, 'width of queries and keys; 0 = head_dim', least=0, share='head_dim')
    value_dim: int = field(0, 'width of values; 0 = head_dim', least=0, share='head_dim')
    key_heads: int = field(
        0,
        'heads of queries and keys, each shared by a group of those of values; 0 = as in attention',
        least=0,
    )
    value_heads: int = field(
        0, 'heads of values, and of the memory; 0 = num_heads', least=0, share='num_heads'
    )
    head_norm: bool = field(
        True, "queries and keys have the model's head_norm, before the convolution"
    )
    convolution: int = field(
        4, 'tokens that a convolution of queries, keys and values sees; 0 = there is none', least=0
    )
    negative_eigenvalues: bool = field(
        False,
        'a token may move what its key gives up to twice as far as its value (b from 0 to 2, not to 1), '
        'so that a memory can turn and count',
    )
    first_rates: tuple[float, float] = field(
        FIRST_RATES,
        'range of the rates of fading at the start, each times a step from 0.001 to 0.1; with less, '
        'heads remember longer at first',
    )
    output_gate: str = field(
        'silu',
        "factor of what is read: 'silu' of a linear map (Gated DeltaNet), 'sigmoid' of a map through "
        '`rank` numbers (Kimi), or none (DeltaNet)',
        among=OUTPUT_GATES,
    )
    rank: int = field(
        0,
        'numbers between the two maps of a gate by channel and of a sigmoid; 0 = head_dim',
        least=0,
        share='head_dim',
    )
    epsilon: float = field(1e-5, 'added to the mean square in the norm of what is read', above=0)

    def parts(self) -> None:
        sizes = self.sizes()
        # By the name of the model's heads a mesh can split them.
        heads = 'value_heads' if self.value_heads else 'heads'
        self.projections = Projections(
            self.settings,
            head_norm=self.head_norm,
            key_dim=sizes.key_dim,
            value_dim=sizes.value_dim,
            query_heads=self.key_heads,
            key_heads=self.key_heads,
            value_heads=sizes.value_heads if self.key_heads else 0,
        )
        if self.convolution:
            maps, size = self.projections, self.convolution
            self.query_convolution = self.conv_of(maps.query, size)
            self.key_convolution = self.conv_of(maps.key, size)
            self.value_convolution = self.conv_of(maps.value, size)
        self.write = param('d_model', heads)
        if self.gate == 'head':
            self.decay = param('d_model', heads)
            self.decay_bias = param(heads, init=initializers.steps(*STEPS))
        if self.gate == 'channel':
            self.decay_in = param('d_model', 'rank')
            self.decay_out = param('rank', heads, 'key_dim')
            self.decay_bias = param(heads, 'key_dim', init=initializers.steps(*STEPS))
        if self.gate != 'none':
            self.log_rate = param(heads, init=initializers.rates(*self.first_rates))
        if self.output_gate == 'silu':
            self.shown = self.to_heads(sizes.value_dim, sizes.value_heads)
        if self.output_gate == 'sigmoid':
            width = 'value_dim' if self.value_dim else 'head_dim'
            self.shown_in = param('d_model', 'rank')
            self.shown_out = param('rank', heads, width)
        self.norm = Norm('rmsnorm', self.epsilon)

    def heads(self) -> int:
        """The heads of values."""
        return int(self.sizes().value_heads)

    def state(self) -> jax.Array:
        """S [key_dim, value_dim]."""
        sizes = self.sizes()
        return jnp.zeros((sizes.key_dim, sizes.value_dim), self.float32)

    def inputs(self, x: jax.Array, lane: Lane) -> tuple[jax.Array, ...]:
        """q, k [heads, n, key_dim], v [heads, n, value_dim], b [heads, n], and log a with a gate."""
        maps = self.projections
        q, k, v = maps.queries(x), maps.keys(x), maps.values(x)
        if self.convolution:
            q = lane.mixed(self.query_convolution, q)
            k = lane.mixed(self.key_convolution, k)
            v = lane.mixed(self.value_convolution, v)
        q, k, v = (jax.nn.silu(part).astype(self.float32) for part in (q, k, v))
        q, k = unit(q) * q.shape[-1] ** -0.5, unit(k)
        x = x.astype(self.float32)
        b = jax.nn.sigmoid(x @ self.write).T * (2.0 if self.negative_eigenvalues else 1.0)
        lane.log(write_strength=b)
        if self.gate == 'none':
            return q, k, v, b
        log_a = self.log_decays(x)
        share = jnp.exp(log_a)
        lane.log(share_kept=share if share.ndim == 2 else share.mean(-1))
        return q, k, v, b, log_a

    def log_decays(self, x: jax.Array) -> jax.Array:
        """`log a = -rate softplus(f(x) + bias)` of x [n, d_model]; [heads, n] or [heads, n, key_dim]."""
        if self.gate == 'head':
            logits = (x @ self.decay + self.decay_bias).T
            return -jnp.exp(self.log_rate)[:, None] * jax.nn.softplus(logits)
        logits = through(x, self.decay_in, self.decay_out) + self.decay_bias[:, None]
        return -jnp.exp(self.log_rate)[:, None, None] * jax.nn.softplus(logits)

    def step(self, state: Any, *inputs: Any, **named: Any) -> tuple[Any, Any]:
        """See `delta_rule.step`."""
        return step(state, *inputs)

    def within(self, sight: Sight, *inputs: jax.Array) -> tuple[jax.Array, ...]:
        """See `delta_rule.within`."""
        return within(sight, *inputs)

    def chunked(self, S: jax.Array, sight: Sight, *ready: jax.Array) -> tuple[Any, Any]:
        """See `delta_rule.chunked`."""
        return chunked(S, sight, *ready)

    def output(self, x: jax.Array, y: jax.Array, *inputs: jax.Array) -> jax.Array:
        """`W_o (norm(o) gate(x))`, with a norm over each head."""
        y = self.norm(y)
        if self.output_gate == 'silu':
            y = y * jax.nn.silu(self.shown(x).astype(self.float32))
        if self.output_gate == 'sigmoid':
            logits = through(x.astype(self.float32), self.shown_in, self.shown_out)
            y = y * jax.nn.sigmoid(logits)
        return self.projections.out(y)


def check(fields: Fields, model: Any, segment_length: int) -> list[str]:
    """Checks that heads can share keys, and that a convolution sees more than the token itself."""
    problems = []
    key_heads, heads = fields['key_heads'], fields['value_heads']
    if heads and not key_heads:
        problems.append(f'value_heads = {heads}: needs key_heads too, a divisor of it')
    of, number = ('value_heads', heads) if heads else ('num_heads', model['num_heads'])
    if key_heads and number % key_heads:
        problems.append(f'key_heads = {key_heads}: must divide {of} = {number}')
    if fields['convolution'] == 1:
        problems.append('convolution = 1: sees the token alone; use 0 for none, or at least 2')
    rates = ranges(fields, 'first_rates')
    if not rates and fields['gate'] == 'none' and tuple(fields['first_rates']) != FIRST_RATES:
        rates = ["first_rates: nothing fades with gate = 'none'; leave it out"]
    problems += rates
    return problems


PAPERS = {
    'delta_net': dict(gate='none', output_gate='none'),
    'gated_delta_net': dict(gate='head', output_gate='silu'),
    'kimi_delta': dict(gate='channel', output_gate='sigmoid'),
}


def recipe(scale: Scale, kind: str) -> Recipe:
    """One of `PAPERS`; its convolution stands in for positions."""
    return Recipe({'delta': PAPERS[kind] | dict(chunk=min(scale.segment, 32))})


ENTRY = memory(
    'delta',
    DeltaNet,
    check=check,
    recipe=Recipes(
        {kind: functools.partial(recipe, kind=kind) for kind in PAPERS},
        unshifted=dict(convolution=0),
    ),
    graft=Graft(
        lambda scale, position: {},
        exact=False,
        how='projections and embeddings are kept; the delta rule replaces the softmax, so it must be '
        'tuned',
        positions='the order of the last tokens, by its convolution; rotary ones are lost',
    ),
    hosts=delta_in_hosts.FAMILIES,
    # The first tokens of a document read tiny numbers; divided by them, rounding would decide.
    toy=dict(epsilon=1e-2),
    variants=dict(
        delta_net=PAPERS['delta_net'] | dict(negative_eigenvalues=True, convolution=2),
        kimi_delta=PAPERS['kimi_delta'] | dict(chunk=16, gradients=False),
        shared_keys=dict(key_heads=1, key_dim=3, convolution=0, value_heads=4, value_dim=5),
    ),
)
