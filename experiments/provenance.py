"""Where numbers come from: every JSON file of an experiment has it beside its numbers, as `run`."""

import datetime
import importlib.metadata
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import jax

from longmem_jax import files
from longmem_jax.errors import UsageError

ROOT = Path(__file__).parent.parent


def git(*arguments: str, folder: Path | str = ROOT) -> str | None:
    """What git says of a checkout; None outside of one, without git, or if it refuses."""
    command = ['git', '-C', str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors='replace')
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


# As the program begins: a run can take hours, and the files of the checkout can change meanwhile.
CHECKOUT = git('rev-parse', '--short=12', 'HEAD')
DIRTY = bool(git('status', '--porcelain', '--untracked-files=no')) if CHECKOUT else None
# A copy of the files without git can be told what it is a copy of.
COMMIT = CHECKOUT or os.environ.get('LONGMEM_JAX_COMMIT')


def of_run(seeds: Iterable[int], device: str = '') -> dict[str, Any]:
    """What `run` has: commit, date, seeds, versions, device and command.

    Args:
      seeds: of the numbers beside it.
      device: on which they were measured; '' = the devices of this process. Pass it if this process
        must leave the devices to others.

    Returns:
      `commit` is None outside of a checkout, unless it was told; `dirty` says that files of the
      commit were changed.
    """
    return {
        'commit': COMMIT,
        'dirty': DIRTY,
        'date': datetime.datetime.now(datetime.UTC).isoformat(timespec='minutes'),
        'seeds': list(seeds),
        'versions': {name: importlib.metadata.version(name) for name in ('longmem-jax', 'jax')},
        'device': device or f'{jax.device_count()} x {jax.devices()[0].device_kind}',
        'command': command(sys.orig_argv),
    }


def command(arguments: list[str]) -> str:
    """A command line for others: folders of this machine are `PATH`."""
    return shlex.join(['python', *without_folders(arguments[1:])])


def without_folders(arguments: Iterable[str]) -> list[str]:
    """Arguments with `PATH` in place of folders of this machine."""
    return [re.sub(r'(^|=)/[^\s=]+', r'\1PATH', argument) for argument in arguments]


def failed(arguments: Sequence[str], log: Path) -> str:
    """What to say of a command that failed: with the last line that it wrote to its log."""
    why = log.read_text(errors='replace').strip().rpartition('\n')[2] if log.exists() else ''
    return '\n'.join([f'failed: {" ".join(arguments)}', *([why] if why else []), f'see {log}'])


def save(path: Path, content: Any, seeds: Iterable[int], device: str = '') -> Any:
    """Writes numbers as JSON, whole or not at all, with `run`; returns what is written.

    Makes the folder. `content`: a dictionary, or a list of them, each of which gets `run` unless it has
    it already.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    run = of_run(seeds, device)
    several = content if isinstance(content, list) else [content]
    marked = [{'run': run} | each for each in several]
    written = marked if isinstance(content, list) else marked[0]
    files.write_json(path, written)
    return written


def saved(path: Path) -> Any:
    """What is in a JSON file of numbers; None if it is not there."""
    return json.loads(path.read_text()) if path.exists() else None


def read(path: Path, *keys: str) -> Any:
    """The numbers of a JSON file that an experiment wrote, which have at least these keys.

    Raises:
      UsageError: it is damaged, or something else.
    """
    try:
        found = json.loads(path.read_text())
    except (ValueError, OSError) as error:
        raise UsageError(f'{path}: {error}; delete it, or choose another --output') from None
    if not isinstance(found, dict) or (absent := [key for key in keys if key not in found]):
        words = 'it is no dictionary' if not isinstance(found, dict) else f'without {absent[0]!r}'
        raise UsageError(
            f'{path}: is no file of this experiment ({words}); delete it, or choose another --output'
        )
    return found


def require_same(where: Path | str, before: Sequence[str], now: Sequence[str]) -> None:
    """Raises `UsageError` if what is there was run with other flags than what is to be run."""
    if list(before) != list(now):
        were, wanted = (shlex.join(flags) or 'no flags' for flags in (before, now))
        raise UsageError(
            f'{where}: was run with {were}, not with {wanted}. All numbers of a folder have the same '
            'flags: choose another --output, or delete it.'
        )


def exit_unless_same(where: Path, known: dict[str, Any], asked: list[str]) -> None:
    """Ends a command for which `known`, saved with its `flags`, is of another run."""
    try:
        require_same(where, known.get('flags', asked), asked)
    except UsageError as error:
        raise SystemExit(f'UsageError: {error}') from None
