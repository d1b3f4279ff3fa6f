"""Checkpoints: the whole state of a run, saved in the background and verified before it is restored.

Orbax writes and restores, but it does not notice when the bytes of an array have changed. So every
committed checkpoint gets a list of checksums, and a broken one is moved aside, never deleted.
"""

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

from longmem_jax.config import earlier
from longmem_jax.errors import UsageError
from longmem_jax.files import whole_file

CHECKSUMS = 'checksums.json'
# Incremented when parameters get other names or layouts, so that older checkpoints are refused with
# the reason. 2: attention layers have their projections at `attention/projections`.
FORMAT = 2
CHUNK = 1 << 22


def _checksum(path: Path) -> int:
    value = 0
    with path.open('rb') as file:
        while chunk := file.read(CHUNK):
            value = zlib.crc32(chunk, value)
    return value


def _file_checksums(folder: Path) -> dict[str, int]:
    return {
        path.relative_to(folder).as_posix(): _checksum(path)
        for path in sorted(folder.rglob('*'))
        if path.is_file()
    }


def _pad_empty(leaf: Any) -> Any:
    """Pads an empty array, which Orbax cannot store, to one element along its empty axes."""
    if leaf.size:
        return leaf
    shape = tuple(max(size, 1) for size in leaf.shape)
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(shape, leaf.dtype, sharding=leaf.sharding)
    return jnp.zeros(shape, leaf.dtype, device=leaf.sharding)


def _unpad_empty(leaf: Any, abstract: Any) -> Any:
    """The array as it was before `_pad_empty`."""
    if abstract.size:
        return leaf
    return jnp.zeros(abstract.shape, abstract.dtype, device=abstract.sharding)


def differing_fields(saved: Any, given: Any, where: str = '') -> list[str]:
    """A line `field: value in the checkpoint, value given` for every leaf that differs."""
    if isinstance(saved, dict) and isinstance(given, dict):
        differences = []
        for name in sorted({*saved, *given}):
            field = f'{where}.{name}' if where else name
            differences += differing_fields(saved.get(name), given.get(name), field)
        return differences
    return [] if saved == given else [f'{where}: {saved!r} in the checkpoint, {given!r} given']


