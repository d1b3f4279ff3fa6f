"""`--config.SECTION.FIELD=VALUE`: fields of a configuration set on the command line.

Every mistake is a `UsageError` that names the field, what was given and what is allowed. Two sections
accept names that they do not contain yet: `config.evaluate.model` every field of `config.model`, and
`config.train.loss_weights` every loss. An empty `config.data.task` accepts a whole dictionary, so that
any config can read another source:
`--config.data.source=superglue --config.data.task="{'name': 'CB'}"`.
"""

import ast
import re
from collections.abc import Iterator, Sequence
from typing import Any

import ml_collections

from longmem_jax.config.recipes import holds
from longmem_jax.config.sections import WHOLE_TASK, add, sections
from longmem_jax.errors import ELSEWHERE, UsageError, nearest
from longmem_jax.memory.registry import ATTENTION
from longmem_jax.problems import is_possible

BOOLEANS = {'true': True, 't': True, '1': True, 'false': False, 'f': False, '0': False}


def split_arguments(argv: Sequence[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Separates the overrides of a command line from its other arguments.

    An override is `--config.a.b=3`, `--config.a.b 3`, and for booleans also `--config.a.b` and
    `--noconfig.a.b`; it is returned as (`a.b`, `3`), in order.
    """
    rest: list[str] = []
    overrides: list[tuple[str, str]] = []
    remaining = list(argv)
    while remaining:
        argument = remaining.pop(0)
        match = re.fullmatch(r'--?(no)?config\.([^=]*)(?:=(.*))?', argument, re.DOTALL)
        if argument == '--':
            return [*rest, argument, *remaining], overrides
        if match is None:
            rest.append(argument)
            continue
        negated, path, text = match.groups()
        if negated:
            text = 'false'
        elif text is None:
            has_value = remaining and not remaining[0].startswith('--')
            text = remaining.pop(0) if has_value else 'true'
        overrides.append((path, text))
    return rest, overrides


def apply(config: ml_collections.ConfigDict, overrides: Sequence[tuple[str, str]]) -> None:
    """Sets fields of `config` in place, by (path, text); the last one wins.

    Notes of the config whose `NAME = VALUE` becomes untrue are removed.

    Raises:
      UsageError: no such field, or a text of the wrong type.
    """
    with config.unlocked():
        for path, text in overrides:
            _set(config, tuple(path.split('.')), text)
        if overrides:
            if not all(isinstance(note, str) for note in config.notes):
                raise UsageError(f'--config.notes={config.notes}: every note is a text, in quotes.')
            config.notes = tuple(note for note in config.notes if holds(note, config))


def _set(config: ml_collections.ConfigDict, path: tuple[str, ...], text: str) -> None:
    """Sets one field, or all fields of a section given as a dictionary."""
    argument = f'--config.{".".join(path)}={text}'
    in_evaluation = path[:2] == ('evaluate', 'model')
    if path[0] in sections():
        add(config, path[0])
    # Overrides for evaluation are checked against `config.model` but stored apart from it.
    fields = path[2:] if in_evaluation else path[1:]
    section = config.model if in_evaluation else _child(config, path[0], 'config', argument, config)
    where = 'config.model' if in_evaluation else f'config.{path[0]}'
    for name in fields[:-1]:
        section = _child(section, name, where, argument, config)
        where = f'{where}.{name}'
    if path[:2] == ('train', 'loss_weights') and len(path) == 3:
        current = 0.0
    else:
        current = _child(section, fields[-1], where, argument, config) if fields else section
    if path == ('data', 'task') and not current:
        # Of a source that the file does not read; `config.checks` knows its fields.
        config.data.task = ml_collections.ConfigDict(_section(text, argument, path, current))
        return
    if isinstance(current, ml_collections.ConfigDict):
        for name, value in _section(text, argument, path, current).items():
            _set(config, (*path, str(name)), value if isinstance(value, str) else repr(value))
        return
    parent = config
    for name in path[:-1]:
        if name not in parent:
            parent[name] = ml_collections.ConfigDict()
        parent = parent[name]
    parent[path[-1]] = _value(text, current, argument)


def named(section: ml_collections.ConfigDict, name: str, where: str = 'config') -> Iterator[str]:
    """Paths of all fields with a name."""
    for each, value in section.items():
        if each == name:
            yield f'{where}.{each}'
        if isinstance(value, ml_collections.ConfigDict):
            yield from named(value, name, f'{where}.{each}')


def _child(
    section: Any, name: str, where: str, argument: str, config: ml_collections.ConfigDict
) -> Any:
    """`section[name]`; or an error with the fields there are, and where `config` has such a name."""
    if not isinstance(section, ml_collections.ConfigDict):
        raise UsageError(f'{argument}: {where} = {section!r} is a value and has no fields.')
    if name in section:
        return section[name]
    if where == 'config.model' and name in ATTENTION:
        memories = ' or '.join(ATTENTION[name].recipe.by_name)
        advice = f'; to use this memory: --config=NAME:memory={memories}' if memories else '.'
        raise UsageError(
            f'{argument}: this config does not use {name!r}, so there is no section {where}.{name}'
            f'{advice}'
        )
    fields = sorted({*section, *(sections() if where == 'config' else ())})
    missing = f'no field {name!r}' if fields else f'no fields in this config, so no {name!r}'
    said = [f'{where} has {missing}']
    last = argument.partition('=')[0].rpartition('.')[2]
    if elsewhere := [*named(config, last), *named(config, ELSEWHERE.get(last, ''))]:
        said.append(f'there is {", ".join(elsewhere)}')
    if where == 'config.data.task' and not fields:
        said.append(WHOLE_TASK)
    if fields:
        near = '' if f'{where}.{ELSEWHERE.get(name)}' in elsewhere else nearest(name, fields)
        said.append(f'{near}the fields are {", ".join(fields)}')
    raise UsageError(f'{argument}: {"; ".join(said)}.')


def _section(
    text: str, argument: str, path: tuple[str, ...], current: ml_collections.ConfigDict
) -> dict[Any, Any]:
    """The fields of a whole section, written as a Python dictionary."""
    try:
        fields = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        fields = None
    if not isinstance(fields, dict):
        example = f'--config.{".".join(path)}.{next(iter(sorted(current)), "NAME")}=...'
        raise UsageError(f'{argument}: is a section; set one field at a time: {example}')
    return fields


def _value(text: str, current: Any, argument: str) -> Any:
    """`text` as a value of the type of `current`."""
    name = argument.partition('=')[0]
    if isinstance(current, str):
        return text
    if isinstance(current, bool):
        if text.lower() not in BOOLEANS:
            raise UsageError(f'{name}: must be true or false, got {text!r}.')
        return BOOLEANS[text.lower()]
    if isinstance(current, (int, float)):
        whole = isinstance(current, int)
        described = 'an int' if whole else 'a float'
        try:
            number = int(text) if whole else float(text)
        except ValueError as error:
            raise UsageError(
                f'{name}: must be {described}, such as {current!r}, got {text!r}.'
            ) from error
        if not is_possible(number):
            raise UsageError(f'{name}: not a number that a field can have, got {text!r}.')
        return number
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        # Names without quotes, such as local,infini; a single name: local,
        listed = re.fullmatch(r'[\w.,-]*,[\w.,-]*', text)
        value = tuple(text.removesuffix(',').split(',')) if listed else text
    if not isinstance(current, (tuple, list)):
        return value
    if not isinstance(value, (tuple, list)):
        example = repr(tuple(current[:2]) or ('a', 'b')).replace(' ', '')
        raise UsageError(
            f'{name}: must be a tuple, such as "{example}", of one or more items, got {text!r}.'
        )
    return tuple(value)
