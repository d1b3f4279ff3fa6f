r"""Runs of one configuration side by side, as a Markdown table and a figure.

python -m experiments.compare --config=configs/NAME.py --output=DIR --seeds=3 \
    'LABEL: VARIANTS [--config.FIELD=VALUE ...]' 'LABEL: VARIANTS' ... [-- --config.FIELD=VALUE ...]

Trains every run with every seed (`--seeds=3` are 0, 1 and 2; `--seeds=11,23` are these), one after
another; flags after `--` apply to all of them. Finished runs are not repeated; a label whose run was
another one is refused. A row shows mean (minimum - maximum) over seeds on the test set; `reset` is with
the memory reset before every segment; translations show BLEU instead, agents their reward in new
episodes, lifelong learners their accuracy over tasks and forgetting. `--contexts=512,4096` adds tokens
per second of generation after contexts of these lengths (experiments/generation.py). `--figure=FILE.png`
draws validation by step, and generation by context if it was measured. `--floors` adds what rules
without a learned memory score on the test set of the first run and seed (`--mode=floors`).
`--save=FILE.json` writes the scores of every seed, and the floors, with what they were measured with.
`--together` trains the seeds of a run in one process, which compiles once; nothing then says how much
memory one of them took.

`--sweep=FIELD=VALUE,VALUE,...` repeats every run for each value of `config.FIELD`, such as
`optimizer.learning_rate`, and says which value is best on validation after training. A field that begins
with `evaluate.` is swept over one training per seed, with the scores of experiments/evaluation.py. Then
`--by_size=FILE.png` draws the score on test against the mean size of the memory, `--by_value=FILE.png`
against the value; one line per run, bars from minimum to maximum over seeds. For example

python -m experiments.compare --config=configs/recall.py --output=DIR --by_size=memory.png \
    --sweep=model.transformer_xl.memory_length=16,64,256 'Transformer-XL: tiny,memory=transformer_xl'
"""

import argparse
import functools
import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments import floors, markdown, provenance
from experiments.compare_figures import TASK, draw, draw_scores, metrics_of
from experiments.evaluation import memory_size
from experiments.options import add_seeds, make_parser, parse_with_flags, seed_flags, whole_numbers

TRAIN = 'longmem_jax.main'
SIZES = ('memory_size', 'state_bytes', 'ms_per_step')
TOGETHER = 'experiments.trainings'

# Columns after the scores: heading, scale, and the form of those that are means over seeds.
SPANS = {'bleu': ('BLEU', 1), 'forgetting': ('forgetting, %', 100)}
MEANS = {
    'parameters': ('parameters', 1, ',.0f'),
    'memory_size': ('memory size', 1, ',.0f'),
    'state_bytes': ('state, kB per lane', 1e-3, ',.0f'),
    'memory_bytes': ('memory, kB', 1e-3, ',.0f'),
    'test_seconds': ('test, s', 1, '.1f'),
    'ms_per_step': ('ms/step', 1, '.0f'),
    'peak_mb': ('peak MB', 1, ',.0f'),
}


