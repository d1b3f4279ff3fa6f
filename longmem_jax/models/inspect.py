"""Inspecting the layers of a model while it reads."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import flax.linen as nn


@contextlib.contextmanager
def capture(
    layer_type: type | tuple[type, ...], function: Callable[..., Any]
) -> Iterator[list[Any]]:
    """Records something of every layer of a type that reads a segment within the `with` block.

    Under `jax.jit` the block must be inside the compiled function, which returns the list.

    Args:
      layer_type: class of the layers, or several.
      function: `(layer, x, state, segment) -> value`, called just before the layer.

    Yields:
      The values, in the order in which the layers are called.
    """
    values: list[Any] = []

    def record(
        next_method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], context: Any
    ) -> Any:
        if isinstance(context.module, layer_type) and context.method_name == '__call__':
            values.append(function(context.module, *args))
        return next_method(*args, **kwargs)

    with nn.intercept_methods(record):
        yield values
