"""SIGTERM and Ctrl-C before, around and between what a run does; the signals are sent from inside."""

import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from longmem_jax import stopping
from longmem_jax.commands import entry
from longmem_jax.errors import UsageError
from tests.processes import environment

ROOT = Path(__file__).parent.parent
CODES = {'SIGTERM': 143, 'SIGINT': 130}

# A process that gets a signal when it imports a module.
IMPORTS = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == '{module}':
            try:
                os.kill(os.getpid(), signal.{name})
            except BaseException:
                os.write(1, b'raised')

sys.meta_path.insert(0, Finder())
"""


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """On a loaded machine a test may take longer than a command may; it would end the worker."""
    monkeypatch.setattr(stopping, 'GRACE', 600)


@pytest.fixture
def listening():
    """Handlers as in a command."""
    assert stopping.listen(command=True)
    yield
    stopping.unlisten()


@pytest.mark.parametrize('name, module', [('SIGTERM', 'jax'), ('SIGINT', 'numpy')])
def test_a_signal_while_libraries_are_imported_is_one_line(tmp_path, name, module):
    (tmp_path / 'sitecustomize.py').write_text(IMPORTS.format(name=name, module=module))
    process = subprocess.run(
        [sys.executable, '-m', 'longmem_jax.main', '--config=configs/quickstart.py:tiny'],
        cwd=ROOT,
        env=environment() | {'PYTHONPATH': str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert process.returncode == CODES[name], process.stderr
    assert not process.stdout, 'end the process: a library may crash, or swallow what is raised'
    assert (
        process.stderr
        == f'\n{name}: stopped; the same command goes on from what was saved, or begins again.\n'
    )


@pytest.mark.parametrize('name', CODES)
def test_a_command_ends_at_once_where_nothing_is_to_be_saved(listening, name, capfd):
    with pytest.raises(stopping.Stopped) as caught:
        os.kill(os.getpid(), getattr(signal, name))
        raise AssertionError('the handler did not raise')
    assert caught.value.code == CODES[name]
    assert capfd.readouterr().err.count(f'{name}: stopped;') == 1


def test_a_signal_that_a_library_has_swallowed_is_not_lost(listening):
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:  # as a callback of a garbage collector does
        pass
    with pytest.raises(stopping.Stopped):
        stopping.require_none()
    with pytest.raises(stopping.Stopped):
        stopping.poll()


def test_a_signal_in_a_long_call_is_heard_by_the_thread_and_once_more_ends_it(capfd, monkeypatch):
    """Handlers of Python would wait for the end of the call; the thread reads what C writes."""
    ended, heard, codes, note = threading.Event(), threading.Event(), [], stopping._note
    clock = iter([0.0, stopping.TWICE / 2, 2 * stopping.TWICE])
    monkeypatch.setattr(stopping, 'time', SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(stopping, '_note', lambda signum: (note(signum), heard.set()))
    exit_ = lambda code: (codes.append(code), ended.set())  # noqa: E731
    monkeypatch.setattr(stopping.os, '_exit', exit_)
    with stopping.deferred():
        pipe = stopping._state.pipe[0]
        os.write(pipe, bytes([signal.SIGTERM]))
        assert heard.wait(60) and stopping.asked() == signal.SIGTERM
        assert (
            capfd.readouterr().err.count(
                'stopping after this step, segment or compilation; a second'
            )
            == 1
        )
        os.write(pipe, bytes([signal.SIGTERM]))  # as launchers do, at once: it counts as one
        os.write(pipe, bytes([signal.SIGINT]))
        assert ended.wait(60) and codes == [130]


def test_handlers_are_put_back():
    before = [signal.getsignal(signum) for signum in stopping.SIGNALS]
    with stopping.deferred(), stopping.deferred():
        os.kill(os.getpid(), signal.SIGTERM)
    assert [signal.getsignal(signum) for signum in stopping.SIGNALS] == before
    with stopping.deferred():
        assert not stopping.asked(), 'a signal to an earlier run'


@pytest.mark.parametrize('name', CODES)
def test_the_exit_code_says_that_a_run_was_stopped(monkeypatch, name, capsys):
    """A run that was stopped has saved and returned; for a scheduler it is not a finished one."""

    def fail():
        stopping._state.heard = CODES[name] - 128  # and a library made an error of it
        raise UsageError('no checkpoint there')

    def compare():
        with contextlib.suppress(stopping.Stopped):
            stopping._hear(CODES[name] - 128, None)
        raise ValueError(
            'exception raised while checking equality'
        )  # as JAX makes of any exception

    def save():
        with stopping.deferred():
            stopping._hear(CODES[name] - 128, None)
            raise ValueError('an error of our own, while a run that was stopped is saved')

    monkeypatch.setattr(entry.logging, 'set_verbosity', lambda level: None)
    monkeypatch.setattr(entry.app, 'run', lambda main, flags_parser: main(['longmem']))
    monkeypatch.setattr(stopping, 'listen', lambda command=False, importing=False: None)

    class Flags(dict):
        debug = False

    monkeypatch.setattr(entry.flags, 'FLAGS', Flags(debug=None))
    for code in (CODES[name], 0):
        monkeypatch.setattr(stopping._state, 'code', 0)
        with pytest.raises(SystemExit) as caught:
            entry.run(lambda code=code: stopping.end(code - 128) if code else None)
        assert (caught.value.code or 0) == code
    monkeypatch.setattr(stopping._state, 'heard', 0)
    with pytest.raises(SystemExit) as caught:
        entry.run(fail)
    assert caught.value.code == CODES[name]
    capsys.readouterr()
    for function, code, shown in ((save, 1, True), (compare, CODES[name], False)):
        monkeypatch.setattr(stopping._state, 'heard', 0)
        monkeypatch.setattr(stopping._state, 'raised', False)
        with pytest.raises(SystemExit) as caught:
            entry.run(function)
        assert caught.value.code == code
        assert ('Traceback' in capsys.readouterr().err) == shown


@pytest.mark.slow
def test_a_signal_that_a_callback_swallows_comes_again(monkeypatch):
    """Python drops what is raised in a callback of the garbage collector; JAX has one.

    What this process sends itself is not the second signal, however long the collector takes.
    """
    sent, codes = [], []
    monkeypatch.setattr(stopping, 'TWICE', 0)
    monkeypatch.setattr(stopping.os, '_exit', codes.append)

    def callback(phase, info):
        if not sent:
            sent.append(phase)
            os.kill(os.getpid(), signal.SIGTERM)

    assert stopping.listen()
    gc.callbacks.append(callback)
    try:
        with pytest.raises(stopping.Stopped) as caught:
            gc.collect()
            time.sleep(10)  # ends with the signal
            pytest.fail('the signal was lost: send it again when `sys.unraisablehook` has it')
    finally:
        gc.callbacks.remove(callback)
        stopping.unlisten()
    assert caught.value.code == 143
    assert not codes, 'the process took its own signal for a second one: count it in `_state.again`'
