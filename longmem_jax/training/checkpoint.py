"""Checkpoints: the whole state of a run, saved in the background and verified before it is restored.

Orbax writes and restores. What it does not do is here and in the files next to this: checksums that are
committed together with the state, a comparison of what is asked for with what is there before anything
is read, and one message where a disk fails. A broken checkpoint is moved aside, never deleted.

The folder must be on a file system that renames folders in one act, the same for all processes; a bucket
must be mounted.
"""

import contextlib
import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from absl import flags

from longmem_jax.devices import processes
from longmem_jax.errors import UsageError
from longmem_jax.files import checksum, own_folder, write_json
from longmem_jax.training import checksums, keeping, restoring, storage, structure
from longmem_jax.training import identity as identities
from longmem_jax.training.identity import GoingOn
from longmem_jax.workdir import Hold

# Incremented when parameters get other names or layouts, so that older checkpoints are refused with
# the reason. 2: attention layers have their projections at `attention/projections`.
FORMAT = 2
# With this flag Orbax waits for other processes by their store, for five minutes; without it, by a
# program, which need not end where one of them hangs.
BARRIER = 'experimental_orbax_use_distributed_barrier'


class Checkpointer:
    """The checkpoints of one run; `went_back` says whether later ones were moved aside."""

    def __init__(
        self,
        directory: Path,
        *,
        every: int,
        keep: int,
        identity: dict[str, Any],
        report: Callable[[str], None],
        going_on: GoingOn | None = GoingOn(),  # noqa: B008
        at: int = 0,
        otherwise: str = 'Use another --workdir, or the configuration of this one.',
    ):
        """Opens the folder. To write, it holds the folder above, and makes both if needed.

        Args:
          every: steps between checkpoints; 0 = only where a save is forced.
          keep: number of newest checkpoints to keep; at least two, see `keeping.Keep`.
          report: called with one line when a checkpoint is broken, or differs in what may differ.
          going_on: what counts where training continues; None = the checkpoints are only read. Then
            nothing in the folder changes, another run may write there, and less than the whole state
            may be asked for.
          at: the step whose checkpoint is restored, and no later one; 0 = the newest. Where training
            continues, later ones are moved aside, once for the same settings.
          otherwise: what the user can do when a checkpoint does not match.

        Raises:
          UsageError: another run writes to the folder above, or it cannot be written.
        """
        self.directory, self.every, self._report = directory, every, report
        self._given = restoring.Given(
            directory, identities.plain(identity), going_on, report, otherwise
        )
        if jax.process_count() > 1 and BARRIER in flags.FLAGS:
            flags.FLAGS[BARRIER].value = True
        self._going_on, self._at = going_on, at
        self._run: str | None = None
        self._settings = going_on.stored() if going_on else {}
        self._keep, self.went_back = keeping.Keep(keep), False
        self._pending: list[int] = []  # steps that are being saved
        self._whole: list[int] = []  # and those that are, until they are told
        self._failed = False
        self._hold: Any = None
        self._manager: Any = None
        self._quiet = storage.Quiet()
        try:
            if going_on is not None:
                self._hold = Hold(directory.parent, report)
            with self._saving():
                if going_on is not None:
                    self._manager = _open_to_write(directory, self._keep)
                elif directory.is_dir():
                    options = ocp.CheckpointManagerOptions(create=False)
                    self._manager = ocp.CheckpointManager(directory.resolve(), options=options)
                if self._manager:
                    self._require_listed()
        except BaseException:
            self.close()
            raise

    def _require_listed(self) -> None:
        """Raises `UsageError` if the library, which hides problems, does not see all checkpoints."""
        for _ in range(2):  # another run may have made one in between
            numbered = [path for path in self.directory.iterdir() if path.name.isdecimal()]
            there = {int(path.name) for path in numbered if path.is_dir()}
            if there <= {*self.steps()}:
                return
            self._manager.reload()
        raise UsageError(
            f'{self.directory}: has {len(there)} checkpoints, but the folder could not be read a moment '
            'ago. Nothing was changed; run the same command again.'
        )

    @contextlib.contextmanager
    def _saving(self) -> Iterator[None]:
        """Problems of the disk become one `UsageError`."""
        try:
            yield
        except Exception as error:
            self._failed = True
            self.explain(error)
            raise

    def explain(self, error: BaseException) -> None:
        """Raises `UsageError` if an error is a problem of the disk of the run; else returns."""
        if isinstance(error, UsageError):
            return
        if self._manager and self._pending:
            with contextlib.suppress(Exception):  # the message says what is whole
                self._manager.wait_until_finished()
        with contextlib.suppress(OSError):  # not known now, and the error itself says more
            if self._hold:
                self._hold.require_there()
        reads = self._going_on is None
        storage.require_room(error, self.directory.parent, self.directory, reads=reads)

    def steps(self) -> list[int]:
        """Steps of the committed checkpoints, oldest first."""
        return sorted(self._manager.all_steps()) if self._manager else []

    def due(self, step: int) -> bool:
        """Whether `maybe_save` saves this step without `force`."""
        return self.every > 0 and step % self.every == 0

    def maybe_save(self, step: int, state: Any, *, force: bool = False, bad: int = 0) -> bool:
        """Saves in the background if `step` is due or forced, and not saved yet; returns whether.

        To be called at every step: it is also where the failure of an earlier save is noticed.

        Args:
          bad: how many of the last steps were not finite. Then only what is forced is saved, and no
            checkpoint from before them is given up.

        Raises:
          UsageError: this or an earlier save failed, because the disk is full or cannot be written, or
            the folder was deleted or renamed.
        """
        with self._saving():
            self._hold.require_there()
            if self._pending and not self._manager.is_saving_in_progress():
                self.wait()
            if not (force or (self.due(step) and not bad)) or step in self.steps():
                return False
            self._keep.proven = step - bad - 1
            self._manager.save(
                step,
                args=ocp.args.Composite(
                    state=ocp.args.StandardSave(jax.tree.map(structure.pad_empty, state)),
                    identity=ocp.args.JsonSave(self._stored(step)),
                ),
            )
            self._pending.append(step)
        return True

    def _stored(self, step: int) -> dict[str, Any]:
        """The identity that a checkpoint keeps."""
        if self._run is None:
            self._run = (self.steps() and identities.run_of(self.directory)) or uuid.uuid4().hex[
                :16
            ]
        self._note(identities.RUN, self._run)
        own = {identities.STEP: step, identities.RUN: self._run}
        return identities.plain(self._given.identity | self._settings | own)

    def _note(self, name: str, value: Any) -> None:
        """Notes a fact in `run.json`, where it says another; of several processes one does."""
        if jax.process_index():
            return
        about = identities.about(self.directory)
        if about.get(name) != value:
            write_json(self.directory / identities.RUN_FILE, about | {name: value}, indent=None)

    def keep_best(self, step: int | None) -> None:
        """Keeps the checkpoint of a step, whatever comes after it; and says which that is to readers."""
        self._keep.best = step
        self._note(identities.BEST, step)

    def wait(self) -> None:
        """Waits until everything saved is on disk; errors as in `maybe_save`."""
        with self._saving():
            self._manager.wait_until_finished()
            self._whole += self._pending
            self._pending.clear()

    def newly_whole(self) -> list[int]:
        """Steps whose checkpoints are whole on the disk, as `maybe_save` or `wait` found; each once."""
        told, self._whole = self._whole, []
        return told

    def close(self) -> None:
        """Waits for pending saves, then closes; may be called twice. Errors as in `maybe_save`."""
        manager, self._manager = self._manager, None
        try:
            if manager and self._failed:
                with contextlib.suppress(Exception):  # raised before
                    manager.close()
            elif manager and self._going_on is None:
                manager.close()
            elif manager:
                with self._saving():
                    manager.close()
        finally:
            for part in (self._hold, self._quiet):
                if part is not None:
                    part.close()

    def _put_aside(self, step: int, reason: str) -> None:
        if self._going_on is None:
            self._report(f'Checkpoint {step} is broken ({reason}); the one before it is used.')
            return
        folder = keeping.folder_of(self.directory)
        self._move([step], folder)
        self._report(
            f'Checkpoint {step} is broken ({reason}); it was moved to {folder}/{step} and the one '
            'before it is used.'
        )

    def _move(self, steps: list[int], folder: Path) -> None:
        """Moves checkpoints to a folder; no process continues before it is done."""

        def move() -> None:
            for step in reversed(steps if jax.process_index() == 0 else []):
                keeping.move(self.directory, step, folder)

        processes.one_first(move)
        self._manager.reload()

    def _go_back(self, at: int) -> int | None:
        """Moves the checkpoints after step `at` aside; None if the run did so before.

        A command that a cluster starts again must not lose what the run has trained since.
        """
        settings = json.dumps(identities.plain(self._settings)).encode()
        mark = [at, checksum(settings)[:16]]
        back = identities.about(self.directory).get(identities.BACK)
        if processes.from_first(back == mark):
            self._report(
                f'config.checkpoint.at = {at}: the run went back there before, with these settings; '
                'resuming from its newest checkpoint.'
            )
            return None
        self._require_step(at)
        later = [step for step in self.steps() if step > at]
        folder = keeping.left_of(self.directory)
        self._move(later, folder)
        self.went_back = bool(later)
        if later:
            listed = ', '.join(map(str, later))
            self._report(f'Back to step {at}: the checkpoints {listed} were moved to {folder}.')
        self._note(identities.BACK, mark)
        return at

    def _require_step(self, at: int) -> None:
        if at not in self.steps():
            raise UsageError(
                f'{self.directory}: no checkpoint of step {at}; there are '
                f'{", ".join(map(str, self.steps())) or "none"} (config.checkpoint.keep keeps more).'
            )

    def restore(self, abstract: Any, at: int | None = None) -> tuple[Any, int] | None:
        """Restores the newest intact checkpoint, or that of a step.

        Args:
          abstract: the state as `jax.ShapeDtypeStruct` with shardings; where checkpoints are only
            read, a dictionary with some of its fields is enough.
          at: the step; None = that of the run, or the newest.

        Returns:
          state, step; None if there never was a checkpoint.

        Raises:
          UsageError: it belongs to another model, other data or another run (the message names what
            differs), it is whole but has another structure, or all are broken, now or in an earlier
            attempt; there is none of step `at`.
        """
        if at is None and self._at:
            at = self._at if self._going_on is None else self._go_back(self._at)
        steps = self.steps()
        if at is not None:
            self._require_step(at)
            steps = [at]
        for step in reversed(steps):
            found = restoring.restore(self._manager, self._given, step, abstract)
            if not found.broken:
                self._run = found.run
                return found.state, step
            self._put_aside(step, found.broken)
        keeping.require_none(self.directory, steps, at, moved=self._going_on is not None)
        return None

    def require_format(self) -> None:
        """Raises `UsageError` if the newest checkpoint has other parameter names."""
        for step in self.steps()[-1:]:
            try:
                saved = restoring.identity_of(self._manager, step)
            except Exception:  # a broken one: `restore` reports it and uses the one before
                return
            where = f'{self.directory}: checkpoint {step}'
            identities.require_format(saved, self._given.identity, where)


