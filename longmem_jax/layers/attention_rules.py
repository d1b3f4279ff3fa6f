"""Which keys a query sees and how it scores them: one rule for all keys at once and for blocks.

Query i stands on key index `offset + i`; its distance to key j is `offset + i - j`. Everything that
depends on distances (relative scores, biases, windows) is computed from tables by distance, brought
into place by a skew made of reshapes where the offset is known, by gathers where it is not.
"""

import math
from collections.abc import Callable

import flax.struct
import jax
import jax.numpy as jnp

NEVER = -1e30  # the score of what is masked out; finite, so that gradients stay finite


@flax.struct.dataclass
class RelativeTable:
    """Scores by distance, added before scaling (Dai et al., 2019, Sec. 3.3; Shaw et al., 2018).

    Attributes:
      queries: [batch, heads, queries, head_dim].
      table: [heads, distances, head_dim]; row d belongs to distance d, the last to all beyond.
    """

    queries: jax.Array
    table: jax.Array


def skew(rows: jax.Array, width: int) -> jax.Array:
    """Moves row i of n to the left by n - 1 - i and keeps `width` columns.

    Entries shifted in from the right are undefined: they belong to distances below zero.

    Args:
      rows: [..., n, columns] with columns >= width.

    Returns:
      [..., n, width].
    """
    *lead, n, columns = rows.shape
    padded = jnp.pad(rows, [(0, 0)] * len(lead) + [(0, 0), (1, 0)])
    flat = padded.reshape(*lead, n * (columns + 1))[..., n:]
    return flat.reshape(*lead, n, columns)[..., :width]


def _dot(queries: jax.Array, keys: jax.Array, wide: jnp.dtype) -> jax.Array:
    """[batch, heads, queries, keys] in `wide`; query head h reads key head h // group."""
    batch, heads, num_queries, head_dim = queries.shape
    grouped = queries.reshape(batch, keys.shape[1], -1, head_dim)
    scores = jnp.einsum('bhqd,bhkd->bhqk', grouped, keys, preferred_element_type=wide)
    return scores.reshape(batch, heads, num_queries, keys.shape[2])


def _rows_of_distances(table: jax.Array, num_distances: int, below: int) -> jax.Array:
    """A table [heads, rows, ...] with a row for each of the distances -below .. num_distances - 1.

    Distances below 0 get the row of 0, those beyond the table its last row.
    """
    table = table[:, :num_distances]
    beyond = num_distances - table.shape[1]
    if not below and not beyond:
        return table
    first = jnp.repeat(table[:, :1], below, axis=1)
    last = jnp.repeat(table[:, -1:], beyond, axis=1)
    return jnp.concatenate([first, table, last], axis=1)


def _gathered(scores: jax.Array, distance: jax.Array) -> jax.Array:
    """Scores by distance [batch | 1, heads, queries | 1, distances] at `distance`."""
    at = jnp.clip(distance, 0, scores.shape[-1] - 1)[:, None]
    shape = (max(scores.shape[0], at.shape[0]), scores.shape[1], *distance.shape[1:])
    scores = jnp.broadcast_to(scores, (*shape[:3], scores.shape[-1]))
    return jnp.take_along_axis(scores, jnp.broadcast_to(at, shape), axis=-1)


