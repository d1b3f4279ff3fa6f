"""Calls of the author's functions: an error says in which function, where, and what that was given."""

import inspect
import linecache
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.errors
import jax

from longmem_jax.errors import UsageError

# What a slip in the author's code raises while it is traced. Other errors are of JAX, Flax or a device.
SLIPS = (
    AssertionError, AttributeError, LookupError, NameError, TypeError, ValueError, ZeroDivisionError,
)  # fmt: skip
ADVICE: dict[type[Exception], str] = {
    jax.errors.TracerBoolConversionError: 'An `if` cannot depend on an array: use jnp.where',
    jax.errors.TracerArrayConversionError: 'What is traced is no array of numpy: use jax.numpy',
    flax.errors.AssignSubModuleError: 'Modules and parameters are made in `parts`',
    flax.errors.SetAttributeFrozenModuleError: (
        'Attributes are set in `parts`; what later tokens need belongs to the state'
    ),
}

CAUGHT: tuple[type[Exception], ...] = (*SLIPS, *ADVICE)


def named(what: str, function: Callable[..., Any]) -> str:
    """'Titans.step': the name of a method for messages; `what` alone of a function."""
    owner = getattr(function, '__self__', None)
    return what if owner is None else f'{type(owner).__name__}.{what}'


def call(
    what: str, function: Callable[..., Any], given: tuple[Any, ...], words: str = '', hint: str = ''
) -> Any:
    """`function(*given)`, a function that an author wrote.

    Args:
      what: its name in the table of authors, such as 'step'.
      function: a method of a memory, or a function.
      given: its arguments.
      words: what the arguments are, for the message.
      hint: what else may be wrong, a sentence, or ''.

    Raises:
      UsageError: it takes another number of arguments, or its code raises.
    """
    name = named(what, function)
    taken = inspect.signature(function)
    try:
        by_name = taken.bind(*given).arguments
    except TypeError:
        raise UsageError(
            f'{name}: takes {taken} but is given {len(given)}: {words or "nothing"}, here '
            f'{", ".join(map(shown, given))}. Both must be as many, in the same order.'
        ) from None
    try:
        return function(*given)
    except CAUGHT as error:
        if isinstance(error, UsageError):
            raise
        said = str(error).split('\n')[0].partition(' (https://')[0][:300].rstrip('.')
        more = [text for kind, text in ADVICE.items() if isinstance(error, kind)][:1]
        got = [f'{each} {shown(value)}' for each, value in by_name.items()]
        more += [f'It was given {", ".join(got)}'] if got else []
        lines = [f'{name}: {type(error).__name__}: {said}{_where(error, function)}', *more]
        raise UsageError(f'{". ".join(lines)}. {hint}'.strip()) from error


def _where(error: Exception, function: Callable[..., Any]) -> str:
    """The last line of the author's file that led to an error."""
    code = getattr(inspect.unwrap(function), '__code__', None)
    found = traceback.extract_tb(error.__traceback__)
    lines = [each for each in found if code is not None and each.filename == code.co_filename]
    if not lines:
        return ''
    file, number = lines[-1].filename, lines[-1].lineno or 0
    text = linecache.getline(file, number).strip()
    return f' ({Path(file).name}, line {number}{": " * bool(text)}{text})'


def shown(value: Any) -> str:
    """Shape and dtype of every leaf, and the containers; of what has no arrays, its type."""
    if isinstance(value, (str, bool, int, float)) or value is None:
        return repr(value)
    leaves = jax.tree.leaves(value)
    if not all(hasattr(leaf, 'dtype') for leaf in leaves):
        return f'a {type(value).__name__}'
    return str(jax.tree.map(lambda leaf: _Text(f'{leaf.dtype}{list(leaf.shape)}'), value))


class _Text(str):
    """A text that stands in containers without quotation marks."""

    __slots__ = ()
    __repr__ = str.__str__
