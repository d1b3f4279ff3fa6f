"""A function per memory, with all fields in its signature, such as `longmem_jax.InfiniAttention`."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from longmem_jax.errors import UsageError
from longmem_jax.memory.registry import LAYERS
from longmem_jax.standalone import (
    OF_MODEL,
    REQUIRED,
    TAKEN,
    Layer,
    defaults_of,
    make_layer,
    require_known,
)

RETURNED = """
    Returns a `Layer`, a linen module for x [batch, length, d_model], length up to `segment_length`::

        state = layer.start(batch_size=2)
        variables = layer.init(jax.random.key(0), x, state)
        y, state, aux = layer.apply(variables, x, state)  # y is shaped as x

    `help(longmem_jax.standalone.Layer.__call__)` has all arguments, `longmem_jax.make_layer` the sizes.
    """


@functools.cache
def by_name(memory: str) -> Callable[..., Layer]:
    """`make_layer` for a name of the registry, with all fields in its signature; always the same."""
    entry = LAYERS[memory]
    own = defaults_of(entry)
    # A memory with its own number of heads, independent of attention, has a default for it.
    own_heads = {k: v for k, v in own.items() if k == 'num_heads'}

    def make(**arguments: Any) -> Layer:
        given = own_heads | arguments
        if missing := [name for name in REQUIRED if name not in given]:
            require_known(entry.name, given)  # a missing one may be mistyped
            raise UsageError(f'{make.__name__}: {", ".join(missing)} must be given')
        return make_layer(entry.name, **given)

    keyword = inspect.Parameter.KEYWORD_ONLY
    values, by_use = OF_MODEL | own, dict.fromkeys((*TAKEN, *own, *OF_MODEL))
    memory_fields = [inspect.Parameter(name, keyword, default=values[name]) for name in by_use]
    sizes = [
        parameter
        for parameter in inspect.signature(make_layer).parameters.values()
        if parameter.kind is keyword and parameter.name not in own
    ]
    module = entry.layer.module
    make.__name__ = make.__qualname__ = module.__name__
    make.__doc__ = f'{module.__doc__}\n{RETURNED}'
    vars(make)['__signature__'] = inspect.Signature(sizes + memory_fields)
    return make


def class_names() -> dict[str, str]:
    """Name of the class to name of the memory; of two classes with one name ours counts."""
    found: dict[str, str] = {}
    for name, entry in LAYERS.items():  # ours first
        found.setdefault(entry.layer.module.__name__, name)
    return found
