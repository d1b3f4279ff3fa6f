"""First-in-first-out entries (keys and values), written and restored where they are.

A ring is too large to be copied: a segment goes into a window of rows per lane, a reset sets the
count to zero, and writes are undone by putting the rows of two windows back. Nothing reads a row that
the count does not cover, so rows beyond it may hold anything, also what is not finite. On a mesh with a
`memory` axis every device keeps its own shard of the rows. Nothing here has a gradient.
"""

import math
from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jax.typing import DTypeLike

from longmem_jax.devices.sharding import RULES, memory_rows
from longmem_jax.kernels.cpu.order import once_computed

DTYPES = ('float32', 'bfloat16', 'int8')
ROWS = ('rows_keys', 'rows_values', 'rows_key_scale', 'rows_value_scale')


class Rows(flax.struct.PyTreeNode):
    """A ring of entries per lane and head; `rows_...` are sharded over the mesh axis `memory`.

    It stays in place, see `in_place.InPlace`: `count` alone says which rows can be read.

    Attributes:
      rows_keys, rows_values: [batch, heads, size, width]; entry `count % size` is written next.
      rows_key_scale, rows_value_scale: float32 [batch, heads, size, 1] of int8 entries, else None.
      count: int32 [batch], entries written since the last reset, until all are filled; from then on
        one of size .. 2 size - 1 with the same remainder, so that it never outgrows its type.
    """

    rows_keys: jax.Array
    rows_values: jax.Array
    rows_key_scale: Any
    rows_value_scale: Any
    count: jax.Array

    def reset(self, lanes: jax.Array) -> 'Rows':
        """Empty in `lanes` (bool [batch]); no row is touched."""
        return self.replace(count=jnp.where(lanes, 0, self.count))

    def keep(self, tokens: int) -> tuple['Rows', 'Kept']:
        """The ring to be written, and what undoes up to `tokens` entries, see `InPlace.keep`."""
        windows, ring = _windows(self, tokens), self
        for window in windows:
            ring = once_read(ring, window.rows_keys)
        return ring, Kept(windows, self.count)

    def restore(self, undo: jax.Array, kept: 'Kept') -> 'Rows':
        """The ring that was given to `keep`, if `undo` (bool scalar), else this one."""
        return _put_back(self, undo, kept)

    def readable(self) -> 'Rows':
        """The ring with zeros in rows that are not filled; leaves may have axes before [batch]."""
        row = jnp.arange(self.rows_keys.shape[-2], dtype=jnp.int32)
        filled = (row < self.count[..., None])[..., None, :, None]
        return self.replace(
            **{name: jnp.where(filled, rows, 0) for name, rows in _arrays(self).items()}
        )


class Kept(flax.struct.PyTreeNode):
    """Rows that writes may replace, see `Rows.keep`.

    Attributes:
      windows: the rows from the next one to be written, and the first ones, where writing continues
        after the last row or a reset: two `Rows` of as many rows as there are tokens; or one `Rows`,
        the whole ring if it is not larger.
      count: int32 [batch].
    """

    windows: tuple[Rows, ...]
    count: jax.Array


def no_rows(batch: int, heads: int, size: int, width: int, dtype: DTypeLike) -> Rows:
    """An empty ring of `size` entries; `dtype` is one of `DTYPES`, or 'float64' for float64 models."""
    zeros = jnp.zeros((batch, heads, size, width), dtype)
    scale = jnp.zeros((batch, heads, size, 1), jnp.float32) if dtype == 'int8' else None
    return Rows(zeros, zeros, scale, scale, jnp.zeros((batch,), jnp.int32))


def _quantized(new: jax.Array, dtype: jnp.dtype) -> tuple[jax.Array, jax.Array | None]:
    """Entries as they are stored, and their scales (int8 only)."""
    if dtype != jnp.int8:
        return new.astype(dtype), None
    new = new.astype(jnp.float32)
    scale = jnp.maximum(jnp.abs(new).max(axis=-1, keepdims=True), 1e-30) / 127
    return jnp.round(new / scale).astype(jnp.int8), scale


def _axes(batch: int, size: int) -> tuple[tuple[str, ...], int]:
    """Mesh axes of the lanes, and the number of shards of the memory, on the current mesh."""
    mesh = jax.sharding.get_abstract_mesh()
    sizes = dict(mesh.shape) if mesh.shape else {}
    num_shards = sizes.get('memory', 1)
    lanes = tuple(axis for axis in RULES['lanes'] if sizes.get(axis, 1) > 1)
    count = math.prod(sizes[axis] for axis in lanes)
    shards = memory_rows(size, num_shards) if num_shards > 1 else 1
    return (lanes if batch % count == 0 else ()), shards


def is_split(ring: Rows) -> bool:
    """Whether the rows of a lane are on several devices."""
    batch, _, size, _ = ring.rows_keys.shape
    return _axes(batch, size)[1] > 1


