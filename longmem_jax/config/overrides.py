"""`--config.SECTION.FIELD=VALUE`: fields of a configuration set from the command line.

Every mistake is a `UsageError` that names the field, what was given and what is allowed. Two sections
take names that they do not hold yet: `config.evaluate.model` every field of `config.model`, and
`config.train.loss_weights` every loss.
"""

import ast
import re
from collections.abc import Sequence
from typing import Any

import ml_collections

from longmem_jax.errors import UsageError, nearest
from longmem_jax.memory.registry import ATTENTION

BOOLEANS = {'true': True, 't': True, '1': True, 'false': False, 'f': False, '0': False}


def split_arguments(argv: Sequence[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Takes the overrides out of a command line.

    Args:
      argv: the program's name and its arguments: `--config.a.b=3`, `--config.a.b 3`, and of booleans
        also `--config.a.b` and `--noconfig.a.b`.

    Returns:
      The other arguments, and (`a.b`, `3`) of every override in order.
    """
    rest, overrides, waiting = [], [], list(argv)
    while waiting:
        argument = waiting.pop(0)
        found = re.fullmatch(r'--?(no)?config\.([^=]*)(?:=(.*))?', argument, re.DOTALL)
        if argument == '--':
            return [*rest, argument, *waiting], overrides
        if found is None:
            rest.append(argument)
            continue
        negated, path, text = found.groups()
        if negated:
            text = 'false'
        elif text is None:
            alone = not waiting or waiting[0].startswith('--')
            text = 'true' if alone else waiting.pop(0)
        overrides.append((path, text))
    return rest, overrides


def apply(config: ml_collections.ConfigDict, overrides: Sequence[tuple[str, str]]) -> None:
    """Sets fields of `config` in place.

    Args:
      config: the whole configuration.
      overrides: path, such as `train.num_steps`, and text; a later one wins.

    Raises:
      UsageError: no such field, or a text that is not of its type.
    """
    with config.unlocked():
        for path, text in overrides:
            _set(config, tuple(path.split('.')), text)


def _set(config, path, text):
    given = f'--config.{".".join(path)}={text}'
    evaluated = path[:2] == ('evaluate', 'model')
    # What evaluation overrides is looked up in the model, and held apart from it.
    looked_up = path[2:] if evaluated else path[1:]
    section = config.model if evaluated else _child(config, path[0], 'config', given)
    where = 'config.model' if evaluated else f'config.{path[0]}'
    for name in looked_up[:-1]:
        section = _child(section, name, where, given)
        where = f'{where}.{name}'
    if path[:2] == ('train', 'loss_weights') and len(path) == 3:
        like = 0.0
    else:
        like = _child(section, looked_up[-1], where, given) if looked_up else section
    if isinstance(like, ml_collections.ConfigDict):
        for name, value in _section(text, given, path, like).items():
            _set(config, (*path, str(name)), value if isinstance(value, str) else repr(value))
        return
    holder = config
    for name in path[:-1]:
        if name not in holder:
            holder[name] = ml_collections.ConfigDict()
        holder = holder[name]
    holder[path[-1]] = _value(text, like, given)


def _child(section, name, where, given):
    """`section[name]`, or the error that says what there is."""
    if not isinstance(section, ml_collections.ConfigDict):
        raise UsageError(f'{given}: {where} = {section!r} is a value and has no fields.')
    if name in section:
        return section[name]
    if where == 'config.model' and name in ATTENTION:
        raise UsageError(
            f'{given}: this config does not use {name!r}, so there is no section {where}.{name}; to '
            f'use this memory: --config=configs/NAME.py:memory={name}'
        )
    fields = sorted(section)
    there = f'the fields are {", ".join(fields)}' if fields else 'it has no fields'
    raise UsageError(f'{given}: {where} has no field {name!r}; {nearest(name, fields)}{there}.')


def _section(text, given, path, like):
    """The fields of a whole section, written as a Python dictionary."""
    try:
        fields = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        fields = None
    if not isinstance(fields, dict):
        example = f'--config.{".".join(path)}.{next(iter(sorted(like)), "NAME")}=...'
        raise UsageError(f'{given}: is a section; set one field at a time: {example}')
    return fields


def _value(text: str, like: Any, given: str) -> Any:
    """`text` as a value of the type of `like`."""
    name = given.partition('=')[0]
    if isinstance(like, str):
        return text
    if isinstance(like, bool):
        if text.lower() not in BOOLEANS:
            raise UsageError(f'{name}: must be true or false, got {text!r}.')
        return BOOLEANS[text.lower()]
    if isinstance(like, (int, float)):
        kind, spoken = (int, 'an int') if isinstance(like, int) else (float, 'a float')
        try:
            return kind(text)
        except ValueError as error:
            raise UsageError(
                f'{name}: must be {spoken}, such as {like!r}, got {text!r}.'
            ) from error
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        # Names without quotes, such as local,infini; of one name: local,
        listed = re.fullmatch(r'[\w.,-]*,[\w.,-]*', text)
        value = tuple(text.removesuffix(',').split(',')) if listed else text
    if not isinstance(like, (tuple, list)):
        return value
    if not isinstance(value, (tuple, list)):
        example = repr(tuple(like[:2]) or ('a', 'b')).replace(' ', '')
        raise UsageError(
            f'{name}: must be a tuple, such as "{example}", one item or more, got {text!r}.'
        )
    return tuple(value)
