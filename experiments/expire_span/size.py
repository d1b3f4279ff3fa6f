"""Exact match against the mean size of the memory, every seed a point (axes of the paper's Fig. 4).

python -m experiments.expire_span.size --output=FILE.png DIR 'LABEL=NAME,NAME,...' 'LABEL=NAME,...'

DIR is the `--output` of `experiments.compare`, NAME the folder of a run in it (its label, '_' for ' ').
The means over the seeds of the NAMEs of a label are joined by a line; with one NAME there is none.
"""

import argparse
import json
import statistics
from pathlib import Path

import matplotlib.figure

from longmem_jax.reporting import figures

MARKERS = 'osD^vP'


def points(folder: Path) -> list[tuple[float, float]]:
    """(mean size, exact match in %) of all seeds of a run."""
    paths = sorted(folder.glob('*/numbers.json'))
    if not paths:
        raise SystemExit(f'{folder}: no finished runs; give the folder and the names of compare.')
    found = [json.loads(path.read_text()) for path in paths]
    return [(run['memory_size'], 100 * run['test']['exact_match']) for run in found]


def draw(runs: dict[str, list[list[tuple[float, float]]]]) -> matplotlib.figure.Figure:
    """The figure; `runs`: label to the points of its runs."""
    figure = figures.figure(7, 4.5)
    axes = figure.subplots()
    for index, (label, of_label) in enumerate(runs.items()):
        colour = f'C{index}'
        for n, seeds in enumerate(of_label):
            axes.scatter(
                *zip(*seeds, strict=True),
                color=colour,
                marker=MARKERS[index % len(MARKERS)],
                label='' if n else label,
            )
        means = [[statistics.mean(c) for c in zip(*seeds, strict=True)] for seeds in of_label]
        if len(means) > 1:
            axes.plot(*zip(*sorted(means), strict=True), color=colour, alpha=0.5)
    axes.set_xlabel('mean size of the memory, vectors per layer and lane')
    axes.set_ylabel('test exact match, %')
    axes.set_xlim(left=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    return figure


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('folder', type=Path)
    parser.add_argument('runs', nargs='+')
    parser.add_argument('--output', type=Path, required=True)
    options = parser.parse_args()
    runs = {}
    for text in options.runs:
        label, _, names = text.rpartition('=')
        runs[label] = [points(options.folder / name) for name in names.split(',')]
    draw(runs).savefig(options.output)


if __name__ == '__main__':
    main()