def _open_to_write(directory: Path, keep: keeping.Keep) -> ocp.CheckpointManager:
    for path in own_folder(directory).iterdir():
        if path.is_symlink() and path.name[:1].isdecimal():
            raise UsageError(
                f'{path}: is a symbolic link, and a run deletes checkpoints. Nothing was changed; put '
                'the folder itself there, or move the link away, and run the same command.'
            )
    return ocp.CheckpointManager(
        directory.resolve(),
        options=ocp.CheckpointManagerOptions(
            preservation_policy=keep,
            create=True,
            cleanup_tmp_directories=True,
            enable_async_checkpointing=True,
            temporary_path_class=checksums.SealedFolder,
            # Else a folder that cannot be made leaves threads that wait for it, and the process never
            # ends.
            async_options=ocp.AsyncOptions(create_directories_asynchronously=False),
        ),
    )


def of_run(
    workdir: Path,
    settings: Any,
    identity: dict[str, Any],
    report: Callable[[str], None],
    going_on: GoingOn | None = None,
) -> Checkpointer:
    """The checkpoints of a workdir; `settings` is `config.checkpoint`, the rest as in `Checkpointer`."""
    return Checkpointer(
        workdir / 'checkpoints',
        every=settings.every,
        keep=settings.keep,
        identity=identity,
        report=report,
        going_on=going_on,
        at=settings.at,
    )


def newest(saver: Checkpointer, abstract: Any, at: int | None = None) -> tuple[Any, int]:
    """The state of the newest checkpoint, or of that of step `at`, and its step; closes `saver`.

    Raises:
      UsageError: there is no checkpoint, or it belongs to another run.
    """
    try:
        restored = saver.restore(abstract, at)
    finally:
        saver.close()
    if restored is None:
        raise UsageError(f'--workdir={saver.directory.parent}: no checkpoint there; train first.')
    return restored