class Checkpointer:
    """The checkpoints of one run.

    Attributes:
      directory: folder of the checkpoints, one sub-folder per step.
      every: steps between checkpoints; 0 = only at the end.
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
        """Opens the folder, and creates it if needed.

        Args:
          directory: folder of the checkpoints.
          every: steps between checkpoints; 0 = only where a save is forced.
          keep: number of newest checkpoints to keep.
          identity: nested dictionary that a checkpoint must match, such as model and tokenizer.
          report: called with one line when a checkpoint is broken.
          otherwise: what the user can do when a checkpoint does not match it.
        """
        self.directory, self.every, self._report = directory, every, report
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
        """Steps of the committed checkpoints, oldest first."""
        return sorted(self._manager.all_steps())

    def due(self, step: int) -> bool:
        """Whether `maybe_save` saves this step without `force`."""
        return self.every > 0 and step % self.every == 0

    def maybe_save(self, step: int, state: Any, *, force: bool = False) -> bool:
        """Saves in the background if `step` is due or forced, and not saved yet; returns whether."""
        if step in self._pending or not (force or self.due(step)):
            return False
        self._seal()
        if step in self.steps():
            return False
        self._manager.save(
            step,
            args=ocp.args.Composite(
                state=ocp.args.StandardSave(jax.tree.map(_pad_empty, state)),
                identity=ocp.args.JsonSave(self._identity),
            ),
        )
        self._pending.append(step)
        return True

    def _seal(self) -> None:
        """Waits for pending saves and writes their checksums."""
        if not self._pending:
            return
        self._manager.wait_until_finished()
        for step in self._pending:
            folder = self.directory / str(step)
            if jax.process_index() == 0 and folder.is_dir():
                with whole_file(self._checksums(step)) as partial:
                    partial.write_text(json.dumps(_file_checksums(folder), indent=0))
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
        """Waits for pending saves, then closes."""
        self.wait()
        self._manager.close()

    def _checksums(self, step: int) -> Path:
        return self.directory / f'{step}.{CHECKSUMS}'

    def _damage(self, step: int) -> str:
        """What is wrong with the files of a checkpoint; '' if nothing."""
        folder, sums = self.directory / str(step), self._checksums(step)
        if not sums.exists():
            return ''  # killed between commit and checksums; restoring will show
        try:
            expected = json.loads(sums.read_text())
        except ValueError:
            return f'{sums.name} cannot be read'
        actual = _file_checksums(folder)
        for name in sorted({*expected, *actual}):
            if name not in actual:
                return f'{name} is missing'
            if actual[name] != expected.get(name):
                return f'{name} was changed or truncated'
        return ''

    @property
    def _broken_folder(self) -> Path:
        return self.directory.parent / f'{self.directory.name}-broken'

    def _move_aside(self, step: int, reason: str) -> None:
        folder = self._broken_folder
        self._report(
            f'Checkpoint {step} is broken ({reason}); it was moved to {folder}/{step} and the one '
            'before it is used.'
        )
        if jax.process_index() == 0:
            folder.mkdir(exist_ok=True)
            copies, target = 0, folder / str(step)
            while target.exists():
                copies += 1
                target = folder / f'{step}-{copies}'
            (self.directory / str(step)).rename(target)
            self._checksums(step).unlink(missing_ok=True)
        self._manager.reload()

    def restore(self, abstract: Any, at: int | None = None) -> tuple[Any, int] | None:
        """Restores the newest intact checkpoint, or that of a step.

        Args:
          abstract: the train state as `jax.ShapeDtypeStruct` with shardings.
          at: the step; None = the newest.

        Returns:
          state, step; None if there never was a checkpoint.

        Raises:
          UsageError: it belongs to another model (the message names the differing fields), it is
            intact but has another structure, or all are broken, now or in an earlier attempt; there
            is none of step `at`.
        """
        steps = self.steps()
        if at is not None:
            if at not in steps:
                raise UsageError(
                    f'{self.directory}: no checkpoint of step {at}; there are '
                    f'{", ".join(map(str, steps)) or "none"} (config.checkpoint.keep keeps more).'
                )
            steps = [at]
        for step in reversed(steps):
            reason = self._damage(step)
            if not reason:
                try:
                    self._require_same(self._saved_identity(step), step)
                    padded = jax.tree.map(_pad_empty, abstract)
                    state = self._manager.restore(
                        step, args=ocp.args.Composite(state=ocp.args.StandardRestore(padded))
                    )['state']
                    return jax.tree.map(_unpad_empty, state, abstract), step
                except UsageError:
                    raise
                except Exception as error:
                    reason = f'{type(error).__name__}: {(str(error).splitlines() or [""])[0][:200]}'
                    if self._checksums(step).exists():
                        # Its bytes are as saved, so the configuration is what does not match.
                        raise UsageError(
                            f'{self.directory}: checkpoint {step} is intact, but does not fit this '
                            f'configuration ({reason}). Go back to the config.optimizer and '
                            'config.train that it was saved with, or use another --workdir.'
                        ) from error
            self._move_aside(step, reason)
        if at is not None:
            raise UsageError(
                f'{self.directory}: checkpoint {at} is broken (moved to {self._broken_folder.name}); '
                'leave it out, or train again.'
            )
        if steps:
            raise UsageError(
                f'{self.directory}: all {len(steps)} checkpoints are broken (moved to '
                f'{self._broken_folder.name}). Nothing was overwritten; use another --workdir to start '
                'again.'
            )
        if self._broken_folder.is_dir() and any(self._broken_folder.iterdir()):
            raise UsageError(
                f'{self.directory}: no checkpoint is left of this run, those it had are broken (in '
                f'{self._broken_folder}). Use another --workdir, or delete that folder, to start again.'
            )
        return None

    def require_format(self) -> None:
        """Raises `UsageError` if the newest checkpoint has other parameter names."""
        for step in self.steps()[-1:]:
            try:
                saved = self._saved_identity(step)
            except Exception:  # a broken one: `restore` reports it and uses the one before
                return
            self._require_format(saved, step)

    def _saved_identity(self, step: int) -> dict[str, Any]:
        return self._manager.restore(
            step, args=ocp.args.Composite(identity=ocp.args.JsonRestore())
        )['identity']

    def _require_format(self, identity: dict[str, Any], step: int) -> None:
        saved, current = identity.get('format', 1), self._identity.get('format', 1)
        if saved != current:
            age = 'an earlier' if saved < current else 'a later'
            raise UsageError(
                f'{self.directory}: checkpoint {step} was made by {age} version, whose parameters have '
                f'other names (format {saved}, this version has {current}). Train again in another '
                '--workdir, or use that version.'
            )

    def _require_same(self, identity: dict[str, Any], step: int) -> None:
        self._require_format(identity, step)
        name = 'config.model'
        if name in identity and name in self._identity:
            model = earlier.completed(identity[name], self._identity[name])
            identity = identity | {name: json.loads(json.dumps(model))}
        fields = differing_fields(identity, self._identity)
        if fields:
            raise UsageError(
                f'{self.directory}: checkpoint {step} belongs to another run:\n  '
                + '\n  '.join(fields)
                + f'\n{self._otherwise}'
            )


def of_run(
    workdir: Path, settings: Any, identity: dict[str, Any], report: Callable[[str], None]
) -> Checkpointer:
    """The checkpoints of a workdir; `settings` is `config.checkpoint`, the rest as in `Checkpointer`."""
    folder = workdir / 'checkpoints'
    return Checkpointer(
        folder, every=settings.every, keep=settings.keep, identity=identity, report=report
    )


def newest(saver: Checkpointer, abstract: Any, at: int | None = None) -> tuple[Any, int]:
    """The state of the newest checkpoint, or of that of step `at`, and its step; closes `saver`.

    Raises:
      UsageError: there is no checkpoint, or it is of another run.
    """
    restored = saver.restore(abstract, at)
    saver.close()
    if restored is None:
        raise UsageError(f'--workdir={saver.directory.parent}: no checkpoint there; train first.')
    return restored
