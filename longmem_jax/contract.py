"""What every layer of a model keeps to, with or without a memory.

A layer is a `flax.linen` module that owns parameters only. What it remembers is a pytree that goes
in and comes out. `settings`, `normalize` and `shared` are given to every layer by the model; all other
attributes of the module are the fields of its sub-config, `config.model.NAME`.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import flax.struct
import jax

from longmem_jax.segment import Aux, Segment, State

Cache = Any
# How a document may begin: with no memory, or with zero vectors that are attended to.
STARTS = ('empty', 'zeros')


@dataclasses.dataclass(frozen=True)
class ModelSettings:
    """The sizes of the model that a layer lives in.

    Attributes:
      d_model, num_heads, head_dim, d_feed_forward, num_layers: widths and depth.
      segment_length: tokens per segment at most; the room that a streaming cache keeps.
      dropout: rate on activations, in training.
      attention_dropout: rate on attention weights, in training.
      init_std: standard deviation of the normal initialisation of matrices.
      dtype: type of activations ('float32', 'bfloat16', 'float64'); parameters stay float32.
    """

    d_model: int
    num_heads: int
    head_dim: int
    d_feed_forward: int
    num_layers: int
    segment_length: int
    dropout: float
    attention_dropout: float
    init_std: float
    dtype: Any


class MemoryLayer(Protocol):
    """Contract of attention and feed-forward layers.

    `x` is the residual stream, [batch, length, d_model], before any norm: in a pre-norm model the
    layer calls `normalize` on all that it attends to, memories included; in a post-norm model
    `normalize` is the identity. Valid tokens of a lane come first (the model sees to that), so a
    layer meets padding only behind them; `segment.start` has been dealt with by the model too.

    Whole segments are read by `__call__`. Streams are read by `open_segment` at the start of a
    segment, `extend` for the next few tokens, and `close_segment` when `segment_length` tokens
    are there; both ways give the same numbers.
    """

    settings: ModelSettings
    normalize: Callable[[jax.Array], jax.Array]
    shared: Any

    def initial_state(self, batch_size: int) -> State:
        """Memory of a document that has not begun: every leaf [batch, ...]."""

    def __call__(
        self, x: jax.Array, state: State, segment: Segment, *, train: bool
    ) -> tuple[jax.Array, State, Aux]:
        """Reads the memory, attends, writes. Returns y like `x`, the new state, and `Aux`."""

    def open_segment(self, state: State, batch_size: int) -> Cache:
        """Everything the queries of the coming segment read: every leaf [batch, ...]."""

    def extend(self, x: jax.Array, cache: Cache, index: jax.Array) -> tuple[jax.Array, Cache]:
        """Reads `x` [batch, n, d_model], tokens `index` .. `index + n - 1` (int32 [batch])."""

    def close_segment(self, state: State, cache: Cache, count: jax.Array) -> State:
        """Writes the first `count` (int32 [batch]) tokens of the open segment to the memory."""


@flax.struct.dataclass
class NoState:
    """The state, or the cache, of a layer that remembers nothing: a pytree without leaves."""


def identity(x: jax.Array) -> jax.Array:
    """`normalize` of a post-norm model."""
    return x