@flax.struct.dataclass
class Rules:
    """What a query sees and how its scores are made; all that attention needs besides its vectors.

    A score is `scale * (query . key + relative) + distance_bias + bias`. Rules are a pytree: arrays
    are leaves, `window`, `scale` and `causal` are static. An `offset` that is an int is a leaf too:
    make rules inside of a transformed function, not outside of it, or the int becomes an array and
    tables are gathered, which is slower and gives the same numbers.

    Attributes:
      offset: key index of query 0: an int, or int32 [batch] for streams.
      first: int32 [batch]; keys before it are empty and not seen. None = all are filled.
      mask: bool, broadcastable to [batch, heads, queries, keys]; True = may be seen.
      bias: float, broadcastable likewise, added to the scaled scores.
      distance_bias: float [heads, distances], added to the scaled scores by distance; the last
        column also holds for larger distances.
      relative: scores by distance, added before scaling.
      window: only distances below it are seen; 0 = no limit.
      scale: None = 1 / sqrt(head_dim).
      causal: keys after the query are not seen; where they are, their distance counts as 0.
      rows_below: rows of the tables for distances below 0, before that of 0; set by `prepared`.
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
        """Whether the last query is known to stand on the last key, so that a skew will do."""
        return isinstance(self.offset, int) and self.offset == num_keys - num_queries

    def prepared(
        self, queries: jax.Array, num_keys: int, block_size: int = 0
    ) -> tuple[jax.Array, 'Rules']:
        """What all blocks of keys share, done once: scaled queries and full tables.

        Args:
          queries: [batch, heads, queries, head_dim].
          num_keys: keys in all blocks together.
          block_size: keys per block; 0 = one block.

        Returns:
          Scaled queries and rules for `scores`, of scale 1, which mean the same.
        """
        num_queries, head_dim = queries.shape[2:]
        wide = jnp.promote_types(queries.dtype, jnp.float32)
        scale = 1.0 / math.sqrt(head_dim) if self.scale is None else self.scale
        # Scaling queries costs less than scaling scores.
        factor = jnp.asarray(scale, queries.dtype)
        below = 0
        if block_size and self.ends_with_queries(num_queries, num_keys):
            # The last block has keys after query 0, and is padded if it is not full.
            spare = -num_keys % block_size
            below = num_queries - 1 + spare

        def full(table):
            if not self.ends_with_queries(num_queries, num_keys):
                return table[:, :num_keys]
            return _rows_of_distances(table, num_keys, below)

        relative, distance_bias = self.relative, self.distance_bias
        if relative is not None:
            table = full(relative.table).astype(queries.dtype)
            relative = RelativeTable(relative.queries * factor, table)
        if distance_bias is not None:
            distance_bias = full(distance_bias).astype(wide)
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
          num_keys: keys of all blocks; those of the last block beyond them are not seen.

        Returns:
          Scores [batch, heads, queries, block], float32 at least, also of keys that are not seen.
          Seen, bool [batch | 1, heads | 1, queries, block].
        """
        num_queries, block = queries.shape[2], keys.shape[2]
        wide = jnp.promote_types(queries.dtype, jnp.float32)
        index = start + jnp.arange(block, dtype=jnp.int32)
        distance = self.places(num_queries)[..., None] - index[None, None]
        scores = _dot(queries, keys, wide)
        if self.relative is not None:
            relative = self.relative

            def by_row(table):
                return jnp.einsum(
                    'bhqd,hcd->bhqc', relative.queries, table, preferred_element_type=wide
                )

            scores = scores + self._at(distance, by_row, relative.table, start, num_keys)
        if self.distance_bias is not None:
            scores = scores + self._at(
                distance, lambda table: table[None, :, None], self.distance_bias, start, num_keys
            )
        if self.bias is not None:
            scores = scores + jnp.broadcast_to(self.bias.astype(wide), scores.shape)
        return scores, self._seen(distance, index, num_keys)

    def places(self, num_queries: int) -> jax.Array:
        """Key indices that the queries stand on, int32 [batch | 1, queries]."""
        offset = jnp.asarray(self.offset, jnp.int32).reshape(-1, 1)
        return offset + jnp.arange(num_queries, dtype=jnp.int32)[None]

    def _at(
        self,
        distance: jax.Array,
        by_row: Callable[[jax.Array], jax.Array],
        table: jax.Array,
        start: int | jax.Array,
        num_keys: int,
    ) -> jax.Array:
        """Scores by distance, brought to queries and keys: [batch | 1, heads, queries, block].

        Args:
          distance: int32 [batch | 1, queries, block].
          by_row: scores [batch | 1, heads, queries | 1, rows] of any rows of the table.
          table: [heads, rows, ...].
          start, num_keys: as in `scores`.
        """
        num_queries, block = distance.shape[1:]
        if not self.ends_with_queries(num_queries, num_keys):
            return _gathered(by_row(table), distance)
        # From the greatest distance, that of the last query to the first key, downwards.
        stop, span = table.shape[1] - start, block + num_queries - 1
        if isinstance(start, int):
            rows = table[:, max(stop - span, 0) : stop]
        else:
            rows = jax.lax.dynamic_slice_in_dim(table, stop - span, span, axis=1)
        scores = by_row(rows[:, ::-1])
        scores = jnp.broadcast_to(scores, (*scores.shape[:2], num_queries, scores.shape[3]))
        moved = skew(scores, block)
        if not self.causal and not self.rows_below:
            moved = jnp.where((distance < 0)[:, None], scores[..., -1:], moved)
        return moved

    def _seen(self, distance: jax.Array, index: jax.Array, num_keys: int) -> jax.Array:
        """bool [batch | 1, heads | 1, queries, block]; `index` int32 [block] is that of the keys."""
        seen = distance >= 0 if self.causal else jnp.ones(distance.shape, bool)
        if self.window:
            seen = seen & (distance < self.window)
        if self.first is not None:
            seen = seen & (index[None, None] >= self.first[:, None, None])
        if num_keys % index.shape[0]:
            seen = seen & (index < num_keys)[None, None]
        seen = seen[:, None]
        return seen if self.mask is None else seen & self.mask
