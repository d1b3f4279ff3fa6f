"""Rules for the fields of one config section; each returns its faults, one line per field.

A line begins with the field's own name (`ramp = 0: must be at least 1`); `under` puts the path of the
section before it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from longmem_jax.errors import nearest, unknown

# Name of a type to what it accepts and what it is called in a message.
TYPES = {
    'int': (int, 'an int'),
    'bool': (bool, 'True or False'),
    'float': ((int, float), 'a float'),
    'str': (str, 'text'),
}


def under(where: str, faults: Iterable[str]) -> list[str]:
    """The faults of a section with its path before each, such as `config.model.infini`."""
    return [f'{where}.{fault}' for fault in faults]


def at_least(fields: Mapping[str, Any], least: float, *names: str) -> list[str]:
    """Fields below `least`."""
    return [
        f'{name} = {fields[name]}: must be at least {least}'
        for name in names
        if not fields[name] >= least
    ]


def above(fields: Mapping[str, Any], limit: float, *names: str) -> list[str]:
    """Fields that are `limit` or below."""
    return [
        f'{name} = {fields[name]}: must be above {limit}'
        for name in names
        if not fields[name] > limit
    ]


def between(
    fields: Mapping[str, Any], least: float, greatest: float, *names: str, ends: str = '[]'
) -> list[str]:
    """Fields outside of an interval.

    Args:
      fields: the section.
      least: one end of the interval.
      greatest: the other.
      *names: fields to look at.
      ends: how it is written: '[' and ']' include an end, '(' and ')' do not.
    """
    faults = []
    excluded = [str(end) for end, mark in zip((least, greatest), ends, strict=True) if mark in '()']
    excluded = f', excluding {" and ".join(excluded)}' if excluded else ''
    for name in names:
        value = fields[name]
        inside = least < value < greatest
        inside |= (value == least and ends[0] == '[') or (value == greatest and ends[1] == ']')
        if not inside:
            faults.append(f'{name} = {value}: must lie between {least} and {greatest}{excluded}')
    return faults


def one_of(fields: Mapping[str, Any], **allowed: Iterable[Any]) -> list[str]:
    """Fields that are not among the values allowed for them: `one_of(fields, start=STARTS)`."""
    return [
        unknown(name, fields[name], tuple(values))
        for name, values in allowed.items()
        if fields[name] not in tuple(values)
    ]


def of_section(given: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Fields that are not known, missing, or of the wrong type or size.

    Args:
      given: the section.
      wanted: name to what is allowed: a type or its name (numbers of type int must not be negative;
        types other than int, float, bool and str are not checked), a tuple of words, or
        `(least, greatest)` numbers of the type of the first.
    """
    faults = [
        f'{name}: not a field here, {nearest(name, wanted)}the fields are {", ".join(sorted(wanted))}'
        for name in given
        if name not in wanted
    ]
    for name, allowed in wanted.items():
        if name not in given:
            faults.append(f'{name} is missing')
        elif isinstance(allowed, Sequence) and not isinstance(allowed, str):
            faults += _of_choice(given, name, allowed)
        else:
            kind = getattr(allowed, '__name__', str(allowed))
            wrong = of_type(given, name, kind)
            faults += wrong or (at_least(given, 0, name) if kind == 'int' else [])
    return faults


def _of_choice(given, name, allowed):
    """The fault of a field that is one of some words, or a number from a range."""
    if isinstance(allowed[0], str):
        return one_of(given, **{name: allowed})
    return of_type(given, name, type(allowed[0]).__name__) or between(given, *allowed, name)


def of_type(given: Mapping[str, Any], name: str, kind: str) -> list[str]:
    """The fault of a field that is not of the type named `kind`; others than `TYPES` are not checked."""
    if kind not in TYPES:
        return []
    types, spoken = TYPES[kind]
    value = given[name]
    if isinstance(value, types) and (kind == 'bool' or not isinstance(value, bool)):
        return []
    return [f'{name}: must be {spoken}, got {value!r}']
