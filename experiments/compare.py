"""Runs of one configuration side by side, as a Markdown table and a figure.

python -m experiments.compare --config=configs/NAME.py --output=DIR --seeds=3 \
    'LABEL: VARIANTS [--config.FIELD=VALUE ...]' 'LABEL: VARIANTS' ... [-- --config.FIELD=VALUE ...]

Trains every run with every seed, one after the other; flags behind `--` go to all of them. What has
finished is not run again. A row gives mean (least - greatest) over seeds on the test set; `emptied`
is with the memory emptied before every segment. `--figure=FILE.png` draws validation by step.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import matplotlib.backends.backend_agg
import matplotlib.figure

TASK = {'exact_match': 'exact match, %', 'accuracy': 'accuracy, %'}
TEXT = {'bits_per_byte': 'bits/byte'}
WORDS = {'perplexity': 'perplexity'}


def run(config: str, variants: str, flags: list[str], seed: int, folder: Path) -> dict:
    """One training run; its numbers, also written to `numbers.json` in its folder."""
    found = folder / 'numbers.json'
    if found.exists():
        return json.loads(found.read_text())
    folder.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable, '-m', 'longmem_jax.main', f'--config={config}:{variants}',
        f'--workdir={folder}', f'--config.train.seed={seed}', f'--config.data.seed={seed}', *flags,
    ]  # fmt: skip
    with open(folder / 'log.txt', 'w') as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f'failed: {" ".join(command)}\nsee {folder / "log.txt"}')
    results = json.loads((folder / 'results.json').read_text())
    lines = [json.loads(line) for line in open(folder / 'metrics.jsonl')]
    train = [line for line in lines if line['group'] == 'train']
    last = train[-max(1, len(train) // 4) :]
    sizes = [
        line.get('memory/memory_size', 0.0) + line.get('memory/compressed_size', 0.0)
        for line in last
    ]
    rates = [line['steps_per_s'] for line in lines if line['group'] == 'speed']
    numbers = {
        'test': results['test'],
        'emptied': results['test, memory emptied'],
        'parameters': results['parameters'],
        'state_bytes': results['state_bytes_per_lane'],
        'memory_size': statistics.mean(sizes),
        'ms_per_step': 1000 / statistics.median(rates),
        'peak_mb': usage.ru_maxrss / 1024,
        'validation': [
            {name: line[name] for name in ('step', *_metrics(line))}
            for line in lines
            if line['group'] == 'validation'
        ],
    }
    found.write_text(json.dumps(numbers, indent=1))
    return numbers


def _metrics(result: dict) -> dict[str, str]:
    """Which numbers of a result are shown, with their headings."""
    if result.get('answers'):
        return TASK
    return TEXT if result['num_bytes'] else WORDS


def _span(values: list[float]) -> str:
    """Mean (least - greatest)."""
    if len(values) == 1:
        return f'{values[0]:.3f}'
    return f'{statistics.mean(values):.3f} ({min(values):.3f} - {max(values):.3f})'


def table(runs: dict[str, list[dict]]) -> str:
    """Markdown; `runs` are the numbers of each label's seeds."""
    shown = _metrics(next(iter(runs.values()))[0]['test'])
    heads = [
        'run', *shown.values(), *(f'{name}, emptied' for name in shown.values()), 'parameters',
        'memory size', 'state, kB per lane', 'ms/step', 'peak MB',
    ]  # fmt: skip
    lines = [f'| {" | ".join(heads)} |', f'|{"---|" * len(heads)}']
    for label, seeds in runs.items():
        cells = [label]
        for split in ('test', 'emptied'):
            for name in shown:
                scale = 100 if name in TASK else 1
                cells.append(_span([scale * numbers[split][name] for numbers in seeds]))
        mean = {
            name: statistics.mean(numbers[name] for numbers in seeds)
            for name in ('parameters', 'memory_size', 'state_bytes', 'ms_per_step', 'peak_mb')
        }
        cells += [f'{mean["parameters"]:,.0f}', f'{mean["memory_size"]:,.0f}']
        cells += [f'{mean["state_bytes"] / 1000:,.0f}', f'{mean["ms_per_step"]:.0f}']
        cells.append(f'{mean["peak_mb"]:,.0f}')
        lines.append(f'| {" | ".join(cells)} |')
    return '\n'.join(lines)


def draw(runs: dict[str, list[dict]], path: Path) -> None:
    """Validation by step: the mean over seeds, and from the least to the greatest."""
    figure = matplotlib.figure.Figure(figsize=(7, 4), dpi=120, layout='constrained')
    matplotlib.backends.backend_agg.FigureCanvasAgg(figure)
    own = figure.subplots()
    name, heading = list(_metrics(next(iter(runs.values()))[0]['test']).items())[-1]
    scale = 100 if name in TASK else 1
    for label, seeds in runs.items():
        steps = [line['step'] for line in seeds[0]['validation']]
        values = [[scale * line[name] for line in numbers['validation']] for numbers in seeds]
        columns = list(zip(*values, strict=True))
        (drawn,) = own.plot(
            steps, [statistics.mean(column) for column in columns], marker='o', label=label
        )
        least, greatest = ([f(column) for column in columns] for f in (min, max))
        own.fill_between(steps, least, greatest, color=drawn.get_color(), alpha=0.15)
    own.set_xlabel('step')
    own.set_ylabel(f'validation {heading}')
    own.grid(alpha=0.3)
    own.legend(fontsize=8)
    figure.savefig(path)


def main() -> None:
    """The command."""
    given = sys.argv[1:]
    cut = given.index('--') if '--' in given else len(given)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('runs', nargs='+')
    parser.add_argument('--config', required=True)
    parser.add_argument('--seeds', type=int, default=3)
    parser.add_argument('--output', type=Path, required=True)
    parser.add_argument('--figure', type=Path)
    options = parser.parse_args(given[:cut])
    found = {}
    for text in options.runs:
        label, _, rest = text.partition(': ')
        variants, *flags = (rest or label).split()
        for seed in range(options.seeds):
            folder = options.output / label.replace(' ', '_').replace('/', '_') / str(seed)
            numbers = run(options.config, variants, flags + given[cut + 1 :], seed, folder)
            found.setdefault(label, []).append(numbers)
            print(f'{label}, seed {seed}: {numbers["test"]["protocol"]}', flush=True)
    print(table(found))
    if options.figure:
        draw(found, options.figure)


if __name__ == '__main__':
    main()
