"""Functions that only some devices can run: programs for others are refused when they are lowered.

What a program is for is known no earlier: a machine without a TPU can compile for one, and a layer does
not know where it will run.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core
from jax.interpreters import mlir

from longmem_jax.errors import UsageError


def only_on(functions: Mapping[str, Callable[..., Any]], *arrays: Any, message: str) -> Any:
    """`function(*arrays)` in programs for the platforms that have one.

    Args:
      functions: by platform, such as 'tpu' or 'cuda'; all return a tree of floating-point arrays, alike.
      *arrays: trees of arrays.
      message: of the error, with `{platform}` for what the program is for.

    Raises:
      UsageError: when a program for anything else is lowered, which is before it compiles; outside of
        `jit` at once.
    """
    shapes = jax.eval_shape(next(iter(functions.values())), *arrays)

    def refused(*_: Any) -> Any:
        # Everything depends on the number that cannot be lowered, so that nothing removes it.
        known = tuple(functions)
        number = _refused.bind(jnp.float32(0), message=message, known=known)
        return jax.tree.map(lambda leaf: jnp.full(leaf.shape, number, leaf.dtype), shapes)

    return jax.lax.platform_dependent(*arrays, default=refused, **functions)


def _refuse_to_lower(
    context: mlir.LoweringRuleContext, _: Any, *, message: str, known: tuple[str, ...]
) -> Any:
    others = [name for name in context.module_context.platforms if name not in known]
    raise UsageError(message.format(platform=' and '.join(others)))


def _refuse_to_run(number: jax.Array, *, message: str, known: tuple[str, ...]) -> Any:
    """Outside of `jit`, where operations run one by one."""
    (device,) = number.devices()
    raise UsageError(message.format(platform=device.platform))


_refused = core.Primitive('refused')
_refused.def_abstract_eval(lambda number, *, message, known: number)
_refused.def_impl(_refuse_to_run)
mlir.register_lowering(_refused, _refuse_to_lower)
