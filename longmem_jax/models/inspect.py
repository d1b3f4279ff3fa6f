"""Looking inside a model while it reads."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import flax.linen as nn


@contextlib.contextmanager
def capture(
    layer_type: type | tuple[type, ...], function: Callable[..., Any]
) -> Iterator[list[Any]]:
    """Records something of every layer of a type that reads a segment within the `with` block.

    Under `jax.jit` the block has to be inside of the compiled function, which returns the list.

    Args:
      layer_type: class of the layers, or several.
      function: `(layer, x, state, segment) -> value`, called before the layer is.

    Yields:
      The values, in the order in which the layers are called.
    """
    found: list[Any] = []

    def listen(following, args, kwargs, context):
        if isinstance(context.module, layer_type) and context.method_name == '__call__':
            found.append(function(context.module, *args))
        return following(*args, **kwargs)

    with nn.intercept_methods(listen):
        yield found
