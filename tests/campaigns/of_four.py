"""Kills one of four processes that train together, and runs them again until they end."""

import json
import random
import signal
from pathlib import Path
from typing import Any

from tests.campaigns import modes
from tests.commands.train_test import free_port

COUNT = 4


class OfFour:
    """A run of four processes with a device each."""

    def __init__(self, folder: Path, start: Any):
        """Works in a folder with the runs in `work/base`; `start` is that of `tests.forks`."""
        self._folder, self._start = folder, start
        self._tried, self._whole = folder / 'work/try', None

    def _run(self, killed: int = -1, moment: float = 1e9) -> tuple[list[int], float, list[str]]:
        """Exit codes, CPU seconds of the first, and what was printed; one is killed at a moment."""
        outputs = [self._folder / f'output{number}' for number in range(COUNT)]
        join = [f'--coordinator=127.0.0.1:{free_port()}', f'--num_processes={COUNT}']
        processes = [
            self._start(
                [modes.SHORT.format(folder=self._tried), '--config.mesh.data=4', *join,
                 f'--process_id={number}'],
                cache=self._folder / f'cache{number}', output=output,
            )
            for number, output in enumerate(outputs)
        ]  # fmt: skip
        sent = []

        def kill(used: float) -> None:
            if used >= moment and not sent:
                sent.append(used)
                processes[killed].send_signal(signal.SIGKILL)

        ended = [modes.wait(process, kill) for process in processes]
        codes, seconds = zip(*ended, strict=True)
        return [*codes], seconds[0], [path.read_text(errors='replace') for path in outputs]

    def attempt(self, number: int, seed: int) -> dict[str, Any]:
        """Attempt `number`: a process is killed, then all run again; what differs."""
        draw = random.Random(f'{seed} {number} of four')
        base = self._folder / 'work/base'
        if self._whole is None:
            found = []
            for _ in range(2):
                modes.prepare('train', base, self._tried)
                codes, seconds, said = self._run()
                assert codes == [0] * COUNT, '\n'.join(said)
                found.append(modes.result(self._tried, ''))
            self._whole = modes.same(*found, seconds)
        modes.prepare('train', base, self._tried)
        killed, moment = draw.randrange(COUNT), draw.uniform(0, self._whole.seconds)
        codes, _, said = self._run(killed, moment)
        line = dict(killed=killed, moment=round(moment / self._whole.seconds, 3), codes=codes)
        faults = []
        if codes[killed] == -signal.SIGKILL and any(
            code == 0 for other, code in enumerate(codes) if other != killed
        ):
            faults.append('a process ended well without one of the others')
        traces = [other for other, text in enumerate(said) if 'Traceback' in text]
        if traces:
            faults.append(f'traceback of {traces}: {said[traces[0]][-1200:]}')
        codes, _, said = self._run()
        if codes != [0] * COUNT:
            faults.append(f'exit codes {codes} when run again: {said[0][-1200:]}')
            return line | dict(faults=faults, differs=[])
        return line | dict(faults=faults, differs=self._whole.differs(self._tried)[:5])


def table(lines: list[dict[str, Any]]) -> str:
    """A line of text on all attempts."""
    good = sum(not (line['faults'] or line['differs']) for line in lines)
    return (
        f'One of {COUNT} processes killed: {len(lines)} times; the others ended by themselves, and the '
        f'run that began again ended with the same results: {good} times.'
    )


def show(lines: list[dict[str, Any]]) -> str:
    """All faults, as JSON lines."""
    return '\n'.join(json.dumps(line) for line in lines if line['faults'] or line['differs'])
