"""Lets calls of the file system fail below Python, and says what the command made of it.

`inject.c` is built and loaded below all libraries. Every case starts a command in which one call of a
kind, or all after it, fails; then the same command is started again without a fault.
"""

import json
import mmap
import pickle
import random
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.campaigns import modes
from tests.campaigns.runs import digest

SOURCE = Path(__file__).with_name('inject.c')
CLASSES = (
    'open', 'create', 'read', 'write', 'rename', 'sync', 'stat', 'make', 'close', 'remove', 'list',
    'map', 'lock',
)  # fmt: skip
# What can become of a call of each class; `short`, `late` and `lost` are explained in `inject.c`.
KINDS = {
    'open': ('EIO', 'EACCES', 'ESTALE', 'EMFILE'),
    'create': ('EIO', 'EACCES', 'ESTALE', 'ENOSPC', 'EROFS', 'EMFILE'),
    'read': ('EIO', 'ESTALE', 'short'),
    'write': ('EIO', 'ESTALE', 'ENOSPC', 'EDQUOT', 'short'),
    'rename': ('EIO', 'EACCES', 'ESTALE', 'ENOSPC', 'late', 'lost'),
    'sync': ('EIO', 'ENOSPC', 'ESTALE'),
    'stat': ('EIO', 'EACCES', 'ESTALE'),
    'make': ('EIO', 'EACCES', 'ESTALE', 'ENOSPC', 'lost'),
    'close': ('EIO', 'ENOSPC', 'ESTALE'),
    'remove': ('EIO', 'EACCES', 'ESTALE', 'lost'),
    'list': ('EIO', 'EACCES', 'ESTALE'),
    'map': ('EIO', 'EACCES', 'ESTALE'),
    'lock': ('EIO', 'ESTALE'),
}
STATE = struct.Struct(f'{len(CLASSES) + 1}l960s')
# What became of a fault.
HARMLESS, MESSAGE, NONE = 'same results', 'message', 'not reached'


def build(folder: Path) -> Path:
    """The library, in a folder."""
    library = folder / 'inject.so'
    subprocess.run(
        ['cc', '-shared', '-fPIC', '-O1', '-o', library, SOURCE, '-ldl', '-lpthread'], check=True
    )
    return library


class Injector:
    """What a command with the library does, and has done.

    Attributes:
      variables: of a command.
    """

    def __init__(self, state: Path, folder: Path, fault: str = ''):
        """Nothing fails yet, and nothing has been counted.

        Args:
          state: a file, which is made.
          folder: where calls fail; absolute.
          fault: 'CLASS:NUMBER:KIND:LASTING', see `inject.c`; '' = none.
        """
        state.write_bytes(bytes(max(STATE.size, mmap.PAGESIZE)))
        self._state = state
        self.variables = {
            'INJECT_STATE': str(state), 'INJECT_FOLDER': str(folder), 'INJECT_FAULT': fault,
        }  # fmt: skip

    def counted(self) -> tuple[dict[str, int], int, str]:
        """Calls by class, calls that failed, and the first of them."""
        *counts, first = STATE.unpack(self._state.read_bytes()[: STATE.size])
        *counts, injected = counts
        text = first.partition(b'\0')[0].decode(errors='replace')
        return dict(zip(CLASSES, counts, strict=True)), injected, text


