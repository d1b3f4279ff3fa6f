"""The one attention of the library: heads first, whole segments, streams, and blocks of keys.

Query i stands on key index `offset + i`; its distance to key j is `offset + i - j`. Everything that
depends on distances (relative scores, biases, windows) is computed from tables by distance, brought
into place by a skew made of reshapes where the offset is known, by gathers where it is not.
"""

import math
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from longmem_jax.layers.projections import repeat_heads

NEVER = -1e30  # a score that no softmax lets through; finite, so that gradients stay finite


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

    What moves in from the right is rubbish: it belongs to distances below zero.

    Args:
      rows: [..., n, columns] with columns >= width.
    """
    *lead, n, columns = rows.shape
    padded = jnp.pad(rows, [(0, 0)] * len(lead) + [(0, 0), (1, 0)])
    flat = padded.reshape(*lead, n * (columns + 1))[..., n:]
    return flat.reshape(*lead, n, columns)[..., :width]


def _whole_table(table, axis, num_distances):
    """A table with a row for every distance: the last row again for those beyond it."""
    rows = table.shape[axis]
    if rows >= num_distances:
        return jax.lax.slice_in_dim(table, 0, num_distances, axis=axis)
    last = jax.lax.slice_in_dim(table, rows - 1, rows, axis=axis)
    return jnp.concatenate([table, jnp.repeat(last, num_distances - rows, axis=axis)], axis=axis)


def _distances(offset, num_queries, first_key, num_keys):
    """int32 [batch | 1, queries, keys]."""
    offset = jnp.asarray(offset, jnp.int32).reshape(-1, 1, 1)
    queries = jnp.arange(num_queries, dtype=jnp.int32)[None, :, None]
    keys = first_key + jnp.arange(num_keys, dtype=jnp.int32)[None, None, :]
    return offset + queries - keys


def _visible(distance, keys, first, window, causal):
    """bool [batch | 1, queries, keys]; `keys` int32 [keys] are their indices."""
    seen = distance >= 0 if causal else jnp.ones(distance.shape, bool)
    if window:
        seen = seen & (distance < window)
    if first is not None:
        seen = seen & (keys[None, None, :] >= first[:, None, None])
    return seen


def _dot(queries, keys, wide):
    """[batch, heads, queries, keys] in `wide`."""
    return jnp.einsum('bhqd,bhkd->bhqk', queries, keys, preferred_element_type=wide)


def _by_table(queries, table, wide):
    """[batch, heads, queries, distances] in `wide`."""
    return jnp.einsum('bhqd,hcd->bhqc', queries, table, preferred_element_type=wide)


def _gathered(scores, distance):
    """Scores by distance [batch | 1, heads, queries | 1, distances] at `distance`."""
    at = jnp.clip(distance, 0, scores.shape[-1] - 1)[:, None]
    shape = (max(scores.shape[0], at.shape[0]), scores.shape[1], *distance.shape[1:])
    scores = jnp.broadcast_to(scores, (*shape[:3], scores.shape[-1]))
    return jnp.take_along_axis(scores, jnp.broadcast_to(at, shape), axis=-1)


def _drop(weights, rate, key):
    if not rate:
        return weights
    kept = jax.random.bernoulli(key, 1.0 - rate, weights.shape)
    return jnp.where(kept, weights / (1.0 - rate), jnp.zeros_like(weights))


def attend(
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    *,
    offset: Any,
    first: jax.Array | None = None,
    window: int = 0,
    mask: jax.Array | None = None,
    bias: jax.Array | None = None,
    distance_bias: jax.Array | None = None,
    relative: RelativeTable | None = None,
    scale: float | None = None,
    dropout_rate: float = 0.0,
    dropout_key: jax.Array | None = None,
    causal: bool = True,
    block_size: int = 0,
) -> jax.Array:
    """Softmax attention; scores and weights in float32 at least, rows that see nothing give zeros.

    Args:
      queries: [batch, heads, queries, head_dim].
      keys, values: [batch, heads, keys, head_dim]; fewer heads are each shared by a group of the
        queries'.
      offset: key index of query 0: an int, or int32 [batch] for streams.
      first: int32 [batch]; keys before it are empty and not seen. None = all are filled.
      window: only distances below it are seen; 0 = no limit.
      mask: bool, broadcastable to [batch, heads, queries, keys]; True = may be seen.
      bias: float, broadcastable likewise, added to the scaled scores.
      distance_bias: float [heads, distances], added to the scaled scores by distance.
      relative: scores by distance, added before scaling.
      scale: default 1 / sqrt(head_dim).
      dropout_rate, dropout_key: dropout of the weights.
      causal: keys behind the query are not seen; where they are, their distance counts as 0.
      block_size: keys per block of an online softmax (Milakov and Gimelshein, 2018), whose scores
        never exist all at once, nor in the backward pass; 0 = all keys at once.

    Returns:
      [batch, heads, queries, head_dim] in the dtype of `values`.
    """
    scale = 1.0 / math.sqrt(queries.shape[-1]) if scale is None else scale
    keys, values = (repeat_heads(part, queries.shape[1]) for part in (keys, values))
    if block_size and block_size < keys.shape[2]:
        return _attend_blocks(
            queries, keys, values, offset, first, window, mask, bias, distance_bias, relative,
            scale, dropout_rate, dropout_key, causal, block_size,
        )  # fmt: skip
    wide = jnp.promote_types(queries.dtype, jnp.float32)
    num_queries, num_keys = queries.shape[2], keys.shape[2]
    places = jnp.arange(num_keys, dtype=jnp.int32)
    distance = _distances(offset, num_queries, 0, num_keys)
    shifted = isinstance(offset, int) and offset == num_keys - num_queries
    # Scaling queries costs less than scaling scores.
    factor = jnp.asarray(scale, queries.dtype)
    scores = _dot(queries * factor, keys, wide)
    if relative is not None:
        table = _whole_table(relative.table, 1, num_keys).astype(queries.dtype)
        scaled = relative.queries * factor
        if shifted:
            by_distance = _by_table(scaled, table[:, ::-1], wide)
            moved = skew(by_distance, num_keys)
            if not causal:
                moved = jnp.where((distance < 0)[:, None], by_distance[..., -1:], moved)
            scores = scores + moved
        else:
            scores = scores + _gathered(_by_table(scaled, table, wide), distance)
    if distance_bias is not None:
        table = _whole_table(distance_bias, 1, num_keys).astype(wide)
        if shifted:
            rows = jnp.broadcast_to(table[:, None, ::-1], (table.shape[0], num_queries, num_keys))
            moved = skew(rows, num_keys)[None]
            if not causal:
                moved = jnp.where((distance < 0)[:, None], table[None, :, :1, None], moved)
            scores = scores + moved
        else:
            scores = scores + _gathered(table[None, :, None], distance)
    if bias is not None:
        scores = scores + jnp.broadcast_to(bias.astype(wide), scores.shape)
    seen = _visible(distance, places, first, window, causal)[:, None]
    if mask is not None:
        seen = seen & mask
    seen = jnp.broadcast_to(seen, scores.shape)
    weights = jax.nn.softmax(jnp.where(seen, scores, jnp.asarray(NEVER, wide)), axis=-1)
    weights = _drop(weights, dropout_rate, dropout_key).astype(values.dtype)
    out = jnp.einsum('bhqk,bhkd->bhqd', weights, values)
    if mask is not None or not causal:
        sighted = seen.any(axis=-1)
    elif first is not None:  # a causal query sees at least itself, if that is filled
        sighted = (_distances(offset, num_queries, 0, 1)[..., 0] >= first[:, None])[:, None]
    else:
        return out
    return jnp.where(sighted[..., None], out, jnp.zeros_like(out))


def _attend_blocks(
    queries, keys, values, offset, first, window, mask, bias, distance_bias, relative, scale,
    dropout_rate, dropout_key, causal, block_size,
):  # fmt: skip
    """`attend`, one block of keys after the other: running maximum, sum and weighted values."""
    wide = jnp.promote_types(queries.dtype, jnp.float32)
    batch, heads, num_queries, head_dim = queries.shape
    num_keys = keys.shape[2]
    num_blocks = -(-num_keys // block_size)
    spare = num_blocks * block_size - num_keys
    factor = jnp.asarray(scale, queries.dtype)
    queries = queries * factor
    span = block_size + num_queries - 1  # distances between a block and all queries
    shifted = causal and isinstance(offset, int) and offset == num_keys - num_queries

    def blocks(array, axis):
        """Padded and cut into blocks along `axis`, blocks leading."""
        widths = [(0, 0)] * array.ndim
        widths[axis] = (0, spare)
        array = jnp.pad(array, widths)
        shape = (*array.shape[:axis], num_blocks, block_size, *array.shape[axis + 1 :])
        return jnp.moveaxis(array.reshape(shape), axis, 0)

    def by_distance(table, axis):
        """All rows, flipped, with room behind: block b reads `span` rows from b * block_size on."""
        table = jnp.flip(_whole_table(table, axis, num_keys), axis)
        widths = [(0, 0)] * table.ndim
        widths[axis] = (0, spare + num_queries)
        return jnp.pad(table, widths)

    if relative is not None:
        scaled = relative.queries * factor
        rows = relative.table.astype(queries.dtype)
        rows = by_distance(rows, 1) if shifted else _whole_table(rows, 1, num_keys)
    if distance_bias is not None:
        slopes = distance_bias.astype(wide)
        slopes = by_distance(slopes, 1) if shifted else _whole_table(slopes, 1, num_keys)
    extra = {}
    for name, array in (('mask', mask), ('bias', bias)):
        if array is not None:
            shape = (*array.shape[:3], num_keys)
            extra[name] = blocks(jnp.broadcast_to(array, shape), 3)

    def block(carry, inputs):
        highest, total, mixed = carry
        number, part_keys, part_values, extra = inputs
        start = number * block_size
        places = start + jnp.arange(block_size, dtype=jnp.int32)
        distance = _distances(offset, num_queries, start, block_size)
        scores = _dot(queries, part_keys, wide)
        if relative is not None and shifted:
            table = jax.lax.dynamic_slice_in_dim(rows, start, span, axis=1)
            scores = scores + skew(_by_table(scaled, table, wide), block_size)
        elif relative is not None:
            scores = scores + _gathered(_by_table(scaled, rows, wide), distance)
        if distance_bias is not None and shifted:
            table = jax.lax.dynamic_slice_in_dim(slopes, start, span, axis=1)
            table = jnp.broadcast_to(table[:, None], (table.shape[0], num_queries, span))
            scores = scores + skew(table, block_size)[None]
        elif distance_bias is not None:
            scores = scores + _gathered(slopes[None, :, None], distance)
        if 'bias' in extra:
            scores = scores + jnp.broadcast_to(extra['bias'].astype(wide), scores.shape)
        seen = _visible(distance, places, first, window, causal) & (places < num_keys)[None, None]
        seen = seen[:, None] & extra['mask'] if 'mask' in extra else seen[:, None]
        seen = jnp.broadcast_to(seen, scores.shape)
        scores = jnp.where(seen, scores, jnp.asarray(NEVER, wide))
        higher = jnp.maximum(highest, jax.lax.stop_gradient(scores.max(axis=-1)))
        weights = jnp.where(seen, jnp.exp(scores - higher[..., None]), jnp.zeros((), wide))
        fade = jnp.exp(highest - higher)
        total = total * fade + weights.sum(axis=-1)
        if dropout_rate:
            weights = _drop(weights, dropout_rate, jax.random.fold_in(dropout_key, number))
        added = jnp.einsum(
            'bhqk,bhkd->bhqd',
            weights.astype(values.dtype),
            part_values,
            preferred_element_type=wide,
        )
        return (higher, total, mixed * fade[..., None] + added), None

    carry = (
        jnp.full((batch, heads, num_queries), NEVER, wide),
        jnp.zeros((batch, heads, num_queries), wide),
        jnp.zeros((batch, heads, num_queries, head_dim), wide),
    )
    numbers = jnp.arange(num_blocks, dtype=jnp.int32)
    (_, total, mixed), _ = jax.lax.scan(
        jax.checkpoint(block, prevent_cse=False),
        carry,
        (numbers, blocks(keys, 2), blocks(values, 2), extra),
    )
    total = total[..., None]
    empty = total == 0
    out = jnp.where(
        empty, jnp.zeros_like(mixed), mixed / jnp.where(empty, jnp.ones_like(total), total)
    )
    return out.astype(values.dtype)
