"""Checksums inside of every checkpoint: it is committed with them, in one rename, or not at all.

Orbax does not notice when the bytes of an array have changed. It writes a checkpoint into a temporary
folder, and process 0 renames that in the background, after all processes have written. What is renamed
here has the checksums of all its files in it.
"""

import asyncio
import json
import zlib
from pathlib import Path

from orbax.checkpoint.path import atomicity, atomicity_types

from longmem_jax import files

CHECKSUMS = 'checksums.json'
CHUNK = 1 << 22


def _checksum(path: Path) -> int:
    value = 0
    with path.open('rb') as file:
        while chunk := file.read(CHUNK):
            value = zlib.crc32(chunk, value)
    return value


def of_files(folder: Path) -> dict[str, int]:
    """CRC-32 of every file in a folder by its relative path, without that of the list itself."""
    return {
        path.relative_to(folder).as_posix(): _checksum(path)
        for path in sorted(folder.rglob('*'))
        if path.is_file() and path != folder / CHECKSUMS
    }


def seal(folder: Path) -> None:
    """Writes the checksums of all files of a folder into it; then all of it is on the disk."""
    listed = of_files(folder)
    files.write_json(folder / CHECKSUMS, listed, indent=0)
    for path in (*(folder / name for name in listed), *folder.rglob('*/'), folder):
        files.sync(path)


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


def places(directory: Path, step: int) -> tuple[Path, Path]:
    """The folder of a checkpoint, and the list that an earlier version wrote next to it."""
    return directory / str(step), directory / f'{step}.{CHECKSUMS}'


def list_of(directory: Path, step: int) -> Path | None:
    """The file with the checksums of a checkpoint; None if there is none."""
    folder, earlier = places(directory, step)
    return next((path for path in (folder / CHECKSUMS, earlier) if path.exists()), None)


def damage(directory: Path, step: int) -> str:
    """What is wrong with the files of a checkpoint, by its checksums; '' if nothing is."""
    listed = list_of(directory, step)
    if listed is None:
        return ''
    try:
        expected, actual = json.loads(listed.read_bytes()), of_files(directory / str(step))
    except (OSError, ValueError, RecursionError) as error:
        return f'{listed.name} or a file that it lists cannot be read, {type(error).__name__}'
    if not isinstance(expected, dict):
        return f'{listed.name} is not a list of checksums'
    for name in sorted({*expected, *actual}):
        if name not in actual:
            return f'{name} is missing'
        if actual[name] != expected.get(name):
            return f'{name} was changed or truncated'
    return ''
