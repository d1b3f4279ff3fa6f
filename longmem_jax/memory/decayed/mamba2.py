"""Mamba-2: state space duality (Dao and Gu, 2024).

A matrix per head fades by `exp(-exp(A) dt)`, with a time step dt that each token gives. In the words of
attention: C are queries, B are keys, x are values; groups of heads share a B and a C. All three pass a
short convolution.
"""

from typing import Any

import jax
import jax.numpy as jnp

from longmem_jax.author import Lane, RecurrentMemory, Sight, field, memory, param
from longmem_jax.contract import Fields, Graft, Recipe, Recipes, Scale
from longmem_jax.layers import initializers
from longmem_jax.layers.projections import HeadsIn, Projections
from longmem_jax.layers.token_shift import Convolution
from longmem_jax.memory.decayed import recurrence
from longmem_jax.problems import ranges


class Mamba2(RecurrentMemory):
    """A matrix per head that fades by a time step, given by each token."""

    state_size: int = field(128, 'width of B and C, the keys and queries', least=1)
    value_dim: int = field(0, 'width of x, the values; 0 = twice head_dim', least=0)
    groups: int = field(1, 'groups of heads, each with a B and a C', least=1, divides='num_heads')
    convolution: int = field(4, 'tokens that the short convolutions see', least=2)
    convolution_bias: bool = field(True, 'the convolutions have biases')
    bias: bool = field(False, 'the maps have biases')
    shortest: float = field(0.0, 'time steps are at least this', least=0)
    longest: float = field(0.0, 'time steps are at most this; 0 = no limit', least=0)
    first_steps: tuple[float, float] = field((0.001, 0.1), 'range of time steps at the start')
    first_rates: tuple[float, float] = field((1.0, 16.0), 'range of exp(A), rates, at the start')
    output_gate: bool = field(
        True,
        'what is read is multiplied by silu of a linear map; without it, small models find sooner what '
        'is far',
    )
    epsilon: float = field(1e-5, 'of the norm of what is read', above=0)

    def width(self) -> int:
        """Of x, the values."""
        return self.value_dim or 2 * self.settings.head_dim

    def parts(self) -> None:
        settings, heads, groups = self.settings, self.settings.num_heads, self.groups
        width = self.width()
        self.projections = maps = Projections(
            settings,
            bias=self.bias,
            key_dim=self.state_size,
            value_dim=width,
            query_heads=groups,
            key_heads=groups,
            value_heads=heads,
        )
        if self.output_gate:
            init = initializers.kernel(settings)
            self.gate = HeadsIn(heads, width, settings.dtype, init, bias=self.bias)
        self.convolved_C = self.conv_of(maps.query, self.convolution)
        self.convolved_B = self.conv_of(maps.key, self.convolution)
        self.convolved_x = self.conv_of(maps.value, self.convolution)
        if self.convolution_bias:
            self.bias_C = param(groups, self.state_size, init=zeros)
            self.bias_B = param(groups, self.state_size, init=zeros)
            self.bias_x = param('heads', width, init=zeros)
        self.step_kernel = param('d_model', 'heads')
        self.step_bias = param('heads', init=initializers.steps(*self.first_steps))
        self.log_rate = param('heads', init=initializers.rates(*self.first_rates))
        self.skip = param('heads', init=ones)
        self.scale = param('heads', width, init=ones)

    def state(self) -> jax.Array:
        """S [state_size, value_dim]."""
        return jnp.zeros((self.state_size, self.width()), self.float32)

    def convolved(self, lane: Lane, part: str, x: jax.Array) -> jax.Array:
        """x, B or C [heads or groups, n, width] through its convolution."""
        convolution: Convolution = getattr(self, f'convolved_{part}')
        x = lane.mixed(convolution, x)
        if self.convolution_bias:
            x = x + getattr(self, f'bias_{part}')[:, None].astype(x.dtype)
        return jax.nn.silu(x)

    def inputs(self, x: jax.Array, lane: Lane) -> tuple[jax.Array, ...]:
        """C, B [heads, n, state_size], x [heads, n, value_dim], dt and log decay [heads, n]."""
        maps = self.projections
        steps = jax.nn.softplus(x.astype(self.float32) @ self.step_kernel + self.step_bias).T
        steps = jnp.clip(steps, self.shortest, self.longest or None)
        log_decay = -jnp.exp(self.log_rate)[:, None] * steps
        lane.log(share_kept=jnp.exp(log_decay), time_step=steps)
        read = self.convolved(lane, 'C', maps.queries(x))
        written = self.convolved(lane, 'B', maps.keys(x))
        return read, written, self.convolved(lane, 'x', maps.values(x)), steps, log_decay

    def step(
        self,
        S: jax.Array,
        C: jax.Array,
        B: jax.Array,
        x: jax.Array,
        dt: jax.Array,
        log_decay: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        """`S <- exp(-exp(A) dt) S + dt B x^T`; reads `C S`."""
        return recurrence.step(S, C, B, dt * x, log_decay)

    def within(
        self,
        sight: Sight,
        C: jax.Array,
        B: jax.Array,
        x: jax.Array,
        dt: jax.Array,
        log_decay: jax.Array,
    ) -> tuple[jax.Array, ...]:
        """See `recurrence.within`."""
        return recurrence.within(sight, C, B, dt[:, None] * x, log_decay)

    def chunked(self, S: jax.Array, sight: Sight, *ready: jax.Array) -> tuple[Any, Any]:
        """See `recurrence.chunked`."""
        return recurrence.chunked(S, sight, *ready)

    def output(
        self,
        x: jax.Array,
        y: jax.Array,
        C: jax.Array,
        B: jax.Array,
        values: jax.Array,
        *rest: jax.Array,
    ) -> jax.Array:
        """`W_o RMSNorm((y + D x) silu(z))`, normalised over the heads of a group."""
        y = y + self.skip[:, None, None] * values
        if self.output_gate:
            y = y * jax.nn.silu(self.gate(x).astype(self.float32))
        grouped = y.reshape(self.groups, -1, *y.shape[1:])
        squares = (grouped * grouped).mean((1, 3), keepdims=True)
        y = (grouped * jax.lax.rsqrt(squares + self.epsilon)).reshape(y.shape)
        return self.projections.out(y * self.scale[:, None])


zeros, ones = jax.nn.initializers.zeros, jax.nn.initializers.ones


def check(fields: Fields, model: Any, segment_length: int) -> list[str]:
    """Checks the limits of time steps, and that B and C are shared by groups alone."""
    problems = ranges(fields, 'first_steps', 'first_rates')
    if 0 < fields['longest'] < fields['shortest']:
        problems.append(
            f'longest = {fields["longest"]}: must be at least shortest = {fields["shortest"]}, or 0'
        )
    if model.num_kv_heads:
        problems.append(
            'groups: these share B and C, the keys and queries, and every head has its values; set '
            f'config.model.num_kv_heads = 0, not {model.num_kv_heads}'
        )
    return problems


def recipe(scale: Scale) -> Recipe:
    """States of head_dim, and heads that begin with a memory of one to eight segments."""
    rates = (1 / (8 * scale.segment), 1 / scale.segment)
    fields = dict(state_size=scale.head_dim, first_steps=(0.5, 1.0), first_rates=rates)
    notes = (
        "first_steps = (.5, 1): the paper's small steps write so little at first that a short training "
        'does not find the memory',
        'first_rates: heads begin with a memory of one to eight segments',
    )
    return Recipe({'mamba2': dict(chunk=min(scale.segment, 64)) | fields}, notes=notes)


ENTRY = memory(
    'mamba2',
    Mamba2,
    check=check,
    recipe=Recipes({'mamba2': recipe}),
    graft=Graft(
        lambda scale, position: dict(
            state_size=scale.head_dim, value_dim=scale.head_dim, groups=scale.num_heads
        ),
        exact=False,
        how='projections and embeddings are kept; fading sums replace the softmax, so it must be tuned',
        positions='a view of the three tokens before, and how much has faded',
    ),
    toy=dict(state_size=8, value_dim=8, groups=2, convolution=2),
    variants=dict(
        limited=dict(
            state_size=6,
            value_dim=16,
            groups=1,
            convolution=3,
            convolution_bias=False,
            bias=True,
            shortest=0.01,
            longest=0.05,
        )
    ),
)
