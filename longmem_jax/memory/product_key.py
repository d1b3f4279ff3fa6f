"""Product-key memory in place of a feed-forward layer (Lample et al., 2019), as in the released XLM.

A query network; two sets of sub-keys per head, whose k best each give the k best of all pairs; a softmax
over these; and the values of their slots, in one table for all heads. Most of the parameters are values;
give them a separate learning rate (`config.optimizer.groups`).
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from longmem_jax.contract import (
    Entry,
    Fields,
    Graft,
    LayerType,
    ModelSettings,
    NoState,
    Recipe,
    Recipes,
    Scale,
)
from longmem_jax.kernels.cpu.top_k import top_k
from longmem_jax.kernels.weighted_rows import weighted_rows
from longmem_jax.layers import initializers
from longmem_jax.layers.feature_maps import unit
from longmem_jax.layers.norms import BatchNorm, Norm
from longmem_jax.problems import above, at_least, one_of
from longmem_jax.segment import Aux, Segment, no_aux
from longmem_jax.views import Read, Seen, Series, View

KEYS = ('product', 'flat')
HIGHEST = jax.lax.Precision.HIGHEST  # or devices would round float32 queries to find slots with
EPSILON = 1e-12  # of squared lengths: a query of zeros stays zero, and its gradient finite
NORMS = ('batch', 'layer', 'none')


def check(fields: Fields, model: Any, segment_length: int) -> list[str]:
    """Checks that `top_k` keys exist, and that queries can be cut into halves."""
    problems = one_of(fields, keys=KEYS, query_norm=NORMS)
    problems += at_least(fields, 1, 'num_keys', 'num_heads', 'top_k', 'query_dim')
    problems += above(fields, 0, 'temperature')
    if not all(fields['query_hidden']):
        problems.append(f'query_hidden = {fields["query_hidden"]}: widths must be at least 1')
    if fields['top_k'] > fields['num_keys']:
        problems.append(
            f'top_k = {fields["top_k"]}: must be at most num_keys = {fields["num_keys"]}'
        )
    if fields['query_dim'] % 2 and fields['keys'] == 'product':
        problems.append(
            f'query_dim = {fields["query_dim"]}: must be even: queries are cut into halves'
        )
    if fields['chunk'] < 0:
        problems.append(
            f'chunk = {fields["chunk"]}: must be 0 (all tokens at once) or a positive number of tokens'
        )
    return problems


def _pairs(k: int) -> tuple[np.ndarray, np.ndarray]:
    """The ranks (i, j) of two sorted lists whose sums can be among the k largest, row by row.

    No sum of ranks up to i and up to j is smaller, and there are (i + 1)(j + 1) of these.
    """
    ranks = np.arange(k)
    first, second = np.nonzero(np.outer(ranks + 1, ranks + 1) <= k)
    return first, second


def find(
    queries: jax.Array, keys: jax.Array, k: int, normalized: bool
) -> tuple[jax.Array, jax.Array]:
    """The k best slots of every query and head, exactly.

    Args:
      queries: [tokens, heads, query_dim].
      keys: [heads, 2, n, query_dim / 2] for n * n slots, or [heads, n, query_dim] for n.
      k: slots per head, at most n.
      normalized: queries (or their halves) are scaled to unit length.

    Returns:
      scores [tokens, heads, k], with gradients; slots int32 [tokens, heads, k].
    """
    if keys.ndim == 3:
        queries = unit(queries, EPSILON) if normalized else queries
        scores = jnp.einsum('thd,hnd->thn', queries, keys, precision=HIGHEST)
        _, slots = top_k(jax.lax.stop_gradient(scores), k)
        return jnp.take_along_axis(scores, slots, axis=-1), slots.astype(jnp.int32)
    halves = jnp.split(queries, 2, axis=-1)
    halves = [unit(half, EPSILON) if normalized else half for half in halves]
    by_half = [
        jnp.einsum('thd,hnd->thn', half, keys[:, i], precision=HIGHEST)
        for i, half in enumerate(halves)
    ]
    # The search has no gradients; the scores picked afterwards do.
    (best_1, index_1), (best_2, index_2) = (
        top_k(jax.lax.stop_gradient(scores), k) for scores in by_half
    )
    rank_1, rank_2 = _pairs(k)
    _, pairs = top_k(best_1[..., rank_1] + best_2[..., rank_2], k)
    first, second = (
        jnp.take_along_axis(index[..., rank], pairs, axis=-1).astype(jnp.int32)
        for index, rank in ((index_1, rank_1), (index_2, rank_2))
    )
    best = jnp.take_along_axis(by_half[0], first, axis=-1)
    best = best + jnp.take_along_axis(by_half[1], second, axis=-1)
    return best, first * keys.shape[2] + second


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
    weights, slots = (array.reshape(len(array), -1) for array in (weights, slots))
    return weighted_rows(values, weights, slots, chunk)


def usage(
    weights: jax.Array, slots: jax.Array, counted: jax.Array, num_slots: int
) -> tuple[jax.Array, jax.Array]:
    """Total weight and number of reads of every slot, float32 [num_slots] each; add over segments.

    Args:
      weights, slots: [tokens, heads, k].
      counted: bool [tokens], False = padding.
      num_slots: static.
    """
    weights = jnp.where(counted[:, None, None], weights, 0.0).astype(jnp.float32)
    ones = jnp.broadcast_to(counted[:, None, None], weights.shape).astype(jnp.float32)
    empty = jnp.zeros((num_slots,), jnp.float32)
    return empty.at[slots].add(weights), empty.at[slots].add(ones)


class QueryNetwork(nn.Module):
    """Tokens to queries of all heads: linear maps, a norm after each, ReLU between them.

    Attributes:
      hidden: widths between the maps; () = one linear map.
      width: heads * query_dim.
      norm: 'batch', 'layer' (causal in training, too), or 'none'.
    """

    hidden: tuple[int, ...]
    width: int
    norm: str

    @nn.compact
    def __call__(
        self, x: jax.Array, counted: jax.Array, *, train: bool
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Maps `x` [tokens, d_model] to [tokens, width]; also returns the statistics of `BatchNorm`."""
        statistics: dict[str, jax.Array] = {}
        sizes = (*self.hidden, self.width)
        axes = initializers.with_axes
        init = axes(nn.initializers.lecun_uniform(), ('embed', None))
        for i, size in enumerate(sizes):
            x = nn.Dense(size, dtype=x.dtype, precision=HIGHEST, kernel_init=init if not i else axes(
                nn.initializers.lecun_uniform(), (None, None)), name=f'map_{i}')(x)  # fmt: skip
            if self.norm == 'batch':
                x, batch_statistics = BatchNorm(name=f'norm_{i}')(x, counted, train=train)
                statistics |= batch_statistics
            elif self.norm == 'layer':
                x = Norm('layernorm', name=f'norm_{i}')(x)
            x = jax.nn.relu(x) if i < len(sizes) - 1 else x
        return x, statistics