class Faults:
    """Cases with one mode after the other."""

    def __init__(self, folder: Path, start: Callable[..., Any]):
        """Works in a folder with the runs in `work/base`; `start` has loaded the library."""
        self._folder, self._start = folder, start
        self._base, self._tried = folder / 'work/base', folder / 'work/try'
        self._whole, self._counts = {}, {}

    def _run(
        self, name: str, arguments: list[str], fault: str = ''
    ) -> tuple[int, float, str, Injector]:
        injector = Injector(self._folder / 'state', self._folder / 'work', fault)
        output = self._folder / 'output'
        process = self._start(
            arguments, module=modes.MODES[name].module, cache=self._folder / 'cache',
            output=output, variables=injector.variables,
        )  # fmt: skip
        code, used = modes.wait(process)
        return code, used, output.read_text(errors='replace'), injector

    def whole(self, name: str) -> tuple[modes.Whole, dict[str, int]]:
        """What comes out without a fault, and the calls by class; kept in a file."""
        path = self._folder / 'whole' / f'{name}.pickle'
        if name not in self._whole and path.exists():
            self._whole[name], self._counts[name] = pickle.loads(path.read_bytes())
        if name not in self._whole:

            def run(arguments: list[str]) -> tuple[int, float, str]:
                code, used, said, injector = self._run(name, arguments)
                self._counts[name] = injector.counted()[0]
                return code, used, said

            self._whole[name] = modes.undisturbed(name, self._base, self._tried, run)
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(pickle.dumps((self._whole[name], self._counts[name])))
        return self._whole[name], self._counts[name]

    def case(self, number: int, seed: int) -> dict[str, Any]:
        """Case `number`: what failed, what became of it (`fate`), and `faults` of the library."""
        draw = random.Random(f'{seed} {number}')
        names = list(modes.MODES)
        name = names[number % len(names)]
        whole, counts = self.whole(name)
        there = [each for each in CLASSES if counts[each]]
        which = draw.choice(there)
        place, kind = draw.randrange(counts[which]), draw.choice(KINDS[which])
        lasting = draw.random() < 0.5
        fault = f'{which}:{place}:{kind}:{int(lasting)}'
        arguments = modes.prepare(name, self._base, self._tried)
        before, content, faults = _checkpoints(self._tried), _content(self._tried), []
        line = dict(mode=name, fault=fault, faults=faults)
        try:
            code, _, said, injector = self._run(name, arguments, fault)
        except TimeoutError as error:
            faults.append(f'hangs: {error}')
            return line | dict(fate='hangs')
        _, injected, first = injector.counted()
        line |= dict(call=first.replace(str(self._folder), ''), times=injected, code=code)
        line['said'] = said[-1200:]
        if 'Traceback' in said:
            faults.append('traceback')
        if code not in (0, 2):
            faults.append(f'exit code {code}')
        faults += _lost(before, self._tried, whole.wanted)
        if code == 0:
            line['fate'] = HARMLESS if injected else NONE
            faults += [f'ended well, but {each}' for each in whole.differs(self._tried, said)[:5]]
            if not faults:
                del line['said']
                return line
        else:
            line['fate'] = MESSAGE
            if not faults and content == _content(self._tried):
                return line  # what comes now is the undisturbed command
        code, _, said, _ = self._run(name, arguments)
        if code or 'Traceback' in said:
            faults.append(f'exit code {code} when run again: ' + said[-1200:])
            return line
        faults += [f'when run again, {each}' for each in whole.differs(self._tried)[:5]]
        return line


def _content(folder: Path) -> dict[str, str]:
    """Checksums of all files but the lock, which is there when a command has ended."""
    files = (path for path in folder.rglob('*') if path.is_file() and path.name != '.lock')
    return {str(path): digest(path.read_bytes()) for path in files}


def _checkpoints(folder: Path) -> dict[str, list[int]]:
    """Steps of checkpoints by folder."""
    return {
        str(path.relative_to(folder)): sorted(
            int(p.name) for p in path.iterdir() if p.name.isdigit()
        )
        for path in folder.rglob('checkpoints')
    }


def _lost(before: dict[str, list[int]], folder: Path, wanted: dict[str, Any]) -> list[str]:
    """Checkpoints that are no longer there, or were moved away: no byte of them has changed."""
    faults = [f'moved away: {path.name}' for path in folder.rglob('checkpoints-broken/*')]
    now = _checkpoints(folder)
    for name, steps in before.items():
        if steps and max(now.get(name) or [-1]) < max(steps):
            faults.append(f'{name}: {now.get(name)}, there were {steps}')
    return faults


def table(lines: list[dict[str, Any]]) -> str:
    """Markdown: what became of the faults, by mode and by class of call."""
    rows = [
        '| mode, call | faults | same results | message | not reached | faults of the library |',
        '|---|---|---|---|---|---|',
    ]
    by_mode = {line['mode']: [] for line in lines}
    by_class: dict[str, list[Any]] = {each: [] for each in CLASSES}
    for line in lines:
        by_mode[line['mode']].append(line)
        by_class[line['fault'].partition(':')[0]].append(line)
    for name, own in (*by_mode.items(), *by_class.items(), ('all', lines)):
        good = [line['fate'] for line in own if not line['faults']]
        counts = [good.count(fate) for fate in (HARMLESS, MESSAGE, NONE)]
        cells = [len(own), *counts, len(own) - len(good)]
        rows.append(f'| {name} | {" | ".join(map(str, cells))} |')
    return '\n'.join(rows)


def show(lines: list[dict[str, Any]]) -> str:
    """All faults of the library, as JSON lines."""
    return '\n'.join(json.dumps(line) for line in lines if line['faults'])
