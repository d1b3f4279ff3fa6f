"""Which checkpoints a run keeps, and which are moved aside: broken ones, and those it went back from."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from longmem_jax.errors import UsageError
from longmem_jax.files import own_folder


@dataclasses.dataclass
class Keep:
    """Which checkpoints are kept, as a policy of Orbax.

    What a step has written is known to be of use when the step after it was finite. So the newest
    checkpoint, of which that is not known, does not count: it pushes out no other.

    Attributes:
      number: of newest checkpoints; at least two are kept.
      proven: the last step that a finite one has followed.
      best: a step that is kept as well; None = none.
    """

    number: int
    proven: int = 0
    best: int | None = None

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        """Whether to keep each of some checkpoints."""
        del context
        steps = [each.step for each in checkpoints]
        used = sorted(step for step in steps if step <= self.proven)
        kept = {self.best, max(steps, default=0), *used[-max(self.number - 1, 1) :]}
        return [step in kept for step in steps]


def way_back(steps: list[int], step: int, bad: int) -> str:
    """What a user can do after `bad` steps that were not finite, in words.

    `steps` have checkpoints.
    """
    used = step - bad - 1
    if not steps:
        return 'No checkpoint was made; the same command starts from the beginning'
    said = f'The same command resumes from the checkpoint of step {steps[-1]}'
    if steps[-1] <= used:
        return said
    why = f'{said}, which no finite step has followed, so it may be the cause'
    before = [each for each in steps if each <= used]
    if not before:
        return f'{why}; there is no earlier one. If the run fails again, use another --workdir'
    return f'{why}. To go back to one before it, set --config.checkpoint.at={before[-1]}'


def folder_of(directory: Path) -> Path:
    """Where the broken checkpoints of a folder are put."""
    return directory.parent / f'{directory.name}-broken'


def left_of(directory: Path) -> Path:
    """Where those are put that a run has left by going back to an earlier one."""
    return directory.parent / f'{directory.name}-left'


def move(directory: Path, step: int, folder: Path) -> None:
    """Moves a checkpoint to a folder, under a name that is free."""
    own_folder(folder)
    copies, target = 0, folder / str(step)
    while target.exists():
        copies += 1
        target = folder / f'{step}-{copies}'
    (directory / str(step)).rename(target)


def require_none(directory: Path, steps: list[int], at: int | None, *, moved: bool) -> None:
    """Raises `UsageError` if a folder had checkpoints, all of them broken, now (`steps`) or in an
    earlier attempt. `at` is the only one that was wanted; None = any.
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
