"""Inspecting the layers of a model while it reads."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import flax.linen as nn
import flax.traverse_util

from longmem_jax.layers.attention import INSPECTED, Look
from longmem_jax.segment import Segment


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


def looks(model: nn.Module, params: Any, segment: Segment, state: Any) -> tuple[Any, ...]:
    """Reads a segment and returns what every softmax attention of the model looked at.

    Under `jax.jit`, return only the looks that you need: the others are then not computed.

    Args:
      model, params: a model of any kind.
      segment: full segments; `Look.parts` does not hold for shorter ones with trailing memory tokens.
      state: memories before the segment.

    Returns:
      The state after the segment, the logits, and a dictionary from the path of a module to its
      `Look`, such as 'block_1/attention/attention'. A module that is called several times has
      'PATH, call 1', 'PATH, call 2', ... Attention without softmax weights, such as linear attention,
      and attention within learned spans are not in it.
    """
    (logits, state, _), recorded = model.apply(
        {'params': params}, segment, state, train=False, mutable=[INSPECTED]
    )
    found: dict[str, Look] = {}
    tree = flax.traverse_util.flatten_dict(recorded.get(INSPECTED, {}))
    for (*path, _), calls in tree.items():
        name = '/'.join(path)
        for number, look in enumerate(calls):
            found[name if len(calls) == 1 else f'{name}, call {number + 1}'] = look
    return state, logits, found
