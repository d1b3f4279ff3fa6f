"""Work on as much of a long memory as is in use: one of a few static sizes, chosen on the device.

The branches of one compiled program differ in how much they read. Each is computed again in the
backward pass, so that nothing of the largest size is kept for the smallest. Under a mesh whose
lanes are spread over devices, every device chooses for its own lanes, without the settings.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from longmem_jax.devices.sharding import RULES


def sizes_below(whole: int, number: int) -> tuple[int, ...]:
    """Up to `number` rising sizes, each about half of the next, the last one `whole`."""
    sizes = {-(-whole // 2**k) for k in range(number)}
    return tuple(sorted(sizes))


def smallest(sizes: tuple[int, ...], needed: jax.Array) -> jax.Array:
    """Index of the smallest size >= `needed` (int32 scalar), the last one if none is."""
    index = jnp.searchsorted(jnp.asarray(sizes, jnp.int32), needed.astype(jnp.int32))
    return jnp.minimum(index, len(sizes) - 1).astype(jnp.int32)


def switch(
    read: Callable[[int, Any, Any], Any],
    sizes: tuple[int, ...],
    needed: jax.Array,
    fixed: Any,
    moving: Any,
) -> Any:
    """`read(size, fixed, moving)` with the smallest of `sizes` that holds `needed`.

    The branch chosen is computed again in the backward pass: only its arguments are kept.

    Args:
      read: a pure function; results have the same shapes for every size.
      sizes: static, rising.
      needed: int32 scalar.
      fixed: pytree that no gradient flows to.
      moving: pytree of floats that gradients flow to.
    """
    if len(sizes) == 1:
        return read(sizes[0], fixed, moving)

    def branches(function):
        # Bound as a default: each branch keeps its own size.
        return [lambda *operands, size=size: function(size, *operands) for size in sizes]

    def pull(size, fixed, moving, gradient):
        return jax.vjp(lambda moving: read(size, fixed, moving), moving)[1](gradient)[0]

    @jax.custom_vjp
    def chosen(index, fixed, moving):
        return jax.lax.switch(index, branches(read), fixed, moving)

    def forward(index, fixed, moving):
        return chosen(index, fixed, moving), (index, fixed, moving)

    def backward(kept, gradient):
        index, fixed, moving = kept
        to_moving = jax.lax.switch(index, branches(pull), fixed, moving, gradient)
        return None, None, to_moving

    chosen.defvjp(forward, backward)
    return chosen(smallest(sizes, needed), fixed, moving)


def per_device(function: Callable[[Any, Any], Any], whole: Any, laned: Any) -> Any:
    """`function(whole, laned)` on every device's own lanes.

    Args:
      function: pure; its results are [batch, ...] like `laned`.
      whole: pytree that all lanes share, such as parameters.
      laned: pytree, every leaf [batch, ...].
    """
    mesh = jax.sharding.get_abstract_mesh()
    axes = [axis for axis in RULES['lanes'] if mesh.shape.get(axis, 1) > 1]
    manual = set(getattr(mesh, 'manual_axes', ()))
    batch = jax.tree.leaves(laned)[0].shape[0]
    parts = 1
    for axis in axes:
        parts *= mesh.shape[axis]
    if not axes or manual & set(axes) or batch % parts:
        return function(whole, laned)
    lanes = P(tuple(axes))
    return jax.shard_map(
        function,
        in_specs=(P(), lanes),
        out_specs=lanes,
        axis_names=set(axes),
        check_vma=False,
    )(whole, laned)


def as_function(module: Any) -> tuple[Callable[[Any, Any], Any], Any]:
    """A bound linen module (or plain function) as `f(variables, x)` and its variables.

    Linen modules must not be called inside `lax.switch`; pure functions may. The module must have
    been called before, so that its parameters exist.
    """
    if isinstance(module, nn.Module):
        unbound, variables = module.unbind()
        return unbound.apply, variables
    return (lambda variables, x: module(x)), {}