def run(
    config: str,
    variants: str,
    flags: list[str],
    seed: int,
    folder: Path,
    together: Sequence[int] = (),
) -> dict:
    """Trains one run; returns its numbers, which are also saved as `numbers.json` in its folder.

    Args:
      config, variants, flags: of the run.
      seed: of parameters and data.
      folder: of the run.
      together: if any, train these seeds in the process, into folders beside this one.

    Raises:
      SystemExit: the training failed, or the folder has the numbers of another one.
    """
    path = folder / 'numbers.json'
    asked = provenance.without_folders([f'{Path(config).stem}:{variants}', *flags])
    if path.exists():
        known = json.loads(path.read_text())
        provenance.exit_unless_same(folder, known, asked)
        return known
    folder.mkdir(parents=True, exist_ok=True)
    if together:
        peak = math.nan
        if not (folder / 'results.json').exists():
            given = [f'--config={config}:{variants}', f'--workdir={folder.parent}', *flags]
            seeds = ','.join(map(str, together))
            _process(TOGETHER, [*given, f'--seeds={seeds},'], folder.parent)
    else:
        peak = _process(TRAIN, run_arguments(config, variants, flags, seed, folder), folder)
    results = json.loads((folder / 'results.json').read_text())
    lines = [json.loads(line) for line in (folder / 'metrics.jsonl').read_text().splitlines()]
    train = [line for line in lines if line['group'] == 'train']
    last = train[-max(1, len(train) // 4) :]
    sizes = [
        memory_size({name.removeprefix('memory/'): value for name, value in line.items()})
        for line in last
    ]
    rates = [line['steps_per_s'] for line in lines if line['group'] == 'speed']
    by_lane = 'state_bytes_per_lane' in results
    numbers = {
        'flags': asked,
        'test': results['test'],
        'reset': without_memory(results),
        'bleu': results.get('bleu'),
        'forgetting': results.get('transfer', {}).get('forgetting'),
        'parameters': results['parameters'],
        'state_bytes': results.get('state_bytes_per_lane'),
        # What is kept between tasks is of no lane, and its metrics count no positions.
        'memory_bytes': results.get('memory_bytes'),
        'memory_size': statistics.mean(sizes) if by_lane and sizes else None,
        'test_seconds': results.get('test_seconds'),
        # A run of few steps logs no speed.
        'ms_per_step': 1000 / statistics.median(rates) if rates else math.nan,
        'peak_mb': peak,
        'validation': [
            {name: line[name] for name in ('step', *metrics_of(line))}
            for line in lines
            if line['group'] == 'validation'
        ],
    }
    return provenance.save(path, numbers, [seed], device=results.get('device', 'not recorded'))


def every_seed(
    config: str, variants: str, flags: list[str], folder: Path, seeds: Sequence[int]
) -> Iterator[tuple[int, dict]]:
    """Seeds and the numbers of their runs, see `run`; those that are missing are trained together."""
    for seed in seeds:
        yield seed, run(config, variants, flags, seed, folder / str(seed), seeds)


def _process(module: str, given: list[str], folder: Path) -> float:
    """Runs `python -m MODULE`, its output in `log.txt`; returns the most memory it took, MB."""
    command = [sys.executable, '-m', module, *given]
    with open(folder / 'log.txt', 'w') as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)  # it has been waited for
    if process.returncode:
        raise SystemExit(provenance.failed(command, folder / 'log.txt'))
    return usage.ru_maxrss / 1024


def run_arguments(
    config: str, variants: str, flags: list[str], seed: int, folder: Path
) -> list[str]:
    """What follows `python -m MODULE` on a command line: config, folder, seeds, flags."""
    given = [f'--config={config}:{variants}', f'--workdir={folder}']
    return [*given, *seed_flags(seed), *flags]


def without_memory(results: dict) -> dict | None:
    """The result in `results.json` with the memory reset before every segment, or None."""
    scored = [result for result in results.values() if isinstance(result, dict)]
    return next((result for result in scored if result.get('memory') == 'reset'), None)


def evaluated(
    config: str, variants: str, flags: list[str], seed: int, folder: Path, override: str
) -> dict[str, Any]:
    """Scores of a finished run with `override` ('FIELD=VALUE') of `config.evaluate`, also saved."""
    path = folder / f'{override}.json'
    if not path.exists():
        partial = folder / 'evaluation.json'
        given = run_arguments(config, variants, flags, seed, folder)
        floors.run(
            'experiments.evaluation', [f'--output={partial}', *given, f'--config.{override}']
        )
        partial.rename(path)
    return json.loads(path.read_text())


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
    given = [f'--config={config}:{variants}', f'--workdir={folder}', f'--output={path}']
    floors.run('experiments.generation', [*given, f'--contexts={",".join(lengths)}', *flags])
    return json.loads(path.read_text())['tokens_per_s']


class Sweep(NamedTuple):
    """A field of the configuration and the values it takes; `field` '' = nothing is swept."""

    field: str = ''
    values: tuple[str, ...] = ('',)

    @property
    def of_evaluation(self) -> bool:
        """Whether one training serves all values."""
        return self.field.startswith('evaluate.')

    def override(self, value: str) -> str:
        """'FIELD=VALUE', or '' if nothing is swept."""
        return f'{self.field}={value}' if self.field else ''

    def label(self, label: str, value: str) -> str:
        """The name of a run with this value in tables."""
        return f'{label}, {self.field.split(".")[-1]} {value}' if self.field else label


def sweep(text: str) -> Sweep:
    """'FIELD=VALUE,VALUE' as a `Sweep`."""
    field, equals, values = text.removeprefix('config.').partition('=')
    items = tuple(values.split(','))
    if not (field and equals and all(items)):
        raise argparse.ArgumentTypeError(f'{text!r}: must be FIELD=VALUE,VALUE,...')
    if len(set(items)) < len(items):
        raise argparse.ArgumentTypeError(f'{text!r}: has a value twice')
    return Sweep(field, items)


def table(runs: dict[str, list[dict]]) -> str:
    """A Markdown table; `runs`: label to the numbers of its seeds.

    A column for which no run has a number is left out.
    """
    every = [numbers for seeds in runs.values() for numbers in seeds]
    shown = metrics_of(every[0]['test'])
    splits = {'test': '', 'reset': ', reset'} if every[0]['reset'] else {'test': ''}
    spans = [name for name in SPANS if any(numbers.get(name) is not None for numbers in every)]
    means = [name for name in MEANS if any(numbers.get(name) is not None for numbers in every)]
    contexts = every[0].get('tokens_per_s', {})
    heads = [
        'run', *(f'{heading}{of}' for of in splits.values() for heading in shown.values()),
        *(SPANS[name][0] for name in spans), *(MEANS[name][0] for name in means),
        *(f'tokens/s after {int(context):,}' for context in contexts),
    ]  # fmt: skip
    lines = []
    for label, seeds in runs.items():
        cells = [label]
        for split in splits:
            for name in shown:
                scale = 100 if name in TASK else 1
                cells.append(markdown.span([scale * numbers[split][name] for numbers in seeds]))
        for name in spans:
            cells.append(_known(seeds, name, SPANS[name][1], markdown.span))
        for name in means:
            _, scale, shape = MEANS[name]
            mean = functools.partial(_mean, shape=shape)
            cells.append(_known(seeds, name, scale, mean))
        for context in contexts:
            speeds = [numbers['tokens_per_s'][context] for numbers in seeds]
            cells.append(f'{statistics.mean(speeds):,.0f}')
        lines.append(cells)
    return markdown.table(heads, lines)


def best_value(by_value: dict[str, list[dict]]) -> str:
    """The swept value that is best on validation after training, the mean of its seeds, in words.

    '' where nothing was trained for a value, or nothing was validated.
    """
    if not all(numbers.get('validation') for seeds in by_value.values() for numbers in seeds):
        return ''
    name, heading = next(iter(metrics_of(next(iter(by_value.values()))[0]['test']).items()))
    scores = {
        value: statistics.mean(numbers['validation'][-1][name] for numbers in seeds)
        for value, seeds in by_value.items()
    }
    best = (max if name in (*TASK, 'reward') else min)(scores, key=scores.__getitem__)
    return f'{best} is best on validation: {scores[best]:.4g} {heading}'


def scores(runs: dict[str, list[dict]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Label to seed to what claims are made of: the scores shown and sizes, with the run of each."""
    first = next(iter(runs.values()))[0]
    # Of words, papers have perplexities.
    shown, found = dict.fromkeys((*metrics_of(first['test']), 'perplexity')), {}
    for label, seeds in runs.items():
        for numbers in seeds:
            kept = {
                name: numbers[name] for name in ('run', 'parameters', *SIZES) if name in numbers
            }
            for split in ('test', 'reset'):
                if numbers[split]:
                    kept[split] = {
                        name: numbers[split][name] for name in shown if name in numbers[split]
                    }
            found.setdefault(label, {})[str(numbers['run']['seeds'][0])] = kept
    return found


def _mean(values: list[float], shape: str) -> str:
    return format(statistics.mean(values), shape)


def _known(seeds: list[dict], name: str, scale: float, shown: Callable[[list[float]], str]) -> str:
    """A number of the seeds that have it; says so if not all do, since those may be the better ones."""
    values = [scale * numbers[name] for numbers in seeds if numbers.get(name) is not None]
    if not values:
        return '-'
    return shown(values) + f', {len(values)} of {len(seeds)} seeds' * (len(values) < len(seeds))


def main() -> None:
    """Runs the command."""
    parser = make_parser(__doc__)
    parser.add_argument('runs', nargs='+')
    parser.add_argument('--config', required=True)
    add_seeds(parser)
    parser.add_argument('--output', type=Path, required=True)
    parser.add_argument('--figure', type=Path)
    parser.add_argument('--contexts', type=whole_numbers)
    parser.add_argument('--floors', action='store_true')
    parser.add_argument('--together', action='store_true')
    parser.add_argument('--save', type=Path)
    parser.add_argument('--sweep', type=sweep, default=Sweep())
    parser.add_argument('--by_size', type=Path)
    parser.add_argument('--by_value', type=Path)
    options = parse_with_flags(parser, sys.argv[1:])
    if options.by_value and not options.sweep.field:
        parser.error('--by_value: needs --sweep=FIELD=VALUE,VALUE,...')
    labels = [parts(text)[0] for text in options.runs]
    if len({folder_name(label) for label in labels}) < len(labels):
        parser.error(f'runs: each needs a label and a folder of its own; these are {labels}')
    results: dict[str, dict[str, list[dict]]] = {}
    for text in options.runs:
        label, (variants, *flags) = parts(text)
        by_value = results.setdefault(label, {})
        for value in options.sweep.values:
            for seed in options.seeds:
                numbers = swept(options, label, variants, flags + options.flags, value, seed)
                by_value.setdefault(value, []).append(numbers)
                name = options.sweep.label(label, value)
                print(f'{name}, seed {seed}: {numbers["test"]["protocol"]}', flush=True)
    rows = {
        options.sweep.label(label, value): seeds
        for label, by_value in results.items()
        for value, seeds in by_value.items()
    }
    print(table(rows))
    trained = options.sweep.field and not options.sweep.of_evaluation
    for label, by_value in results.items() if trained else ():
        if said := best_value(by_value):
            print(options.sweep.label(label, said))
    kept: dict[str, Any] = {}
    if options.floors:
        label, (variants, *flags) = parts(options.runs[0])
        flags = [*seed_flags(options.seeds[0]), *flags, *options.flags]
        # Of this run and seed: floors of another one would be taken from a folder that both share.
        folder = options.output / folder_name(label) / str(options.seeds[0]) / 'floors'
        found = floors.measure(options.config, variants, flags, folder)
        print(f'\n{floors.table(found)}')
        kept['floors'] = found['scores']
    if options.save:
        provenance.save(options.save, scores(rows) | kept, options.seeds)
    if options.figure:
        draw(rows, options.figure)
    for path in filter(None, (options.by_size, options.by_value)):
        draw_scores(results, path, options.sweep.field, path == options.by_size)


def parts(text: str) -> tuple[str, list[str]]:
    """'LABEL: VARIANTS FLAGS' as the label, and the variants followed by the flags."""
    label, _, rest = text.partition(': ')
    return label, (rest or label).split()


def folder_name(label: str) -> str:
    """The folder of a run, in that of `--output`."""
    return label.replace(' ', '_').replace('/', '_')


def swept(
    options: argparse.Namespace, label: str, variants: str, flags: list[str], value: str, seed: int
) -> dict:
    """The numbers of a run with a value of the sweep; what is finished is not repeated."""
    folder = options.output / folder_name(label)
    override = options.sweep.override(value)
    if override and not options.sweep.of_evaluation:
        folder, flags = folder / override, [*flags, f'--config.{override}']
    folder = folder / str(seed)
    together = options.seeds if options.together else ()
    numbers = run(options.config, variants, flags, seed, folder, together)
    if override and options.sweep.of_evaluation:
        numbers = numbers | evaluated(options.config, variants, flags, seed, folder, override)
    if options.contexts:
        speeds = generation(options.config, variants, flags, folder, options.contexts)
        numbers = numbers | {'tokens_per_s': speeds}
    return numbers


if __name__ == '__main__':
    main()
