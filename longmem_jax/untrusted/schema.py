"""What a value read from a file must be: types, ranges, names.

A check is a function of a value and of its place in the file, such as `shards[3].count`. It returns the
first problem as a line, or None.
"""

import math
import re
import reprlib
from collections.abc import Callable, Mapping
from typing import Any

from longmem_jax.errors import UsageError

Check = Callable[[Any, str], str | None]
LONGEST = 1 << 20  # characters of a text


def shown(value: Any) -> str:
    """A value for a message: short, and without characters that a terminal would obey."""
    if isinstance(value, str):
        return ascii(value[:80])
    return reprlib.repr(value).encode('ascii', 'backslashreplace').decode()


def require(value: Any, check: Check, source: Any) -> Any:
    """The value; raises `UsageError` naming `source`, the place in it and the reason if it is wrong."""
    problem = check(value, '')
    if problem:
        raise UsageError(f'{source}: {problem}.')
    return value


def _problem(where: str, value: Any, must: str) -> str:
    return f'{where or "it"} = {shown(value)}: must be {must}'


def whole(least: int, most: int) -> Check:
    """A whole number of a range, both ends included; true and false are none."""

    def check(value: Any, where: str) -> str | None:
        right = isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
        return None if right else _problem(where, value, f'a whole number from {least} to {most}')

    return check


def number(least: float, most: float) -> Check:
    """A finite number of a range, both ends included."""

    def check(value: Any, where: str) -> str | None:
        right = isinstance(value, (int, float)) and not isinstance(value, bool)
        right = (
            right and (isinstance(value, int) or math.isfinite(value)) and least <= value <= most
        )
        return None if right else _problem(where, value, f'a number from {least} to {most}')

    return check


def flag(value: Any, where: str) -> str | None:
    """True or false."""
    return None if isinstance(value, bool) else _problem(where, value, 'true or false')


def text(pattern: str = '', description: str = 'text') -> Check:
    """Text that matches a whole regular expression; '' = any."""

    def check(value: Any, where: str) -> str | None:
        right = isinstance(value, str) and len(value) <= LONGEST
        right = right and (not pattern or re.fullmatch(pattern, value) is not None)
        return None if right else _problem(where, value, description)

    return check


def one_of(*allowed: Any) -> Check:
    """One of some values, of the same type."""

    def check(value: Any, where: str) -> str | None:
        right = any(type(value) is type(each) and value == each for each in allowed)
        return None if right else _problem(where, value, ' or '.join(map(shown, allowed)))

    return check


def either(*checks: Check) -> Check:
    """What passes one of the checks; the problem is that of the last."""

    def check(value: Any, where: str) -> str | None:
        problems = [each(value, where) for each in checks]
        return None if None in problems else problems[-1]

    return check


def anything(value: Any, where: str) -> str | None:
    """Whatever it is."""
    del value, where
    return None


def items(each: Check, least: int = 0, most: int = 1 << 24) -> Check:
    """A list whose items pass a check."""

    def check(value: Any, where: str) -> str | None:
        if not isinstance(value, list) or not least <= len(value) <= most:
            return _problem(where, value, f'a list of {least} to {most} items')
        problems = (each(item, f'{where}[{i}]') for i, item in enumerate(value))
        return next((problem for problem in problems if problem), None)

    return check


def named(each: Check) -> Check:
    """An object with any names, whose values pass a check."""

    def check(value: Any, where: str) -> str | None:
        if not isinstance(value, dict):
            return _problem(where, value, 'an object')
        problems = (each(item, _inside(where, name)) for name, item in value.items())
        return next((problem for problem in problems if problem), None)

    return check


def fields(
    required: Mapping[str, Check],
    optional: Mapping[str, Check] | None = None,
    *,
    others: bool = False,
) -> Check:
    """An object with these names; `others` allows more, with any values."""
    known = {**required, **(optional or {})}

    def check(value: Any, where: str) -> str | None:
        if not isinstance(value, dict):
            return _problem(where, value, 'an object')
        for name in required:
            if name not in value:
                return f'{_inside(where, name)} is missing'
        for name, item in value.items():
            if name not in known and not others:
                return f'{_inside(where, name)} is not a name here'
            problem = known[name](item, _inside(where, name)) if name in known else None
            if problem:
                return problem
        return None

    return check


def _inside(where: str, name: str) -> str:
    name = shown(name)[1:-1]
    return f'{where}.{name}' if where else name
