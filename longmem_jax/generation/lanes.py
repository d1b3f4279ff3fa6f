"""Lanes one after the other, for CPUs: what many lanes need at once is more than a cache of a CPU holds.

On other devices, and where the mesh around a program divides the lanes, all are computed at once.
"""

from collections.abc import Callable
from typing import Any

import jax

from longmem_jax.devices.hardware import platform
from longmem_jax.devices.sharding import RULES

# From this many tokens on, lanes are read one after the other. Products of fewer tokens would wait for
# the parameters: 256 take as long either way, 128 a sixth longer.
MANY = 512


def one_by_one() -> bool:
    """Whether what is traced is for CPUs, and the mesh around it does not divide the lanes."""
    mesh = jax.sharding.get_abstract_mesh()
    return platform() == 'cpu' and all(mesh.shape.get(axis, 1) == 1 for axis in RULES['lanes'])


def lane_by_lane(read: Callable[..., Any], num_tokens: int, *rows: Any) -> Any:
    """`read(*rows)`; on a CPU for one lane after the other if each has many tokens.

    Args:
      read: pure; of trees whose leaves are [batch, ...], to one of such.
      num_tokens: of each lane.
      *rows: what it reads.
    """
    if num_tokens < MANY or not one_by_one():
        return read(*rows)

    def one(rows: Any) -> Any:
        lane = read(*jax.tree.map(lambda leaf: leaf[None], rows))
        return jax.tree.map(lambda leaf: leaf[0], lane)

    return jax.lax.map(one, rows)


def lane_by_lane_in_place(
    read: Callable[..., Any], num_tokens: int, changed: Any, *rows: Any
) -> Any:
    """`read(changed, *rows)`, which gives `changed` with other numbers; as `lane_by_lane`.

    Where lanes are read one after the other, the lanes of `changed` need no second place.
    """
    lanes = jax.tree.leaves(rows)[0].shape[0]
    if num_tokens < MANY or lanes == 1 or not one_by_one():
        return read(changed, *rows)

    def one(lane: jax.Array, changed: Any) -> Any:
        return with_lane(changed, lane, read(*lane_of((changed, *rows), lane)))

    return jax.lax.fori_loop(0, lanes, one, changed)


def lane_of(tree: Any, lane: jax.Array) -> Any:
    """One lane (int32 scalar) of a tree whose leaves are [batch, ...]; its own are [1, ...]."""
    return jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, lane, 1, 0), tree)


def with_lane(tree: Any, lane: jax.Array, new: Any) -> Any:
    """The tree with `new` (leaves [1, ...]) for one lane."""
    return jax.tree.map(
        lambda leaf, row: jax.lax.dynamic_update_slice_in_dim(leaf, row, lane, 0), tree, new
    )
