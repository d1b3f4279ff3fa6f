"""The contract of every layer of a model, with or without a memory.

A layer is a `flax.linen` module that owns parameters only. Its state is a pytree that is passed in and
returned. The model passes `settings`, `normalize` and `shared` to every layer; all other attributes of
the module are the fields of its sub-config, `config.model.NAME`, with the paper's values as defaults.
Everything else that the library must know about a layer is in its `Entry`, at the end of its file.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import flax.struct
import jax
from jax.typing import DTypeLike

from longmem_jax.host_layer import HostLayer, ReleasedLayer
from longmem_jax.segment import Aux, Segment, State
from longmem_jax.views import View

Cache = Any
Fields = Mapping[str, Any]  # of a sub-config, by name
# In `config.optimizer.groups`: pattern of paths, factor of the rate, weight decay[, another optimizer].
Group = tuple[str, float, bool] | tuple[str, float, bool, str]
# Which attention projections have biases: none; queries, keys and values; output; all.
BIASES = ('none', 'qkv', 'out', 'all')
# Initial values of kernels, see `layers.initializers`.
INITS = ('normal', 'glorot_uniform', 'torch')
# How attention is computed in training and evaluation: as XLA compiles it, or by kernels of our own.
KERNELS = ('plain', 'fused')
# How a document may begin: with no memory, or with zero vectors that are attended to.
STARTS = ('empty', 'zeros')


@dataclasses.dataclass(frozen=True)
class ModelSettings:
    """Model settings shared by all layers.

    Attributes:
      d_model, num_heads, head_dim, d_feed_forward, num_layers: widths and depth.
      segment_length: largest number of tokens per segment, and the capacity of streaming caches.
      dropout: rate on activations, in training.
      attention_dropout: rate on attention weights, in training.
      init_std: standard deviation of kernels at the start, if `init` is 'normal', and of tables.
      dtype: dtype of activations ('float32', 'bfloat16', 'float64'); parameters stay float32.
      num_kv_heads: heads of keys and values, each shared by a group of query heads; 0 = num_heads.
      attention_bias: which projections have biases: 'none', 'qkv', 'out', 'all'; layers whose papers
        have biases add their own.
      scale_scores: attention scores are multiplied by 1 / sqrt(head_dim).
      norm_epsilon: added to the variance in the norms of the stack.
      rotary_base: base of the wavelengths of rotary positions.
      rotary_share: share of head_dim that is rotated, its first dimensions.
      rotary_scaling: for texts longer than in pretraining, see `layers.positions.scaled_frequencies`.
      rotary_factor: with rotary_scaling: frequencies are divided by this.
      rotary_original: 'llama3', 'yarn': length of texts in pretraining, in tokens.
      rotary_bands: 'llama3', 'yarn': turns in rotary_original tokens. Frequencies with fewer turns than
        the first number are divided, those with more than the second are not.
      rotary_factors: 'longrope': what the frequency of every rotated pair is divided by.
      rotary_gain: factor of rotated queries, and of rotated keys.
      head_norm: norm of the queries and the keys of every head: 'none', or a kind as of `norm`; or
        'joint_rmsnorm', of all heads as one vector.
      init: kernels at the start: 'normal', 'glorot_uniform', 'torch' (PyTorch's uniform).
      scale_residual_init: kernels whose results are added to the residual stream, `out` of attention
        and `down` of the feed-forward layer, are divided by sqrt(2 num_layers) at the start.
      kernels: how whole segments, and the first tokens of an open one, are attended to: 'plain', or
        'fused' in kernels for TPUs and NVIDIA GPUs; tokens one by one are always 'plain'.
      cache_tokens: of layers with a decoder's key-value cache ('full', 'sliding'): tokens that are kept,
        0 = all that they see; in training and --mode=evaluate. Other modes keep what their texts need.
      cache_dtype: dtype of that cache; None = `dtype`.
      norm: kind of norm of the stack: 'layernorm', 'rmsnorm' or 'centred_rmsnorm', see `layers.norms`.
      pre_norm: norms before the layers; False: after the residual additions.
      residual_dropout: rate on what is added to the residual stream; -1 = `dropout`.
      token_std: root mean square of the vectors of tokens at the start; 0 = `init_std`.
      leading, trailing: extra tokens before and after the tokens of every segment, see `around`;
        `segment_length` counts them.
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
    dtype: DTypeLike
    num_kv_heads: int = 0
    attention_bias: str = 'none'
    scale_scores: bool = True
    norm_epsilon: float = 1e-5
    rotary_base: float = 10000.0
    rotary_share: float = 1.0
    rotary_scaling: str = 'none'
    rotary_factor: float = 1.0
    rotary_original: int = 0
    rotary_bands: tuple[float, float] = (1.0, 4.0)
    rotary_factors: tuple[float, ...] = ()
    rotary_gain: float = 1.0
    head_norm: str = 'none'
    init: str = 'normal'
    scale_residual_init: bool = False
    kernels: str = 'plain'
    cache_tokens: int = 0
    cache_dtype: DTypeLike | None = None
    norm: str = 'layernorm'
    pre_norm: bool = True
    residual_dropout: float = -1.0
    token_std: float = 0.0
    leading: int = 0
    trailing: int = 0

    @property
    def residual_rate(self) -> float:
        """Dropout rate of what is added to the residual stream."""
        return self.dropout if self.residual_dropout < 0 else self.residual_dropout

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values."""
        return self.num_kv_heads or self.num_heads

    @property
    def score_scale(self) -> float:
        """Factor of attention scores."""
        return self.head_dim**-0.5 if self.scale_scores else 1.0


class MemoryLayer(Protocol):
    """The interface of attention and feed-forward layers.

    `x` is the residual stream, [batch, length, d_model], before any norm: in a pre-norm model the
    layer calls `normalize` on everything that it attends to, memories included; in a post-norm model
    `normalize` is the identity. The model moves valid tokens of a lane (batch row) to the front, so
    padding only ever follows them, and resets states at `segment.start`. A layer class with
    `takes_starts = True` also reads `segment.start` of the shape bool [batch, length]: it resets
    its own state before every token where that is True.

    `__call__` reads whole segments. Streams are read by `open_segment` at the start of a segment,
    `extend` for the next tokens, one or up to all of the segment, and `close_segment` after
    `segment_length` tokens; all ways give the same numbers.
    """

    settings: ModelSettings
    normalize: Callable[[jax.Array], jax.Array]
    shared: Any

    def initial_state(self, batch_size: int) -> State:
        """The state before the first token of a document: every leaf [batch, ...]."""

    def __call__(
        self, x: jax.Array, state: State, segment: Segment, *, train: bool
    ) -> tuple[jax.Array, State, Aux]:
        """Reads the memory, attends, writes. Returns y shaped like `x`, the new state, and `Aux`."""

    def open_segment(self, state: State, batch_size: int) -> Cache:
        """Everything the queries of the coming segment read: every leaf [batch, ...]."""

    def extend(
        self, x: jax.Array, cache: Cache, index: int | jax.Array, count: jax.Array
    ) -> tuple[jax.Array, Cache]:
        """Reads the next tokens of the open segment.

        Args:
          x: [batch, n, d_model]; the segment has room for one, and for the first `count`, from `index`
            on.
          cache: of the open segment.
          index: position of the first of them, int32 [batch]. An int is the same in all lanes and
            known to the compiler, which saves gathers by distance and empty room of the cache.
          count: int32 [batch], the first `count` are tokens and those after them padding. What a
            cache keeps of padding is never read; the next tokens are written over it.

        Returns:
          y shaped like `x`, without meaning at padding, and the cache with the tokens in it.
        """

    def close_segment(self, state: State, cache: Cache, count: jax.Array) -> State:
        """Writes the first `count` (int32 [batch]) tokens of the open segment to the memory."""


class NoState(flax.struct.PyTreeNode):
    """The state or cache of a stateless layer: a pytree without leaves."""


def identity(x: jax.Array) -> jax.Array:
    """`normalize` of a post-norm model."""
    return x


# Attributes that the model sets; all others are fields of the sub-config.
GIVEN = ('settings', 'normalize', 'shared', 'depth', 'parent', 'name')
# Where a layer stands in a block: instead of one of its two layers, or around it. Attention layers may
# also stand beside the block's own attention.
PLACES = ('attention', 'feed_forward', 'around')


@dataclasses.dataclass(frozen=True)
class Scale:
    """The sizes that recipes derive a memory's fields from; see `config.recipes.scale_of`.

    Attributes:
      segment, evaluated: tokens per segment in training and in evaluation.
      layers, d_model, num_heads, head_dim: sizes of the model.
      reach: length of windows of hidden vectors.
      memories: entries of a memory of keys and values.
      basis, samples, widths: basis functions, samples and widths of a continuous memory.
      slots, tokens: slots of memories with a fixed number of vectors, and memory tokens.
      keys: product keys per half.
      context: tokens of the longest text that a pretrained decoder was made for; 0 = none is known.
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
    context: int = 0

    def position(self) -> tuple[str, tuple[str, ...]]:
        """A relative position scheme for heads of this width, and a note if it is not 'rotary'."""
        if self.head_dim % 2 == 0:
            return 'rotary', ()
        note = f"position = 't5': 'rotary' rotates pairs, and head_dim = {self.head_dim} is odd"
        return 't5', (note,)


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How to build a model with a memory that learns.

    Attributes:
      sections: layer name to the fields that differ from the layer's defaults.
      attention, feed_forward: names per layer; () = the memory in every layer, and 'dense'.
      around: names per layer of what stands around the blocks, '' = nothing; () = nothing anywhere.
      model: other fields of `config.model`.
      loss_weights: entries of `config.train.loss_weights`.
      groups: entries of `config.optimizer.groups`.
      notes: deviations from the paper and their reasons; copied to `config.notes`.
    """

    sections: dict[str, dict[str, Any]]
    attention: tuple[str, ...] = ()
    feed_forward: tuple[str, ...] = ()
    around: tuple[str, ...] = ()
    model: dict[str, Any] = dataclasses.field(default_factory=dict)
    loss_weights: dict[str, float] = dataclasses.field(default_factory=dict)
    groups: tuple[Group, ...] = ()
    notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Graft:
    """How a layer takes the place of a layer of a pretrained decoder.

    Attributes:
      fields: `(scale, position) -> fields` of its sub-config, in addition to those of the recipe.
        `position` is the host's: 'rotary', or 'none' where positions are added to embeddings and begin
        at 0 in every segment.
      exact: with an empty memory the model computes exactly what the host does.
      how: why it does, or what is kept of the host, for tables: a short text without a full stop.
      positions: what it knows of the order of remembered tokens, for tables.
      recipes: recipes of the layer that can be put into a decoder; () = all.
      window: it is a window through which a decoder reads a text of any length as it was trained; where
        another memory stands in some layers, the recipe of this layer's name stands in the others.
      groups: `position -> groups` of parameters with a rate of their own, in addition to those of the
        recipe; as in `config.optimizer.groups`.
    """

    fields: Callable[[Scale, str], dict[str, Any]]
    exact: bool
    how: str
    positions: str
    recipes: tuple[str, ...] = ()
    window: bool = False
    groups: Callable[[str], tuple[Group, ...]] = lambda position: ()


def fields_of(layer: type) -> list[dataclasses.Field[Any]]:
    """The attributes of a layer's module that are fields of its sub-config."""
    return [field for field in dataclasses.fields(layer) if field.name not in GIVEN]


@dataclasses.dataclass(frozen=True)
class LayerType:
    """A layer's module, and what a model must know of it.

    Attributes:
      module: linen module, see `MemoryLayer`, or `around.Around`.
      check: `(fields, config.model, segment_length) -> problems` of a sub-config; None = nothing to
        check.
      shared: `fields -> module class` of parameters shared by all layers of this type, or None.
      losses: `fields -> names` of its `Aux.losses`, for which `config.train.loss_weights` has weights.
      reach: `(fields, segment_length) -> tokens` before a segment that a layer can read in it, at
        most; None, or of these fields None = unlimited, or not an attention layer.
      bounded: names of parameters that the optimizer keeps in [0, 1].
      nearest: field with the number of entries from which the `top_k` nearest are chosen; ties in
        bfloat16 may change the choice. '' = there is no such choice.
      fused: `fields -> problem`, what keeps a layer of these fields from `kernels = 'fused'`, '' =
        nothing; None = it has no fused kernel.
      context: `fields -> tokens` of the longest text all of which the layer sees, 0 = it has no longest;
        of layers whose memory is a pretrained decoder's key-value cache. None = of all others.
      cross: `(its sub-config, slots) -> module class` of cross-attention for encoder-decoders, a
        function of `settings` and `normalize` with the methods of `attention.cross_attention`; None =
        it has none.
      extra: `fields -> (leading, trailing)`, numbers of its extra tokens, if it stands around blocks.
      between: it stands around blocks and has a part between attention and feed-forward layer.
      inside: the attention layer that one around blocks is around outside of this library's models, and
        that one's fields that differ from the defaults; of a feed-forward layer, that of its toy.
    """

    module: type
    check: Callable[[Fields, Any, int], list[str]] | None = None
    shared: Callable[[Fields], Callable[..., Any] | None] | None = None
    losses: Callable[[Fields], tuple[str, ...]] = lambda fields: ()
    reach: Callable[[Fields, int], int | None] | None = None
    bounded: tuple[str, ...] = ()
    nearest: str = ''
    fused: Callable[[Fields], str] | None = None
    context: Callable[[Fields], int] | None = None
    cross: Callable[[Fields, int], Callable[..., Any]] | None = None
    extra: Callable[[Fields], tuple[int, int]] = lambda fields: (0, 0)
    between: bool = False
    inside: tuple[str, dict[str, Any]] = ('local', {})


@dataclasses.dataclass(frozen=True)
class Recipes:
    """With which settings a memory learns, and which of them must stay as they were in training.

    Attributes:
      by_name: NAME of `:memory=NAME` to `(scale) -> Recipe`.
      check: like `LayerType.check`: what would keep a layer of these fields from learning; None =
        nothing to check. Not for evaluation, whose segments and fields may differ.
      trained: fields that parameters are trained for though no shape depends on them, with advice:
        evaluation must not override them.
      warnings: name of one of its `Aux.metrics` to the warning in training when it is above 0.
      growing: ends of paths of parameters that may have more rows than in the run it starts from.
      unshifted: fields with which it has no view of its own of the tokens just before, to compare it in
        a model that has one.
    """

    by_name: dict[str, Callable[[Scale], Recipe]] = dataclasses.field(default_factory=dict)
    check: Callable[[Fields, Any, int], list[str]] | None = None
    trained: dict[str, str] = dataclasses.field(default_factory=dict)
    warnings: dict[str, str] = dataclasses.field(default_factory=dict)
    growing: tuple[str, ...] = ()
    unshifted: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Entry:
    """One layer type of the registry: its layer, its recipes, its graft, its view.

    Attributes:
      name: its name in `config.model.attention`, `feed_forward` or `around`.
      layer: its module, and what a model must know of it.
      place: where it stands in a block, one of `PLACES`.
      recipe: with which settings it learns.
      graft: how it takes the place of a pretrained decoder's layer; None = it does not.
      hosts: how families of decoders have it by themselves, by a name that `hosts.families` uses.
      released: how the authors' program has it, if `released.transformer_sequential` reads it.
      view: what `--mode=inspect`, pictures and tables show of it.
      toy: fields that differ from the defaults in the small layer of the conformance suite.
      variants: name to further changes of the toy, which the suite also runs.
      same_as: name of a layer with the same code and other defaults, so that tests of one hold for
        both; '' = it has code of its own.
    """

    name: str
    layer: LayerType
    place: str = 'attention'
    recipe: Recipes = Recipes()
    graft: Graft | None = None
    hosts: Mapping[str, HostLayer] = dataclasses.field(default_factory=dict)
    released: ReleasedLayer | None = None
    view: View = View()
    toy: dict[str, Any] = dataclasses.field(default_factory=dict)
    variants: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    same_as: str = ''

    def fields(self) -> dict[str, Any]:
        """Names and types of the fields of the sub-config."""
        return {field.name: field.type for field in fields_of(self.layer.module)}

    def defaults(self) -> dict[str, Any]:
        """The sub-config with the paper's values."""
        return {field.name: field.default for field in fields_of(self.layer.module)}

    def small(self, variant: str = '') -> dict[str, Any]:
        """The sub-config of the conformance suite, or of one of its variants."""
        return self.defaults() | self.toy | (self.variants[variant] if variant else {})
