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

from longmem_jax.contract import Entry, Graft, ModelSettings, Recipe, Scale
from longmem_jax.faults import at_least, one_of
from longmem_jax.kernels.cpu import rows_product
from longmem_jax.layers import associative, initializers, linear_kernel
from longmem_jax.layers.norms import Norm
from longmem_jax.layers.projections import HeadsIn
from longmem_jax.layers.token_shift import EARLIER, TokenShift
from longmem_jax.memory.recurrent import Recurrent
from longmem_jax.segment import Aux, Segment
from longmem_jax.views import Read, Seen, Series, View


@flax.struct.dataclass
class MemSizerState:
    """Slots of one layer; while a segment is open, with the tokens read so far.

    Attributes:
      pairs: the matrix is [batch, 1, slots, d_model], float32, not scaled; with a `rest` if it
        carries over.
      count: float32 [batch, 2], tokens in it: their number, and what rounding has cut off it.
      recent: [batch, 1 or 3, d_model], the last normalised vectors, for `shift`; None without it.
    """

    pairs: associative.Pairs
    count: jax.Array
    recent: jax.Array | None = None


def check(fields: Any, model: Any, segment_length: int) -> list[str]:
    """Checks that `num_slots` and `chunk` are positive, and that heads do not share keys."""
    faults = at_least(fields, 1, 'num_slots', 'chunk') + one_of(fields, shift=EARLIER)
    faults += at_least(fields, 0, 'query_scale', 'write_scale')
    if model.num_kv_heads:
        faults.append(
            'num_slots: keys are learned per head and cannot be shared by groups of heads; set '
            f'config.model.num_kv_heads = 0, not {model.num_kv_heads}'
        )
    return faults


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

    def setup(self):
        settings, axes = self.settings, nn.with_logical_partitioning
        init = initializer(settings, self.write_scale)
        self.float32 = jnp.promote_types(settings.dtype, jnp.float32)
        self.query = HeadsIn(
            num_heads=settings.num_heads,
            head_dim=self.num_slots,
            dtype=settings.dtype,
            kernel_init=initializer(settings, self.query_scale),
            bias=self.bias,
        )
        dense = dict(dtype=settings.dtype, use_bias=self.bias, dot_general=rows_product.dot_general)
        self.left = nn.Dense(self.num_slots, kernel_init=axes(init, ('embed', None)), **dense)
        self.right = nn.Dense(settings.d_model, kernel_init=axes(init, (None, 'embed')), **dense)
        self.left_norm, self.right_norm = Norm('layernorm'), Norm('layernorm')
        self.drop = nn.Dropout(settings.attention_dropout)

    def shares(self, x: jax.Array, train: bool) -> jax.Array:
        """Attention of the queries of `x` [batch, n, d_model] to each slot: [batch, n, slots]."""
        weights = jax.nn.softmax(self.query(x).astype(self.float32), axis=-1)
        return self.drop(weights, deterministic=not train).mean(axis=1)

    def written(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The two factors that tokens write: [batch, n, slots] and [batch, n, d_model]."""
        return (
            self.left_norm(self.left(x)).astype(self.float32),
            self.right_norm(self.right(x)).astype(self.float32),
        )


class MemSizer(Recurrent):
    """Causal key-value memory layer.

    Attributes:
      num_slots: k, memory keys per head.
      bias: biases of the maps, as released; the paper has none.
      query_scale, write_scale: the maps of queries, and those of what is written, begin with Xavier's
        uniform values and a gain of `scale ** -0.5`, as released: 32 and 1 in language models, 8 and 8
        in translation. 0 = as other kernels.
      shift: a view of the tokens just before, see `token_shift.TokenShift`; none in the paper.
      chunk: tokens processed at once.
      carry: the slots carry over to the next segment.
      gradients: gradients flow through the slots from segment to segment.
    """

    settings: ModelSettings
    normalize: Callable[[jax.Array], jax.Array]
    shared: Any
    num_slots: int = 32
    bias: bool = True
    query_scale: float = 32.0
    write_scale: float = 1.0
    shift: str = 'none'
    chunk: int = 64
    carry: bool = False
    gradients: bool = True

    def setup(self):
        scales = (self.query_scale, self.write_scale)
        self.maps = SlotProjections(self.settings, self.num_slots, self.bias, *scales)
        self.mix = TokenShift(self.settings, self.shift)
        self.float32 = jnp.promote_types(self.settings.dtype, jnp.float32)

    def initial_state(self, batch_size: int) -> MemSizerState:
        """Empty slots."""
        pairs = associative.empty(
            batch_size, 1, self.num_slots, self.settings.d_model, self.float32, endless=self.carry
        )
        recent = self.mix.initial_state(batch_size)
        return MemSizerState(pairs, jnp.zeros((batch_size, 2), self.float32), recent)

    def read(
        self,
        x: jax.Array,
        state: MemSizerState,
        counted: jax.Array,
        *,
        train: bool = False,
    ) -> tuple[jax.Array, MemSizerState]:
        """Reads the slots by learned shares, writes them; see `Recurrent.read`."""
        count = counted.sum(axis=1, dtype=jnp.int32)
        x, recent = self.mix(x, state.recent, count)
        left, right = self.maps.written(x)
        left = jnp.where(counted[..., None], left, jnp.zeros_like(left))
        shares = self.maps.shares(x, train)
        pairs, read, _ = linear_kernel.causal(
            state.pairs, shares[:, None], left[:, None], right[:, None], chunk=self.chunk
        )
        before, rest = jnp.split(state.count, 2, axis=1)
        seen = before + (rest + jnp.cumsum(counted, axis=1, dtype=self.float32))
        y = read[:, 0] * jax.lax.rsqrt(jnp.maximum(seen, 1))[..., None]
        total = associative.two_sum(before, rest, count[:, None].astype(self.float32))
        new = MemSizerState(pairs, jnp.concatenate(total, axis=1), recent)
        return y.astype(self.settings.dtype), new

    def __call__(
        self, x: jax.Array, state: MemSizerState, segment: Segment, *, train: bool
    ) -> tuple[jax.Array, MemSizerState, Aux]:
        """Reads and writes token by token; x, y are [batch, length, d_model]."""
        if not self.gradients:
            state = jax.lax.stop_gradient(state)
        begin = self.begin(state, x.shape[0])
        y, new = self.read(self.normalize(x), begin, segment.valid, train=train)
        metrics = {'memory_size': jnp.asarray(float(self.num_slots), jnp.float32)}
        return y, new if self.carry else state, Aux(losses={}, metrics=metrics)


def read_slots(seen: Seen) -> dict[str, Read]:
    """The share of every slot, a mean over the heads; slots are sums and stand for no single tokens."""
    layer, num_valid = seen.layer, seen.segment.num_valid
    recent = layer.begin(seen.state, seen.x.shape[0]).recent
    x, _ = layer.mix(layer.normalize(seen.x), recent, num_valid)
    shares = layer.maps.shares(x, False)[:, None].astype(jnp.float32)
    numbers = jnp.arange(layer.num_slots, dtype=jnp.int32)[None, None, None]
    return {'slots': Read(shares, numbers, slots=True)}


def series(seen: Seen) -> Series:
    """The size of every slot, and how much the segment changed it."""

    def sizes(matrix: jax.Array) -> jax.Array:
        return jnp.linalg.norm(matrix[:, 0].astype(jnp.float32), axis=-1)

    old, new = seen.state.pairs.matrix, seen.new.pairs.matrix
    return Series(by_segment={'size of slots': sizes(new), 'change of slots': sizes(new - old)})


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

    def setup(self):
        scales = (self.query_scale, self.write_scale)
        self.maps = SlotProjections(self.settings, self.num_slots, self.bias, *scales)

    def source(self, vectors: jax.Array, valid: jax.Array) -> jax.Array:
        """Slots of `vectors` [batch, n, d_model] where `valid`: [batch, num_slots, d_model]."""
        return fill(*self.maps.written(vectors), valid)

    def __call__(self, x: jax.Array, source: jax.Array, *, train: bool) -> jax.Array:
        """Reads from `x` [batch, length, d_model]; the same shape, without the residual."""
        y = read(self.maps.shares(self.normalize(x), train), source)
        return y.astype(self.settings.dtype)


def cross(fields: dict[str, Any], num_slots: int) -> Callable[..., CrossMemSizer]:
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


ENTRY = Entry(
    name='memsizer',
    layer=MemSizer,
    view=View(read=read_slots, series=series),
    check=check,
    lengths={'num_slots': '+ slots '},
    recipes={'memsizer': recipe},
    cross=cross,
    graft=Graft(
        lambda scale, position: dict(shift='none'),
        exact=False,
        how='embeddings and feed-forward layers are kept; attention is replaced',
        positions="those in the host's embeddings; rotary ones are lost",
    ),
    toy=dict(num_slots=4, chunk=3, carry=True, query_scale=0.0, write_scale=0.0),
    variants=dict(
        paper=dict(bias=False, chunk=8, gradients=False, query_scale=32.0, write_scale=1.0),
        shifted=dict(shift='half'),
        convolved=dict(shift='convolution'),
    ),
)
