"""MemSizer: a few learned memory keys in place of self-attention (Zhang and Cai, 2022).

A query attends to k slots, whatever the length. The slots hold a running sum of outer products of two
projections of the tokens, `LN(W_l x)` and `LN(W_r x)`, shared by the heads.
As released: softmaxes averaged over heads, sums over the square root of the tokens so far, biases.
"""

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from longmem_jax.author import Lane, RecurrentMemory, Sight, field, memory
from longmem_jax.contract import Fields, Graft, ModelSettings, Recipe, Recipes, Scale
from longmem_jax.layers import associative, initializers, rows_product
from longmem_jax.layers.associative import Pairs, two_sum
from longmem_jax.layers.dropout import Dropout
from longmem_jax.layers.norms import Norm
from longmem_jax.layers.projections import HeadsIn
from longmem_jax.layers.token_shift import EARLIER, TokenShift
from longmem_jax.views import Read, Seen, Series, View


class Slots(flax.struct.PyTreeNode):
    """Slots of one lane; all heads share them.

    Attributes:
      pairs: the matrix is [slots, d_model], not scaled; with a `rest` if it carries over.
      count: [2], tokens in it: their number, and what rounding has cut off it.
    """

    pairs: Pairs
    count: jax.Array


def fill(left: jax.Array, right: jax.Array, valid: jax.Array) -> jax.Array:
    """Fills slots from a whole source, not causally; divided by the square root of its length.

    Args:
      left: [batch, source, slots]; right: [batch, source, d_model].
      valid: bool [batch, source].

    Returns:
      [batch, slots, d_model].
    """
    left = jnp.where(valid[..., None], left, jnp.zeros_like(left))
    length = jnp.maximum(valid.sum(axis=1), 1).astype(left.dtype)
    filled = jnp.einsum('bsk,bsd->bkd', left, right, precision=associative.HIGHEST)
    return filled * (length**-0.5)[:, None, None]


def read(shares: jax.Array, slots: jax.Array) -> jax.Array:
    """Slots weighted by `shares` [batch, n, slots]: [batch, n, d_model]."""
    return jnp.einsum('bnk,bkd->bnd', shares, slots, precision=associative.HIGHEST)


def initializer(settings: ModelSettings, scale: float) -> Callable[..., jax.Array]:
    """Initial kernels: Xavier's uniform ones with a gain of `scale ** -0.5`; 0 = as other kernels."""
    return initializers.xavier_uniform(scale**-0.5) if scale else initializers.kernel(settings)


