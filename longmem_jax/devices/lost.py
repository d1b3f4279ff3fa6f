"""A process of a run that ends or is lost ends the others, with one message.

Without this, the others wait for it in a program until the service of `jax.distributed` aborts them
with a trace of its own. If process 0 is lost, its store and service are lost too, and the abort comes at
once. It cannot be caught (a callback of the service's client ends the process by itself in jaxlib 0.10).
"""

import os
import re
import sys
import threading
import time
from typing import Any

SILENT = 30.0  # seconds without a sign of life; the service waits for about 60 to 100
ALIVE, ENDED = 'longmem_jax/alive', 'longmem_jax/ended'
# Messages of a program, or of the service, when the other side is gone; and when it is only late.
GONE = re.compile(r'gloo|nccl|connection (reset|closed|refused)|closed by peer|heartbeat', re.I)
LATE = re.compile(r'DEADLINE_EXCEEDED|timed out', re.I)
ADVICE = (
    'Look at its output first. Then start all processes again: the run resumes from its newest '
    'checkpoint.'
)


class Signs:
    """Signs of life of the processes of a run.

    Attributes:
      number: of this process.
      period: seconds between two rounds.
    """

    def __init__(self, store: Any, number: int, count: int):
        """Of process `number` of `count`; `store` is the client of `jax.distributed`."""
        self._store, self.number = store, number
        self.period = 2 + count / 100  # all of them speak with one service
        self._round, self._leaving = 0, False
        self._seen: dict[str, tuple[str, float]] = {}

    def look(self, now: float) -> str:
        """Gives a sign; returns why the run must end, '' if it need not. `now` in seconds."""
        self._round += 1
        self._store.key_value_set(f'{ALIVE}/{self.number}', str(self._round), True)
        own = f'{ENDED}/{self.number}'
        for key, reason in self._store.key_value_dir_get(ENDED):
            if key != own:
                return reason
        if self.number:  # one looks for all
            return ''
        for key, sign in self._store.key_value_dir_get(ALIVE):
            before, since = self._seen.get(key, ('', now))
            if sign != before:
                self._seen[key] = sign, now
            elif now - since > SILENT:
                reason = f'Process {key.rpartition("/")[2]} was lost: no sign of life for '
                reason += f'{now - since:.0f} s. {ADVICE}'
                self.tell(reason)
                return reason
        return ''

    def tell(self, reason: str) -> None:
        """Tells the other processes that this one ends the run."""
        self._store.key_value_set(f'{ENDED}/{self.number}', reason, True)

    def leave(self, code: int) -> None:
        """Ends the process, when the others have had time to hear of it."""
        self._leaving = True
        sys.stdout.flush()
        sys.stderr.flush()
        if not self.number:
            time.sleep(2 * self.period)  # its end is that of the store
        os._exit(code)

    def watch(self) -> None:
        """Looks in a thread, and ends the process."""
        threading.Thread(target=self._watch, name='signs of life', daemon=True).start()

    def _watch(self) -> None:
        try:
            while not (reason := self.look(time.monotonic())):
                time.sleep(self.period)
        except Exception:  # the store is gone: a run ends, or the service ends this process
            return
        if not self._leaving:
            os.write(2, f'\n{reason}\n'.encode())
            self.leave(1)


_signs: list[Signs] = []


def begin(store: Any, number: int, count: int) -> None:
    """Watches over the processes of a run from now on; arguments as of `Signs`."""
    _signs[:] = [Signs(store, number, count)]
    _signs[0].watch()


def ended(what: str, code: int) -> None:
    """Ends this process of several after a problem, and the others.

    Does nothing in a single process. `what` is a sentence that says why.
    """
    advice = '' if ADVICE in what else f'\n{ADVICE}'
    for signs in _signs:
        try:
            signs.tell(f'Process {signs.number} has ended: {what}{advice}')
        except Exception:  # the store is gone, and the others with it
            os._exit(code)
        signs.leave(code)


def by_another(error: BaseException) -> str:
    """One message for what failed since another process is gone or late; '' for other errors."""
    text = str(error)
    if not _signs or type(error).__name__ != 'JaxRuntimeError':
        return ''
    said = f'({text.splitlines()[0][:200]}). {ADVICE}'
    if LATE.search(text):
        waited = re.search(r'(\d+) ?(ms|s)\b', text)
        seconds = int(waited[1]) / (1000 if waited[2] == 'ms' else 1) if waited else 0
        for_long = f' for {seconds:g} s' if waited else ' in time'
        return (
            f'Another process of this run did not answer{for_long}: it hangs, or is much slower than '
            f'this one {said}'
        )
    if not GONE.search(text):
        return ''
    return f'Another process of this run was lost: a program of all of them failed {said}'
