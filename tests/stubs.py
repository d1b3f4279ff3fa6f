"""The types of the public names: `python -m tests.stubs` writes `longmem_jax/__init__.pyi`.

Names of the package are looked up when they are first used, which no type checker and no editor can
follow. The file has the signature of every layer, with its fields, their types and the paper's values.
"""

import collections.abc
import dataclasses
import inspect
import types
import typing
from pathlib import Path
from typing import Any

from longmem_jax import standalone
from longmem_jax.contract import ModelSettings, fields_of
from longmem_jax.memory.alone import parts_of
from longmem_jax.memory.registry import LAYERS

FILE = Path(standalone.__file__).with_name('__init__.pyi')
HEAD = '''\
"""Types of the public names. Written by `python -m tests.stubs`; do not edit."""

from jax.typing import DTypeLike

from longmem_jax.commands.load import load as load
from longmem_jax.registry import register as register
from longmem_jax.standalone import Layer as Layer
from longmem_jax.standalone import make_layer as make_layer

__version__: str
'''
# Sizes that are worked out from others where they are not given.
OPTIONAL = ('head_dim', 'd_feed_forward')


def text_of(kind: Any) -> str:
    """A type as it is written in code: `int`, `tuple[int, ...]`."""
    origin = typing.get_origin(kind)
    if kind in (Any, inspect.Parameter.empty):
        return 'Any'
    if kind is None or kind is type(None):
        return 'None'
    if isinstance(kind, str):
        return kind
    if origin in (types.UnionType, typing.Union):
        return ' | '.join(map(text_of, typing.get_args(kind)))
    if origin is collections.abc.Callable:
        return 'Any'
    if origin is not None:
        parts = ['...' if part is ... else text_of(part) for part in typing.get_args(kind)]
        return f'{origin.__name__}[{", ".join(parts)}]'
    return kind.__name__ if kind.__module__ == 'builtins' else 'Any'


def types_of(entry: Any) -> dict[str, str]:
    """The type of every argument of a layer, by name."""
    found = {field.name: text_of(field.type) for field in dataclasses.fields(ModelSettings)}
    found |= {name: f'{found[name]} | None' for name in OPTIONAL}
    found |= dict(dtype='DTypeLike', cache_dtype='DTypeLike | None', name='str | None')
    own = [field for part in parts_of(entry) for field in fields_of(part.layer.module)]
    return found | {field.name: text_of(field.type) for field in own}


def signature(name: str, entry: Any) -> str:
    """The code of a layer's signature."""
    made, kinds = standalone.by_name(entry.name), types_of(entry)
    lines = []
    for argument in inspect.signature(made).parameters.values():
        kind = kinds[argument.name]
        if argument.default is inspect.Parameter.empty:
            lines.append(f'    {argument.name}: {kind},')
        else:
            lines.append(f'    {argument.name}: {kind} = {argument.default!r},')
    first = (made.__doc__ or '').strip().partition('\n')[0]
    body = '\n'.join(['    *,', *lines])
    return f'def {name}(\n{body}\n) -> Layer:\n    """{first}"""\n'


def stubs() -> str:
    """The file."""
    entries = {entry.layer.module.__name__: entry for entry in LAYERS.values()}
    parts = [signature(name, entries[name]) for name in sorted(entries)]
    return '\n'.join([HEAD, *parts])


if __name__ == '__main__':
    FILE.write_text(stubs())
