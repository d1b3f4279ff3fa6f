"""Rules for the fields of a config section; each returns its problems, one line per field.

A line begins with the name of the field (`ramp = 0: must be at least 1`); `under` prepends the path of
the section.
"""

import math
import numbers
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from longmem_jax.errors import UsageError, nearest, number_of, unknown

# Name of a type to the types it accepts and its name in messages.
TYPES: dict[str, tuple[type | tuple[type, ...], str]] = {
    'int': (int, 'an int'),
    'bool': (bool, 'True or False'),
    'float': ((int, float), 'a float'),
    'str': (str, 'text'),
}
# Of a tuple of such a type: its items in words, and an example.
ITEMS = {
    'int': ('ints from 0', '(64, 32)'),
    'bool': ('True or False', '(True, False)'),
    'float': ('numbers', '(0.01, 0.05)'),
    'str': ('words', "('a', 'b')"),
}


def is_possible(value: Any) -> bool:
    """If a field can have `value`: not NaN, and whole numbers of 64 bits with a sign."""
    if isinstance(value, int):
        return abs(value) < 2**63
    return not (isinstance(value, float) and math.isnan(value))


def under(where: str, problems: Iterable[str]) -> list[str]:
    """The problems with the path of their section prepended, such as `config.model.infini`."""
    return [f'{where}.{problem}' for problem in problems]


def require_none(problems: Sequence[str]) -> None:
    """Raises one `UsageError` with all problems of a configuration, if there are any."""
    if problems:
        count = number_of(len(problems), 'problem')
        raise UsageError(f'{count} in the configuration:\n  ' + '\n  '.join(problems))


def differing(first: Any, second: Any, where: str = '') -> list[tuple[str, Any, Any]]:
    """Path and both values of every leaf of nested dictionaries that differs; None = it is not there."""
    if not (isinstance(first, dict) and isinstance(second, dict)):
        return [] if first == second else [(where, first, second)]
    return [
        leaf
        for name in sorted({*first, *second})
        for leaf in differing(
            first.get(name), second.get(name), f'{where}.{name}' if where else name
        )
    ]


def _held(given: Any) -> Any:
    """A number as programs hold it: 1e-50 and .99999999, as floats of 32 bits, are 0 and 1."""
    if not isinstance(given, float):
        return given
    with np.errstate(over='ignore'):
        return float(np.float32(given))


def _finite(given: Any) -> str:
    return ', and finite' if _held(given) == math.inf else _rounded(given)


def _rounded(given: Any) -> str:
    """Why a number that looks right is refused."""
    rounded = _held(given)
    known = rounded == given or rounded not in (0, 1)
    return '' if known else f'; as a float of 32 bits it is {rounded:g}'


def at_least(fields: Mapping[str, Any], least: float, *names: str) -> list[str]:
    """Problems of fields that are below `least`, or infinite."""
    return [
        f'{name} = {fields[name]}: must be at least {least}{_finite(fields[name])}'
        for name in names
        if not (least <= fields[name] and _held(fields[name]) < math.inf)
    ]


def ranges(fields: Mapping[str, Any], *names: str) -> list[str]:
    """Problems of fields that are not two finite numbers above 0, the smaller one first."""

    def known(given: Any) -> bool:
        return (
            isinstance(given, Sequence)
            and len(given) == 2
            and all(isinstance(n, numbers.Real) and not isinstance(n, bool) for n in given)
            and 0 < given[0] <= given[1] < math.inf
        )

    said = 'must be two numbers above 0, the smaller one first'
    return [f'{name} = {fields[name]!r}: {said}' for name in names if not known(fields[name])]


def rising(
    fields: Mapping[str, Any], name: str, least: int, words: str, most: int = 10**9
) -> list[str]:
    """Problems of a field of rising ints between two bounds; `words`: what they are, with an example."""
    given = fields.get(name)
    known = isinstance(given, Sequence) and all(
        isinstance(number, numbers.Integral) and not isinstance(number, bool) for number in given
    )
    if (
        known
        and given
        and list(given) == sorted(set(given))
        and least <= given[0] <= given[-1] <= most
    ):
        return []
    return [f'{name} = {given}: must be rising ints from {least} to {most:,}, {words}']


def at_most(fields: Mapping[str, Any], most: Mapping[str, float]) -> list[str]:
    """Problems of fields above their limit in `most`."""
    return [
        f'{name} = {fields[name]}: must be at most {limit:,}'
        for name, limit in most.items()
        if fields[name] > limit
    ]


