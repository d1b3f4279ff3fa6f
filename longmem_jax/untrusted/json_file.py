"""JSON that others made, read within limits; see `schema.py` for what must be in it."""

import json
import re
import stat
from pathlib import Path
from typing import Any

from longmem_jax.errors import UsageError
from longmem_jax.untrusted.schema import shown

LARGEST = 64 << 20  # bytes of a file
DEEPEST = 64  # lists and objects inside each other
_HALF_CHARACTER = re.compile(r'\\u[dD][89a-fA-F]')  # may be half of a pair that has no other half


def read_bytes(path: Path, where: str = '', *, largest: int = LARGEST) -> bytes:
    """The bytes of a regular file.

    Args:
      largest: bytes that it may have.

    Raises:
      UsageError: it cannot be read, is no regular file (reading a pipe may never end), or is larger.
    """
    where = where or str(path)
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise UsageError(f'{where}: cannot be read (not a regular file).')
        with path.open('rb') as file:
            content = file.read(largest + 1)
    except (OSError, ValueError) as error:  # a path with NUL is a ValueError
        if isinstance(error, UsageError):
            raise
        reason = getattr(error, 'strerror', None) or error
        raise UsageError(f'{where}: cannot be read ({reason}).') from error
    if len(content) > largest:
        raise UsageError(
            f'{where}: more than {largest:,} bytes, the most that are read of such a file.'
        )
    return content


def parse(
    content: bytes | str, where: str, *, deepest: int = DEEPEST, replace: bool = False
) -> Any:
    """The value of a JSON text.

    Args:
      deepest: levels of lists and objects that it may have.
      replace: half characters become question marks, as in other texts that are not whole.

    Raises:
      UsageError: it is not JSON, has a name twice in an object, too many levels, or half characters
        (a surrogate by itself, which no text file can hold).
    """
    try:
        text = content.decode('utf-8-sig') if isinstance(content, bytes) else content
        value = json.loads(text, object_pairs_hook=_each_once)
        if text.count('[') + text.count('{') > deepest and _is_deeper(value, deepest):
            raise RecursionError
        if replace:
            value = whole_characters(value, text)
        elif _HALF_CHARACTER.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError as error:
        raise UsageError(
            f'{where}: not JSON (more than {deepest} levels of lists and objects).'
        ) from error
    except UnicodeDecodeError as error:
        raise UsageError(f'{where}: not JSON in UTF-8 ({error.reason}).') from error
    except ValueError as error:
        raise UsageError(f'{where}: not JSON ({error}).') from error
    return value


def read(path: Path, where: str = '', *, largest: int = LARGEST, replace: bool = False) -> Any:
    """The value of a JSON file; arguments and errors as in `read_bytes` and `parse`."""
    return parse(read_bytes(path, where, largest=largest), where or str(path), replace=replace)


def whole_characters(value: Any, text: str) -> Any:
    """The value of a JSON text with question marks for half characters; `value` where there are none."""
    if not _HALF_CHARACTER.search(text):
        return value
    return json.loads(json.dumps(value, ensure_ascii=False).encode('utf-8', 'replace'))


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; programs differ in which of two equal names they take."""
    made = dict(pairs)
    if len(made) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f'{shown(name)} is there twice')
            seen.add(name)
    return made


def _is_deeper(value: Any, deepest: int) -> bool:
    """Whether a value has more levels; without recursion."""
    level = [value]
    for _ in range(deepest + 1):
        level = [each for each in level if isinstance(each, (dict, list))]
        if not level:
            return False
        level = [
            inside
            for each in level
            for inside in (each.values() if isinstance(each, dict) else each)
        ]
    return True
