"""Panics of libraries in Rust, as errors."""

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def panics_as_errors() -> Iterator[None]:
    """Turns a panic into a `ValueError`: it is no `Exception`, and would end the program.

    The class that libraries raise has no name that could be imported.
    """
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != 'PanicException':
            raise
        raise ValueError(f'the library gave up: {error}') from error
