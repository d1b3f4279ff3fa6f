"""Runs of one configuration side by side, as a Markdown table and a figure.

python -m experiments.compare --config=configs/NAME.py --output=DIR --seeds=3 \
    'LABEL: VARIANTS [--config.FIELD=VALUE ...]' 'LABEL: VARIANTS' ... [-- --config.FIELD=VALUE ...]

Trains every run with every seed, one after the other; flags behind `--` go to all of them. What has
finished is not run again. A row gives mean (least - greatest) over seeds on the test set; `reset`
is with the memory reset before every segment; translations have BLEU instead. `--contexts=512,4096`
adds tokens per second of generation behind so many tokens (experiments/generation.py).
`--figure=FILE.png` draws validation by step, and generation by context where it was measured.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from longmem_jax.reporting import figures

TASK = {'exact_match': 'exact match, %', 'accuracy': 'accuracy, %'}
TEXT = {'bits_per_byte': 'bits/byte'}
WORDS = {'perplexity': 'perplexity'}
STYLES = ('-', '--', ':')


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
        'reset': without_memory(results),
        'bleu': results.get('bleu'),
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


def without_memory(results: dict) -> dict | None:
    """The result of `results.json` with the memory reset before every segment; None = not there."""
    scored = [found for found in results.values() if isinstance(found, dict)]
    return next((found for found in scored if found.get('memory') == 'reset'), None)


def generation(
    config: str, variants: str, flags: list[str], folder: Path, contexts: list[int]
) -> dict[str, float]:
    """Tokens per second of a finished run by context, also written to `generation.json`."""
    found = folder / 'generation.json'
    wanted = [str(context) for context in contexts]
    if found.exists():
        speeds = json.loads(found.read_text())['tokens_per_s']
        if list(speeds) == wanted:
            return speeds
    command = [
        sys.executable, '-m', 'experiments.generation', f'--config={config}:{variants}',
        f'--workdir={folder}', f'--contexts={",".join(wanted)}', f'--output={found}', *flags,
    ]  # fmt: skip
    if subprocess.run(command, stdout=subprocess.DEVNULL).returncode:
        raise SystemExit(f'failed: {" ".join(command)}')
    return json.loads(found.read_text())['tokens_per_s']


def whole_numbers(text: str) -> list[int]:
    """'512,4096' to numbers."""
    parts = text.split(',')
    if not all(part.isdecimal() and int(part) for part in parts):
        raise argparse.ArgumentTypeError(f'{text!r}: whole numbers from 1 on, such as 512,4096')
    return [int(part) for part in parts]


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
    first = next(iter(runs.values()))[0]
    shown = _metrics(first['test'])
    without = [f'{name}, reset' for name in shown.values()] if first['reset'] else ['BLEU']
    contexts = first.get('tokens_per_s', {})
    heads = [
        'run', *shown.values(), *without, 'parameters', 'memory size', 'state, kB per lane',
        'ms/step', 'peak MB', *(f'tokens/s after {int(context):,}' for context in contexts),
    ]  # fmt: skip
    lines = [f'| {" | ".join(heads)} |', f'|{"---|" * len(heads)}']
    for label, seeds in runs.items():
        cells = [label]
        for split in ('test', 'reset') if first['reset'] else ('test',):
            for name in shown:
                scale = 100 if name in TASK else 1
                cells.append(_span([scale * numbers[split][name] for numbers in seeds]))
        if not first['reset']:
            cells.append(_span([numbers['bleu'] for numbers in seeds]))
        mean = {
            name: statistics.mean(numbers[name] for numbers in seeds)
            for name in ('parameters', 'memory_size', 'state_bytes', 'ms_per_step', 'peak_mb')
        }
        cells += [f'{mean["parameters"]:,.0f}', f'{mean["memory_size"]:,.0f}']
        cells += [f'{mean["state_bytes"] / 1000:,.0f}', f'{mean["ms_per_step"]:.0f}']
        cells.append(f'{mean["peak_mb"]:,.0f}')
        for context in contexts:
            speeds = [numbers['tokens_per_s'][context] for numbers in seeds]
            cells.append(f'{statistics.mean(speeds):,.0f}')
        lines.append(f'| {" | ".join(cells)} |')
    return '\n'.join(lines)


def draw(runs: dict[str, list[dict]], path: Path) -> None:
    """Validation by step, the mean over seeds and from the least to the greatest; and generation."""
    first = next(iter(runs.values()))[0]
    panels = 2 if 'tokens_per_s' in first else 1
    figure = figures.figure(6 * panels + 2, 4.5)
    (by_step,), *rest = figure.subplots(1, panels, squeeze=False).T
    name, heading = list(_metrics(first['test']).items())[-1]
    scale = 100 if name in TASK else 1
    for number, (label, seeds) in enumerate(runs.items()):
        steps = [line['step'] for line in seeds[0]['validation']]
        values = [[scale * line[name] for line in numbers['validation']] for numbers in seeds]
        columns = list(zip(*values, strict=True))
        style = dict(color=f'C{number % 10}', linestyle=STYLES[number // 10 % len(STYLES)])
        by_step.plot(
            steps, [statistics.mean(column) for column in columns], marker='o', label=label, **style
        )
        least, greatest = ([f(column) for column in columns] for f in (min, max))
        by_step.fill_between(steps, least, greatest, color=style['color'], alpha=0.15)
        for (own,) in rest:
            speeds = seeds[0]['tokens_per_s']
            own.semilogx([int(context) for context in speeds], speeds.values(), marker='o', **style)
            own.set_xlabel('tokens of context')
            own.set_ylabel('tokens per second')
    for (own,) in rest:
        own.set_ylim(bottom=0)  # last: it fixes the upper end, too
    by_step.set_xlabel('step')
    by_step.set_ylabel(f'validation {heading}')
    for (own,) in ((by_step,), *rest):
        own.grid(alpha=0.3)
    figure.legend(loc='outside right upper', fontsize=8)
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
    parser.add_argument('--contexts', type=whole_numbers)
    options = parser.parse_args(given[:cut])
    found = {}
    for text in options.runs:
        label, _, rest = text.partition(': ')
        variants, *flags = (rest or label).split()
        for seed in range(options.seeds):
            folder = options.output / label.replace(' ', '_').replace('/', '_') / str(seed)
            every = flags + given[cut + 1 :]
            numbers = run(options.config, variants, every, seed, folder)
            if options.contexts:
                numbers['tokens_per_s'] = generation(
                    options.config, variants, every, folder, options.contexts
                )
            found.setdefault(label, []).append(numbers)
            print(f'{label}, seed {seed}: {numbers["test"]["protocol"]}', flush=True)
    print(table(found))
    if options.figure:
        draw(found, options.figure)


if __name__ == '__main__':
    main()
