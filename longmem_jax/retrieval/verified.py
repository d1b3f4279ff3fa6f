"""Checksums of a datastore's files are compared once, and again where a file has changed since.

`verified.json` in the folder keeps name, checksum, size, time of change and inode of the files that were
compared. It is not trusted for more than that: what does not fit is compared again.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from longmem_jax.errors import UsageError
from longmem_jax.files import checksum, write_json
from longmem_jax.untrusted import json_file

NAME = 'verified.json'
LONG = 1 << 30  # bytes from which a line reports that they are read
_PART = 1 << 24  # numbers looked at together


def _mark(path: Path, value: str) -> list[Any]:
    """What a file's record must be for its bytes to be as they were."""
    status = path.stat()
    return [value, status.st_size, status.st_mtime_ns, status.st_ino]


def _remembered(folder: Path) -> dict[str, Any]:
    """The records; {} where there are none that can be read."""
    try:
        found = json_file.read(folder / NAME)
    except UsageError:
        return {}
    return found if isinstance(found, dict) else {}


def remember(folder: Path, sums: Mapping[str, str]) -> None:
    """Records that files have these checksums; a folder that cannot be written is left as it is."""
    marks = {name: _mark(folder / name, value) for name, value in sums.items()}
    try:
        write_json(folder / NAME, _remembered(folder) | marks, indent=None)
    except OSError:  # then they are compared again next time
        return


def forget(folder: Path) -> None:
    """Deletes all records."""
    (folder / NAME).unlink(missing_ok=True)


def require(
    folder: Path,
    sums: Mapping[str, str],
    dtype: str,
    *,
    again: bool,
    report: Callable[[str], None],
) -> None:
    """Raises `UsageError` if a file's SHA-256 is not that of `sums`, or keys are not finite
    numbers. `again` compares also what was compared before; `report` gets a line before much is
    read.
    """
    known = {} if again else _remembered(folder)
    new = {
        name: value
        for name, value in sums.items()
        if known.get(name) != _mark(folder / name, value)
    }
    size = sum((folder / name).stat().st_size for name in new)
    if size >= LONG:
        report(f'Comparing the checksums of {size / 2**30:.1f} GiB in {folder} ...')
    for name, value in new.items():
        path = folder / name
        if checksum(path) != value:
            raise UsageError(
                f'{path}: its bytes were changed; delete {folder}, and build it again.'
            )
        if name.startswith('keys.') and not _finite(path, dtype):
            raise UsageError(
                f'{path}: has keys that are not finite numbers; delete {folder}, and build it again.'
            )
    if new:
        remember(folder, new)


def _finite(path: Path, dtype: str) -> bool:
    """Whether all numbers of a file are finite."""
    numbers = np.memmap(path, dtype, 'r')
    return all(
        bool(np.isfinite(numbers[at : at + _PART]).all()) for at in range(0, len(numbers), _PART)
    )
