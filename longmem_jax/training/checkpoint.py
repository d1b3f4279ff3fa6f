"""Checkpoints: everything of a run, saved in the background, verified before it is used again.

Orbax writes and restores. What it does not do is notice that the bytes of an array have changed, so
every committed checkpoint gets a list of checksums, and a broken one is put aside, never deleted.
"""

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

from longmem_jax.errors import UsageError
from longmem_jax.files import whole_file

CHECKSUMS = 'checksums.json'
# Counts up whenever parameters get other names or layouts, so that older checkpoints are refused with
# the reason. 2: attention layers have their maps at `attention/projections`.
FORMAT = 2
CHUNK = 1 << 22


def _checksum(path: Path) -> int:
    value = 0
    with path.open('rb') as file:
        while part := file.read(CHUNK):
            value = zlib.crc32(part, value)
    return value


def _files(folder: Path) -> dict[str, int]:
    return {
        path.relative_to(folder).as_posix(): _checksum(path)
        for path in sorted(folder.rglob('*'))
        if path.is_file()
    }


def _with_room(leaf: Any) -> Any:
    """Orbax refuses arrays without elements, such as a window of no vectors: they get some."""
    if leaf.size:
        return leaf
    shape = tuple(max(size, 1) for size in leaf.shape)
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(shape, leaf.dtype, sharding=leaf.sharding)
    return jnp.zeros(shape, leaf.dtype, device=leaf.sharding)


def _without_room(leaf: Any, wanted: Any) -> Any:
    """The array as it was before `_with_room`."""
    if wanted.size:
        return leaf
    return jnp.zeros(wanted.shape, wanted.dtype, device=wanted.sharding)


def differing_fields(saved: Any, given: Any, where: str = '') -> list[str]:
    """`field: value there, value here` for every leaf in which two nested dictionaries differ."""
    if isinstance(saved, dict) and isinstance(given, dict):
        found = []
        for name in sorted({*saved, *given}):
            inner = f'{where}.{name}' if where else name
            found += differing_fields(saved.get(name), given.get(name), inner)
        return found
    return [] if saved == given else [f'{where}: {saved!r} in the checkpoint, {given!r} given']


