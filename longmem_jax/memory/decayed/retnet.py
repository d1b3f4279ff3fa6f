"""RetNet: retention, a matrix per head that fades at a fixed rate (Sun et al., 2023).

As released: queries and keys are rotated by their place in the document, keys are divided by the root of
their width, and reads are normalised per head and multiplied by a gate. Lightning Attention (Qin et al.,
2024) is the same without the rotation and with other rates; its code was not compared.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from longmem_jax.author import Lane, RecurrentMemory, Sight, field, memory
from longmem_jax.contract import Fields, Graft, Scale
from longmem_jax.layers.positions import alibi_slopes
from longmem_jax.layers.projections import Projections
from longmem_jax.memory.decayed import recurrence

DECAYS = ('retnet', 'lightning')
DIGIT = 8  # bits of a position that are multiplied at once


def log_decays(decay: str, num_heads: int) -> np.ndarray:
    """The logarithm of what a token leaves, by head, float64 [num_heads].

    'retnet': `1 - 2^(-5-h)` of head h, from 0 on. 'lightning': `exp(-s_h)`, with the slopes of ALiBi.
    """
    if decay == 'retnet':
        return np.log1p(-(2.0 ** (-5.0 - np.arange(num_heads))))
    return -alibi_slopes(num_heads)


def frequencies(width: int) -> np.ndarray:
    """Radians per token of every rotated pair, float64 [width / 2]: from 1 down to 1 / 10,000."""
    return 10000.0 ** -np.linspace(0, 1, width // 2)


def rotated(x: jax.Array, positions: jax.Array) -> jax.Array:
    """Turns neighbouring pairs of channels by `positions` times their frequencies.

    A large position times a frequency would lose the angle in float32: every digit of the position is
    multiplied separately, and whole turns are left out.

    Args:
      x: [heads, n, width], float32.
      positions: int32 [n].
    """
    of_digit = frequencies(x.shape[-1])
    angles = jnp.zeros((), x.dtype)
    for shift in range(0, 31, DIGIT):
        digit = (positions >> shift) & (2**DIGIT - 1)
        turn = jnp.asarray(of_digit * 2**shift % (2 * np.pi), x.dtype)
        angles = angles + digit.astype(x.dtype)[:, None] * turn
    sin, cos = jnp.sin(angles), jnp.cos(angles)
    a, b = x[..., 0::2], x[..., 1::2]
    return jnp.stack([a * cos - b * sin, b * cos + a * sin], axis=-1).reshape(x.shape)


class RetNet(RecurrentMemory):
    """A matrix per head that fades at a fixed rate, with rotated queries and keys."""

    decay: str = field(
        'retnet',
        "the rates of the heads; 'lightning': those of Lightning Attention, not compared with its code",
        among=DECAYS,
    )
    rotate: bool = field(True, 'queries and keys are rotated by their place in the document')
    key_dim: int = field(0, 'width of a key; 0 = head_dim', least=0, share='head_dim')
    value_dim: int = field(0, 'width of a value; 0 = twice head_dim', least=0)
    output_gate: bool = field(
        True,
        'what is read is multiplied by silu of a linear map; without it, small models find sooner what '
        'is far',
    )
    epsilon: float = field(1e-6, 'of the norm of what is read', above=0)

    def parts(self) -> None:
        width = self.value_dim or 2 * self.settings.head_dim
        self.projections = Projections(self.settings, key_dim=self.key_dim, value_dim=width)
        if self.output_gate:
            self.gate = self.to_heads(width)

    def state(self) -> jax.Array:
        """S [key_dim, value_dim]."""
        maps = self.projections
        return jnp.zeros((maps.key.head_dim, maps.value.head_dim), self.float32)

    def inputs(self, x: jax.Array, lane: Lane) -> tuple[jax.Array, ...]:
        """Queries and keys [heads, n, key_dim], values [heads, n, value_dim], log decay [heads, n]."""
        maps, n = self.projections, x.shape[0]
        queries, keys = (part.astype(self.float32) for part in (maps.queries(x), maps.keys(x)))
        if self.rotate:
            positions = lane.positions(n)
            queries, keys = rotated(queries, positions), rotated(keys, positions)
        rates = jnp.asarray(log_decays(self.decay, self.heads()), self.float32)
        log_decay = jnp.broadcast_to(rates[:, None], (self.heads(), n))
        return queries, keys * keys.shape[-1] ** -0.5, maps.values(x), log_decay

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
        """`W_o (silu(W_g x) RMSNorm(y))`, normalised per head without a weight."""
        y = y * jax.lax.rsqrt((y * y).mean(-1, keepdims=True) + self.epsilon)
        return self.projections.out(jax.nn.silu(self.gate(x)) * y if self.output_gate else y)


def check(fields: Fields, model: Any, segment_length: int) -> list[str]:
    """Checks that there are pairs to rotate."""
    width = fields['key_dim'] or model.head_dim
    if not fields['rotate'] or width % 2 == 0:
        return []
    return [f'key_dim: must be even, not {width}, since rotate = True turns pairs of channels']


def even(scale: Scale) -> dict[str, Any]:
    """Keys that can be rotated."""
    return dict(key_dim=scale.head_dim + 1) if scale.head_dim % 2 else {}


ENTRY = memory(
    'retnet',
    RetNet,
    check=check,
    recipe=even,
    graft=Graft(
        lambda scale, position: dict(value_dim=scale.head_dim),
        exact=False,
        how='projections and embeddings are kept; fading sums replace the softmax, so it must be tuned',
        positions='rotations of its own, and how much has faded',
    ),
    toy=dict(value_dim=8),
    variants=dict(
        lightning=dict(
            decay='lightning',
            rotate=False,
            key_dim=6,
            value_dim=16,
            output_gate=False,
            gradients=False,
        ),
    ),
)
