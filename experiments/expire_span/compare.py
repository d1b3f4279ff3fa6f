"""Four memories on the same data and budget: python experiments/expire_span/compare.py --output=DIR

Trains every memory on every task with every seed, one after the other, and prints a Markdown table:
the mean and the range over seeds of the test accuracy, the average memory size, milliseconds per
step and peak memory. What a run has finished is not run again.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

MEMORIES = ('transformer_xl', 'adaptive_span', 'compressive', 'expire_span')


def run(task: str, memory: str, seed: int, folder: Path) -> dict:
    """One training run; its numbers, also written to `numbers.json` in its folder."""
    found = folder / 'numbers.json'
    if found.exists():
        return json.loads(found.read_text())
    folder.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable, '-m', 'longmem_jax.main', f'--config=configs/{task}.py:tiny,memory={memory}',
        f'--workdir={folder}', f'--config.train.seed={seed}', f'--config.data.seed={seed}',
    ]  # fmt: skip
    with open(folder / 'log.txt', 'w') as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f'failed: {" ".join(command)}\nsee {folder / "log.txt"}')
    results = json.loads((folder / 'results.json').read_text())
    lines = [json.loads(line) for line in open(folder / 'metrics.jsonl')]
    train = [line for line in lines if line['group'] == 'train']
    sizes = [
        line['memory/memory_size'] + line.get('memory/compressed_size', 0.0)
        for line in train[-len(train) // 4 :]
    ]
    rates = [line['steps_per_s'] for line in lines if line['group'] == 'speed']
    numbers = {
        'accuracy': results['test']['accuracy'],
        'exact_match': results['test']['exact_match'],
        'memory_size': statistics.mean(sizes),
        'ms_per_step': 1000 / statistics.median(rates),
        'peak_mb': usage.ru_maxrss / 1024,
    }
    found.write_text(json.dumps(numbers, indent=1))
    return numbers


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--tasks', default='copy,collision')
    parser.add_argument('--seeds', type=int, default=3)
    parser.add_argument('--output', type=Path, required=True)
    options = parser.parse_args()
    print('| task | memory | exact match, % | memory size | ms/step | peak MB |')
    print('|---|---|---|---|---|---|')
    for task in options.tasks.split(','):
        for memory in MEMORIES:
            runs = [
                run(task, memory, seed, options.output / task / memory / str(seed))
                for seed in range(options.seeds)
            ]
            exact = [100 * numbers['exact_match'] for numbers in runs]
            mean = {name: statistics.mean(r[name] for r in runs) for name in runs[0]}
            print(
                f'| {task} | {memory} | {statistics.mean(exact):.1f} ({min(exact):.1f}-'
                f'{max(exact):.1f}) | {mean["memory_size"]:.0f} | {mean["ms_per_step"]:.1f} | '
                f'{mean["peak_mb"]:.0f} |',
                flush=True,
            )


if __name__ == '__main__':
    main()
