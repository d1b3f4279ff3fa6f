"""SIGTERM and Ctrl-C: handled from the start of a command, everywhere, by all processes together.

While there is nothing to save, a signal ends the command at once, with a line and an exception; without
one while libraries are imported, which may not survive it. Within `deferred` a signal is only noted: the
loop asks for it between two steps or segments, by `asked` or `poll`, saves, and ends. A thread receives
signals too, since Python's handlers wait until a compilation is over. It prints at once that the run
will stop, and ends the process when the signal comes again.
"""

import contextlib
import dataclasses
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT)
HOOK = 0x80  # in place of a signal's number: a hook of the run asked for it
# Launchers send a signal twice: to a process, and to its group. Seconds.
TWICE = 1.0
# A library may swallow what a handler raises, or be in a long call: then the thread ends a command.
GRACE = 5.0
AGAIN = 0.02  # seconds until a signal that was swallowed comes again


class Stopped(SystemExit):
    """A signal ends what was being done; `code` is the exit code, 128 + the signal's number."""

    code: int

    def __init__(self, signum: int):
        """Of a signal's number."""
        super().__init__(128 + signum)


@dataclasses.dataclass
class _State:
    """What was heard.

    Attributes:
      heard: number of the first signal; 0 = none.
      raised: whether it ended by an exception what was being done.
      agreed: the same, as all processes know it.
      again: number of signals that this process sends itself and the thread has not received yet.
      deferred: depth of `deferred` blocks.
      pid: process whose handlers are installed; 0 = none.
      command: whether the process is a command, which may be ended.
      importing: whether it still imports what it needs.
      previous: the handlers before.
      unraisable: `sys.unraisablehook` before.
      pipe: where signals arrive for the thread: its writing end, and the descriptor before.
      thread: reads there.
      code: exit code of a run that was stopped.
    """

    heard: int = 0
    raised: bool = False
    agreed: int = 0
    again: int = 0
    deferred: int = 0
    pid: int = 0
    command: bool = False
    importing: bool = False
    previous: dict[int, Any] = dataclasses.field(default_factory=dict)
    unraisable: Any = None
    pipe: tuple[int, int] = (-1, -1)
    thread: threading.Thread | None = None
    code: int = 0


_state = _State()
_lock = threading.RLock()


def name(signum: int) -> str:
    """'SIGTERM', 'SIGINT', or what a hook did."""
    return 'Stopped by a hook' if signum == HOOK else signal.Signals(signum).name


def listen(*, command: bool = False, importing: bool = False) -> bool:
    """Installs the handlers; returns whether they were not there and this is the main thread.

    A process that is a `command` may be ended where nobody asks; with `importing` a signal ends it
    where it is, until the next call.
    """
    _state.importing = importing
    if threading.current_thread() is not threading.main_thread() or _state.pid == os.getpid():
        return False
    _state.pid, _state.command = os.getpid(), command
    _state.heard = _state.agreed = _state.again = _state.code = 0
    _state.raised = False
    read, write = os.pipe()
    os.set_blocking(write, False)
    _state.pipe = write, signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    _state.previous = {signum: signal.signal(signum, _hear) for signum in SIGNALS}
    _state.unraisable, sys.unraisablehook = sys.unraisablehook, _swallowed
    _state.thread = threading.Thread(target=_watch, args=(read,), name='signals', daemon=True)
    _state.thread.start()
    return True


def unlisten() -> None:
    """Puts the handlers back that were there before `listen`."""
    write, before = _state.pipe
    for signum, handler in _state.previous.items():
        signal.signal(signum, handler)
    signal.set_wakeup_fd(before)
    sys.unraisablehook = _state.unraisable
    _state.pid, _state.command = 0, False
    os.close(write)  # which ends the thread
    if _state.thread is not None:
        _state.thread.join()
    _state.heard = _state.agreed = 0


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """A block in which signals are only noted, and that asks for them."""
    own = listen()
    _state.deferred += 1
    try:
        yield
    finally:
        _state.deferred -= 1
        if own:
            unlisten()


