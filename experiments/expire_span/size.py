"""Score against the size of the memory, every seed a point (axes of the paper's Figs. 4, 5, 6 and 10).

python -m experiments.expire_span.size --output=FILE.png DIR 'LABEL=NAME,NAME,...' 'LABEL=NAME,...'

DIR is the `--output` of `experiments.compare`, NAME the folder of a run in it (its label, '_' for ' ').
The score is exact match, of texts bits per byte or perplexity. The left panel has the vectors that are
held, the right one the bytes that are reserved, both of one lane, summed over layers. The means over the
seeds of the NAMEs of a label are joined by a line; with one NAME there is none.
"""

import json
import statistics
from pathlib import Path
from typing import NamedTuple

import matplotlib.figure

from experiments.compare_figures import TASK, metrics_of
from experiments.options import make_parser
from longmem_jax.reporting import figures

MARKERS = 'osD^vP'
PANELS = {
    'held': 'vectors held, all layers of a lane',
    'kilobytes': 'state reserved, kB, all layers of a lane',
}


class Point(NamedTuple):
    """A seed.

    Attributes:
      held: vectors of all layers, mean over the last quarter of training.
      kilobytes: of state.
      score: on test.
    """

    held: float
    kilobytes: float
    score: float


def points(folder: Path) -> tuple[list[Point], str]:
    """All seeds of a run, and the heading of the score."""
    paths = sorted(folder.glob('*/numbers.json'))
    if not paths:
        raise SystemExit(f'{folder}: no finished runs; give the folder and the names of compare.')
    found = [json.loads(path.read_text()) for path in paths]
    shown = metrics_of(found[0]['test'])
    name = 'exact_match' if 'exact_match' in shown else next(iter(shown))
    scale = 100 if name in TASK else 1
    layers = _layers(paths[0].with_name('config.json'))
    return [
        Point(layers * run['memory_size'], run['state_bytes'] / 1000, scale * run['test'][name])
        for run in found
    ], shown[name]


def _layers(path: Path) -> int:
    """Layers of a model, which are all alike: the size of a memory is a mean over them."""
    attention = json.loads(path.read_text())['model']['attention']
    if len(set(attention)) > 1:
        raise SystemExit(f'{path}: layers of several kinds, {attention}; give runs with one kind.')
    return len(attention)


def draw(runs: dict[str, list[list[Point]]], heading: str) -> matplotlib.figure.Figure:
    """The figure; `runs`: label to the points of its runs, `heading`: of the score."""
    figure = figures.figure(11, 4.5)
    panels = figure.subplots(1, len(PANELS), sharey=True)
    for axes, (name, words) in zip(panels, PANELS.items(), strict=True):
        for index, (label, of_label) in enumerate(runs.items()):
            both = [[(getattr(p, name), p.score) for p in seeds] for seeds in of_label]
            look = dict(color=f'C{index}', marker=MARKERS[index % len(MARKERS)])
            for n, seeds in enumerate(both):
                axes.scatter(*zip(*seeds, strict=True), label='' if n else label, **look)
            means = [[statistics.mean(c) for c in zip(*seeds, strict=True)] for seeds in both]
            if len(means) > 1:
                axes.plot(*zip(*sorted(means), strict=True), color=look['color'], alpha=0.5)
        axes.set_xlabel(words)
        axes.set_xlim(left=0)
        axes.grid(alpha=0.3)
    panels[0].set_ylabel(f'test {heading}')
    panels[0].legend(fontsize=8)
    return figure


def main() -> None:
    """Runs the command."""
    parser = make_parser(__doc__)
    parser.add_argument('folder', type=Path)
    parser.add_argument('runs', nargs='+')
    parser.add_argument('--output', type=Path, required=True)
    options = parser.parse_args()
    runs, headings = {}, set()
    for text in options.runs:
        label, _, names = text.rpartition('=')
        found = [points(options.folder / name) for name in names.split(',')]
        runs[label] = [seeds for seeds, _ in found]
        headings |= {heading for _, heading in found}
    if len(headings) > 1:
        raise SystemExit(
            f'{options.folder}: runs of different scores: {", ".join(sorted(headings))}.'
        )
    figures.save(draw(runs, headings.pop()), options.output)


if __name__ == '__main__':
    main()
