"""Commands in processes of their own, forked from one that has imported what they need.

Starting Python with JAX takes longer than most commands of the tests.
"""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.processes import environment

ROOT = Path(__file__).parent.parent

# Answers every line of JSON by one: [module, arguments, cache, devices, output, error] starts a
# command, the answer is its process id; for a process id, it is the exit code, once there is one.
SERVER = """
import json, os, runpy, sys, traceback
import jax, matplotlib.backends.backend_agg
from longmem_jax import stopping
from longmem_jax.agents import model, settings
from longmem_jax.commands import compile, entry, evaluate, floors, generate, listing
from longmem_jax.commands import train, translate
from longmem_jax.config import base, overrides, sections
from longmem_jax.data.sets import passkey
from longmem_jax.hosts import classifier
from longmem_jax.hosts.commands import export
from longmem_jax.hosts.data import class_sets, cmu_dog, superglue_pairs
from longmem_jax.microscope import inspect
from longmem_jax.generation import text
from longmem_jax.retrieval import build_datastore, spalm

answers = os.fdopen(os.dup(1), 'w')
os.dup2(2, 1)
base.base(*sections.sections())  # imports the sections of all subjects
for line in sys.stdin:
    asked = json.loads(line)
    if isinstance(asked, int):
        answer = os.waitstatus_to_exitcode(os.waitpid(asked, 0)[1])
    else:
        module, arguments, cache, variables, output, error = asked
        answer = os.fork()
        if not answer:
            stopping.listen(command=True)  # as `python -m` does at its start
            os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
            os.dup2(os.open(error, os.O_WRONLY | os.O_CREAT) if error else 1, 2)
            # The server's streams were made for other files, such as ones that can be sought.
            sys.stdout, sys.stderr = open(1, 'w', closefd=False), open(2, 'w', closefd=False)
            os.environ.update(variables)
            jax.config.update('jax_compilation_cache_dir', cache)  # was read with the import
            sys.argv, code = [module, *arguments], 1
            try:
                runpy.run_module(module, run_name='__main__', alter_sys=True)
                code = 0
            except SystemExit as end:
                code = end.code or 0
            except BaseException:
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    print(answer, file=answers, flush=True)
"""


class Fork:
    """A running command; the names are those of `subprocess.Popen`.

    Attributes:
      pid: number of the process.
      stdout: what it prints, and its errors if they have no file, line by line; None = to a file.
      returncode: exit code; None before `wait`.
    """

    def __init__(self, server: Any, pid: int, stdout: Any):
        self._server, self.pid, self.stdout, self.returncode = server, pid, stdout, None

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self) -> int:
        """The exit code, once there is one; minus the number of the signal that killed it."""
        if self.returncode is None:
            self.returncode = _ask(self._server, self.pid)
        return self.returncode

    def communicate(self) -> tuple[str, None]:
        """The rest of what it prints, and no second text; waits for its end."""
        with self.stdout:
            rest = self.stdout.read()
        self.wait()
        return rest, None


def _ask(server: Any, question: Any) -> int:
    print(json.dumps(question), file=server.stdin, flush=True)
    return int(server.stdout.readline())


@contextlib.contextmanager
def commands(preload: str = '', path: str = '') -> Iterator[Callable[..., Fork]]:
    """A function that starts `python -m longmem_jax.main ARGUMENTS` from a list; its options:

    module: another module.
    cache: folder of compiled programs, not for two processes at once; None = one for all commands.
    devices: virtual CPU devices.
    output: file for what it prints; None = `Fork.stdout`, which must be read.
    error: file for its standard error; None = with its output.
    variables: of its environment, besides those of all.

    Args:
      preload: a library that is loaded below all others (`LD_PRELOAD`); '' = none.
      path: folder of further packages; '' = none.
    """
    more = {'LD_PRELOAD': preload, 'PYTHONPATH': path}
    with tempfile.TemporaryDirectory() as folder, subprocess.Popen(
        [sys.executable, '-c', SERVER], cwd=ROOT, text=True,
        env=environment(cache=folder) | {name: value for name, value in more.items() if value},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    ) as server:  # fmt: skip
        numbers = itertools.count()

        def start(
            arguments: list[str],
            module: str = 'longmem_jax.main',
            cache: Any = None,
            devices: int = 1,
            output: Any = None,
            error: Any = None,
            variables: dict[str, str] | None = None,
        ) -> Fork:
            pipe = f'{folder}/output{next(numbers)}'
            if output is None:
                os.mkfifo(pipe)
            flags = {'XLA_FLAGS': environment(devices)['XLA_FLAGS']} | (variables or {})
            cache, error = str(cache or f'{folder}/compiled'), error and str(error)
            pid = _ask(server, [module, arguments, cache, flags, str(output or pipe), error])
            return Fork(server, pid, open(pipe) if output is None else None)

        yield start


@pytest.fixture(scope='module')
def start() -> Iterator[Callable[..., Fork]]:
    """See `commands`."""
    with commands() as made:
        yield made
