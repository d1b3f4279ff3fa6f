"""Parameters with several uses, as a copy for each device: its gradients are added up there first.

XLA sums the gradient of every use over the devices by itself, which for the table of tied token
vectors exchanges it twice. The derivative of `copies`, in contrast, is one sum over the devices of
what each of them has added up.
"""

import math
from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from longmem_jax.devices.sharding import RULES


class Copies(flax.struct.PyTreeNode):
    """Arrays, and the same once per device.

    Attributes:
      arrays: pytree, any shapes.
      spread: the same tree, every leaf [devices, ...], split over the devices, so that none holds more
        than the arrays; None where nothing is split.
      axes: of the mesh, those that split batches.
    """

    arrays: Any
    spread: Any
    axes: tuple[str, ...] = flax.struct.field(pytree_node=False)


def copies(arrays: Any) -> Copies:
    """Copies of a pytree of arrays for the devices of the current mesh that split a batch.

    There are none if it has no such devices, or in a function that runs on every device by itself. With
    `jax.vmap(..., spmd_axis_name=...)` of one of these axes JAX refuses the `shard_map` in `apply`.
    """
    mesh = jax.sharding.get_abstract_mesh()
    axes = tuple(axis for axis in RULES['lanes'] if mesh.shape.get(axis, 1) > 1)
    if not axes or set(axes) & set(getattr(mesh, 'manual_axes', ())):
        return Copies(arrays, None, ())
    count = math.prod(mesh.shape[axis] for axis in axes)

    def spread(array: jax.Array) -> jax.Array:
        free = (P.UNCONSTRAINED,) * array.ndim
        spread = jnp.broadcast_to(array, (count, *array.shape))
        return jax.lax.with_sharding_constraint(spread, P(axes, *free))

    return Copies(arrays, jax.tree.map(spread, arrays), axes)


def apply(
    function: Callable[[Any, jax.Array], jax.Array], copied: Copies, rows: jax.Array
) -> jax.Array:
    """`function(arrays, rows)`, on every device with its copies and its rows.

    Args:
      function: pure, from the arrays and [rows, ...] to [rows, ...].
      copied: what `copies` returns. Rows that do not divide over the devices have no use for it.
      rows: [batch, ...].
    """
    if copied.spread is None or len(rows) % len(jax.tree.leaves(copied.spread)[0]):
        return function(copied.arrays, rows)
    split = P(copied.axes)
    on_devices = jax.shard_map(
        lambda copy, rows: function(jax.tree.map(lambda leaf: leaf[0], copy), rows),
        in_specs=(split, split),
        out_specs=split,
        axis_names=set(copied.axes),
        check_vma=False,
    )
    # By itself, JAX refuses to run it outside of a compiled program.
    return jax.jit(on_devices)(copied.spread, rows)
