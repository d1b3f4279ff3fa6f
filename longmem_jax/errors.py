"""The error for mistakes that the user can fix: printed without a traceback, exit code 2."""

import difflib
from collections.abc import Iterable
from typing import Any


class UsageError(ValueError):
    """A fault in the configuration, the data or the command line.

    The message says what was given, what is allowed and what to do next. `main` prints it and
    exits with code 2; every other exception is a bug in the library and keeps its traceback.
    """


def nearest(given: Any, allowed: Iterable[Any]) -> str:
    """`did you mean 'x'? ` with the valid name nearest to `given`; empty if none is near."""
    near = difflib.get_close_matches(str(given), [str(name) for name in allowed], n=1)
    return f'did you mean {near[0]!r}? ' if near else ''


def unknown(what: str, given: Any, allowed: Iterable[Any]) -> str:
    """`what = 'x': ...`, with the nearest valid name and all of them."""
    allowed = tuple(allowed)
    return (
        f'{what} = {given!r}: {nearest(given, allowed)}allowed are {", ".join(map(str, allowed))}'
    )
