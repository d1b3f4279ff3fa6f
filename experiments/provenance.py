"""Where numbers come from: every JSON file of an experiment has it beside its numbers, as `run`."""

import datetime
import importlib.metadata
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax

from longmem_jax import files

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
    given = [re.sub(r'(^|=)/[^\s=]+', r'\1PATH', argument) for argument in arguments[1:]]
    return shlex.join(['python', *given])


def save(path: Path, content: Any, seeds: Iterable[int], device: str = '') -> Any:
    """Writes numbers as JSON, whole or not at all, with `run`; returns what is written.

    `content`: a dictionary, or a list of them, each of which gets `run` unless it has it already.
    """
    run = of_run(seeds, device)
    several = content if isinstance(content, list) else [content]
    marked = [{'run': run} | each for each in several]
    written = marked if isinstance(content, list) else marked[0]
    files.write_json(path, written)
    return written
