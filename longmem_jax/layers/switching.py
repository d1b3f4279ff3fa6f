"""Attention to the used part of a long memory: one of a few static sizes, chosen on the device.

The branches of one compiled program differ in how much they read. Each is recomputed in the
backward pass, so that no residuals of the largest size are kept for the smallest. On a mesh that
shards batch rows (lanes), every device chooses for its own rows, independently of the others.

The branches are called by `label` in the program, and a layer reports in `Aux.sizes` which of them were
taken, so that `training.branches` can count the operations that ran.

A memory passes `read_memory` a pure function of the size, the parameters and the batch rows;
`as_function` and `memory_projector` turn linen modules into such functions.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from longmem_jax.devices.sharding import RULES
from longmem_jax.layers import low_rank


def sizes_below(largest: int, number: int, always: int = 0) -> tuple[int, ...]:
    """Up to `number` increasing sizes, each about half of the next; the last is `largest`.

    Args:
      largest, number: at least 1.
      always: number of entries that every size reads in addition. Sizes below half of it are left
        out: they would save little, and every size costs time to compile.
    """
    sizes = {-(-largest // 2**k) for k in range(number)}
    return tuple(sorted(size for size in sizes if size == largest or 2 * size >= always))


def smallest(sizes: tuple[int, ...], needed: jax.Array) -> jax.Array:
    """Index of the smallest size >= `needed` (int32 scalar), the last one if there is none."""
    index = jnp.searchsorted(jnp.asarray(sizes, jnp.int32), needed.astype(jnp.int32))
    return jnp.minimum(index, len(sizes) - 1).astype(jnp.int32)


def label(sizes: tuple[int, ...]) -> str:
    """What branches of these sizes are called in a program: 'sizes_64_128'."""
    return '_'.join(['sizes', *map(str, sizes)])


def taken(sizes: tuple[int, ...], needed: jax.Array) -> dict[str, jax.Array]:
    """What a layer reports as `Aux.sizes`: the share of devices that read each size; {} for one size.

    Args:
      sizes, needed: those of `read_memory`.
    """
    if len(sizes) == 1:
        return {}

    def on_device(_: tuple[()], needed: jax.Array) -> jax.Array:
        index = jnp.full(needed.shape, smallest(sizes, needed.max()))
        return jax.nn.one_hot(index, len(sizes), dtype=jnp.float32)

    return {label(sizes): per_device(on_device, (), needed).mean(axis=0)}


def switch(
    read: Callable[[int, Any, Any], Any],
    sizes: tuple[int, ...],
    needed: jax.Array,
    non_differentiable: Any,
    differentiable: Any,
) -> Any:
    """`read(size, non_differentiable, differentiable)` with the smallest size that holds `needed`.

    The chosen branch is recomputed in the backward pass: only its arguments are kept.

    Args:
      read: a pure function whose results have the same shapes for every size.
      sizes: static, increasing.
      needed: int32 scalar.
      non_differentiable: pytree that no gradient flows to.
      differentiable: pytree of floats that gradients flow to.

    Returns:
      The result of `read`.
    """
    if len(sizes) == 1:
        return read(sizes[0], non_differentiable, differentiable)

    def branches(function: Callable[..., Any]) -> list[Callable[..., Any]]:
        # Bound as a default argument, so that each branch has its own size.
        return [lambda *operands, size=size: function(size, *operands) for size in sizes]

    def pull(size: int, non_differentiable: Any, differentiable: Any, gradient: Any) -> Any:
        def of_differentiable(differentiable: Any) -> Any:
            return read(size, non_differentiable, differentiable)

        return jax.vjp(of_differentiable, differentiable)[1](gradient)[0]

    @jax.custom_vjp
    def run(index: jax.Array, non_differentiable: Any, differentiable: Any) -> Any:
        with jax.named_scope(label(sizes)):
            return jax.lax.switch(index, branches(read), non_differentiable, differentiable)

    def forward(index: jax.Array, *operands: Any) -> tuple[Any, tuple[Any, ...]]:
        return run(index, *operands), (index, *operands)

    def backward(residuals: tuple[Any, ...], gradient: Any) -> tuple[Any, ...]:
        index, *operands = residuals
        with jax.named_scope(label(sizes)):
            return None, None, jax.lax.switch(index, branches(pull), *operands, gradient)

    run.defvjp(forward, backward)
    return run(smallest(sizes, needed), non_differentiable, differentiable)


def per_device(function: Callable[[Any, Any], Any], params: Any, rows: Any) -> Any:
    """`function(params, rows)` on every device's own batch rows.

    Args:
      function: pure; every leaf of its results is [batch, ...].
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
    """Reads the used part of a memory, on every device for its own batch rows.

    Args:
      read: `(size, params, rows) -> results`, pure; `rows` holds `inputs` and `constants` by name.
        Results are [batch, ...], of the same shapes for every size.
      sizes: static, increasing.
      needed: int32 [batch], number of entries of the memory that each row needs.
      params: pytree of floats that all rows share; gradients flow to it.
      inputs: name to a pytree of floats, every leaf [batch, ...]; gradients flow to it.
      constants: name to a pytree, every leaf [batch, ...]; no gradient flows to it.

    Returns:
      The result of `read` for the smallest size that holds what the device's rows need.
    """

    def read_size(size: int, constants: dict[str, Any], differentiable: Any) -> Any:
        params, inputs = differentiable
        return read(size, params, constants | inputs)

    def on_device(params: Any, rows: Any) -> Any:
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
        # What runs later, such as a backward pass, is outside of `nn.intercept_methods`.
        params = low_rank.merged(variables.get('params', {}))
        return unbound.apply, {**variables, 'params': params}
    return (lambda variables, x: module(x)), {}


def memory_projector(
    normalize: Any, key: Any, value: Any
) -> tuple[Callable[[Any, jax.Array], tuple[jax.Array, jax.Array, jax.Array]], Any]:
    """Norm and projections of remembered vectors as one pure function.

    Args:
      normalize, key, value: see `as_function`.

    Returns:
      `project(variables, hidden) -> normalized, keys, values`, with hidden and normalized
      [batch, n, d_model], keys and values [batch, kv_heads, n, head_dim]; and its variables.
    """
    functions, variables = zip(
        *(as_function(module) for module in (normalize, key, value)), strict=True
    )

    def project(variables: Any, hidden: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        normalized = functions[0](variables[0], hidden)
        key, value = (
            function(own, normalized)
            for function, own in zip(functions[1:], variables[1:], strict=True)
        )
        return normalized, key, value

    return project, variables
