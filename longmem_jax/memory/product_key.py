"""Product-key memory in place of a feed-forward layer (Lample et al., 2019), as in the released XLM.

A query network, two sets of sub-keys per head whose k best are combined into the k best of all pairs,
a softmax over these, and the values of their slots, one table for all heads. Values are most of the
parameters; give them a learning rate of their own (`config.optimizer.groups`).
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from longmem_jax.contract import Entry, ModelSettings, NoState, Recipe, Scale
from longmem_jax.faults import above, at_least, one_of
from longmem_jax.layers.feature_maps import unit
from longmem_jax.layers.nearest import top_k
from longmem_jax.layers.norms import Norm
from longmem_jax.segment import Aux, Segment, no_aux

KEYS = ('product', 'flat')
NORMS = ('batch', 'layer', 'none')


def check(fields: Any, model: Any, segment_length: int) -> list[str]:
    """As many keys as are read, and queries that can be cut in two halves."""
    faults = one_of(fields, keys=KEYS, query_norm=NORMS)
    faults += at_least(fields, 1, 'num_keys', 'num_heads', 'top_k', 'query_dim')
    faults += above(fields, 0, 'temperature')
    if fields['top_k'] > fields['num_keys']:
        faults.append(
            f'top_k = {fields["top_k"]}: more than the num_keys = {fields["num_keys"]} of a half'
        )
    if fields['query_dim'] % 2 and fields['keys'] == 'product':
        faults.append(f'query_dim = {fields["query_dim"]}: must be even, it is cut in two halves')
    if fields['chunk'] < 0:
        faults.append(f'chunk = {fields["chunk"]}: 0 for all tokens at once, or a number of them')
    return faults


def find(
    queries: jax.Array, keys: jax.Array, k: int, normalized: bool
) -> tuple[jax.Array, jax.Array]:
    """The k best slots of every query and head, exactly.

    Args:
      queries: [tokens, heads, query_dim].
      keys: [heads, 2, n, query_dim / 2] for n * n slots, or [heads, n, query_dim] for n.
      k: slots per head, at most n.
      normalized: queries (their halves) are divided by their length.

    Returns:
      scores [tokens, heads, k], with gradients; slots int32 [tokens, heads, k].
    """
    if keys.ndim == 3:
        queries = unit(queries, 0.0) if normalized else queries
        scores = jnp.einsum('thd,hnd->thn', queries, keys)
        _, slots = top_k(jax.lax.stop_gradient(scores), k)
        return jnp.take_along_axis(scores, slots, axis=-1), slots.astype(jnp.int32)
    halves = jnp.split(queries, 2, axis=-1)
    halves = [unit(half, 0.0) if normalized else half for half in halves]
    scores = [jnp.einsum('thd,hnd->thn', half, keys[:, i]) for i, half in enumerate(halves)]
    # Which are best is found without gradients; their scores are then picked with them.
    (best_1, at_1), (best_2, at_2) = (top_k(jax.lax.stop_gradient(part), k) for part in scores)
    sums = best_1[..., :, None] + best_2[..., None, :]
    _, pairs = top_k(sums.reshape(*sums.shape[:-2], k * k), k)
    first = jnp.take_along_axis(at_1, pairs // k, axis=-1)
    second = jnp.take_along_axis(at_2, pairs % k, axis=-1)
    chosen = jnp.take_along_axis(scores[0], first, axis=-1)
    chosen = chosen + jnp.take_along_axis(scores[1], second, axis=-1)
    return chosen, (first * keys.shape[2] + second).astype(jnp.int32)


def read(values: jax.Array, weights: jax.Array, slots: jax.Array, chunk: int) -> jax.Array:
    """Weighted sums of values over heads and slots.

    Args:
      values: [slots, width].
      weights: [tokens, heads, k].
      slots: int32 [tokens, heads, k].
      chunk: tokens whose values are gathered at once; 0 = all.

    Returns:
      [tokens, width].
    """
    number = weights.shape[0]
    weights, slots = (part.reshape(number, -1) for part in (weights, slots))

    def some(parts):
        weights, slots = parts
        return jnp.einsum('tk,tkd->td', weights, values[slots])

    if not chunk or chunk >= number:
        return some((weights, slots))
    count = -(-number // chunk)
    spare = count * chunk - number
    weights, slots = (
        jnp.pad(part, [(0, spare), (0, 0)]).reshape(count, chunk, -1) for part in (weights, slots)
    )
    return jax.lax.map(jax.checkpoint(some), (weights, slots)).reshape(count * chunk, -1)[:number]


def usage(weights: jax.Array, slots: jax.Array, counted: jax.Array, num_slots: int):
    """Weights and reads of every slot, float32 [slots] each: add over segments, then `shares`.

    Args:
      weights, slots: [tokens, heads, k].
      counted: bool [tokens].
      num_slots: static.
    """
    weights = jnp.where(counted[:, None, None], weights, 0.0).astype(jnp.float32)
    ones = jnp.broadcast_to(counted[:, None, None], weights.shape).astype(jnp.float32)
    empty = jnp.zeros((num_slots,), jnp.float32)
    return empty.at[slots].add(weights), empty.at[slots].add(ones)


class BatchNorm(nn.Module):
    """Batch normalisation over valid tokens; running averages are parameters that no gradient moves.

    In training, batch statistics come from all tokens of the segment, later ones included, and are
    returned; the training step averages them into `running_mean` and `running_var`.

    Attributes:
      epsilon: added to the variance.
    """

    epsilon: float = 1e-5

    @nn.compact
    def __call__(self, x: jax.Array, counted: jax.Array, *, train: bool):
        """Normalises.

        Args:
          x: [tokens, width].
          counted: bool [tokens].
          train: by batch statistics, not the running averages.

        Returns:
          like `x`; path of each running average to its value in this batch (empty in evaluation).
        """
        zeros, ones = nn.initializers.zeros, nn.initializers.ones
        width = (x.shape[-1],)
        scale, bias = self.param('scale', ones, width), self.param('bias', zeros, width)
        mean, variance = (
            self.param('running_mean', zeros, width),
            self.param('running_var', ones, width),
        )
        statistics = {}
        if train:
            number = jnp.maximum(counted.sum(), 1).astype(x.dtype)
            own = jnp.where(counted[:, None], x, jnp.zeros_like(x))
            batch = own.sum(axis=0) / number
            away = jnp.where(counted[:, None], x - batch[None], jnp.zeros_like(x))
            spread = jnp.square(away).sum(axis=0)
            unbiased = spread / jnp.maximum(number - 1, 1)
            path, any_of_it = '/'.join(self.path), counted.any()
            statistics = {
                f'{path}/running_mean': jnp.where(any_of_it, batch, mean),
                f'{path}/running_var': jnp.where(any_of_it, unbiased, variance),
            }
            mean, variance = batch, spread / number
        normal = (x - mean[None]) * jax.lax.rsqrt(variance + self.epsilon)[None]
        y = normal * scale.astype(x.dtype)[None] + bias.astype(x.dtype)[None]
        return y, jax.lax.stop_gradient(statistics)


class QueryNetwork(nn.Module):
    """Tokens to queries of all heads: linear maps, a norm after each, ReLU between them.

    Attributes:
      hidden: widths between the maps; () = one linear map.
      width: heads * query_dim.
      norm: 'batch', 'layer' (causal in training too), or 'none'.
    """

    hidden: tuple[int, ...]
    width: int
    norm: str

    @nn.compact
    def __call__(self, x: jax.Array, counted: jax.Array, *, train: bool):
        """`x` [tokens, d_model] to [tokens, width]; and what `BatchNorm` returns."""
        statistics = {}
        sizes = (*self.hidden, self.width)
        axes = nn.with_logical_partitioning
        init = axes(nn.initializers.lecun_uniform(), ('embed', None))
        for i, size in enumerate(sizes):
            x = nn.Dense(size, dtype=x.dtype, kernel_init=init if not i else axes(
                nn.initializers.lecun_uniform(), (None, None)), name=f'map_{i}')(x)  # fmt: skip
            if self.norm == 'batch':
                x, found = BatchNorm(name=f'norm_{i}')(x, counted, train=train)
                statistics |= found
            elif self.norm == 'layer':
                x = Norm('layernorm', name=f'norm_{i}')(x)
            x = jax.nn.relu(x) if i < len(sizes) - 1 else x
        return x, statistics


class ProductKeyMemory(nn.Module):
    """A feed-forward layer of very many slots.

    Attributes:
      num_keys: sub-keys per half; `num_keys ** 2` slots ('product'), or slots ('flat').
      num_heads: heads of the memory, whatever those of attention.
      top_k: slots that a head reads.
      query_dim: of both halves together.
      query_hidden: widths inside the query network; () = one linear map.
      query_norm: 'batch', 'layer' or 'none'.
      normalize_query: queries of length one, by half.
      temperature: of the softmax.
      keys: 'product' or 'flat'.
      chunk: tokens whose values are gathered at once; 0 = all.
    """

    settings: ModelSettings
    normalize: Callable[[jax.Array], jax.Array]
    shared: Any
    num_keys: int = 512
    num_heads: int = 4
    top_k: int = 32
    query_dim: int = 512
    query_hidden: tuple = ()
    query_norm: str = 'batch'
    normalize_query: bool = False
    temperature: float = 1.0
    keys: str = 'product'
    chunk: int = 0

    def setup(self):
        settings, axes = self.settings, nn.with_logical_partitioning
        self.wide = jnp.promote_types(settings.dtype, jnp.float32)
        self.network = QueryNetwork(
            tuple(self.query_hidden), self.num_heads * self.query_dim, self.query_norm
        )
        product = self.keys == 'product'
        width = self.query_dim // 2 if product else self.query_dim
        shape = (self.num_heads, *((2,) if product else ()), self.num_keys, width)
        bound = width**-0.5

        def uniform(key, shape, dtype=jnp.float32):
            return jax.random.uniform(key, shape, dtype, -bound, bound)

        self.key_table = self.param('key_table', uniform, shape)
        self.num_slots = self.num_keys**2 if product else self.num_keys
        spread = axes(nn.initializers.normal(settings.d_model**-0.5), ('slots', None))
        self.values = self.param('values', spread, (self.num_slots, settings.d_model))

    def chosen(self, x: jax.Array, counted: jax.Array, *, train: bool):
        """Weights and slots of the tokens of `x` [tokens, d_model], and batch statistics."""
        queries, statistics = self.network(x.astype(self.wide), counted, train=train)
        queries = queries.reshape(x.shape[0], self.num_heads, self.query_dim)
        keys = self.key_table.astype(self.wide)
        scores, slots = find(queries, keys, self.top_k, self.normalize_query)
        return jax.nn.softmax(scores / self.temperature, axis=-1), slots, statistics

    def _apply(self, x, valid, train):
        flat, counted = self.normalize(x).reshape(-1, x.shape[-1]), valid.reshape(-1)
        weights, slots, statistics = self.chosen(flat, counted, train=train)
        values = self.values.astype(self.settings.dtype)
        y = read(values, weights.astype(values.dtype), slots, self.chunk)
        return y.reshape(x.shape), statistics

    def slot_usage(self, x: jax.Array, valid: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Weights and reads of every slot for `x` [batch, length, d_model], see `usage`."""
        flat, counted = self.normalize(x).reshape(-1, x.shape[-1]), valid.reshape(-1)
        weights, slots, _ = self.chosen(flat, counted, train=False)
        return usage(weights, slots, counted, self.num_slots)

    def initial_state(self, batch_size: int) -> NoState:
        """Nothing of a document is remembered."""
        return NoState()

    def __call__(
        self, x: jax.Array, state: NoState, segment: Segment, *, train: bool
    ) -> tuple[jax.Array, NoState, Aux]:
        """Reads the slots of every token; x, y are [batch, length, d_model]."""
        y, statistics = self._apply(x, segment.valid, train)
        return y, state, no_aux().replace(statistics=statistics)

    def open_segment(self, state: NoState, batch_size: int) -> NoState:
        """Nothing is cached."""
        return NoState()

    def extend(self, x: jax.Array, cache: NoState, index: jax.Array) -> tuple[jax.Array, NoState]:
        """Every token by itself; see `MemoryLayer`."""
        return self._apply(x, jnp.ones(x.shape[:2], bool), False)[0], cache

    def close_segment(self, state: NoState, cache: NoState, count: jax.Array) -> NoState:
        """Nothing is written."""
        return state


