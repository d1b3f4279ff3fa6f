"""What every layer of a model keeps to, with or without a memory.

A layer is a `flax.linen` module that owns parameters only. What it remembers is a pytree that goes
in and comes out. `settings`, `normalize` and `shared` are given to every layer by the model; all other
attributes of the module are the fields of its sub-config, `config.model.NAME`, and their defaults are
the paper's values. Everything else that the library must know of a layer stands in its `Entry`, at the
end of its file.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import flax.struct
import jax

from longmem_jax.segment import Aux, Segment, State

Cache = Any
# Which projections of attention have biases: none, those of queries, keys and values, the output's, all.
BIASES = ('none', 'qkv', 'out', 'all')
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
      num_kv_heads: heads of keys and values, each shared by a group of query heads; 0 = num_heads.
      attention_bias: one of `BIASES`; a layer whose paper has biases adds its own.
      scale_scores: attention scores are multiplied by 1 / sqrt(head_dim).
      norm_epsilon: added to the variance in the norms of the stack.
      rotary_base: base of the wavelengths of rotary positions.
      rotary_share: share of head_dim that is rotated, from its front.
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
    num_kv_heads: int = 0
    attention_bias: str = 'none'
    scale_scores: bool = True
    norm_epsilon: float = 1e-5
    rotary_base: float = 10000.0
    rotary_share: float = 1.0

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values."""
        return self.num_kv_heads or self.num_heads

    @property
    def score_scale(self) -> float:
        """Factor of attention scores."""
        return self.head_dim**-0.5 if self.scale_scores else 1.0


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


# Attributes that the model gives; all others are fields of the sub-config.
GIVEN = ('settings', 'normalize', 'shared', 'parent', 'name')


@dataclasses.dataclass(frozen=True)
class Scale:
    """The sizes that recipes derive a memory's fields from; see `config.recipes.scale_of`.

    Attributes:
      segment: tokens per segment in training.
      evaluated: tokens per segment in evaluation.
      layers, d_model, num_heads, head_dim: of the model.
      reach: tokens that windows of hidden vectors go back.
      memories: entries of a memory of keys and values.
      basis, samples, widths: of a continuous memory.
      slots: of memories of a fixed number of vectors.
      tokens: memory tokens.
      keys: product keys per half.
    """

    segment: int
    evaluated: int
    layers: int
    d_model: int
    num_heads: int
    head_dim: int
    reach: int
    memories: int
    basis: int
    samples: int
    widths: tuple[float, ...]
    slots: int
    tokens: int
    keys: int

    def position(self) -> tuple[str, tuple[str, ...]]:
        """A relative position scheme for heads of this width, and a note where it is not 'rotary'."""
        if self.head_dim % 2 == 0:
            return 'rotary', ()
        note = f"position = 't5': 'rotary' turns pairs, and head_dim = {self.head_dim} is odd"
        return 't5', (note,)


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How a memory is put into a model so that it can learn.

    Attributes:
      sections: layer name to the fields that differ from the layer's defaults.
      attention, feed_forward: names per layer; () = the memory in every layer, and 'dense'.
      model: other fields of `config.model`.
      loss_weights: of `config.train.loss_weights`.
      groups: of `config.optimizer.groups`.
      notes: what had to be chosen otherwise than in the paper, and why; they stand in `config.notes`.
    """

    sections: dict[str, dict[str, Any]]
    attention: tuple[str, ...] = ()
    feed_forward: tuple[str, ...] = ()
    model: dict[str, Any] = dataclasses.field(default_factory=dict)
    loss_weights: dict[str, float] = dataclasses.field(default_factory=dict)
    groups: tuple[tuple, ...] = ()
    notes: tuple[str, ...] = ()


def fields_of(layer: type) -> list[dataclasses.Field]:
    """The attributes of a layer's module that are fields of its sub-config."""
    return [field for field in dataclasses.fields(layer) if field.name not in GIVEN]


@dataclasses.dataclass(frozen=True)
class Entry:
    """One layer type of the registry.

    Attributes:
      name: what `config.model.attention` or `config.model.feed_forward` calls it.
      layer: its linen module, see `MemoryLayer`.
      toy: fields that differ from the defaults in the small layer of the conformance suite.
      variants: further changes of the toy, by name, that the suite runs too.
      recipes: names of `:memory=NAME` to `(scale) -> Recipe`.
      check: `(fields, config.model, segment_length) -> problems` of a sub-config; None = nothing to
        check.
      losses: `fields -> names` in its `Aux.losses`, each with a weight in
        `config.train.loss_weights`.
      shared: `fields -> module class` of parameters shared by all layers of this type, or None.
      lengths: fields that say how far it remembers, with a word each for tables of results.
      standalone: module class in place of `layer` in somebody else's model, where the rest of what
        it needs is this library's model; None = `layer`.
      bounded: names of parameters that the optimizer keeps in [0, 1].
      nearest: field that holds the number of entries of which `top_k` are chosen by nearness: scores
        that tie in bfloat16 choose others. '' = nothing is chosen.
    """

    name: str
    layer: type
    toy: dict[str, Any]
    variants: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    recipes: dict[str, Callable[[Scale], Recipe]] = dataclasses.field(default_factory=dict)
    check: Callable[[Any, Any, int], list[str]] | None = None
    losses: Callable[[Any], tuple[str, ...]] = lambda fields: ()
    shared: Callable[[Any], Any] | None = None
    lengths: dict[str, str] = dataclasses.field(default_factory=dict)
    standalone: type | None = None
    bounded: tuple[str, ...] = ()
    nearest: str = ''

    def fields(self) -> dict[str, Any]:
        """Names and types of the fields of the sub-config."""
        return {field.name: field.type for field in fields_of(self.layer)}

    def defaults(self) -> dict[str, Any]:
        """The sub-config with the paper's values."""
        return {field.name: field.default for field in fields_of(self.layer)}

    def small(self, variant: str = '') -> dict[str, Any]:
        """The sub-config of the conformance suite, or of one of its variants."""
        return self.defaults() | self.toy | (self.variants[variant] if variant else {})
