"""Restores one checkpoint, after everything about it that can be compared was compared."""

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from longmem_jax.devices import processes
from longmem_jax.errors import UsageError, of_disk
from longmem_jax.training import checksums, structure
from longmem_jax.training import identity as identities
from longmem_jax.training.identity import GoingOn


@dataclasses.dataclass(frozen=True)
class Given:
    """What checkpoints are compared with; fields as in `Checkpointer`."""

    directory: Path
    identity: dict[str, Any]
    going_on: GoingOn | None
    report: Callable[[str], None]
    otherwise: str


@dataclasses.dataclass(frozen=True)
class Found:
    """A checkpoint that was looked at.

    Attributes:
      broken: why it cannot be used; '' if it can.
      state: what was asked for.
      run: the run that it is of; None = it is not known.
    """

    broken: str = ''
    state: Any = None
    run: str | None = None


def identity_of(manager: ocp.CheckpointManager, step: int) -> dict[str, Any]:
    """The identity stored in a checkpoint; any exception: it is damaged."""
    args = ocp.args.Composite(identity=ocp.args.JsonRestore())
    return manager.restore(step, args=args)['identity']


def restore(manager: ocp.CheckpointManager, given: Given, step: int, abstract: Any) -> Found:
    """Restores a checkpoint if it is whole and belongs to the run.

    Where checkpoints are only read, some fields of the state are enough for `abstract`.

    Raises:
      UsageError: it is whole, but belongs to another model, other data or another run, or has another
        structure.
    """
    where = f'{given.directory}: checkpoint {step}'
    if reason := _damage(given, step):
        return Found(reason)
    try:
        saved = identity_of(manager, step)
        shapes = structure.saved_in(given.directory / str(step))
    except Exception as error:
        raise _unreadable(error, where) from error
    if reason := _compare(given, saved, step, where):
        return Found(reason)
    asked = structure.asked_for(abstract)
    going_on = given.going_on
    _require_fits(shapes, asked, where, part=going_on is None)
    other = identities.other_data(saved, going_on, where) if going_on else []
    try:
        state = _read(manager, step, abstract, part=shapes.keys() != asked.keys())
    except Exception as error:
        raise _unreadable(error, where) from error
    if going_on and (lines := identities.other_settings(saved, going_on)):
        given.report(f'Differs from checkpoint {step}: {"; ".join(lines)}.')
    if other:
        given.report(f'Other data than that of checkpoint {step}: read from its first document.')
        state = state.replace(cursor=jax.tree.map(lambda leaf: leaf * 0, state.cursor))
    run = saved.get(identities.RUN) or identities.run_of(given.directory)
    return Found(state=state, run=run)


def _damage(given: Given, step: int) -> str:
    """`checksums.damage`, read by process 0 for all: they must not differ in what they do."""
    found, problem = '', ''
    if jax.process_index() == 0:
        try:
            found = checksums.damage(given.directory, step, given.report)
        except UsageError as error:
            problem = str(error)
    found, problem = processes.from_first([found, problem])
    if problem:
        raise UsageError(problem)
    return found


def _unreadable(error: Exception, where: str) -> UsageError:
    """The error for a checkpoint whose checksums are right."""
    return UsageError(
        f'{where} is intact, but cannot be restored ({_in_short(error)}). Nothing was '
        'changed; run the same command again.'
    )


def _compare(given: Given, saved: Any, step: int, where: str) -> str:
    """Compares the identity of a checkpoint: why it is broken, or ''; raises `UsageError`."""
    if not isinstance(saved, dict):
        return 'its identity is not a list of fields'
    identities.require_same(saved, given.identity, given.going_on, where, given.otherwise)
    run, ours = saved.get(identities.RUN), identities.run_of(given.directory)
    if run and ours and run != ours:
        raise UsageError(
            f'{where} belongs to run {run}, this folder to {ours}. Take {step} out of the '
            'folder, or use another --workdir.'
        )
    if saved.get(identities.STEP, step) != step:
        return f'it holds step {saved[identities.STEP]}'
    return ''


def _require_fits(
    saved: structure.Shapes, asked: structure.Shapes, where: str, *, part: bool
) -> None:
    if lines := structure.differences(saved, asked, part=part):
        more = f'\n  and {len(lines) - 10} more' if len(lines) > 10 else ''
        listed = '\n  '.join(lines[:10]) + more
        if all(line.startswith('optimizer/') for line in lines):
            raise UsageError(
                f'{where} was saved with another optimizer than the one given. Go back to that one: the '
                'same config.optimizer, or the same object as optimizer= of longmem_jax.train; or use '
                'another --workdir, where config.train.start_from keeps what this run has learned. In '
                f'its state:\n  {listed}'
            )
        if all(line.startswith('average') for line in lines):
            missing = any('average' in name for name in asked)
            has, needed = ('no', '0') if missing else ('an', 'above 0')
            raise UsageError(
                f'{where} has {has} average of the parameters: set config.train.ema_decay to {needed}, '
                'with which it was saved; or use another --workdir, where config.train.start_from keeps '
                'what this run has learned.'
            )
        if all(line.startswith('memory/') for line in lines):
            raise UsageError(
                f'{where} has other states of the memories:\n  {listed}\nGo back to the code of the '
                'memory and to the config.train that it was saved with, or use another --workdir, where '
                'config.train.start_from keeps what this run has learned.'
            )
        raise UsageError(
            f'{where} does not fit this configuration:\n  {listed}\nGo back to the config.optimizer and '
            'config.train that it was saved with, or use another --workdir.'
        )


def _read(manager: ocp.CheckpointManager, step: int, abstract: Any, *, part: bool) -> Any:
    padded = jax.tree.map(structure.pad_empty, abstract)
    if part:
        wanted = ocp.checkpoint_utils.construct_restore_args(padded)
        args = ocp.args.PyTreeRestore(padded, restore_args=wanted, partial_restore=True)
    else:
        args = ocp.args.StandardRestore(padded)
    state = manager.restore(step, args=ocp.args.Composite(state=args))['state']
    return jax.tree.map(structure.unpad_empty, state, abstract)


def _in_short(error: Exception) -> str:
    if number := of_disk(error):
        return os.strerror(number)
    return f'{type(error).__name__}: {(str(error).splitlines() or [""])[0][:200]}'
