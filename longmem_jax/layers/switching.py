"""Attention to the used part of a long memory: one of a few static sizes, chosen on the device.

The branches of one compiled program differ in how much they read. Each is computed again in the
backward pass, so that nothing of the largest size is kept for the smallest. Under a mesh whose
batch rows are spread over devices, every device chooses for its own rows, without the others.

A memory gives `read_memory` a pure function of the size, the parameters and the batch rows; linen
modules become such functions by `as_function` and `memory_projector`.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from longmem_jax.devices.sharding import RULES


def sizes_below(largest: int, number: int) -> tuple[int, ...]:
    """Up to `number` rising sizes, each about half of the next, the last one `largest`."""
    sizes = {-(-largest // 2**k) for k in range(number)}
    return tuple(sorted(sizes))


def smallest(sizes: tuple[int, ...], needed: jax.Array) -> jax.Array:
    """Index of the smallest size >= `needed` (int32 scalar), the last one if none is."""
    index = jnp.searchsorted(jnp.asarray(sizes, jnp.int32), needed.astype(jnp.int32))
    return jnp.minimum(index, len(sizes) - 1).astype(jnp.int32)


def switch(
    read: Callable[[int, Any, Any], Any],
    sizes: tuple[int, ...],
    needed: jax.Array,
    non_differentiable: Any,
    differentiable: Any,
) -> Any:
    """`read(size, non_differentiable, differentiable)` with the smallest size that holds `needed`.

    The branch chosen is computed again in the backward pass: only its arguments are kept.

    Args:
      read: a pure function; results have the same shapes for every size.
      sizes: static, rising.
      needed: int32 scalar.
      non_differentiable: pytree that no gradient flows to.
      differentiable: pytree of floats that gradients flow to.
    """
    if len(sizes) == 1:
        return read(sizes[0], non_differentiable, differentiable)

    def branches(function):
        # Bound as a default: each branch keeps its own size.
        return [lambda *operands, size=size: function(size, *operands) for size in sizes]

    def pull(size, non_differentiable, differentiable, gradient):
        def of_differentiable(differentiable):
            return read(size, non_differentiable, differentiable)

        return jax.vjp(of_differentiable, differentiable)[1](gradient)[0]

    @jax.custom_vjp
    def chosen(index, non_differentiable, differentiable):
        return jax.lax.switch(index, branches(read), non_differentiable, differentiable)

    def forward(index, *operands):
        return chosen(index, *operands), (index, *operands)

    def backward(kept, gradient):
        index, *operands = kept
        return None, None, jax.lax.switch(index, branches(pull), *operands, gradient)

    chosen.defvjp(forward, backward)
    return chosen(smallest(sizes, needed), non_differentiable, differentiable)


def per_device(function: Callable[[Any, Any], Any], params: Any, rows: Any) -> Any:
    """`function(params, rows)` on every device's own batch rows.

    Args:
      function: pure; its results are [batch, ...] like `rows`.
      params: pytree that all batch rows share.
      rows: pytree, every leaf [batch, ...].
    """
    mesh = jax.sharding.get_abstract_mesh()
    axes = [axis for axis in RULES['lanes'] if mesh.shape.get(axis, 1) > 1]
    manual = set(getattr(mesh, 'manual_axes', ()))
    batch = jax.tree.leaves(rows)[0].shape[0]
    devices = 1
    for axis in axes:
        devices *= mesh.shape[axis]
    if not axes or manual & set(axes) or batch % devices:
        return function(params, rows)
    lanes = P(tuple(axes))
    return jax.shard_map(
        function,
        in_specs=(P(), lanes),
        out_specs=lanes,
        axis_names=set(axes),
        check_vma=False,
    )(params, rows)


def read_memory(
    read: Callable[[int, Any, dict[str, Any]], Any],
    sizes: tuple[int, ...],
    needed: jax.Array,
    params: Any,
    inputs: dict[str, Any],
    constants: dict[str, Any],
) -> Any:
    """Reads as much of a memory as is in use, on every device for its own batch rows.

    Args:
      read: `(size, params, rows) -> results`, pure; `rows` holds `inputs` and `constants` by name.
        Results are [batch, ...], of the same shapes for every size.
      sizes: static, rising.
      needed: int32 [batch], entries of the memory that each row needs.
      params: pytree of floats that all rows share; gradients flow to it.
      inputs: name to a pytree of floats, every leaf [batch, ...]; gradients flow to it.
      constants: name to a pytree, every leaf [batch, ...]; no gradient flows to it.

    Returns:
      What `read` returns for the smallest size that holds what the device's rows need.
    """

    def read_size(size, constants, differentiable):
        params, inputs = differentiable
        return read(size, params, constants | inputs)

    def on_device(params, rows):
        needed, inputs, constants = rows
        return switch(read_size, sizes, needed.max(), constants, (params, inputs))

    return per_device(on_device, params, (needed, inputs, constants))


def as_function(module: Any) -> tuple[Callable[[Any, Any], Any], Any]:
    """A bound linen module (or plain function) as `f(variables, x)` and its variables.

    Linen modules must not be called inside `lax.switch`; pure functions may. The module must have
    been called before, so that its parameters exist.
    """
    if isinstance(module, nn.Module):
        unbound, variables = module.unbind()
        return unbound.apply, variables
    return (lambda variables, x: module(x)), {}


def memory_projector(
    normalize: Any, key: Any, value: Any
) -> tuple[Callable[[Any, jax.Array], tuple[jax.Array, jax.Array, jax.Array]], Any]:
    """The norm and the projections of remembered vectors as one pure function.

    Args:
      normalize, key, value: see `as_function`.

    Returns:
      `project(variables, hidden) -> normal, keys, values`, with hidden and normal
      [batch, n, d_model], keys and values [batch, heads, n, head_dim]; and its variables.
    """
    functions, variables = zip(
        *(as_function(module) for module in (normalize, key, value)), strict=True
    )

    def project(variables, hidden):
        normal = functions[0](variables[0], hidden)
        return normal, *(
            f(part, normal) for f, part in zip(functions[1:], variables[1:], strict=True)
        )

    return project, variables
