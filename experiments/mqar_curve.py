r"""MQAR by the protocol of Zoology (Arora et al., 2023): accuracy against bytes of state.

python -m experiments.mqar_curve --output=DIR [--rows=infini,linear] [--widths=64,128,256] \
    [--rates=1e-3,3.2e-3,1e-2,3.2e-2] [--seeds=3] [--tiny] [-- --config.FIELD=VALUE ...]

Every memory in `configs/mqar.py`, with models of several widths, hence with states of several sizes, and
with every learning rate of the sweep. Each is trained on documents of up to 64 pairs and tested on up to
256. All attention sees half of the token before (`token_shift`), where the paper's models have short
convolutions; a memory's own view of it is turned off.

A cell is a memory, a width, a rate and a seed: DIR/ROW/WIDTH/RATE/SEED.json. Finished cells are kept, so
the command can be stopped and repeated, and several can run at once for different rows. Every call
writes what is there: DIR/mqar_curve.json, .md, and .png, a panel per size with a curve per memory; a
mqar_curve.json that was brought into DIR counts as its cells, so further seeds can be added to it. The
rate of a curve is the one with most right answers at the end of training, of the seeds that all rates
have, not the best on the tests; the others are small dots. `--rows=` without a name runs nothing.
`--tiny` is for two cores: up to 60 pairs of 128 words in 256 tokens, and steps of training that see
whole documents.
"""

import argparse
import json
import statistics
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax

from configs import mqar
from experiments import markdown, provenance
from experiments.leaderboard import measure, pictures, rows
from experiments.leaderboard.columns import ANSWERS, Asked, Column
from experiments.options import add_seeds, make_parser, parse_with_flags, some_of, whole_numbers
from longmem_jax import files
from longmem_jax.config import overrides
from longmem_jax.errors import UsageError
from longmem_jax.reporting import figures

NAME = 'mqar_curve'
RATES = (1e-3, 3.2e-3, 1e-2, 3.2e-2)
WIDTHS = {'': (64, 128, 256), 'tiny': (16, 32, 64)}
# Of the tests: tokens and pairs.
SIZES = {
    '': ((64, 4), (64, 8), (64, 16), (128, 32), (256, 64), (512, 128), (1024, 256)),
    'tiny': ((64, 8), (128, 16), (256, 32), (256, 60)),
}
FLAGS = {
    '': [],
    'tiny': [
        '--config.data.task.num_words=128',
        '--config.model.vocab_size=128',
        '--config.data.task.sizes=((32,4),(64,8),(128,16),(256,60))',
        '--config.train.segments_per_step=8',
        '--config.train.num_lanes=8',
    ],
}
DOCUMENTS = {'': 1000, 'tiny': 96}  # of every size
END = 4  # parts of the training, of 25 steps, by which a rate is chosen


class Point(NamedTuple):
    """A memory, the width of its model, and a learning rate."""

    row: str
    width: int
    rate: float

    def file(self, output: Path, seed: int) -> Path:
        """Of the cell of a seed."""
        return output / self.row / str(self.width) / f'{self.rate:g}' / f'{seed}.json'


Found = dict[Point, dict[int, dict[str, Any]]]  # cells by seed


def parse(given: list[str]) -> argparse.Namespace:
    """The options; `flags` are those after `--`."""
    parser = make_parser(__doc__, f'experiments.{NAME}')
    parser.add_argument('--output', type=Path, required=True)
    parser.add_argument('--rows', type=some_of(rows.names(), or_none=True), default=rows.names())
    parser.add_argument('--widths', type=whole_numbers)
    parser.add_argument(
        '--rates', type=lambda text: [float(rate) for rate in text.split(',')], default=RATES
    )
    add_seeds(parser)
    parser.add_argument('--tiny', action='store_true', help='for two cores')
    options = parse_with_flags(parser, given)
    options.size = 'tiny' if options.tiny else ''
    options.widths = options.widths or WIDTHS[options.size]
    return options


def column(size: str) -> Column:
    """The tests, as a column of the leaderboard."""

    def asked(config: Any, _: str) -> list[Asked]:
        count = min(DOCUMENTS[size], config.data.task.eval_documents)
        return [
            Asked(
                'mqar', f'{length} x {pairs}', dict(sizes=((length, pairs),), eval_documents=count)
            )
            for length, pairs in SIZES[size]
        ]

    return Column('mqar', {'mqar': 'MQAR'}, ANSWERS, asked)


def prepared(point: Point, size: str, flags: list[str]) -> tuple[rows.Row, Any]:
    """The row of a point, and its configuration with `flags`."""
    argument = ','.join(filter(None, (size, f'width={point.width}', f'memory={point.row}')))
    config = mqar.get_config(argument)
    own = [f'--config.optimizer.learning_rate={point.rate:g}', '--config.model.token_shift=half']
    own += [*rows.one_shift(config), *FLAGS[size], *flags]
    overrides.apply(config, overrides.split_arguments(own)[1])
    flags = [f'--config=configs/mqar.py:{argument}', *own]
    return rows.Row(point.row, flags, rows.num_parameters(config), "the memory's own"), config