class ProductKeyMemory(nn.Module):
    """A feed-forward layer with a large number of slots.

    Attributes:
      num_keys: sub-keys per half, so `num_keys ** 2` slots ('product'); or slots ('flat').
      num_heads: heads of the memory, independent of attention.
      top_k: slots that a head reads.
      query_dim: width of a query, both halves together.
      query_hidden: widths inside the query network; () = one linear map.
      query_norm: norm of queries, 'batch', 'layer' or 'none'.
      normalize_query: scale the halves of queries to unit length.
      temperature: temperature of the softmax.
      keys: how slots are found, 'product' or 'flat'.
      chunk: tokens whose values are gathered at once; 0 = all.
    """

    settings: ModelSettings
    normalize: Callable[[jax.Array], jax.Array]
    shared: Any
    num_keys: int = 512
    num_heads: int = 4
    top_k: int = 32
    query_dim: int = 512
    query_hidden: tuple[int, ...] = ()
    query_norm: str = 'batch'
    normalize_query: bool = False
    temperature: float = 1.0
    keys: str = 'product'
    chunk: int = 0

    def setup(self) -> None:
        settings, axes = self.settings, initializers.with_axes
        self.float32 = jnp.promote_types(settings.dtype, jnp.float32)
        self.network = QueryNetwork(
            tuple(self.query_hidden), self.num_heads * self.query_dim, self.query_norm
        )
        product = self.keys == 'product'
        width = self.query_dim // 2 if product else self.query_dim
        shape = (self.num_heads, *((2,) if product else ()), self.num_keys, width)
        bound = width**-0.5

        def uniform(
            key: jax.Array, shape: tuple[int, ...], dtype: DTypeLike = jnp.float32
        ) -> jax.Array:
            return jax.random.uniform(key, shape, dtype, -bound, bound)

        self.key_table = self.param('key_table', uniform, shape)
        self.num_slots = self.num_keys**2 if product else self.num_keys
        spread = axes(nn.initializers.normal(settings.d_model**-0.5), ('slots', None))
        self.values = self.param('values', spread, (self.num_slots, settings.d_model))

    def chosen(
        self, x: jax.Array, counted: jax.Array, *, train: bool
    ) -> tuple[jax.Array, jax.Array, dict[str, jax.Array]]:
        """Weights and slots, [tokens, heads, k], of `x` [tokens, d_model], and batch statistics."""
        queries, statistics = self.network(x.astype(self.float32), counted, train=train)
        queries = queries.reshape(x.shape[0], self.num_heads, self.query_dim)
        keys = self.key_table.astype(self.float32)
        scores, slots = find(queries, keys, self.top_k, self.normalize_query)
        return jax.nn.softmax(scores / self.temperature, axis=-1), slots, statistics

    def _apply(
        self, x: jax.Array, valid: jax.Array, train: bool
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Output for `x` [batch, length, d_model], and batch statistics."""
        flat, counted = self.normalize(x).reshape(-1, x.shape[-1]), valid.reshape(-1)
        weights, slots, statistics = self.chosen(flat, counted, train=train)
        values = self.values.astype(self.settings.dtype)
        y = read(values, weights.astype(values.dtype), slots, self.chunk)
        return y.reshape(x.shape), statistics

    def slot_usage(self, x: jax.Array, valid: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Total weight and number of reads of every slot, for `x` [batch, length, d_model]."""
        flat, counted = self.normalize(x).reshape(-1, x.shape[-1]), valid.reshape(-1)
        weights, slots, _ = self.chosen(flat, counted, train=False)
        return usage(weights, slots, counted, self.num_slots)

    def initial_state(self, batch_size: int) -> NoState:
        """No state: slots are parameters."""
        return NoState()

    def __call__(
        self, x: jax.Array, state: NoState, segment: Segment, *, train: bool
    ) -> tuple[jax.Array, NoState, Aux]:
        """Reads the slots of every token; x, y are [batch, length, d_model]."""
        y, statistics = self._apply(x, segment.valid, train)
        return y, state, no_aux().replace(statistics=statistics)

    def open_segment(self, state: NoState, batch_size: int) -> NoState:
        """No cache."""
        return NoState()

    def extend(
        self, x: jax.Array, cache: NoState, index: int | jax.Array, count: jax.Array
    ) -> tuple[jax.Array, NoState]:
        """Reads the slots of the next tokens; see `MemoryLayer`."""
        return self._apply(x, jnp.ones(x.shape[:2], bool), False)[0], cache

    def close_segment(self, state: NoState, cache: NoState, count: jax.Array) -> NoState:
        """Returns `state` as it is."""
        return state


def recipe(scale: Scale) -> Recipe:
    """Slots in place of the feed-forward layer in the middle of a Transformer-XL.

    Values have four times the learning rate and no weight decay, since few tokens read each of them.
    """
    names = ['dense'] * scale.layers
    names[scale.layers // 2] = 'product_key'
    width = scale.d_model + scale.d_model % 2
    fields = dict(num_keys=scale.keys, top_k=max(min(32, scale.keys // 4), 1), query_dim=width)
    return Recipe(
        {'product_key': fields, 'transformer_xl': dict(memory_length=scale.reach)},
        attention=('transformer_xl',) * scale.layers,
        feed_forward=tuple(names),
        groups=(('feed_forward/values$', 4.0, False),),
    )


def short_recipe(scale: Scale) -> Recipe:
    """The paper's model: no memory but the slots, attention within the segment, learned positions."""
    long, position = recipe(scale), 'learned'
    notes: tuple[str, ...] = ()
    if scale.segment != scale.evaluated:
        position = 'sinusoidal'
        notes = ("position = 'sinusoidal': learned positions need equal segment lengths",)
    return Recipe(
        {'product_key': long.sections['product_key'], 'local': dict(position='none')},
        attention=('local',) * scale.layers,
        feed_forward=long.feed_forward,
        model=dict(position=position),
        groups=long.groups,
        notes=notes,
    )


def read_slots(seen: Seen) -> dict[str, Read]:
    """The slots of every token; they are parameters and stand for no tokens."""
    layer, (batch, length, _) = seen.layer, seen.x.shape
    flat = layer.normalize(seen.x).reshape(batch * length, -1)
    weights, slots, _ = layer.chosen(flat, seen.segment.valid.reshape(-1), train=False)
    weights, slots = (
        jnp.swapaxes(array.reshape(batch, length, *array.shape[1:]), 1, 2)
        for array in (weights, slots)
    )
    return {'slots': Read(weights.astype(jnp.float32), slots, slots=True)}


def series(seen: Seen) -> Series:
    """How many slots a segment reads, of all lanes together."""
    weights, _ = seen.layer.slot_usage(seen.x, seen.segment.valid)
    return Series(by_segment={'slots read': (weights > 0).sum().astype(jnp.float32).reshape(1, 1)})


ENTRY = Entry(
    name='product_key',
    place='feed_forward',
    layer=LayerType(ProductKeyMemory, check=check, nearest='num_keys'),
    recipe=Recipes({'product_key': recipe, 'product_key_short': short_recipe}),
    graft=Graft(
        lambda scale, position: {},
        exact=False,
        how='attention is kept; a dense layer is replaced',
        positions='none: it stores nothing of a text',
    ),
    view=View(read=read_slots, series=series, lengths={'num_keys': '+ keys '}),
    toy=dict(num_keys=6, num_heads=2, top_k=3, query_dim=8),
    variants=dict(
        flat=dict(keys='flat', num_keys=10, query_hidden=(12,), query_norm='layer', chunk=4),
    ),
)
