"""Files that are not configs, and problems of a disk."""

import errno
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import quickstart
from longmem_jax.commands import entry
from longmem_jax.config import files
from longmem_jax.devices import initial
from longmem_jax.errors import UsageError, disk_errors, memory_errors
from tests import processes


@pytest.mark.parametrize(
    'text',
    [
        'def get_config(): ...',
        'from configs.quickstart import get_config',
        'from configs.quickstart import *',
        'from configs.quickstart import other as get_config',
        'get_config = other',
        'def get_config(:  # Python tells where',
    ],
)
def test_a_file_may_come_by_get_config_in_any_way(tmp_path, text):
    path = tmp_path / 'config.py'
    path.write_text(text)
    entry._config_file([f'--config={path}:tiny'])


@pytest.mark.parametrize('name, text', [('a.py', 'x = 3'), ('a.txt', '{"a": '), ('b.py', '')])
def test_a_file_without_get_config_says_what_a_config_is(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(UsageError, match='has no function get_config; a config is a Python file'):
        entry._config_file([f'--config={path}'])


def test_a_config_that_fails_for_long_reasons_says_the_last_one(tmp_path):
    path = tmp_path / 'config.py'
    path.write_text(
        'from longmem_jax.errors import UsageError\n'
        'def get_config(_=""):\n'
        '    try:\n'
        '        raise OSError("no network " * 600)\n'
        '    except OSError as error:\n'
        '        raise UsageError("the hub: not reached") from error\n'
    )
    command = [sys.executable, '-m', 'longmem_jax.main', f'--config={path}', '--workdir=DIR']
    variables = processes.environment()
    ended = subprocess.run(command, capture_output=True, text=True, env=variables, cwd=tmp_path)
    said = f'UsageError: --config={path}: the hub: not reached\n'
    assert (ended.returncode, ended.stderr) == (2, said)


@pytest.mark.parametrize('closed, wanted', [('', '\\xe9\\u20ac\n'), (' >&-', '')])
def test_texts_are_printed_in_any_encoding_and_where_output_is_closed(closed, wanted):
    program = "from longmem_jax.commands import entry; entry.run(lambda: print('\\u00e9\\u20ac'))"
    variables = processes.environment() | {'PYTHONIOENCODING': 'ascii'}
    command = ['bash', '-c', f'exec "$0" "$@"{closed}', sys.executable, '-c', program]
    ended = subprocess.run(command, capture_output=True, text=True, env=variables)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, wanted, '')


def test_a_config_is_whole():
    config = quickstart.get_config('tiny')
    files.require_sections(config)
    del config.mesh
    with pytest.raises(UsageError, match=r'the config has no mesh; .*config.base.base\(\) makes'):
        files.require_sections(config)
    with pytest.raises(UsageError, match='get_config returned 3; get_config must return'):
        files.require_sections(3)


def test_a_run_brings_its_own_config(tmp_path):
    config = quickstart.get_config('tiny')
    (tmp_path / 'config.json').write_text(config.to_json())
    found = entry._of_workdir(str(tmp_path))
    assert found.to_dict() == config.to_dict() and found.is_locked
    assert isinstance(found.model.attention, tuple)
    assert entry._of_workdir(str(tmp_path / 'nothing')) is None and entry._of_workdir('') is None
    (tmp_path / 'config.json').write_text('{"model": ')
    with pytest.raises(UsageError, match='not the configuration of a run'):
        entry._of_workdir(str(tmp_path))


def test_the_file_of_a_run_is_a_config(tmp_path):
    config = quickstart.get_config('tiny')
    path = tmp_path / 'config.json'
    path.write_text(config.to_json())
    for arguments in ([f'--config={path}'], ['--config', str(path)]):
        rest, found = entry._config_file(['main', *arguments, '--mode=train'])
        assert rest == ['main', '--mode=train'] and found.to_dict() == config.to_dict()
    with pytest.raises(UsageError, match="a run takes no ':tiny'"):
        entry._config_file([f'--config={path}:tiny'])
    with pytest.raises(UsageError, match='there is no file .*none.json.*--mode=list'):
        entry._config_file([f'--config={tmp_path}/none.json'])


@pytest.mark.parametrize('content', ['{"model_type": "gpt2", "n_layer": 2}', '{"model": {}}', '[]'])
def test_the_folder_of_a_host_is_not_a_run(tmp_path, content):
    """It would be a run of defaults, whose training replaces the host's config.json."""
    (tmp_path / 'config.json').write_text(content)
    with pytest.raises(UsageError, match=r'give the workdir of a run\. .*configs/host.py:path='):
        entry._of_workdir(str(tmp_path))


def test_a_problem_of_a_disk_is_a_message():
    for number in (errno.EIO, errno.ESTALE, errno.ENOSPC, errno.EACCES, errno.EMFILE):
        words = os.strerror(number)
        with pytest.raises(
            UsageError, match=rf'/run/x: cannot be read or written \({words}\)\. Co'
        ):
            with disk_errors():
                raise OSError(number, words, '/run/x')
        with pytest.raises(UsageError, match=f'a file: cannot .*{words}'), disk_errors():
            raise ValueError(
                f'ABORTED: Error writing "x": Failed to fsync file: {words} [os_error]'
            )
    for error in (FileNotFoundError(errno.ENOENT, 'No such file', 'x'), KeyError('x')):
        with pytest.raises(type(error)), disk_errors():
            raise error


def test_too_little_memory_is_a_message():
    wanted = (
        r'Too little memory on the device \(Out of memory .* 4000000000000 bytes\)\. To need less: '
    )
    with pytest.raises(UsageError, match=wanted), memory_errors():
        jnp.zeros((10**12,), jnp.float32)
    # First arrays do not wait without an end for those that have no room.
    make = lambda: dict(large=jnp.zeros((10**12,), jnp.float32), small=jnp.zeros(()))  # noqa: E731
    with pytest.raises(UsageError, match=wanted), memory_errors():
        initial.arrays(make)
    wanted = r'Too little memory on this machine \(Unable to allocate .*\)\. To need less: '
    with pytest.raises(UsageError, match=wanted), memory_errors():
        np.zeros((10**15,))
    with pytest.raises(UsageError, match='nothing is left'), memory_errors():
        raise MemoryError


@pytest.mark.parametrize(
    'text, said',
    [
        (
            'RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes.\nMore',
            'Out of memory while',
        ),
        (
            'RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 20G of 15G',
            'Ran out of memory',
        ),
        (
            'INTERNAL: failed\nRESOURCE_EXHAUSTED: Failed to allocate request for 2GiB',
            'Failed to allocate',
        ),
        (
            'RESOURCE_EXHAUSTED: Error allocating device buffer: Attempting to allocate 1G',
            'Error allocating',
        ),
        ('RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem', ''),  # of a kernel
        ('RESOURCE_EXHAUSTED: Shared memory size limit exceeded: requested 300000', ''),
        ('RESOURCE_EXHAUSTED: Received message larger than max (5000000 vs. 4194304)', ''),
        ('INTERNAL: out of memory', ''),
    ],
)
def test_what_says_that_a_device_has_too_little_memory(text, said):
    with pytest.raises((UsageError, jax.errors.JaxRuntimeError)) as caught, memory_errors():
        raise jax.errors.JaxRuntimeError(text)
    assert str(caught.value).startswith(
        f'Too little memory on the device ({said}' if said else text
    )
