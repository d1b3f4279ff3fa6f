"""`--mode=list`: the configs with their variants, the memories, and the fields with their meaning."""

import importlib
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import ml_collections

from longmem_jax.config import base, variants
from longmem_jax.config.files import CONFIGS
from longmem_jax.config.meanings import first_line, meanings
from longmem_jax.config.recipes import scale_of
from longmem_jax.config.sections import sections
from longmem_jax.config.told_apart import told_apart
from longmem_jax.memory.registry import LAYERS
from longmem_jax.registry import SUBJECTS

WIDTH = 100


def overview() -> Iterator[str]:
    """Lines about everything that a command line can name."""
    yield 'Configs, --config=NAME or --config=NAME:VARIANT,VARIANT:'
    for name, about, names in configs():
        yield f'  {name}: {about}'
        yield from _wrapped(', '.join(names), 6)
    yield ''
    yield 'Memories, --config=NAME:memory=MEMORY:'
    for name, about in memories():
        yield from _wrapped(f'{name}: {about}', 2)
    yield ''
    yield 'Subjects, with their modes and commands:'
    for name, subject in SUBJECTS.items():
        yield f'  {name}: {subject.about}'
        named = dict.fromkeys(f'--mode={mode.name}' for mode in subject.modes)
        yield from _wrapped(', '.join([*named, *(f'python -m {c}' for c in subject.commands)]), 6)
    yield ''
    yield 'Fields, --config.SECTION.FIELD=VALUE, with their neutral values:'
    yield from fields(base.base(*sections()))
    yield ''
    yield 'Fields of layers, --config.model.LAYER.FIELD=VALUE, with the values of their papers:'
    layers = {name: entry.defaults() for name, entry in LAYERS.items()}
    yield from fields(ml_collections.ConfigDict({'model': layers}))


def configs() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Name, first line and accepted arguments of every config."""
    for file in sorted(CONFIGS.glob('[a-z]*.py')):
        module = importlib.import_module(f'longmem_jax.configs.{file.stem}')
        yield file.stem, first_line(module.__doc__), variants.accepted(module.get_config)


def memories() -> Iterator[tuple[str, str]]:
    """Every name of `:memory=`, with the first line of its file and what sets it apart."""
    for layer, entry in LAYERS.items():
        about = first_line(sys.modules[entry.layer.module.__module__].__doc__)
        recipes = entry.recipe.by_name
        for name, fields in told_apart(layer).items():
            own = ', '.join(f'{field} = {value!r}' for field, value in fields.items())
            if len(recipes) > 1 and not own:  # other layers beside it
                attention = recipes[name](scale_of(base.base())).attention
                own = f'attention = {", ".join(dict.fromkeys(attention))}' if attention else ''
            yield name, f'{about} Here {own}.' if own else about


def fields(config: Any) -> Iterator[str]:
    """`SECTION.FIELD = VALUE  # MEANING` of all fields of a configuration."""
    known = meanings()

    def lines(section: Any, prefix: str) -> Iterator[str]:
        for name in section:
            path, value = f'{prefix}{name}', section[name]
            about = known.get(path, '')
            if not isinstance(value, ml_collections.ConfigDict):
                yield from _wrapped(f'{path} = {value!r}' + (f'  # {about}' if about else ''), 2)
                continue
            if about:
                yield from _wrapped(f'{path}: {about}', 2)
            yield from lines(value, f'{path}.')

    yield from lines(config, '')


def show(config: Any) -> None:
    """Prints the fields of a configuration, or the `overview` if it is None."""
    print('\n'.join(overview() if config is None else fields(config)))


def _wrapped(text: str, indent: int) -> list[str]:
    """A text in lines of `WIDTH`, the later ones further to the right."""
    return textwrap.wrap(
        text, WIDTH, initial_indent=' ' * indent, subsequent_indent=' ' * (indent + 4),
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
