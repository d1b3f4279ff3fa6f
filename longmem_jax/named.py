"""A function per memory, with its fields in its signature, such as `longmem_jax.InfiniAttention`."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from longmem_jax.contract import Entry, fields_of
from longmem_jax.errors import UsageError
from longmem_jax.memory.alone import parts_of
from longmem_jax.memory.registry import LAYERS
from longmem_jax.standalone import (
    REQUIRED,
    Layer,
    defaults_of,
    make_layer,
    require_known,
)

TOLD = """Arguments of every layer:

  d_model, num_heads, segment_length, head_dim, name: as of `longmem_jax.make_layer`.
  dropout: rate of what the layer returns, in training, and of hidden activations where it has any.
  dtype: of activations, such as 'bfloat16'; parameters stay in float32.
  settings: of a model that this layer reads, such as `attention_dropout` (rate of attention weights),
    `init_std` (of the first weights) or `kernels` ('fused' for TPUs and NVIDIA GPUs). The page of the
    memory lists them; a setting that would change nothing is refused.

Returns a `Layer`, a linen module for x [batch, length, d_model], length up to `segment_length`::

    state = layer.start(batch_size=2)
    variables = layer.init(jax.random.key(0), x, state)
    y, state, aux = layer.apply(variables, x, state)  # y is shaped as x

`help(longmem_jax.Layer.__call__)` has the arguments of the call.

Raises `longmem_jax.errors.UsageError` for unknown names and wrong values, with what is allowed.
"""
# Of every layer, with their types.
OF_ALL: dict[str, tuple[Any, Any]] = dict(dropout=(float, 0.0), dtype=('DTypeLike', 'float32'))


@functools.cache
def by_name(memory: str) -> Callable[..., Layer]:
    """`make_layer` for a name of the registry, with its fields in its signature; always the same."""
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

    keyword, kinds = inspect.Parameter.KEYWORD_ONLY, types_of(entry)
    values = OF_ALL | {name: (kinds[name], value) for name, value in own.items()}
    named = [
        inspect.Parameter(name, keyword, default=value, annotation=kind)
        for name, (kind, value) in values.items()
    ]
    sizes = [
        parameter
        for parameter in inspect.signature(make_layer).parameters.values()
        if parameter.kind is keyword and parameter.name not in own
    ]
    others = inspect.Parameter('settings', inspect.Parameter.VAR_KEYWORD, annotation=Any)
    module = entry.layer.module
    make.__name__ = make.__qualname__ = module.__name__
    make.__module__ = 'longmem_jax'  # where pickle finds it
    make.__doc__ = f'{inspect.cleandoc(module.__doc__ or "")}\n\n{TOLD}'
    vars(make)['__signature__'] = inspect.Signature(
        [*sizes, *named, others], return_annotation=Layer
    )
    return make


def types_of(entry: Entry) -> dict[str, Any]:
    """The type of every field of a memory, and of the attention inside of one around blocks."""
    own = [field for part in parts_of(entry) for field in fields_of(part.layer.module)]
    return {field.name: field.type for field in own}


def class_names() -> dict[str, str]:
    """Name of the class to name of the memory; of two classes with one name ours counts."""
    found: dict[str, str] = {}
    for name, entry in LAYERS.items():  # ours first
        found.setdefault(entry.layer.module.__name__, name)
    return found
