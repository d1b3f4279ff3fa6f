"""Resident memory and compiled programs while a run trains, generates and evaluates for long.

    python -m tests.campaigns.leaks --output=DIR [--steps=2000] [--generations=200]

The table is in DIR/leaks.md.
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from tests.campaigns import modes, runs
from tests.forks import commands

PAGE = os.sysconf('SC_PAGE_SIZE')
MEBIBYTE = 1 << 20


def watched(start: Any, folder: Path, arguments: list[str]) -> tuple[np.ndarray, int]:
    """Resident bytes of a command while it runs, and the programs that it compiled."""
    cache, output, found = folder / 'cache', folder / 'output', []
    before = len([*cache.glob('*')])
    process = start(arguments, cache=cache, output=output)

    def sample(used: float) -> None:
        pages = Path(f'/proc/{process.pid}/statm').read_text().split()
        if int(pages[1]):  # not of one that has ended
            found.append(int(pages[1]) * PAGE)

    code, _ = modes.wait(process, sample)
    assert code == 0, output.read_text()
    return np.asarray(found), len([*cache.glob('*')]) - before


def row(what: str, times: int, memory: np.ndarray, programs: int) -> str:
    """Memory after parts of a command, and how much it grows per step in the second half."""
    marks = [memory[min(int(len(memory) * part), len(memory) - 1)] for part in (0.25, 0.5, 0.75, 1)]
    half = memory[len(memory) // 2 :]
    slope = np.polyfit(np.linspace(times / 2, times, len(half)), half, 1)[0] / 1024
    cells = ', '.join(f'{mark / MEBIBYTE:.0f}' for mark in marks)
    return f'| {what} | {cells} | {slope:+.2f} | {programs} |'


def prompts(path: Path, count: int) -> Path:
    """A file of prompts of many lengths."""
    texts = [' '.join(runs.WORDS[k % 4] for k in range(i % 37 + 1)) for i in range(count)]
    path.write_text(''.join(json.dumps({'text': text}) + '\n' for text in texts))
    return path


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--output', type=Path, required=True)
    parser.add_argument('--steps', type=int, default=2000)
    parser.add_argument('--generations', type=int, default=200)
    options = parser.parse_args()
    folder = options.output.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        '| what | MiB after 1/4, 1/2, 3/4 and all of it | KiB per step or text, second half '
        '| programs compiled |',
        '|---|---|---|---|',
    ]
    with commands() as start:
        runs.make(folder / 'base', lambda given: watched(start, folder, given))
        arguments = modes.prepare('train', folder / 'base', folder / 'work')
        long = [f'--config.train.num_steps={options.steps}', '--config.train.evaluate_every=250',
                '--config.checkpoint.every=250']  # fmt: skip
        found = watched(start, folder, [*arguments, *long])
        rows.append(row(f'{options.steps:,} steps of training', options.steps, *found))
        lm = f'--workdir={folder / "base/lm"}'
        for count in (options.generations // 10, options.generations):
            given = prompts(folder / 'prompts.jsonl', count)
            found = watched(
                start, folder,
                [lm, '--mode=generate', f'--prompts={given}', '--length=20', '--seed=1',
                 f'--output={folder / "texts.jsonl"}'],
            )  # fmt: skip
            rows.append(row(f'{count:,} texts generated', count, *found))
    (folder / 'leaks.md').write_text('\n'.join(rows) + '\n')
    print('\n'.join(rows))


if __name__ == '__main__':
    main()
