"""Checksums inside of every checkpoint: it is committed with them, in one rename, or not at all.

Orbax does not notice when the bytes of an array have changed. It writes a checkpoint into a temporary
folder, and process 0 renames that in the background, after all processes have written. What is renamed
here has the checksums of all its files in it.
"""

import asyncio
import errno
import json
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from orbax.checkpoint.path import atomicity, atomicity_types

from longmem_jax import files
from longmem_jax.errors import UsageError

CHECKSUMS = 'checksums.json'
CHUNK = 1 << 22
# A file that is not there, or has become something else; all other problems may be gone next time.
GONE = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


def _checksum(path: Path, *, from_disk: bool = False) -> int:
    """CRC-32 of a file; `from_disk`: of what the disk has, as far as the system can be asked."""
    value = 0
    with path.open('rb') as file:
        if from_disk and hasattr(os, 'posix_fadvise'):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while chunk := file.read(CHUNK):
            value = zlib.crc32(chunk, value)
    return value


def of_files(folder: Path) -> dict[str, int]:
    """CRC-32 of every file in a folder by its relative path, without that of the list itself."""
    return {
        path.relative_to(folder).as_posix(): _checksum(path)
        for path in _files(folder)
        if path != folder / CHECKSUMS
    }


def _files(folder: Path) -> list[Path]:
    """All files below a folder, sorted; `Path.rglob` leaves folders out that it must not list."""
    found = []
    for path in files.named(folder):
        found += _files(path) if path.is_dir() else [path]
    return found


def seal(folder: Path) -> None:
    """Writes the checksums of all files of a folder into it; then all of it is on the disk."""
    _require_merged(folder)
    listed = of_files(folder)
    files.write_json(folder / CHECKSUMS, listed, indent=0)
    paths = [folder / name for name in listed]
    inside = {parent for path in paths for parent in path.parents if parent.is_relative_to(folder)}
    for path in (*paths, *sorted(inside | {folder})):
        files.sync(path)


def _require_merged(folder: Path) -> None:
    """Raises `OSError` if the arrays of the processes were not put together.

    Orbax finds their folders with `glob`. If a folder could not be listed, it finds none, continues, and
    would commit a checkpoint that cannot be read.
    """
    for part in files.named(folder):
        if part.is_dir() and files.named(part, 'ocdbt.process_*'):
            if not (merged := part / 'manifest.ocdbt').is_file():
                raise OSError(errno.EIO, 'its parts were not put together', str(merged))


class SealedFolder(atomicity.AtomicRenameTemporaryPath):
    """The temporary folder of a checkpoint, for `CheckpointManagerOptions.temporary_path_class`.

    Orbax asks for a class of its own family. It is used for the parts of a checkpoint as well, which
    are folders in the temporary one and need no checksums.
    """

    async def finalize(self) -> None:
        """Writes Orbax's own last files, then the checksums of all, then renames."""
        temporary, final = self.get(), self.get_final()
        if atomicity_types.TMP_DIR_SUFFIX in final.parent.name:
            await super().finalize()
            return
        # Its name still says that it is temporary, so a killed run's is cleaned up.
        unsealed = temporary.with_name(f'{temporary.name}-unsealed')
        orbax = atomicity.AtomicRenameTemporaryPath(
            temporary, unsealed, checkpoint_metadata_store=self._checkpoint_metadata_store
        )
        await orbax.finalize()
        await asyncio.to_thread(seal, Path(unsealed))
        unsealed.rename(final)
        await asyncio.to_thread(files.sync, Path(final).parent)


def damage(directory: Path, step: int, report: Callable[[str], None] = lambda line: None) -> str:
    """What is wrong with the files of a checkpoint, by its checksums; '' if nothing is.

    Damaged is only what was read twice with the same result: bytes are other ones, or a file is missing.
    Files that are not listed are not of the checkpoint, such as what a desktop leaves in folders.

    Args:
      directory, step: of the checkpoint.
      report: called with a line if there are other files in it.

    Raises:
      UsageError: a file cannot be read just now, or was read differently twice; nothing is known.
    """
    try:
        found = _damage(directory, step, report)
        again = found and _damage(directory, step, lambda _: None, from_disk=True)
    except OSError as error:
        raise unknown(directory, step, error) from error
    if found != again:
        raise unknown(
            directory, step, f'read twice: first {found}, then {again or "nothing wrong"}'
        )
    return found


def unknown(directory: Path, step: int, why: Any) -> UsageError:
    """The error for a checkpoint of which is not known whether it is damaged."""
    return UsageError(
        f'{directory}: checkpoint {step} cannot be read ({why}). It may be whole, so nothing was moved. '
        'Correct this and run the same command; or set --config.checkpoint.at=STEP to use another.'
    )


def _damage(
    directory: Path, step: int, report: Callable[[str], None], *, from_disk: bool = False
) -> str:
    """See `damage`; `from_disk`: from the disk, not from the memory of the system."""
    folder = directory / str(step)
    listed = folder / CHECKSUMS
    try:
        expected = json.loads(listed.read_bytes())
    except FileNotFoundError:
        return 'its checksums are missing'
    except (*GONE, ValueError, RecursionError) as error:
        return f'{listed.name} cannot be read, {type(error).__name__}'
    if not isinstance(expected, dict) or any('..' in name.split('/') for name in expected):
        return f'{listed.name} is not a list of checksums'
    for name, checksum in sorted(expected.items()):
        try:
            if _checksum(folder / name, from_disk=from_disk) != checksum:
                return f'{name} was changed or truncated'
        except (*GONE, ValueError):  # or no name that a file can have
            return f'{name} is missing'
    there = {path.relative_to(folder).as_posix() for path in _files(folder)}
    if others := sorted(there - {*expected, CHECKSUMS}):
        more = f' and {len(others) - 3} more' if len(others) > 3 else ''
        report(
            f'Checkpoint {step} also holds {", ".join(others[:3])}{more}, not of it: left alone.'
        )
    return ''