def run(options: argparse.Namespace) -> None:
    """Trains and tests what is missing; after a failed point continues with the next.

    Raises:
      UsageError: a finished cell has other flags.
    """
    points = [
        Point(*point)
        for row in options.rows
        for point in ((row, width, rate) for width in options.widths for rate in options.rates)
    ]
    brought = _brought(options.output)
    for point in points:
        row, config = prepared(point, options.size, options.flags)
        missing = []
        for seed in options.seeds:
            file = point.file(options.output, seed)
            known = brought.get((point, seed))
            if file.exists() or known:
                cell = provenance.read(file, 'flags') if file.exists() else known
                provenance.require_same(file, cell['flags'], row.flags)
            else:
                missing.append(seed)
        folder = point.file(options.output, 0).parent
        try:
            cells = measure.scores(
                row, column(options.size), config, '', missing, folder, row.flags
            )
            for seed, cell in cells if missing else ():
                cell |= point._asdict() | {'seed': seed}
                provenance.save(point.file(options.output, seed), cell, [seed])
                print(f'{", ".join(map(str, point))}, seed {seed}: {_answers(cell)}', flush=True)
        except Exception:  # whatever it is, other points can still be measured
            print(f'{", ".join(map(str, point))}: failed\n{traceback.format_exc()}', flush=True)
        jax.clear_caches()


def _answers(cell: dict[str, Any]) -> dict[str, float]:
    """Right answers by size, in percent."""
    return {size: 100 * score['kept'] for size, score in cell['scores']['mqar'].items()}


def _brought(output: Path) -> dict[tuple[Point, int], dict[str, Any]]:
    """The cells of a mqar_curve.json, by point and seed."""
    cells = provenance.saved(output / f'{NAME}.json') or []
    return {(Point(c['row'], c['width'], c['rate']), c['seed']): c for c in cells}


def collect(output: Path) -> Found:
    """All finished cells, in the order of rows, widths, rates and seeds."""
    cells = _brought(output)
    for file in output.glob('*/*/*/*.json'):
        cell = json.loads(file.read_text())
        cells[Point(cell['row'], cell['width'], cell['rate']), cell['seed']] = cell
    found: Found = {}
    for (point, seed), cell in cells.items():
        found.setdefault(point, {})[seed] = cell
    names = rows.names()
    order = sorted(found, key=lambda point: (names.index(point.row), *point[1:]))
    return {point: dict(sorted(found[point].items())) for point in order}


def chosen(found: Found) -> Iterator[Point]:
    """Of every row and width, the rate with most right answers at the end of training.

    Rates are compared by the seeds that all of them have, or one lucky seed would choose.
    """
    for row, width in dict.fromkeys(point[:2] for point in found):
        points = [point for point in found if point[:2] == (row, width)]
        shared = set.intersection(*({*found[point]} for point in points))

        def ends(point: Point, shared: set[int] = shared) -> float:
            cells = [cell for seed, cell in found[point].items() if seed in shared or not shared]
            return statistics.mean(statistics.mean(cell['training'][-END:]) for cell in cells)

        yield max(points, key=ends)


def table(found: Found) -> str:
    """A line per point, the chosen rates in bold; right answers in %, mean (minimum - maximum)."""
    best, sizes = {*chosen(found)}, _sizes(found)
    heads = ['memory', 'width', 'rate', 'seeds', 'steps', 'state, kB', 'parameters', *sizes]
    lines = []
    for point, by_seed in found.items():
        cells = [*by_seed.values()]
        rate = f'{point.rate:g}'
        line = [f'`{point.row}`', str(point.width), f'**{rate}**' if point in best else rate]
        line += [str(len(cells)), markdown.span([cell['steps'] for cell in cells], 0)]
        line += [f'{cells[0]["state_bytes"] / 1000:,.1f}', f'{cells[0]["parameters"]:,}']
        lines.append(line + [markdown.span([_answers(c)[s] for c in cells], 1) for s in sizes])
    any_value = [f'{100 / int(size.split(" x ")[1]):.1f}' for size in sizes]
    return markdown.table(heads, [*lines, ['any value of the document', *[''] * 6, *any_value]])


def _sizes(found: Found) -> list[str]:
    return list(
        dict.fromkeys(s for cells in found.values() for c in cells.values() for s in _answers(c))
    )


def draw(found: Found, path: Path) -> None:
    """A panel per size: a curve per memory over bytes of state, the mean of seeds with their range."""
    figure, by_size = pictures.panels(_sizes(found), 'bytes of state per lane')
    best = [*chosen(found)]
    names = list(dict.fromkeys(point.row for point in found))
    for size, axes in by_size.items():
        axes.set_xscale('log')
        for number, name in enumerate(names):
            look = dict(color=f'C{number % 10}', marker='osD^v'[number // 10 % 5], markersize=4)
            ends, places = [], []
            for point in (point for point in found if point.row == name):
                cells = found[point].values()
                values = [_answers(cell)[size] for cell in cells]
                place = max(next(iter(cells))['state_bytes'], 1)
                if point in best:
                    places.append(place)
                    ends.append((statistics.mean(values), min(values), max(values)))
                else:
                    axes.plot(
                        [place],
                        [statistics.mean(values)],
                        **look | {'markersize': 1.5, 'alpha': 0.4},
                    )
            middle, low, high = zip(*ends, strict=True)
            axes.plot(places, middle, **look, linewidth=1, label=name)
            axes.vlines(places, low, high, color=look['color'], linewidth=1)
    handles, labels = next(iter(by_size.values())).get_legend_handles_labels()
    figure.legend(handles, labels, loc='outside upper center', ncols=6, fontsize=7)
    figures.save(figure, path)


def main(given: list[str]) -> None:
    """Runs the command."""
    options = parse(given)
    run(options)
    found = collect(options.output)
    if not found:
        print(f'{options.output}: no finished cells')
        return
    cells = [cell for by_seed in found.values() for cell in by_seed.values()]
    provenance.save(options.output / f'{NAME}.json', cells, options.seeds)
    text = table(found)
    files.write(options.output / f'{NAME}.md', f'# MQAR\n\n{text}\n')
    draw(found, options.output / f'{NAME}.png')
    print(text)


if __name__ == '__main__':
    try:
        main(sys.argv[1:])
    except UsageError as error:
        sys.exit(str(error))
