"""A parameter with several uses, as a copy for each device: its gradients are added up there first.

XLA sums the gradient of every use over the devices by itself, which for the table of tied token
vectors exchanges it twice. The derivative of `copies`, in contrast, is one sum over the devices of
what each of them has added up.
"""

import math
from collections.abc import Callable

import flax.struct
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from longmem_jax.devices.sharding import RULES


@flax.struct.dataclass
class Copies:
    """An array, and the same once per device.

    Attributes:
      array: any shape.
      spread: [devices, ...], split over the devices, so that none holds more than the array; None
        where nothing is split.
      axes: of the mesh, those that split batches.
    """

    array: jax.Array
    spread: jax.Array | None
    axes: tuple[str, ...] = flax.struct.field(pytree_node=False)


def copies(array: jax.Array) -> Copies:
    """Copies of an array for the devices of the current mesh that split a batch.

    There are none if it has no such devices, or in a function that runs on every device by itself. With
    `jax.vmap(..., spmd_axis_name=...)` of one of these axes JAX refuses the `shard_map` in `apply`.
    """
    mesh = jax.sharding.get_abstract_mesh()
    axes = tuple(axis for axis in RULES['lanes'] if mesh.shape.get(axis, 1) > 1)
    if not axes or set(axes) & set(getattr(mesh, 'manual_axes', ())):
        return Copies(array, None, ())
    count = math.prod(mesh.shape[axis] for axis in axes)
    spread = jnp.broadcast_to(array, (count, *array.shape))
    free = (P.UNCONSTRAINED,) * array.ndim
    return Copies(array, jax.lax.with_sharding_constraint(spread, P(axes, *free)), axes)


def apply(
    function: Callable[[jax.Array, jax.Array], jax.Array], arrays: Copies, rows: jax.Array
) -> jax.Array:
    """`function(array, rows)`, on every device with its copy and its rows.

    Args:
      function: pure, from the array and [rows, ...] to [rows, ...].
      arrays: what `copies` returns. Rows that do not divide over the devices have no use for it.
      rows: [batch, ...].
    """
    if arrays.spread is None or len(rows) % len(arrays.spread):
        return function(arrays.array, rows)
    split = P(arrays.axes)
    on_devices = jax.shard_map(
        lambda copy, rows: function(copy[0], rows),
        in_specs=(split, split),
        out_specs=split,
        axis_names=set(arrays.axes),
        check_vma=False,
    )
    # By itself, JAX refuses to run it outside of a compiled program.
    return jax.jit(on_devices)(arrays.spread, rows)
