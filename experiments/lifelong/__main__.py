r"""All methods on a stream of tasks, in several orders, as tables and figures.

python -m experiments.lifelong --output=DIR --path=FOLDER --encoder=BERT [--methods=mbpa,replay,...] \
    [--orders=i,ii,iii,iv] [--config=configs/lifelong_relations.py] [-- --config.FIELD=VALUE ...]

Trains `configs/lifelong_classification.py:tiny,method=METHOD,order=ORDER,path=BERT` on the data of
FOLDER, in DIR/METHOD/ORDER. Finished runs are not repeated, and one that was cut off resumes. `mtl` is
the usual bound: all tasks shuffled together, with a seed for each order. An order that is a number is a
seed, for streams without published orders, such as `configs/lifelong_relations.py`. Printed are

- test accuracy by order, its mean (minimum - maximum), forgetting, bytes of the memory, seconds of
  tests;
- differences between methods that are next to each other in that ranking, on the orders that both have,
  with the 95 % interval of a bootstrap over test rows, paired row by row.

DIR/first_last.png has the first and the last task over time in the first order.
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments import markdown, provenance
from experiments.lifelong import comparisons
from experiments.options import make_parser, parse_with_flags, some_of
from longmem_jax.lifelong.methods.registry import METHODS
from longmem_jax.reporting import figures

BOUND = 'mtl'


class Run(NamedTuple):
    """A finished run.

    Attributes:
      result: what is in its results.json.
      right: task to how right each of its test rows is.
    """

    result: dict[str, Any]
    right: dict[str, np.ndarray]


Runs = dict[str, dict[str, Run]]  # method to order to run


def arguments(options: argparse.Namespace, method: str, order: str) -> list[str]:
    """What follows `python -m longmem_jax.main`."""
    variants = f'tiny,path={options.encoder},'
    variants += 'method=sequential,stream=joint' if method == BOUND else f'method={method}'
    seeds, numbered = [], order.isdecimal()
    if numbered or method == BOUND:
        seed = order if numbered else options.orders.index(order)
        seeds = [f'--config.train.seed={seed}', f'--config.data.seed={seed}']
    else:
        variants += f',order={order}'
    folder = options.output / method / order
    given = [f'--config={options.config}:{variants}', f'--workdir={folder}']
    return [*given, f'--config.data.path={options.path}', *seeds]


def train(options: argparse.Namespace) -> None:
    """Trains what has no results yet.

    Raises:
      SystemExit: a training failed, or results are those of other flags.
    """
    asked = provenance.without_folders([f'--config={options.config}', *options.flags])
    for method in options.methods:
        for order in options.orders:
            folder = options.output / method / order
            known = folder / 'flags.json'
            if (folder / 'results.json').exists():
                provenance.exit_unless_same(folder, provenance.saved(known) or {}, asked)
                continue
            folder.mkdir(parents=True, exist_ok=True)
            provenance.save(known, {'flags': asked}, [], device='not recorded')
            given = [*arguments(options, method, order), *options.flags]
            with open(folder / 'log.txt', 'a') as log:
                command = [sys.executable, '-m', 'longmem_jax.main', *given]
                status = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT).returncode
            if status or not (folder / 'results.json').exists():
                raise SystemExit(provenance.failed(command, folder / 'log.txt'))
            print(f'{method}, {order}: done', flush=True)


def read(options: argparse.Namespace) -> Runs:
    """The finished runs."""
    found: Runs = {}
    for method in options.methods:
        for order in options.orders:
            folder = options.output / method / order
            if (folder / 'results.json').exists():
                result = json.loads((folder / 'results.json').read_text())
                with np.load(folder / 'right.npz') as right:
                    found.setdefault(method, {})[order] = Run(result, dict(right))
    return found


def ranked(runs: Runs) -> list[str]:
    """Methods, the best mean first."""
    means = {name: statistics.mean(_accuracies(by_order)) for name, by_order in runs.items()}
    return sorted(means, key=means.get, reverse=True)


def _accuracies(by_order: dict[str, Run]) -> list[float]:
    return [100 * run.result['test']['accuracy'] for run in by_order.values()]


def table(runs: Runs, orders: list[str]) -> str:
    """Accuracy by order and what it costs, a line for each method, the best mean first."""
    lines = []
    for name in ranked(runs):
        by_order = runs[name]
        cells = [name]
        for order in orders:
            run = by_order.get(order)
            cells.append(f'{100 * run.result["test"]["accuracy"]:.1f}' if run else '')
        forgot = [
            100 * run.result['transfer']['forgetting']
            for run in by_order.values()
            if 'transfer' in run.result
        ]
        cells.append(markdown.span(_accuracies(by_order), 1))
        cells.append(markdown.span(forgot, 0) if forgot else '')
        first = next(iter(by_order.values())).result
        cells.append(f'{first["memory_bytes"] / 1000:,.0f}')
        seconds = statistics.median(run.result['test_seconds'] for run in by_order.values())
        cells.append(f'{seconds:,.1f}')
        lines.append(cells)
    heads = ['method', *orders, 'mean (min - max)', 'forgetting', 'memory, kB', 'tests, s']
    return markdown.table(heads, lines)


def paired(first: Run, second: Run) -> np.ndarray:
    """How right both were on the test rows of both, float32 [2, rows].

    Runs of a seed are asked the same rows in the same order, and one may be asked more of them.
    """
    pairs = [(first.right[name], second.right[name]) for name in sorted(first.right)]
    return np.concatenate(
        [[each[: min(map(len, pair))] for each in pair] for pair in pairs], axis=1
    )


def compared(runs: Runs) -> Iterator[list[str]]:
    """Each method against the next one of the ranking: names, difference, interval, p."""
    names = ranked(runs)
    for better, worse in zip(names, names[1:], strict=False):
        shared = [order for order in runs[better] if order in runs[worse]]
        if not shared:
            continue
        both = [paired(runs[better][order], runs[worse][order]) for order in shared]
        found = comparisons.paired_bootstrap(*np.concatenate(both, axis=1))
        yield [
            f'{better} - {worse}',
            f'{len(shared)}',
            f'{100 * found.mean:+.1f}',
            f'{100 * found.low:+.1f} to {100 * found.high:+.1f}',
            f'{found.p:.4f}',
        ]


def main() -> None:
    """Runs the command."""
    known = [BOUND, *sorted(METHODS)]
    parser = make_parser(__doc__)
    parser.add_argument('--output', type=Path, required=True)
    parser.add_argument('--path', required=True, help='folder of the data')
    parser.add_argument('--encoder', required=True, help='of commands.pretrain_encoder')
    parser.add_argument('--methods', type=some_of(known), default=known)
    parser.add_argument('--config', default='configs/lifelong_classification.py')
    parser.add_argument(
        '--orders', type=lambda text: text.split(','), default=['i', 'ii', 'iii', 'iv']
    )
    parser.add_argument('--only_tables', action='store_true', help='of what is finished')
    options = parse_with_flags(parser, sys.argv[1:])
    if not options.only_tables:
        train(options)
    runs = read(options)
    if not runs:
        raise SystemExit(f'{options.output}: no finished runs there')
    print(table(runs, options.orders), end='\n\n')
    heads = ['difference', 'orders', 'points', '95 % interval', 'p']
    print(markdown.table(heads, list(compared(runs))))
    order = options.orders[0]
    measured = {
        name: np.asarray(by_order[order].result['matrix'])
        for name, by_order in runs.items()
        if order in by_order and 'matrix' in by_order[order].result
    }
    if measured:
        first = next(iter(measured))
        tasks = list(runs[first][order].result['tasks'])
        chosen = {name: measured[name] for name in ranked(runs) if name in measured}
        drawn = comparisons.first_and_last(chosen, tasks)
        figures.save(drawn, options.output / 'first_last.png')


if __name__ == '__main__':
    main()
