"""Attention to the used part of a long memory: one of a few static sizes, chosen on the device.

The branches of one compiled program differ in how much they read. Each is recomputed in the
backward pass, so that no residuals of the largest size are kept for the smallest; what a fused kernel
gives has the size of the queries, and is kept. On a mesh that
shards batch rows (lanes), every device chooses for its own rows, independently of the others.

A memory passes `read_memory` a pure function of the size, the parameters and the batch rows;
`as_function` and `memory_projector` turn linen modules into such functions.
"""

import dataclasses
import functools
import types
import weakref
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen import module as linen_module
from jax.sharding import PartitionSpec as P

from longmem_jax.devices.sharding import RULES
from longmem_jax.kernels.fused_plan import READ
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


@dataclasses.dataclass(frozen=True)
class Bound:
    """A function with values for some of its keyword arguments; see `bound`."""

    function: Callable[..., Any]
    values: tuple[tuple[str, Any], ...]

    def __call__(self, *args: Any) -> Any:
        """Calls the function with the values."""
        return self.function(*args, **dict(self.values))


def bound(function: Callable[..., Any], **values: Any) -> Bound:
    """Like `functools.partial`, but two of the same function and equal values are equal.

    So JAX traces a `switch` once for all layers that have the same settings and shapes.

    Args:
      function: pure, and defined at the top level of a file: it must hold no arrays.
      **values: hashable.
    """
    return Bound(function, tuple(sorted(values.items())))


def switch(read: Bound, sizes: tuple[int, ...], needed: jax.Array, *operands: Any) -> Any:
    """`read(size, *operands)` with the smallest size that holds `needed`.

    The chosen branch is computed again in the backward pass: only its operands are kept.

    Args:
      read: of `bound`; its results have the same shapes for every size. A function that holds arrays of
        its own would leave them in a program that is kept.
      sizes: static, increasing.
      needed: int32 scalar.
      *operands: pytrees of arrays. Detach those that need no gradient (`jax.lax.stop_gradient`).

    Returns:
      The result of `read`.
    """
    if len(sizes) == 1:
        return read(sizes[0], *operands)
    return _one_of(read, sizes, smallest(sizes, needed), *operands)


# A program of its own, which JAX keeps and reuses where the static arguments are equal and the others
# have the same shapes: in the other layers of a model. Its derivatives are, too.
@functools.partial(jax.jit, static_argnums=(0, 1))
def _one_of(function: Bound, sizes: tuple[int, ...], index: jax.Array, *operands: Any) -> Any:
    """`function(size, *operands)` with the size number `index`."""
    kept = jax.checkpoint_policies.save_only_these_names(READ)
    branches = [
        jax.checkpoint(functools.partial(function, size), prevent_cse=False, policy=kept)
        for size in sizes
    ]
    # A mask that depends on parameters alone is the same in every segment. JAX would compute it before
    # the scan, in every size, and keep it for the backward pass. The barrier ties it to the state.
    index, operands = jax.lax.optimization_barrier((index, operands))
    return jax.lax.switch(index, branches, *operands)


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
    read: Bound, sizes: tuple[int, ...], needed: jax.Array, params: Any, rows: Any
) -> Any:
    """Reads the used part of a memory, on every device for its own batch rows.

    Args:
      read: `(size, params, rows) -> results`, pure. Results are [batch, ...], of the same shapes for
        every size.
      sizes: static, increasing.
      needed: int32 [batch], number of entries of the memory that each row needs.
      params: pytree that all rows share.
      rows: pytree, every leaf [batch, ...].

    Returns:
      The result of `read` for the smallest size that holds what the device's rows need.
    """

    def on_device(params: Any, rows: Any) -> Any:
        needed, rows = rows
        return switch(read, sizes, needed.max(), params, rows)

    return per_device(on_device, params, (needed, rows))


@dataclasses.dataclass(frozen=True, eq=False)
class _Single:
    """What cannot be compared, or may change: equal to nothing else, so that it is always traced."""

    module: Any


@dataclasses.dataclass(frozen=True)
class Function:
    """An unbound linen module, or a plain function, as `f(variables, x)`; see `as_function`.

    Attributes:
      module: of equal ones, one is traced for all.
      interceptors: those of `nn.intercept_methods` that were active; only with the same ones is it
        the same function. They are not kept alive.
    """

    module: Any
    interceptors: tuple[Any, ...] = ()

    def __call__(self, variables: Any, x: jax.Array) -> jax.Array:
        """Applies it."""
        module = self.module.module if isinstance(self.module, _Single) else self.module
        made: Any = module.apply(variables, x) if isinstance(module, nn.Module) else module(x)
        return made


def as_function(module: Any) -> tuple[Function, Any]:
    """A bound linen module (or plain function) as `f(variables, x)` and its variables.

    Linen modules must not be called inside `lax.switch`; pure functions may. The module must have
    been called before, so that its parameters exist.
    """
    if not isinstance(module, nn.Module):
        # Other callables may hold arrays, which would be constants of a program that is kept.
        plain = isinstance(module, types.FunctionType) and not module.__closure__
        return Function(module if plain else _Single(module)), {}
    unbound: Any
    unbound, variables = module.unbind()
    # What runs later, such as a backward pass, is outside of `nn.intercept_methods`.
    params = low_rank.merged(variables.get('params', {}))
    try:
        hash(unbound)
    except TypeError:  # such as an attribute that is an array
        unbound = _Single(unbound)
    # Flax has no public name for them.
    active = tuple(map(weakref.ref, getattr(linen_module, '_global_interceptor_stack', ())))
    return Function(unbound, active), {**variables, 'params': params}


@dataclasses.dataclass(frozen=True)
class Projector:
    """Norm and projections of remembered vectors as one pure function; see `memory_projector`."""

    normalize: Function
    key: Function
    value: Function

    def __call__(self, variables: Any, hidden: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """The normalised vectors, their keys and their values.

        Args:
          variables: of the three functions.
          hidden: [batch, n, d_model].

        Returns:
          [batch, n, d_model], and twice [batch, kv_heads, n, head_dim].
        """
        normalize, key, value = variables
        normalized = self.normalize(normalize, hidden)
        return normalized, self.key(key, normalized), self.value(value, normalized)


def memory_projector(normalize: Any, key: Any, value: Any) -> tuple[Projector, Any]:
    """Norm and projections of remembered vectors as one pure function, and its variables.

    Args:
      normalize, key, value: see `as_function`.
    """
    functions, variables = zip(
        *(as_function(module) for module in (normalize, key, value)), strict=True
    )
    return Projector(*functions), variables