class SlotProjections(nn.Module):
    """The three maps of MemSizer.

    They are not `Projections`: queries have `num_slots` scores per head instead of `head_dim`, and
    tokens do not write keys or values of heads. So weights of other attention layers do not fit.

    Attributes:
      settings: sizes of the model; memory keys have its number of heads.
      num_slots: k.
      bias: biases of the three maps; `settings.attention_bias` is ignored.
      query_scale, write_scale: see `MemSizer`.
    """

    settings: ModelSettings
    num_slots: int
    bias: bool
    query_scale: float = 0.0
    write_scale: float = 0.0

    def setup(self) -> None:
        settings, axes = self.settings, initializers.with_axes
        init = initializer(settings, self.write_scale)
        self.float32 = jnp.promote_types(settings.dtype, jnp.float32)
        self.query = HeadsIn(
            num_heads=settings.num_heads,
            head_dim=self.num_slots,
            dtype=settings.dtype,
            kernel_init=initializer(settings, self.query_scale),
            bias=self.bias,
        )
        dense: dict[str, Any] = dict(
            dtype=settings.dtype, use_bias=self.bias, dot_general=rows_product.dot_general
        )
        self.left = nn.Dense(self.num_slots, kernel_init=axes(init, ('embed', None)), **dense)
        self.right = nn.Dense(settings.d_model, kernel_init=axes(init, (None, 'embed')), **dense)
        self.left_norm, self.right_norm = Norm('layernorm'), Norm('layernorm')
        self.drop = Dropout(settings.attention_dropout)

    def shares(self, x: jax.Array, train: bool) -> jax.Array:
        """Attention of the queries of `x` [..., n, d_model] to each slot: [..., n, slots]."""
        weights = jax.nn.softmax(self.query(x).astype(self.float32), axis=-1)
        return self.drop(weights, deterministic=not train).mean(axis=-3)

    def written(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The two factors that tokens write: [..., n, slots] and [..., n, d_model]."""
        return (
            self.left_norm(self.left(x)).astype(self.float32),
            self.right_norm(self.right(x)).astype(self.float32),
        )


class MemSizer(RecurrentMemory):
    """Causal key-value memory layer."""

    carry: bool = field(False, 'the slots carry over to the next segment')
    num_slots: int = field(32, 'k, memory keys per head', least=1)
    bias: bool = field(True, 'biases of the maps, as released; the paper has none')
    query_scale: float = field(
        32.0,
        "the map of queries begins with Xavier's uniform values and a gain of `scale ** -0.5`, as "
        'released: 32 in language models, 8 in translation; 0 = as other kernels',
        least=0,
    )
    write_scale: float = field(
        1.0,
        'the same of the maps of what is written: 1 in language models, 8 in translation',
        least=0,
    )
    shift: str = field(
        'none',
        'how the layer also sees the tokens just before; none in the paper',
        among=EARLIER,
    )

    def parts(self) -> None:
        scales = (self.query_scale, self.write_scale)
        self.maps = SlotProjections(self.settings, self.num_slots, self.bias, *scales)
        self.mix = TokenShift(self.settings, self.shift)

    def heads(self) -> int:
        """One: the heads differ in their keys alone."""
        return 1

    def state(self) -> Slots:
        """Empty slots."""
        shape = (self.num_slots, self.settings.d_model)
        pairs = associative.empty(*shape, dtype=self.float32, endless=self.carry)
        return Slots(pairs, jnp.zeros((2,), self.float32))

    def inputs(self, x: jax.Array, lane: Lane) -> tuple[jax.Array, ...]:
        """Shares of the slots, both factors that tokens write, and 1 for each token."""
        x = lane.mixed(self.mix, x)
        given = (self.maps.shares(x, lane.train), *self.maps.written(x), jnp.ones(len(x)))
        return tuple(array[None] for array in given)

    def step(self, slots: Slots, share: Any, left: Any, right: Any, one: Any) -> Any:
        """Adds `left right^T`; reads the slots by their shares, over the root of the tokens so far."""
        pairs = associative.add(slots.pairs, Pairs(jnp.outer(left, right), left))
        count = _counted(slots.count, one)
        return Slots(pairs, count), share @ pairs.matrix * _scale(count[0])

    def chunked(
        self, slots: Slots, sight: Sight, shares: Any, left: Any, right: Any, one: Any
    ) -> Any:
        """The same for [n, ...]."""
        within, before, at_end = sight.shares()
        read = (
            before[:, None] * (shares @ slots.pairs.matrix) + (within * (shares @ left.T)) @ right
        )
        seen = before * slots.count[0] + (before * slots.count[1] + within @ one)
        kept, left = jax.tree.map(lambda sum: before[-1] * sum, slots), at_end[:, None] * left
        pairs = associative.add(kept.pairs, Pairs(left.T @ right, left.sum(0)))
        count = _counted(kept.count, (at_end * one).sum())
        return Slots(pairs, count), read * _scale(seen)[:, None]

    def output(self, x: jax.Array, y: jax.Array, *inputs: jax.Array) -> jax.Array:
        """What was read: it has the width of the model."""
        return y[0]

    def memory_size(self, count: jax.Array) -> jax.Array:
        """The number of slots."""
        return jnp.asarray(float(self.num_slots), jnp.float32)


def _counted(count: jax.Array, more: jax.Array) -> jax.Array:
    """`count` [2] and `more` tokens."""
    return jax.lax.stop_gradient(jnp.stack(two_sum(count[0], count[1], more)))


def _scale(tokens: jax.Array) -> jax.Array:
    """1 / sqrt(tokens)."""
    return jax.lax.rsqrt(jnp.maximum(jax.lax.stop_gradient(tokens), 1))


def read_slots(seen: Seen) -> dict[str, Read]:
    """The share of every slot, a mean over the heads; slots are sums and stand for no single tokens."""
    layer, num_valid = seen.layer, seen.segment.num_valid
    recent = layer.begin(seen.state, seen.x.shape[0]).tails['mix']
    x, _ = layer.mix(layer.normalize(seen.x), recent, num_valid)
    shares = layer.maps.shares(x, False)[:, None].astype(jnp.float32)
    numbers = jnp.arange(layer.num_slots, dtype=jnp.int32)[None, None, None]
    return {'slots': Read(shares, numbers, slots=True)}


def series(seen: Seen) -> Series:
    """The size of every slot, and how much the segment changed it."""

    def sizes(matrix: jax.Array) -> jax.Array:
        return jnp.linalg.norm(matrix[:, 0].astype(jnp.float32), axis=-1)

    old, new = seen.state.memory.pairs.matrix, seen.new.memory.pairs.matrix
    return Series(by_segment={'size of slots': sizes(new), 'change of slots': sizes(new - old)})


def check(fields: Fields, model: Any, segment_length: int) -> list[str]:
    """Checks that heads do not share keys."""
    if not model.num_kv_heads:
        return []
    return [
        'num_slots: keys are learned per head and cannot be shared by groups of heads; set '
        f'config.model.num_kv_heads = 0, not {model.num_kv_heads}'
    ]


class CrossMemSizer(nn.Module):
    """MemSizer as cross-attention: slots filled once from a source of any length.

    Attributes:
      settings: sizes of the model.
      normalize: norm of a pre-norm model, used on the queries' side only.
      num_slots: k.
      bias, query_scale, write_scale: of the maps, see `MemSizer`.
    """

    settings: ModelSettings
    normalize: Callable[[jax.Array], jax.Array]
    num_slots: int
    bias: bool
    query_scale: float
    write_scale: float

    def setup(self) -> None:
        scales = (self.query_scale, self.write_scale)
        self.maps = SlotProjections(self.settings, self.num_slots, self.bias, *scales)

    def source(self, vectors: jax.Array, valid: jax.Array) -> jax.Array:
        """Slots of `vectors` [batch, n, d_model] where `valid`: [batch, num_slots, d_model]."""
        left, right = self.maps.written(vectors)
        return fill(left, right, valid)

    def __call__(self, x: jax.Array, source: jax.Array, *, train: bool) -> jax.Array:
        """Reads from `x` [batch, length, d_model]; the same shape, without the residual."""
        y = read(self.maps.shares(self.normalize(x), train), source)
        return y.astype(self.settings.dtype)


def cross(fields: Fields, num_slots: int) -> Callable[..., CrossMemSizer]:
    """Cross-attention with slots of its own and the other fields of the decoder's self-attention."""
    own = {name: fields[name] for name in ('bias', 'query_scale', 'write_scale')}
    return functools.partial(CrossMemSizer, num_slots=num_slots, **own)


def recipe(scale: Scale) -> Recipe:
    """Slots that carry over, and a view of the token before in place of absolute positions.

    Maps begin as other kernels: the gain of the release leaves the shares of all slots equal, and what
    is written adds up to zero over the slots. Without `carry`, as in the paper, nothing is remembered
    beyond a segment.
    """
    fields = dict(num_slots=scale.slots, chunk=min(scale.segment, 64), shift='half', carry=True)
    fields |= dict(query_scale=0.0, write_scale=0.0)
    notes = (
        "shift = 'half': slots alone cannot single out the token before; no absolute positions",
        'carry = True: otherwise nothing is remembered beyond a segment',
    )
    return Recipe({'memsizer': fields}, notes=notes)


ENTRY = memory(
    'memsizer',
    MemSizer,
    check=check,
    cross=cross,
    recipe=Recipes({'memsizer': recipe}, unshifted=dict(shift='none')),
    graft=Graft(
        lambda scale, position: dict(shift='none'),
        exact=False,
        how='embeddings and feed-forward layers are kept; attention is replaced',
        positions="those in the host's embeddings; rotary ones are lost",
    ),
    view=View(read=read_slots, series=series, lengths={'num_slots': '+ slots '}),
    toy=dict(num_slots=4, carry=True, query_scale=0.0, write_scale=0.0),
    variants=dict(
        paper=dict(bias=False, chunk=8, gradients=False, query_scale=32.0, write_scale=1.0),
        shifted=dict(shift='half'),
        convolved=dict(shift='convolution'),
    ),
)
