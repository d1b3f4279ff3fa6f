"""The types of the public names: `python -m tests.stubs` writes `longmem_jax/__init__.pyi`.

Names of the package are looked up when they are first used, which no type checker and no editor can
follow. The file has the signature of every layer, with its fields, their types and the paper's values.
What all layers have alike is there once.
"""

import collections.abc
import dataclasses
import inspect
import types
import typing
from pathlib import Path
from typing import Any

from longmem_jax import named
from longmem_jax.contract import ModelSettings
from longmem_jax.memory.registry import LAYERS
from longmem_jax.standalone import OF_MODEL

FILE = Path(named.__file__).with_name('__init__.pyi')
HEAD = '''\
"""Types of the public names. Written by `python -m tests.stubs`; do not edit."""

from typing import TypedDict, Unpack

from jax.typing import DTypeLike

from longmem_jax import nnx as nnx
from longmem_jax.commands.api import evaluate as evaluate
from longmem_jax.commands.api import generate as generate
from longmem_jax.commands.api import run_mode as run_mode
from longmem_jax.commands.api import score as score
from longmem_jax.commands.api import train as train
from longmem_jax.commands.load import load as load
from longmem_jax.config.files import configure as configure
from longmem_jax.registry import register as register
from longmem_jax.reporting.trackers import Stop as Stop
from longmem_jax.standalone import Layer as Layer
from longmem_jax.standalone import make_layer as make_layer

__version__: str
'''
REQUIRED = inspect.Parameter.empty
SETTINGS = '''\
class Settings(TypedDict, total=False):
    """What every layer takes; a comment has the value of a setting that is not given.

    A layer that does not read a setting refuses other values of it.
    """
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
    return found | {name: text_of(kind) for name, kind in named.types_of(entry).items()}


def arguments(name: str, entry: Any) -> dict[str, tuple[str, Any]]:
    """Type and default of every argument of a layer, by name; `REQUIRED` has no default."""
    kinds = types_of(entry)
    parameters = inspect.signature(named.by_name(entry.name)).parameters.values()
    given = {each.name: each.default for each in parameters if each.name != 'settings'}
    return {name: (kinds[name], value) for name, value in (given | OF_MODEL | given).items()}


def signature(name: str, entry: Any, own: dict[str, tuple[str, Any]]) -> str:
    """The code of a layer's signature, with its `own` arguments."""
    lines = [
        f'    {argument}: {kind}' + ('' if default is REQUIRED else f' = {default!r}') + ','
        for argument, (kind, default) in own.items()
    ]
    first = (named.by_name(entry.name).__doc__ or '').strip().partition('\n')[0]
    body = '\n'.join(['    *,', *lines, '    **settings: Unpack[Settings],'])
    return f'def {name}(\n{body}\n) -> Layer:\n    """{first}"""\n'


def stubs() -> str:
    """The file."""
    entries = {entry.layer.module.__name__: entry for entry in LAYERS.values()}
    made = {name: arguments(name, entries[name]) for name in sorted(entries)}
    first = next(iter(made.values()))
    common = {
        name: said
        for name, said in first.items()
        if said[1] is not REQUIRED and all(other.get(name) == said for other in made.values())
    }
    fields = [f'    {name}: {kind}  # {default!r}' for name, (kind, default) in common.items()]
    parts = [HEAD, '\n'.join([SETTINGS, *fields, ''])]
    for name, found in made.items():
        own = {argument: said for argument, said in found.items() if argument not in common}
        parts.append(signature(name, entries[name], own))
    return '\n'.join(parts)


if __name__ == '__main__':
    FILE.write_text(stubs())
