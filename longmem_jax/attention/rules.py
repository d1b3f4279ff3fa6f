"""Which keys a query sees and how it scores them, for all keys at once or in blocks.

Query i has key index `offset + i`; its distance to key j is `offset + i - j`. Everything that
depends on distances (relative scores, biases, windows) is computed from tables by distance. Entries
are aligned with keys by a skew (reshapes only) where the offset is static, otherwise by gathers.
"""

import math

import flax.struct
import jax
import jax.numpy as jnp

from longmem_jax.attention.by_distance import moved_bias, moved_scores, skew
from longmem_jax.kernels.attention_products import NEVER, dot
from longmem_jax.layers.positions import following

__all__ = ['NEVER', 'RelativeTable', 'Rules', 'skew']


class RelativeTable(flax.struct.PyTreeNode):
    """Scores by distance, added before scaling (Dai et al., 2019, Sec. 3.3; Shaw et al., 2018).

    Attributes:
      queries: [batch, heads, queries, width].
      table: [heads | 1, distances, width]; row d is for distance d, the last one also for all larger.
        One table for all heads is for streams only.
    """

    queries: jax.Array
    table: jax.Array


def _dot(queries: jax.Array, keys: jax.Array) -> jax.Array:
    """[batch, heads, queries, keys], float32 at least; query head h reads key head h // group."""
    batch, heads, num_queries, head_dim = queries.shape
    grouped = queries.reshape(batch, keys.shape[1], -1, head_dim)
    return dot(grouped, keys).reshape(batch, heads, num_queries, keys.shape[2])


def _extend_table(table: jax.Array, num_distances: int, below: int) -> jax.Array:
    """A table [heads, distances, ...] with one row for each distance -below .. num_distances - 1.

    Distances below 0 get the row of 0, those beyond the table the last row.
    """
    table = table[:, :num_distances]
    beyond = num_distances - table.shape[1]
    if not below and not beyond:
        return table
    first = jnp.repeat(table[:, :1], below, axis=1)
    last = jnp.repeat(table[:, -1:], beyond, axis=1)
    return jnp.concatenate([first, table, last], axis=1)


def _gather(scores: jax.Array, distance: jax.Array) -> jax.Array:
    """Picks scores [batch | 1, heads, queries | 1, distances] index `distance` by a gather.

    Args:
      scores: scores by distance.
      distance: int32 [batch | 1, queries, keys], clipped to the table.

    Returns:
      [batch, heads, queries, keys].
    """
    index = jnp.clip(distance, 0, scores.shape[-1] - 1)[:, None]
    shape = (max(scores.shape[0], index.shape[0]), scores.shape[1], *distance.shape[1:])
    scores = jnp.broadcast_to(scores, (*shape[:3], scores.shape[-1]))
    return jnp.take_along_axis(scores, jnp.broadcast_to(index, shape), axis=-1)


def _rows_of_block(
    table: jax.Array, start: int | jax.Array, num_queries: int, block: int
) -> jax.Array:
    """The rows that a block of keys needs, from that of the last query and the first key on.

    Args:
      table: [heads, distances, ...], as `Rules.prepared` completes it.
      start: index of the first key of the block, an int or int32 scalar.
      num_queries, block: number of queries and of keys.

    Returns:
      [heads, rows, ...], the largest distance first.
    """
    stop, span = table.shape[1] - start, block + num_queries - 1
    if isinstance(start, int):
        rows = table[:, max(stop - span, 0) : stop]
    else:
        rows = jax.lax.dynamic_slice_in_dim(table, stop - span, span, axis=1)
    return rows[:, ::-1]


def _moved_from_zero(scores: jax.Array, distance: jax.Array) -> jax.Array:
    """Scores by distance at all keys, where keys after a query count as distance 0.

    Args:
      scores: [batch | 1, heads, queries, rows], the last row for distance 0.
      distance: int32 [batch | 1, queries, keys].

    Returns:
      [batch | 1, heads, queries, keys].
    """
    moved = skew(scores, distance.shape[2])
    return jnp.where((distance < 0)[:, None], scores[..., -1:], moved)


