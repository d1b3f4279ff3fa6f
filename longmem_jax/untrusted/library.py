"""Problems that a library finds in its own kind of file, as our errors."""

import contextlib
from collections.abc import Iterator

from longmem_jax.errors import UsageError

LONGEST = 300  # characters of a reason


@contextlib.contextmanager
def library_errors(what: str) -> Iterator[None]:
    """Turns every error of a block, and a panic of Rust, into `UsageError`: '`what` (reason).'.

    A panic is no `Exception`, and would end the program past all that catches those. Its class has no
    name that could be imported.
    """
    try:
        yield
    except UsageError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != 'PanicException':
            raise
        lines = str(error).strip().splitlines() or ['']
        reason = f'{type(error).__name__}: {lines[0]}'[:LONGEST]
        raise UsageError(f'{what} ({reason}).') from error
