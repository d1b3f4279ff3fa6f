"""Calls of the file system that fail below Python, as the campaign of reliability makes them."""

import shutil
import subprocess
import sys

import pytest

from tests.campaigns.faults import Injector, build
from tests.forks import ROOT
from tests.processes import environment

pytestmark = [
    pytest.mark.slow,  # a compiler, and processes
    pytest.mark.skipif(not shutil.which('cc'), reason='no C compiler'),
]


@pytest.fixture(scope='module')
def library(tmp_path_factory):
    return build(tmp_path_factory.mktemp('library'))


@pytest.fixture
def broken(library, tmp_path):
    """Runs Python with a fault in the folder `in`: exit code, what it printed, and the injector."""
    folder = tmp_path / 'in'
    folder.mkdir()

    def run(fault, *arguments):
        injector = Injector(tmp_path / 'state', folder, fault)
        variables = environment() | injector.variables | {'LD_PRELOAD': str(library)}
        done = subprocess.run(
            [sys.executable, *arguments], cwd=tmp_path, env=variables | {'PYTHONPATH': str(ROOT)},
            capture_output=True, text=True,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr, injector

    return run


PROGRAM = """
import os
def tried(call, *arguments):
    try:
        return call(*arguments)
    except OSError as error:
        return error.strerror
for folder in ('in', 'out'):
    folder = os.path.abspath(folder)
    os.makedirs(folder, exist_ok=True)
    file = os.open(folder + '/a', os.O_CREAT | os.O_RDWR)
    said = [tried(os.write, file, b'12345678'), tried(os.write, file, b'90')]
    said.append(tried(os.pread, file, 10, 0))
    os.close(file)
    said += [tried(os.mkdir, folder + '/x'), tried(os.mkdir, folder + '/y')]
    said += [tried(os.rename, folder + '/a', folder + '/b'), os.path.exists(folder + '/b')]
    print(*said, sep=',')
"""
GOOD = "8,2,b'1234567890',None,None,None,True"


@pytest.mark.parametrize(
    'fault, says',
    [
        ('', GOOD),
        ('write:0:EIO:0', "Input/output error,2,b'90',None,None,None,True"),
        ('write:1:EIO:1', "8,Input/output error,b'12345678',None,None,None,True"),
        ('write:0:short:0', "4,2,b'123490',None,None,None,True"),
        ('read:0:short:0', "8,2,b'12345',None,None,None,True"),
        ('make:2:ENOSPC:1', "8,2,b'1234567890',None,No space left on device,No space left on device,"
         'False'),
        ('rename:0:lost:0', "8,2,b'1234567890',None,None,Input/output error,True"),
        ('rename:0:late:0', GOOD),
    ],
)  # fmt: skip
def test_what_fails(broken, fault, says):
    code, said, injector = broken(fault, '-c', PROGRAM)
    assert code == 0 and said.splitlines() == [says, GOOD], 'in the other folder all is well'
    counts, times, first = injector.counted()
    assert counts['create'] == 1 and counts['write'] == 2 and counts['rename'] == 1
    assert bool(times) == bool(fault) == bool(first)


@pytest.mark.parametrize(
    'fault, path', [('read:0:EIO:1', 'text.txt'), ('rename:0:ESTALE:0', 'bpe.json')]
)
def test_a_command_gives_one_message(broken, tmp_path, fault, path):
    (tmp_path / 'in/text.txt').write_text('alpha beta gamma ' * 40)
    folder = tmp_path / 'in'
    arguments = ['-m', 'longmem_jax.commands.train_tokenizer', f'--path={folder}/text.txt']
    arguments += ['--size=260', f'--output={folder}/bpe.json']
    code, said, injector = broken(fault, *arguments)
    assert (code, injector.counted()[1] > 0) == (2, True), said
    assert path in said and 'Traceback' not in said and len(said.strip().splitlines()) == 1
    code, said, _ = broken('', *arguments)
    assert code == 0 and (folder / 'bpe.json').exists(), said
