"""What the fields of a configuration mean: the comments of `config.base` and the docstrings of layers.

They are read from the source, so that a list of fields cannot disagree with it.
"""

import ast
import functools
import inspect
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from typing import Any

from longmem_jax.config import base
from longmem_jax.config.sections import sections
from longmem_jax.contract import ModelSettings
from longmem_jax.memory.registry import LAYERS
from longmem_jax.registry import load


@functools.cache
def meanings() -> dict[str, str]:
    """Paths of all fields of `config.base`, of subjects and of layers, each with its meaning."""
    made = [load(section.make) for section in sections().values()]
    found = dict(_of_base(inspect.getsource(base)))
    for make in made:
        found |= _of_base(inspect.getsource(sys.modules[make.__module__]))
    settings = _attributes(ModelSettings.__doc__ or '')
    found |= {f'model.{name}': settings[name] for name in base.of_settings()}
    for name, entry in LAYERS.items():
        found[f'model.{name}'] = first_line(entry.layer.module.__doc__)
        found |= {
            f'model.{name}.{field}': _of_layer(entry.layer.module, field)
            for field in entry.fields()
        }
    return found


def first_line(text: str | None) -> str:
    """The first line of a docstring; '' if there is none."""
    return (text or '').strip().partition('\n')[0].strip()


def _of_base(source: str) -> Iterator[tuple[str, str]]:
    """Path and comment of every field that `base` sets: after the field, or in the lines above it."""
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    comments = {t.start[0]: t.string.lstrip('# ') for t in tokens if t.type == tokenize.COMMENT}
    alone = {line for line in comments if source.splitlines()[line - 1].lstrip().startswith('#')}

    def comment(first: int, last: int | None) -> str:
        if last in comments:
            return comments[last]
        above = first
        while above - 1 in alone:
            above -= 1
        return ' '.join(comments[line] for line in range(above, first))

    def fields(section: str, call: ast.Call) -> Iterator[tuple[str, str]]:
        for keyword in call.keywords:
            path, value = f'{section}.{keyword.arg}', keyword.value
            nested = value if isinstance(value, ast.Call) else None
            # The comment after a section of several lines is that of its first line.
            yield path, comment(keyword.lineno, keyword.lineno if nested else value.end_lineno)
            if nested and ast.unparse(nested.func) in ('dict', 'config_dict.create'):
                yield from fields(path, nested)

    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
            target = ast.unparse(node.targets[0])
            if re.fullmatch(r'config\.\w+', target):
                name = target.removeprefix('config.')
                if isinstance(node.value, ast.Call):
                    yield from fields(name, node.value)
                else:
                    yield name, comment(node.lineno, node.end_lineno)


def _of_layer(layer: type, field: str) -> str:
    """What a docstring says about a field: the layer's, or that of a class it names or extends."""
    for owner in layer.__mro__:
        text = _attributes(owner.__doc__ or '').get(field, '')
        named = re.search(r'(?:as in|see) `(?:\w+\.)?(\w+)`', text or owner.__doc__ or '')
        other = _names(owner).get(named[1]) if named else None
        if isinstance(other, type) and other is not owner:
            return _of_layer(other, field) or text
        if text:
            return text
    return ''


def _names(owner: type) -> dict[str, Any]:
    """What a docstring of a class may name: what its module has, what modules have that it imports from
    its own package, and layers."""
    module = sys.modules[owner.__module__]
    found = {e.layer.module.__name__: e.layer.module for e in LAYERS.values()}
    for near in vars(module).values():
        if inspect.ismodule(near) and near.__name__.startswith(f'{module.__package__}.'):
            found |= vars(near)
    return found | vars(module)


def _attributes(docstring: str) -> dict[str, str]:
    """Names and texts of the block `Attributes:` of a docstring."""
    block = inspect.cleandoc(docstring).partition('Attributes:\n')[2]
    found: dict[str, str] = {}
    for names, text in re.findall(
        r'^  (\w[\w,\s]*):((?:.*\n?)(?:^    .*\n?)*)', block, re.MULTILINE
    ):
        for name in re.split(r',\s*', names):
            found[name] = ' '.join(text.split())
    return found