def recipe(scale: Scale) -> Recipe:
    """Slots in place of the feed-forward layer in the middle of a Transformer-XL."""
    names = ['dense'] * scale.layers
    names[scale.layers // 2] = 'product_key'
    width = scale.d_model + scale.d_model % 2
    fields = dict(num_keys=scale.keys, top_k=max(min(32, scale.keys // 4), 1), query_dim=width)
    return Recipe(
        {'product_key': fields, 'transformer_xl': dict(memory_length=scale.reach)},
        attention=('transformer_xl',) * scale.layers,
        feed_forward=tuple(names),
    )


def short_recipe(scale: Scale) -> Recipe:
    """The paper's own model: no memory but the slots, attention to the segment, learned positions."""
    whole, position, notes = recipe(scale), 'learned', ()
    if scale.segment != scale.evaluated:
        position = 'sinusoidal'
        notes = ("position = 'sinusoidal': learned ones need segments of one length",)
    return Recipe(
        {'product_key': whole.sections['product_key'], 'local': dict(position='none')},
        attention=('local',) * scale.layers,
        feed_forward=whole.feed_forward,
        model=dict(position=position),
        notes=notes,
    )


ENTRY = Entry(
    name='product_key',
    layer=ProductKeyMemory,
    check=check,
    lengths={'num_keys': '+ keys '},
    nearest='num_keys',
    recipes={'product_key': recipe, 'product_key_short': short_recipe},
    toy=dict(num_keys=6, num_heads=2, top_k=3, query_dim=8),
    variants=dict(
        flat=dict(keys='flat', num_keys=10, query_hidden=(12,), query_norm='layer', chunk=4),
    ),
)