def above(fields: Mapping[str, Any], limit: float, *names: str) -> list[str]:
    """Problems of fields that are not above `limit`, or infinite."""
    return [
        f'{name} = {fields[name]}: must be above {limit}{_finite(fields[name])}'
        for name in names
        if not (limit < min(fields[name], _held(fields[name])) and _held(fields[name]) < math.inf)
    ]


def between(
    fields: Mapping[str, Any], least: float, greatest: float, *names: str, ends: str = '[]'
) -> list[str]:
    """Problems of fields outside of an interval.

    In `ends`, '[' and ']' include an end, '(' and ')' exclude it.
    """
    problems = []
    outside = [str(end) for end, mark in zip((least, greatest), ends, strict=True) if mark in '()']
    excluded = f', excluding {" and ".join(outside)}' if outside else ''
    for name in names:
        value = fields[name]
        low = least <= value if ends[0] == '[' else least < min(value, _held(value))
        high = value <= greatest if ends[1] == ']' else max(value, _held(value)) < greatest
        if not (low and high):
            problems.append(
                f'{name} = {value}: must lie between {least} and {greatest}{excluded}{_rounded(value)}'
            )
    return problems


def one_of(fields: Mapping[str, Any], **allowed: Iterable[Any]) -> list[str]:
    """Problems of fields that do not have one of the allowed values: `one_of(fields, start=STARTS)`."""
    return [
        unknown(name, fields[name], tuple(values))
        for name, values in allowed.items()
        if fields[name] not in tuple(values)
    ]


def defaults_and_rules(**table: tuple[Any, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The two columns of a table of fields: defaults, and what `of_section` allows."""
    defaults = {name: default for name, (default, _) in table.items()}
    return defaults, {name: allowed for name, (_, allowed) in table.items()}


def of_section(section: Mapping[str, Any], allowed: Mapping[str, Any]) -> list[str]:
    """Problems of fields that are unknown, missing, or have the wrong type or size.

    Args:
      section: the section.
      allowed: name to what is allowed: a type or its name (numbers of type int must not be negative;
        types other than int, float, bool, str and tuples of any length of these are not checked), a
        tuple of words, or `(least, greatest)` numbers of the type of the first.
    """
    problems = [
        f'{name}: not a field here, {nearest(name, allowed)}'
        + (f'the fields are {", ".join(sorted(allowed))}' if allowed else 'there are none')
        for name in section
        if name not in allowed
    ]
    for name, choice in allowed.items():
        if name not in section:
            problems.append(f'{name} is missing')
        elif isinstance(choice, Sequence) and not isinstance(choice, str):
            problems += _of_choice(section, name, choice)
        elif typing.get_args(choice)[1:] == (...,):
            items = getattr(typing.get_args(choice)[0], '__name__', '')
            problems += _of_items(section, name, items) if items in ITEMS else []
        else:
            kind = getattr(choice, '__name__', str(choice))
            wrong = of_type(section, name, kind)
            problems += wrong or (at_least(section, 0, name) if kind == 'int' else [])
            if kind == 'float' and not wrong and math.isnan(section[name]):
                problems.append(f'{name} = nan: must be a number')
    return problems


def of_series(
    section: Mapping[str, Any],
    allowed: Mapping[str, Any],
    name: str,
    least: int,
    words: str,
) -> list[str]:
    """`of_section` of what is `allowed`, and `rising` of one more field, `name`."""
    others = {field: section[field] for field in section if field != name}
    return of_section(others, allowed) + rising(section, name, least, words)


def _of_choice(section: Mapping[str, Any], name: str, choice: Sequence[Any]) -> list[str]:
    """Problems of a field that must be one of some words, or a number in a range."""
    if isinstance(choice[0], str):
        return one_of(section, **{name: choice})
    return of_type(section, name, type(choice[0]).__name__) or between(section, *choice, name)


def _of_items(section: Mapping[str, Any], name: str, kind: str) -> list[str]:
    """The problem of a field that is not a tuple of items of the type named `kind`."""
    given = section[name]
    if isinstance(given, tuple | list) and not any(
        of_type({name: item}, name, kind)
        or item in (math.inf, -math.inf)
        or not is_possible(item)
        or (kind == 'int' and item < 0)
        for item in given
    ):
        return []
    items, example = ITEMS[kind]
    return [f'{name} = {given!r}: must be a tuple of {items}, such as {example}']


def of_type(section: Mapping[str, Any], name: str, kind: str) -> list[str]:
    """The problem of a field that does not have the type named `kind`; only `TYPES` are checked."""
    if kind not in TYPES:
        return []
    types, description = TYPES[kind]
    value = section[name]
    if isinstance(value, types) and (kind == 'bool' or not isinstance(value, bool)):
        return []
    return [f'{name}: must be {description}, got {value!r}']