class Rules(flax.struct.PyTreeNode):
    """Which keys a query sees and how scores are computed: all that attention needs but its vectors.

    A score is `scale * (query . key + relative) + distance_bias + bias`. Rules are a pytree: arrays
    are leaves; `window`, `scale` and `causal` are static. An int `offset` is a leaf too: create rules
    inside the transformed function. Passed in from outside, the int becomes an array and tables are
    gathered, which is slower but gives the same numbers.

    Attributes:
      offset: key index of query 0: an int, or int32 [batch] for streams.
      first: int32 [batch]; keys before it are empty and not seen. None = all are filled.
      mask: bool, broadcastable to [batch, heads, queries, keys]; True = visible.
      bias: float, broadcastable likewise, added to the scaled scores.
      distance_bias: float [heads, distances], added to the scaled scores by distance; the last
        column also holds for larger distances.
      relative: scores by distance, added before scaling.
      window: only distances below it are seen; 0 = no limit.
      scale: None = 1 / sqrt(head_dim).
      causal: keys after the query are not seen; if False, their distance counts as 0.
      rows_below: rows of the tables for distances below 0, before row 0; set by `prepared`.
    """

    offset: int | jax.Array
    first: jax.Array | None = None
    mask: jax.Array | None = None
    bias: jax.Array | None = None
    distance_bias: jax.Array | None = None
    relative: RelativeTable | None = None
    window: int = flax.struct.field(pytree_node=False, default=0)
    scale: float | None = flax.struct.field(pytree_node=False, default=None)
    causal: bool = flax.struct.field(pytree_node=False, default=True)
    rows_below: int = flax.struct.field(pytree_node=False, default=0)

    def ends_with_queries(self, num_queries: int, num_keys: int) -> bool:
        """Whether the last query is statically known to be at the last key, so that a skew suffices."""
        return isinstance(self.offset, int) and self.offset == num_keys - num_queries

    def prepared(
        self, queries: jax.Array, num_keys: int, block_size: int = 0
    ) -> tuple[jax.Array, 'Rules']:
        """Does the work that all blocks of keys share once: scales queries, completes tables.

        Args:
          queries: [batch, heads, queries, head_dim].
          num_keys: keys in all blocks together.
          block_size: keys per block; 0 = one block.

        Returns:
          Scaled queries and equivalent rules of scale 1, for `scores`.
        """
        num_queries, head_dim = queries.shape[2:]
        score_dtype = jnp.promote_types(queries.dtype, jnp.float32)
        scale = 1.0 / math.sqrt(head_dim) if self.scale is None else self.scale
        # Scaling queries costs less than scaling scores.
        factor = jnp.asarray(scale, queries.dtype)
        below = 0
        if block_size and self.ends_with_queries(num_queries, num_keys):
            # The last block has keys after query 0, and is padded if it is not full.
            padding = -num_keys % block_size
            below = num_queries - 1 + padding

        def full(table: jax.Array) -> jax.Array:
            if not self.ends_with_queries(num_queries, num_keys):
                return table[:, :num_keys]
            return _extend_table(table, num_keys, below)

        relative, distance_bias = self.relative, self.distance_bias
        if relative is not None:
            table = full(relative.table).astype(queries.dtype)
            relative = RelativeTable(relative.queries * factor, table)
        if distance_bias is not None:
            distance_bias = full(distance_bias).astype(score_dtype)
        rules = self.replace(
            relative=relative, distance_bias=distance_bias, scale=1.0, rows_below=below
        )
        return queries * factor, rules

    def scores(
        self, queries: jax.Array, keys: jax.Array, start: int | jax.Array, num_keys: int
    ) -> tuple[jax.Array, jax.Array]:
        """Scores of a block of keys, and which of them are seen. For `prepared` rules only.

        Args:
          queries: [batch, heads, queries, head_dim], scaled.
          keys: [batch, kv_heads, block, head_dim]; `mask` and `bias` are those of this block.
          start: index of the first of these keys, an int or int32 scalar.
          num_keys: keys of all blocks; padding of the last block beyond them is not seen.

        Returns:
          Scores [batch, heads, queries, block], float32 at least, computed for unseen keys too.
          Seen, bool [batch | 1, heads | 1, queries, block].
        """
        num_queries, block = queries.shape[2], keys.shape[2]
        index = start + jnp.arange(block, dtype=jnp.int32)
        distance = self.positions(num_queries)[..., None] - index[None, None]
        scores = _dot(queries, keys)
        if self.relative is not None:
            scores = scores + self._relative_scores(self.relative, distance, start, num_keys)
        if self.distance_bias is not None:
            by_distance = self._bias_scores(
                self.distance_bias, distance, start, num_keys, scores.shape[0]
            )
            scores = scores + by_distance
        if self.bias is not None:
            scores = scores + jnp.broadcast_to(self.bias.astype(scores.dtype), scores.shape)
        return scores, self._visible(distance, index, num_keys)

    def positions(self, num_queries: int) -> jax.Array:
        """Key indices of the queries, int32 [batch | 1, queries]."""
        return following(self.offset, num_queries)

    def _relative_scores(
        self, relative: RelativeTable, distance: jax.Array, start: int | jax.Array, num_keys: int
    ) -> jax.Array:
        """Scores by `relative`, aligned with queries and keys: [batch, heads, queries, block].

        Args:
          distance: int32 [batch | 1, queries, block].
          start, num_keys: as in `scores`.
        """
        num_queries, block = distance.shape[1:]

        def by_row(rows: jax.Array) -> jax.Array:
            if rows.shape[0] == 1:
                return dot(relative.queries, rows[0])
            wide = jnp.promote_types(rows.dtype, jnp.float32)
            return jnp.einsum('bhqd,hcd->bhqc', relative.queries, rows, preferred_element_type=wide)

        if not self.ends_with_queries(num_queries, num_keys):
            return _gather(by_row(relative.table), distance)
        rows = _rows_of_block(relative.table, start, num_queries, block)
        if self._moves_all():
            return moved_scores(relative.queries, rows)[..., :block]
        return _moved_from_zero(by_row(rows), distance)

    def _bias_scores(
        self,
        table: jax.Array,
        distance: jax.Array,
        start: int | jax.Array,
        num_keys: int,
        batch: int,
    ) -> jax.Array:
        """`distance_bias`, aligned likewise: [batch | 1, heads, queries, block]."""
        num_queries, block = distance.shape[1:]
        if not self.ends_with_queries(num_queries, num_keys):
            return _gather(table[None, :, None], distance)
        rows = _rows_of_block(table, start, num_queries, block)
        if self._moves_all():
            return moved_bias(rows, batch, num_queries)[..., :block]
        scores = jnp.broadcast_to(
            rows[None, :, None], (1, rows.shape[0], num_queries, rows.shape[1])
        )
        return _moved_from_zero(scores, distance)

    def _moves_all(self) -> bool:
        """Whether every score that counts has a row: distances below 0 are not seen, or have rows."""
        return self.causal or bool(self.rows_below)

    def _visible(self, distance: jax.Array, index: jax.Array, num_keys: int) -> jax.Array:
        """bool [batch | 1, heads | 1, queries, block]; `index` int32 [block], indices of the keys."""
        seen = distance >= 0 if self.causal else jnp.ones(distance.shape, bool)
        if self.window:
            seen = seen & (distance < self.window)
        if self.first is not None:
            seen = seen & (index[None, None] >= self.first[:, None, None])
        if num_keys % index.shape[0]:
            seen = seen & (index < num_keys)[None, None]
        seen = seen[:, None]
        return seen if self.mask is None else seen & self.mask
