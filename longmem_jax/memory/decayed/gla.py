"""Gated linear attention: a matrix per head that fades by learned gates (Yang et al., 2024).

Every token decides how much of each channel of the keys it leaves. As released: a gate of low rank, its
logarithm divided by 16, a norm per head and an output gate.
Simple GLA (one gate per head) and HGRN2 (Qin et al., 2024: what is forgotten is the key) are fields of
the same layer; their code was not compared.
"""

from typing import Any

import jax
import jax.numpy as jnp

from longmem_jax.author import Lane, RecurrentMemory, Sight, field, memory, param
from longmem_jax.contract import Fields, Graft, Recipe, Recipes, Scale
from longmem_jax.layers.norms import Norm
from longmem_jax.layers.projections import Projections
from longmem_jax.layers.token_shift import Convolution
from longmem_jax.memory.decayed import recurrence
from longmem_jax.problems import between

GATES = ('channel', 'head')


class GatedLinearAttention(RecurrentMemory):
    """A matrix per head that fades by a gate per channel or head, given by each token."""

    gate: str = field(
        'channel', "what has a gate; 'head' is simple GLA, not compared with its code", among=GATES
    )
    gate_rank: int = field(16, 'rank of the map to the gates of channels', least=1)
    slowness: float = field(16.0, 'gates are raised to the power of 1 / slowness', above=0)
    tied: bool = field(
        False,
        'keys are what the gates of channels forget, 1 - gate, as in HGRN2; not compared with its code',
    )
    least_kept: float = field(
        0.0, 'share that every token leaves at least, from 0, below 1; the lower bound of HGRN2'
    )
    key_dim: int = field(0, 'width of a key; 0 = half of head_dim', least=0)
    value_dim: int = field(0, 'width of a value; 0 = head_dim', least=0, share='head_dim')
    convolution: int = field(
        0, 'tokens of short convolutions of queries, keys and values; 0 = none', least=0
    )
    output_gate: bool = field(
        True,
        'what is read is multiplied by silu of a linear map; without it, small models find sooner what '
        'is far',
    )
    epsilon: float = field(1e-5, 'of the norm of what is read', above=0)

    def parts(self) -> None:
        settings, sizes = self.settings, self.sizes()
        width = self.key_dim or max(1, settings.head_dim // 2)
        self.projections = Projections(settings, key_dim=width, value_dim=sizes.value_dim)
        if self.output_gate:
            self.out_gate = self.to_heads(sizes.value_dim)
        self.norm = Norm('rmsnorm', self.epsilon)
        if self.gate == 'head':
            self.decay_kernel, self.decay_bias = (
                param('d_model', 'heads'),
                param('heads', init=zeros),
            )
        else:
            self.decay_down = param('d_model', 'gate_rank')
            self.decay_kernel = param('gate_rank', 'heads', width)
            self.decay_bias = param('heads', width, init=zeros)
        if self.convolution:
            maps = self.projections
            self.convolved_queries = self.conv_of(maps.query, self.convolution)
            self.convolved_values = self.conv_of(maps.value, self.convolution)
            if not self.tied:
                self.convolved_keys = self.conv_of(maps.key, self.convolution)

    def state(self) -> jax.Array:
        """S [key_dim, value_dim]."""
        maps = self.projections
        return jnp.zeros((maps.key.head_dim, maps.value.head_dim), self.float32)

    def log_decay(self, x: jax.Array) -> jax.Array:
        """The logarithm of the gates, [heads, n, key_dim], or [heads, n] of gates by head."""
        x = x.astype(self.float32)
        if self.gate == 'head':
            logits = (x @ self.decay_kernel + self.decay_bias).T
        else:
            logits = jnp.einsum('nr,rhc->hnc', x @ self.decay_down, self.decay_kernel)
            logits = logits + self.decay_bias[:, None]
        log_decay = jax.nn.log_sigmoid(logits) / self.slowness
        if self.least_kept:
            log_decay = jnp.log(self.least_kept + (1 - self.least_kept) * jnp.exp(log_decay))
        return log_decay

    def convolved(self, lane: Lane, part: str, x: jax.Array) -> jax.Array:
        """Queries, keys or values through their convolution, if they have one."""
        if not self.convolution:
            return x
        convolution: Convolution = getattr(self, f'convolved_{part}')
        return jax.nn.silu(lane.mixed(convolution, x))

    def inputs(self, x: jax.Array, lane: Lane) -> tuple[jax.Array, ...]:
        """Queries and keys [heads, n, key_dim], values [heads, n, value_dim], `log_decay`."""
        maps, log_decay = self.projections, self.log_decay(x)
        kept = jnp.exp(log_decay)
        lane.log(share_kept=kept if kept.ndim == 2 else kept.mean(-1))
        queries = self.convolved(lane, 'queries', maps.queries(x))
        keys = 1 - kept if self.tied else self.convolved(lane, 'keys', maps.keys(x))
        values = self.convolved(lane, 'values', maps.values(x))
        return queries * queries.shape[-1] ** -0.5, keys, values, log_decay

    def step(self, state: Any, *inputs: Any, **named: Any) -> tuple[Any, Any]:
        """See `recurrence.step`."""
        return recurrence.step(state, *inputs)

    def within(self, sight: Sight, *inputs: jax.Array) -> tuple[jax.Array, ...]:
        """See `recurrence.within`."""
        return recurrence.within(sight, *inputs)

    def chunked(self, S: jax.Array, sight: Sight, *ready: jax.Array) -> tuple[Any, Any]:
        """See `recurrence.chunked`."""
        return recurrence.chunked(S, sight, *ready)

    def output(self, x: jax.Array, y: jax.Array, *inputs: jax.Array) -> jax.Array:
        """`W_o (silu(W_g x) RMSNorm(y))`, normalised per head with one weight for all heads."""
        y = self.norm(y)
        return self.projections.out(jax.nn.silu(self.out_gate(x)) * y if self.output_gate else y)


zeros = jax.nn.initializers.zeros


def check(fields: Fields, model: Any, segment_length: int) -> list[str]:
    """Checks that there is a share to forget, and that tied keys have channels."""
    problems = between(fields, 0, 1, 'least_kept', ends='[)')
    if fields['tied'] and fields['gate'] == 'head':
        problems.append(
            "tied = True: keys are the gates of channels; use gate='channel', not 'head'"
        )
    return problems


def recipe(scale: Scale) -> Recipe:
    """The paper's layer with short convolutions, an option of the release."""
    note = 'convolution = 4: a gated sum alone cannot single out the token before; no absolute positions'
    return Recipe({'gla': dict(chunk=min(scale.segment, 64), convolution=4)}, notes=(note,))


ENTRY = memory(
    'gla',
    GatedLinearAttention,
    check=check,
    recipe=Recipes({'gla': recipe}, unshifted=dict(convolution=0)),
    graft=Graft(
        lambda scale, position: dict(key_dim=scale.head_dim, convolution=0),
        exact=False,
        how='projections and embeddings are kept; fading sums replace the softmax, so it must be tuned',
        positions='how much has faded',
    ),
    # The first tokens of a document read tiny numbers; divided by them, rounding would decide.
    toy=dict(gate_rank=2, convolution=2, key_dim=8, epsilon=1e-2),
    variants=dict(
        paper=dict(gate_rank=2, convolution=0, key_dim=4, gradients=False),
        simple=dict(gate='head', slowness=2.0, output_gate=False),
        hgrn2=dict(tied=True, slowness=1.0, least_kept=0.1),
    ),
)
