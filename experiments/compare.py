"""Runs of one configuration side by side, as a Markdown table and a figure.

python -m experiments.compare --config=configs/NAME.py --output=DIR --seeds=3 \
    'LABEL: VARIANTS [--config.FIELD=VALUE ...]' 'LABEL: VARIANTS' ... [-- --config.FIELD=VALUE ...]

Trains every run with every seed, one after another; flags after `--` apply to all of them. Finished runs
are not repeated. A row shows mean (minimum - maximum) over seeds on the test set; `reset` is with the
memory reset before every segment; translations show BLEU instead. `--contexts=512,4096` adds tokens per
second of generation after contexts of these lengths (experiments/generation.py). `--figure=FILE.png`
draws validation by step, and generation by context if it was measured.
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
    """Trains one run; returns its numbers, which are also saved as `numbers.json` in its folder."""
    path = folder / 'numbers.json'
    if path.exists():
        return json.loads(path.read_text())
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
    path.write_text(json.dumps(numbers, indent=1))
    return numbers


def without_memory(results: dict) -> dict | None:
    """The result in `results.json` with the memory reset before every segment, or None."""
    scored = [result for result in results.values() if isinstance(result, dict)]
    return next((result for result in scored if result.get('memory') == 'reset'), None)


def generation(
    config: str, variants: str, flags: list[str], folder: Path, contexts: list[int]
) -> dict[str, float]:
    """Tokens per second of a finished run by context, also saved as `generation.json`."""
    path = folder / 'generation.json'
    lengths = [str(context) for context in contexts]
    if path.exists():
        speeds = json.loads(path.read_text())['tokens_per_s']
        if list(speeds) == lengths:
            return speeds
    command = [
        sys.executable, '-m', 'experiments.generation', f'--config={config}:{variants}',
        f'--workdir={folder}', f'--contexts={",".join(lengths)}', f'--output={path}', *flags,
    ]  # fmt: skip
    if subprocess.run(command, stdout=subprocess.DEVNULL).returncode:
        raise SystemExit(f'failed: {" ".join(command)}')
    return json.loads(path.read_text())['tokens_per_s']


def whole_numbers(text: str) -> list[int]:
    """'512,4096' as a list of numbers."""
    items = text.split(',')
    if not all(item.isdecimal() and int(item) for item in items):
        raise argparse.ArgumentTypeError(f'{text!r}: must be integers above 0, such as 512,4096')
    return [int(item) for item in items]


def _metrics(result: dict) -> dict[str, str]:
    """The metrics of a result to show, with their headings."""
    if result.get('answers'):
        return TASK
    return TEXT if result['num_bytes'] else WORDS


def _span(values: list[float]) -> str:
    """Mean (minimum - maximum)."""
    if len(values) == 1:
        return f'{values[0]:.3f}'
    return f'{statistics.mean(values):.3f} ({min(values):.3f} - {max(values):.3f})'


def table(runs: dict[str, list[dict]]) -> str:
    """A Markdown table; `runs`: label to the numbers of its seeds."""
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
    """Draws validation by step (mean and range over seeds), and generation by context."""
    first = next(iter(runs.values()))[0]
    panels = 2 if 'tokens_per_s' in first else 1
    figure = figures.figure(6 * panels + 2, 4.5)
    (by_step,), *rest = figure.subplots(1, panels, squeeze=False).T
    name, heading = list(_metrics(first['test']).items())[-1]
    scale = 100 if name in TASK else 1
    for index, (label, seeds) in enumerate(runs.items()):
        steps = [line['step'] for line in seeds[0]['validation']]
        values = [[scale * line[name] for line in numbers['validation']] for numbers in seeds]
        columns = list(zip(*values, strict=True))
        style = dict(color=f'C{index % 10}', linestyle=STYLES[index // 10 % len(STYLES)])
        by_step.plot(
            steps, [statistics.mean(column) for column in columns], marker='o', label=label, **style
        )
        least, greatest = ([f(column) for column in columns] for f in (min, max))
        by_step.fill_between(steps, least, greatest, color=style['color'], alpha=0.15)
        for (axes,) in rest:
            speeds = seeds[0]['tokens_per_s']
            contexts = [int(context) for context in speeds]
            axes.semilogx(contexts, speeds.values(), marker='o', **style)
            axes.set_xlabel('tokens of context')
            axes.set_ylabel('tokens per second')
    for (axes,) in rest:
        axes.set_ylim(bottom=0)  # last, because it also fixes the upper end
    by_step.set_xlabel('step')
    by_step.set_ylabel(f'validation {heading}')
    for (axes,) in ((by_step,), *rest):
        axes.grid(alpha=0.3)
    figure.legend(loc='outside right upper', fontsize=8)
    figure.savefig(path)


def main() -> None:
    """Runs the command."""
    arguments = sys.argv[1:]
    cut = arguments.index('--') if '--' in arguments else len(arguments)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('runs', nargs='+')
    parser.add_argument('--config', required=True)
    parser.add_argument('--seeds', type=int, default=3)
    parser.add_argument('--output', type=Path, required=True)
    parser.add_argument('--figure', type=Path)
    parser.add_argument('--contexts', type=whole_numbers)
    options = parser.parse_args(arguments[:cut])
    results = {}
    for text in options.runs:
        label, _, rest = text.partition(': ')
        variants, *flags = (rest or label).split()
        for seed in range(options.seeds):
            folder = options.output / label.replace(' ', '_').replace('/', '_') / str(seed)
            all_flags = flags + arguments[cut + 1 :]
            numbers = run(options.config, variants, all_flags, seed, folder)
            if options.contexts:
                numbers['tokens_per_s'] = generation(
                    options.config, variants, all_flags, folder, options.contexts
                )
            results.setdefault(label, []).append(numbers)
            print(f'{label}, seed {seed}: {numbers["test"]["protocol"]}', flush=True)
    print(table(results))
    if options.figure:
        draw(results, options.figure)


if __name__ == '__main__':
    main()