class Checkpointer:
    """The checkpoints of one run.

    Attributes:
      directory: folder of the checkpoints, one sub-folder per step.
    """

    def __init__(
        self,
        directory: Path,
        *,
        every: int,
        keep: int,
        identity: dict[str, Any],
        report: Callable[[str], None],
        otherwise: str = 'Use another --workdir, or the configuration of this one.',
    ):
        """Opens, and makes, the folder.

        Args:
          directory: where checkpoints are.
          every: steps between checkpoints.
          keep: the newest so many are kept.
          identity: nested dictionary of what a checkpoint must agree on: model and tokenizer.
          report: called with one line where something is broken.
          otherwise: what the user can do where a checkpoint does not agree on it.
        """
        self.directory, self._every, self._report = directory, every, report
        self._otherwise = otherwise
        self._identity = json.loads(json.dumps(identity))
        self._pending: list[int] = []
        # A committed step gets its checksums before the next save can remove an older one.
        self._manager = ocp.CheckpointManager(
            directory.resolve(),
            options=ocp.CheckpointManagerOptions(
                max_to_keep=keep,
                create=True,
                cleanup_tmp_directories=True,
                enable_async_checkpointing=True,
            ),
        )

    def steps(self) -> list[int]:
        """Steps of the checkpoints that were committed, oldest first."""
        return sorted(self._manager.all_steps())

    def due(self, step: int) -> bool:
        """Whether `maybe_save` saves this step without being forced to."""
        return step % self._every == 0

    def maybe_save(self, step: int, state: Any, *, force: bool = False) -> bool:
        """Saves in the background if `step` is due, or if it is forced and not there yet."""
        if step in self._pending or not (force or self.due(step)):
            return False
        self._seal()
        if step in self.steps():
            return False
        self._manager.save(
            step,
            args=ocp.args.Composite(
                state=ocp.args.StandardSave(jax.tree.map(_with_room, state)),
                identity=ocp.args.JsonSave(self._identity),
            ),
        )
        self._pending.append(step)
        return True

    def _seal(self):
        """Waits for the save under way and writes the checksums of what was saved."""
        if not self._pending:
            return
        self._manager.wait_until_finished()
        for step in self._pending:
            folder = self.directory / str(step)
            if jax.process_index() == 0 and folder.is_dir():
                with whole_file(self._checksums(step)) as partial:
                    partial.write_text(json.dumps(_files(folder), indent=0))
        self._pending = []
        if jax.process_index() == 0:
            present = {str(step) for step in self.steps()}
            for path in self.directory.glob(f'*.{CHECKSUMS}'):
                if path.name.split('.')[0] not in present:
                    path.unlink()

    def wait(self) -> None:
        """Waits until everything saved is on disk with its checksums."""
        self._seal()
        self._manager.wait_until_finished()

    def close(self) -> None:
        """Waits and lets go."""
        self.wait()
        self._manager.close()

    def reached_preemption(self, step: int) -> bool:
        """Whether the cluster announced that this run will be stopped."""
        return self._manager.reached_preemption(step)

    def _checksums(self, step) -> Path:
        return self.directory / f'{step}.{CHECKSUMS}'

    def _fault(self, step) -> str:
        """What is broken about a checkpoint, '' if nothing is seen."""
        folder, sums = self.directory / str(step), self._checksums(step)
        if not sums.exists():
            return ''  # killed between commit and checksums; restoring will tell
        try:
            wanted = json.loads(sums.read_text())
        except ValueError:
            return f'{sums.name} is not readable'
        found = _files(folder)
        for name in sorted({*wanted, *found}):
            if name not in found:
                return f'{name} is missing'
            if found[name] != wanted.get(name):
                return f'{name} was changed or cut short'
        return ''

    @property
    def _aside(self) -> Path:
        return self.directory.parent / f'{self.directory.name}-broken'

    def _put_aside(self, step, reason):
        aside = self._aside
        self._report(
            f'Checkpoint {step} is broken ({reason}); it was moved to {aside}/{step} and the one '
            'before it is used.'
        )
        if jax.process_index() == 0:
            aside.mkdir(exist_ok=True)
            number, target = 0, aside / str(step)
            while target.exists():
                number += 1
                target = aside / f'{step}-{number}'
            (self.directory / str(step)).rename(target)
            self._checksums(step).unlink(missing_ok=True)
        self._manager.reload()

    def restore(self, abstract: Any) -> tuple[Any, int] | None:
        """The newest checkpoint that is whole.

        Args:
          abstract: the train state as `jax.ShapeDtypeStruct` with shardings.

        Returns:
          state, step; None where there never was a checkpoint.

        Raises:
          UsageError: it belongs to another model (the differing fields are named), it is whole but
            holds another structure, or all are broken, now or in an earlier attempt.
        """
        steps = self.steps()
        for step in reversed(steps):
            reason = self._fault(step)
            if not reason:
                try:
                    self._require_same(self._saved_identity(step), step)
                    wanted = jax.tree.map(_with_room, abstract)
                    state = self._manager.restore(
                        step, args=ocp.args.Composite(state=ocp.args.StandardRestore(wanted))
                    )['state']
                    return jax.tree.map(_without_room, state, abstract), step
                except UsageError:
                    raise
                except Exception as error:
                    reason = f'{type(error).__name__}: {(str(error).splitlines() or [""])[0][:200]}'
                    if self._checksums(step).exists():
                        # Its bytes are those that were saved, so it is the request that is wrong.
                        raise UsageError(
                            f'{self.directory}: checkpoint {step} is whole, but does not fit this '
                            f'configuration ({reason}). Go back to the config.optimizer and '
                            'config.train that it was saved with, or use another --workdir.'
                        ) from error
            self._put_aside(step, reason)
        if steps:
            raise UsageError(
                f'{self.directory}: all {len(steps)} checkpoints are broken (moved to '
                f'{self._aside.name}). Nothing was overwritten; use another --workdir to begin '
                'anew.'
            )
        if self._aside.is_dir() and any(self._aside.iterdir()):
            raise UsageError(
                f'{self.directory}: no checkpoint is left of this run, those it had are broken (in '
                f'{self._aside}). Use another --workdir, or delete that folder, to begin anew.'
            )
        return None

    def require_format(self) -> None:
        """Raises `UsageError` if the newest checkpoint names its parameters in another way."""
        for step in self.steps()[-1:]:
            try:
                saved = self._saved_identity(step)
            except Exception:  # a broken one: `restore` says so and takes the one before
                return
            self._require_format(saved, step)

    def _saved_identity(self, step):
        return self._manager.restore(
            step, args=ocp.args.Composite(identity=ocp.args.JsonRestore())
        )['identity']

    def _require_format(self, identity, step):
        saved, wanted = identity.get('format', 1), self._identity.get('format', 1)
        if saved != wanted:
            age = 'an earlier' if saved < wanted else 'a later'
            raise UsageError(
                f'{self.directory}: checkpoint {step} was made by {age} version, whose parameters have '
                f'other names (format {saved}, this version has {wanted}). Train again in another '
                '--workdir, or use that version.'
            )

    def _require_same(self, identity, step):
        self._require_format(identity, step)
        fields = differing_fields(identity, self._identity)
        if fields:
            raise UsageError(
                f'{self.directory}: checkpoint {step} belongs to another run:\n  '
                + '\n  '.join(fields)
                + f'\n{self._otherwise}'
            )