def on_devices(
    function: Callable[[Rows, Any, Any], Any],
    ring: Rows,
    per_row: Any,
    returns_ring: bool,
    by_itself: bool = False,
) -> Any:
    """`function(ring, per_row, base)` on every shard; `base` is the index of its first entry.

    `per_row` and the result are leaves [batch, ...], or `Rows`, which are split like the ring. With
    `by_itself` every device also has its own lanes only, so that it can take them one by one.
    """
    batch, _, size, _ = ring.rows_keys.shape
    lanes, num_shards = _axes(batch, size)
    if num_shards == 1 and not (lanes and by_itself):
        return function(ring, per_row, 0)
    axes = {*lanes, 'memory'} if num_shards > 1 else {*lanes}
    by_lane: Any = P(lanes or None)
    by_entry: Any = P(lanes or None, None, 'memory' if num_shards > 1 else None)
    ring_specs = Rows(
        by_entry, by_entry, by_entry if ring.rows_key_scale is not None else None,
        by_entry if ring.rows_value_scale is not None else None, by_lane,
    )  # fmt: skip
    per_row_specs = ring_specs if isinstance(per_row, Rows) else by_lane

    def on_shard(ring: Rows, per_row: Any) -> Any:
        if num_shards == 1:
            return function(ring, per_row, 0)
        return function(ring, per_row, jax.lax.axis_index('memory') * (size // num_shards))

    return jax.shard_map(
        on_shard,
        in_specs=(ring_specs, per_row_specs),
        out_specs=ring_specs if returns_ring else by_lane,
        axis_names=axes,
        check_vma=False,
    )(ring, per_row)


def _arrays(rows: Rows) -> dict[str, jax.Array]:
    """The arrays of rows, without scales where there are none."""
    return {name: getattr(rows, name) for name in ROWS if getattr(rows, name) is not None}


def _window(rows: jax.Array, lane: jax.Array, first: jax.Array, number: int) -> jax.Array:
    """`number` rows of a lane, [1, heads, number, width]."""
    zero = jnp.zeros_like(lane)
    sizes = (1, rows.shape[1], number, rows.shape[3])
    return jax.lax.dynamic_slice(rows, (lane, zero, first, zero), sizes)


def _in_windows(
    ring: Rows,
    change: Callable[[str, jax.Array, Any, jax.Array], jax.Array],
    firsts: Any,
    number: int,
) -> Rows:
    """The ring with windows of every lane changed in place.

    Lanes are taken one after another: slices of all lanes at once, each at its own row, would be
    gathers, for which TPUs bring the whole ring into another layout.

    Args:
      ring: the rows.
      change: `(name of the array, its window, number of the window, lane) -> the new window`; windows
        are [1, heads, number, width].
      firsts: for each window of a lane its first row, int32 [batch].
      number: rows of a window.
    """

    def lane(at: jax.Array, arrays: dict[str, jax.Array]) -> dict[str, jax.Array]:
        at = at.astype(jnp.int32)  # with float64 on, loops count in int64
        zero, changed = jnp.zeros_like(at), dict(arrays)
        for index, first in enumerate(firsts):
            for name, rows in changed.items():
                old = _window(rows, at, first[at], number)
                new = change(name, old, index, at).astype(rows.dtype)
                changed[name] = jax.lax.dynamic_update_slice(rows, new, (at, zero, first[at], zero))
        return changed

    return ring.replace(**jax.lax.fori_loop(0, ring.count.shape[0], lane, _arrays(ring)))


def _places(ring: Rows, length: int, capacity: int, base: Any) -> list[tuple[jax.Array, jax.Array]]:
    """Where the next `length` entries of every lane go, on a shard of at least as many rows.

    Args:
      ring: the shard.
      length: entries.
      capacity: rows of all shards.
      base: index of the first row of the shard.

    Returns:
      Two windows of `length` rows: the first row on the shard, and the number of the entry that goes
      there, int32 [batch] each; the following rows take the following entries. Entries that are not
      0 .. length - 1 are none.
    """
    size, position = ring.rows_keys.shape[2], ring.count % capacity
    first = jnp.clip(position - base, 0, size - length)
    start = jnp.zeros_like(position)
    return [(first, base + first - position), (start, (base - position) % capacity)]


def write(
    ring: Rows,
    keys: jax.Array,
    values: jax.Array,
    num_valid: jax.Array,
    after: jax.Array | None = None,
) -> Rows:
    """Writes the first `num_valid` (int32 [batch]) of `keys` and `values` over the oldest entries.

    Args:
      ring: the entries.
      keys, values: [batch, heads, n, width].
      num_valid: if more than the size of the ring, the last ones are kept.
      after: [batch, ...], a result read from the ring: once it is computed, the ring is written in
        place, where it would be copied otherwise. None = no such result.
    """
    if after is not None:
        ring = once_read(ring, after)
    capacity, length = ring.rows_keys.shape[2], keys.shape[2]

    def write_shard(ring: Rows, per_row: Any, base: Any) -> Rows:
        keys, values, num_valid = per_row
        (packed_keys, key_scale), (packed_values, value_scale) = (
            _quantized(jax.lax.stop_gradient(new), ring.rows_keys.dtype) for new in (keys, values)
        )
        new = Rows(packed_keys, packed_values, key_scale, value_scale, num_valid)
        written = ring.count + num_valid
        count = jnp.where(written < capacity, written, capacity + written % capacity)
        if length > ring.rows_keys.shape[2]:
            return _write_all(ring, new, capacity, base).replace(count=count)
        places = _places(ring, length, capacity, base)
        doubled = {name: jnp.concatenate([rows] * 2, axis=2) for name, rows in _arrays(new).items()}

        def change(name: str, old: jax.Array, index: int, lane: jax.Array) -> jax.Array:
            entry = places[index][1][lane]
            number = entry + jnp.arange(length, dtype=jnp.int32)
            taken = (number >= 0) & (number < num_valid[lane])
            # A slice of the entries, twice in a row, is a rotation of them.
            shifted = _window(doubled[name], lane, entry % length, length)
            return jnp.where(taken[:, None], shifted, old)

        ring = _in_windows(ring, change, [first for first, _ in places], length)
        return ring.replace(count=count)

    return on_devices(write_shard, ring, (keys, values, num_valid), True, by_itself=True)


def once_read(ring: Rows, result: jax.Array) -> Rows:
    """The ring, to be written only when `result` ([batch, ...]), which was read from it, is computed."""
    return ring.replace(count=once_computed(result, ring.count))


def _choose(taken: jax.Array, new: Rows, old: Rows) -> Rows:
    """Rows of `new` where `taken` (bool [batch, n]), else of `old`."""
    news = _arrays(new)
    return old.replace(
        **{
            name: jnp.where(taken[:, None, :, None], news[name], rows)
            for name, rows in _arrays(old).items()
        }
    )


def _write_all(ring: Rows, new: Rows, capacity: int, base: Any) -> Rows:
    """`write` to fewer rows than there are entries: if several entries map to a row, the last wins."""
    row = base + jnp.arange(ring.rows_keys.shape[2], dtype=jnp.int32)[None]
    first = (row - ring.count[:, None]) % capacity
    last = new.count[:, None] - 1
    entry = first + (last - first) // capacity * capacity
    index = jnp.maximum(entry, 0)[:, None, :, None]

    taken = {name: jnp.take_along_axis(rows, index, axis=2) for name, rows in _arrays(new).items()}
    return _choose(first <= last, new.replace(**taken), ring)


def _first_rows(ring: Rows, tokens: int, capacity: int, base: Any) -> list[jax.Array]:
    """First rows of the windows of `Kept` on a shard, int32 [batch] each."""
    return [first for first, _ in _places(ring, tokens, capacity, base)]


def _windows(ring: Rows, tokens: int) -> tuple[Rows, ...]:
    """The windows of `Kept`."""
    batch, _, capacity, _ = ring.rows_keys.shape
    if 2 * tokens >= capacity // _axes(batch, capacity)[1]:
        return (ring,)

    def window(number: int) -> Rows:
        def on_shard(ring: Rows, _: tuple[()], base: Any) -> Rows:
            first = _first_rows(ring, tokens, capacity, base)[number]
            arrays = _arrays(ring)

            def of_lane(at: jax.Array) -> dict[str, jax.Array]:
                return {
                    name: _window(rows, at, first[at], tokens)[0] for name, rows in arrays.items()
                }

            lanes = jnp.arange(ring.count.shape[0], dtype=jnp.int32)
            return ring.replace(**jax.lax.map(of_lane, lanes))

        return on_devices(on_shard, ring, (), True, by_itself=True)

    return window(0), window(1)


def _put_back(ring: Rows, undo: jax.Array, kept: Kept) -> Rows:
    """`Rows.restore`."""
    batch, _, capacity, _ = ring.rows_keys.shape
    count = jnp.where(undo, kept.count, ring.count)
    if len(kept.windows) == 1:
        rows = _choose(jnp.broadcast_to(undo, (batch, 1)), kept.windows[0], ring)
        return rows.replace(count=count)
    shards = _axes(batch, capacity)[1]
    tokens = kept.windows[0].rows_keys.shape[2] // shards
    ring = ring.replace(count=kept.count)
    for number, window in enumerate(kept.windows):

        def on_shard(ring: Rows, window: Rows, base: Any, number: int = number) -> Rows:
            first = _first_rows(ring, tokens, capacity, base)[number]
            windows = _arrays(window)

            def change(name: str, old: jax.Array, _: int, lane: jax.Array) -> jax.Array:
                kept = jax.lax.dynamic_slice_in_dim(windows[name], lane, 1)
                return jnp.where(window.count[lane] > 0, kept, old)

            return _in_windows(ring, change, [first], tokens)

        # The flag travels with the rows.
        undone = jnp.broadcast_to(undo, (batch,)).astype(jnp.int32)
        ring = on_devices(on_shard, ring, window.replace(count=undone), True, by_itself=True)
    return ring.replace(count=count)
