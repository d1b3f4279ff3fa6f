"""Settings of the C allocator, each in a process of its own: they cannot be undone."""

import fnmatch
import os
import subprocess
import sys

import pytest

from longmem_jax.devices import allocator


@pytest.fixture(autouse=True)
def only_glibc():
    """Skips where the settings do nothing."""
    if allocator._glibc() is None:
        pytest.skip('needs glibc')


# Pages that the third of equal blocks of 20 MB needs; by itself glibc uses those of the second.
AS_LIBRARY = """
import ctypes, resource
from longmem_jax.devices import allocator
allocator.give_back()
libc = ctypes.CDLL('libc.so.6')
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
for _ in range(3):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = libc.malloc(20 << 20)
    ctypes.memset(block, 1, 20 << 20)
    libc.free(block)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_a_program_that_uses_the_library_keeps_its_settings():
    problems = subprocess.check_output([sys.executable, '-c', AS_LIBRARY], text=True)
    assert int(problems) < 1000, 'give_back must set nothing where keep_pages was not called'


def test_an_older_c_library_gets_the_most_that_it_takes(monkeypatch):
    settings = {}

    class Old:
        def mallopt(self, option, value):
            if option == allocator.M_MMAP_THRESHOLD and value > 32 << 20:
                return 0
            settings[option] = value
            return 1

    monkeypatch.setattr(allocator, '_glibc', Old)
    monkeypatch.setattr(allocator, '_kept', False)
    allocator.keep_pages()
    assert settings[allocator.M_MMAP_THRESHOLD] == 32 << 20, 'else it is 128 kB from now on'


# A program imports the library, or `longmem` starts; then a new thread asks for a block of 64 MB.
COMMAND = """
import sys
sys.argv = [sys.argv[1]]
import longmem_jax.main
import ctypes, threading, types
if sys.argv[0] == 'bin/longmem':
    sys.modules['longmem_jax.commands.switchboard'] = types.SimpleNamespace(main=lambda: None)
    longmem_jax.main.main()
from pathlib import Path

def allocate():
    libc = ctypes.CDLL('libc.so.6')
    libc.malloc.restype = ctypes.c_void_p
    blocks.append(libc.malloc(64 << 20))

blocks = []
thread = threading.Thread(target=allocate)
thread.start()
thread.join()
heap = [line for line in Path('/proc/self/maps').read_text().splitlines() if '[heap]' in line]
ranges = [[int(part, 16) for part in line.split()[0].split('-')] for line in heap]
print(any(first <= blocks[0] < end for first, end in ranges))
"""


@pytest.mark.parametrize(
    ('arguments', 'variables', 'kept'),
    [
        (['bin/longmem'], {}, 'True'),
        (['program'], {}, 'False'),
        (['bin/longmem'], dict(JAX_PLATFORMS='tpu,cpu'), 'False'),
        (['bin/longmem', '--mode=compile'], {}, 'False'),
        (['bin/longmem'], dict(MALLOC_ARENA_MAX='16'), 'False'),
    ],
    ids=['command', 'program', 'on a TPU', 'compiles', "the user's own"],
)
def test_threads_of_a_command_share_the_heap_that_keeps_its_pages(arguments, variables, kept):
    command = [sys.executable, '-c', COMMAND, *arguments]
    environment = os.environ | dict(JAX_PLATFORMS='cpu') | variables
    assert subprocess.check_output(command, text=True, env=environment).strip() == kept, (
        'keep_pages must be called before any thread has started, by commands only, for steps on CPUs'
    )


@pytest.mark.parametrize(
    ('asked', 'packages', 'files', 'expected'),
    [
        ({}, [], [], True),
        ({}, ['libtpu'], [], True),
        ({}, [], ['/dev/nvidiactl'], True),
        ({}, ['jax_plugins'], ['/dev/accel0'], True),
        ({}, ['libtpu'], ['/dev/accel0'], False),
        ({}, ['libtpu'], ['/dev/vfio/0'], False),
        ({}, ['jax_plugins'], ['/dev/nvidiactl', '/dev/nvidia0'], False),
        ({}, ['jax_plugins'], ['/dev/kfd'], False),
        (dict(JAX_PLATFORMS='cpu'), ['libtpu'], ['/dev/accel0'], True),
        (dict(JAX_PLATFORMS='cuda,cpu'), [], [], False),
        (dict(JAX_PLATFORMS='', JAX_PLATFORM_NAME='gpu'), [], [], False),
    ],
)
def test_steps_run_on_an_accelerator_if_jax_can_use_it(
    monkeypatch, asked, packages, files, expected
):
    for name in ('JAX_PLATFORMS', 'JAX_PLATFORM_NAME'):
        monkeypatch.setenv(name, asked.get(name, ''))
    found = {name: object() for name in packages}
    monkeypatch.setattr(allocator.importlib.util, 'find_spec', found.get)
    monkeypatch.setattr(allocator.glob, 'glob', lambda pattern: fnmatch.filter(files, pattern))
    assert allocator._computes_on_cpus() == expected


@pytest.mark.parametrize(('name', 'kept'), [('-m', 'True'), ('program', 'False')])
def test_experiments_keep_their_pages_if_they_are_commands(name, kept):
    program = f'import sys; sys.argv = [{name!r}]; import experiments; '
    program += "print('jax' in sys.modules, experiments.allocator._kept)"
    environment = os.environ | dict(JAX_PLATFORMS='cpu')
    command = [sys.executable, '-c', program]
    found = subprocess.check_output(command, text=True, env=environment).split()
    assert found == ['False', kept], (
        'experiments/__init__.py must come before JAX, for commands only'
    )
