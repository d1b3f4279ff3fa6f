"""Broken checkpoints: they are moved aside, and no run overwrites them."""

from pathlib import Path

from longmem_jax.errors import UsageError
from longmem_jax.files import own_folder
from longmem_jax.training import checksums


def folder_of(directory: Path) -> Path:
    """Where the broken checkpoints of a folder are put."""
    return directory.parent / f'{directory.name}-broken'


def move(directory: Path, step: int) -> None:
    """Moves a checkpoint there, under a name that is free."""
    folder = folder_of(directory)
    own_folder(folder)
    copies, target = 0, folder / str(step)
    while target.exists():
        copies += 1
        target = folder / f'{step}-{copies}'
    checkpoint, earlier = checksums.places(directory, step)
    checkpoint.rename(target)
    if earlier.is_file():
        earlier.unlink()


def require_none(directory: Path, steps: list[int], at: int | None, *, moved: bool) -> None:
    """Raises `UsageError` if a folder had checkpoints, all of them broken, now or in an earlier attempt.

    Args:
      directory: the folder.
      steps: the checkpoints that were found broken now.
      at: the only one that was wanted; None = any.
      moved: whether they were moved.
    """
    folder = folder_of(directory)
    aside = f' (moved to {folder.name})' if moved else ''
    if at is not None:
        raise UsageError(
            f'{directory}: checkpoint {at} is broken{aside}; leave it out, or train again.'
        )
    if steps:
        raise UsageError(
            f'{directory}: all {len(steps)} checkpoints are broken{aside}. Nothing was overwritten; use '
            'another --workdir to start again.'
        )
    if folder.is_dir() and any(folder.iterdir()):
        raise UsageError(
            f'{directory}: no checkpoint is left of this run, those it had are broken (in {folder}). '
            'Use another --workdir, or delete that folder, to start again.'
        )