def asked(*, now: bool = False) -> int:
    """Number of the signal by which the run was asked to stop; 0 = none.

    Several processes must all ask, equally often, and get the same answer: that of one question before,
    so that devices need not wait; of this one with `now`.
    """
    import jax  # the handlers are installed before it is imported

    if jax.process_count() == 1:
        return _state.heard
    from longmem_jax.devices import processes

    _state.agreed = _state.agreed or processes.largest(_state.heard, now=now)
    return _state.agreed


def ask() -> None:
    """Asks the run to stop, as a signal does, from within `deferred`."""
    _state.heard = _state.heard or HOOK


def poll() -> None:
    """Raises `Stopped` if the run was asked to stop; to be called between segments."""
    if signum := asked():
        raise Stopped(signum)


def require_none() -> None:
    """Raises `Stopped` if this process has heard a signal; before there are several."""
    if _state.heard:
        raise Stopped(_state.heard)


def end(signum: int) -> None:
    """Notes that a run was stopped, for the exit code of the command."""
    _state.code = 128 + signum


def exit_code() -> int:
    """128 + the number of the signal that stopped a run in this process; 0 if none did."""
    return _state.code


def obey() -> None:
    """Ends the caller's program too if a signal stopped a run in it, as it would have without us.

    Raises:
      KeyboardInterrupt: it was Ctrl-C.
      Stopped: it was SIGTERM.
    """
    signum, _state.code = max(_state.code - 128, 0), 0
    if signum == HOOK:
        _state.heard = _state.agreed = 0
        return
    if signum == signal.SIGINT:
        raise KeyboardInterrupt
    if signum:
        raise Stopped(signum)


def heard() -> int:
    """128 + the number of the signal that this process has heard; 0 = none."""
    return 128 + _state.heard if _state.heard else 0


def replaced() -> int:
    """`heard`, if what the signal raised is gone: an error that comes after it is a library's for it."""
    return heard() if _state.raised else 0


def _hear(signum: int, frame: Any) -> None:
    """The handler, called in the main thread."""
    _note(signum)
    if _state.importing:
        os._exit(128 + signum)
    if not _state.deferred:
        _state.raised = True
        raise Stopped(signum)


def _swallowed(about: Any) -> None:
    """`sys.unraisablehook`: a callback of the garbage collector swallows what is raised in it.

    The command would say that it stops, and continue. So the signal comes again, a little later.
    """
    error = about.exc_value
    if isinstance(error, Stopped):
        threading.Timer(AGAIN, _send_again, [error.code - 128]).start()
    else:
        _state.unraisable(about)


def _send_again(signum: int) -> None:
    """Sends the main thread a signal that was swallowed; not a second one, however late it is."""
    if _state.pid == os.getpid():
        with _lock:
            _state.again += 1
        main = threading.main_thread().ident
        if main is not None:
            signal.pthread_kill(main, signum)


def _note(signum: int) -> None:
    """Keeps the first signal, and says what happens; without locks of the console."""
    with _lock:
        if _state.heard:
            return
        _state.heard = signum
    text = (
        f'\n{name(signum)}: stopping after this step, segment or compilation; '
        'a second signal, a second later, stops at once.\n'
        if _state.deferred
        else f'\n{name(signum)}: stopped; the same command goes on from what was saved, or begins '
        'again.\n'
    )
    os.write(2, text.encode())


def _watch(pipe: int) -> None:
    """The thread: hears signals while the main thread cannot."""
    since = None  # when the first one was read here, however long ago the handler has heard it
    while signum := next(iter(os.read(pipe, 1)), 0):
        if signum not in SIGNALS:
            continue
        if since is None:
            since = time.monotonic()
        elif _state.again:
            with _lock:
                _state.again -= 1
        elif time.monotonic() - since > TWICE:
            os._exit(128 + signum)
        _note(signum)
        if _state.command and not _state.deferred and not select.select([pipe], [], [], GRACE)[0]:
            if _state.command and not _state.deferred:
                os._exit(128 + signum)
    os.close(pipe)
