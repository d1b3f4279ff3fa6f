"""Score against the mean size of the memory, every seed a point (axes of the paper's Figs. 4, 5 and 10).

python -m experiments.expire_span.size --output=FILE.png DIR 'LABEL=NAME,NAME,...' 'LABEL=NAME,...'

DIR is the `--output` of `experiments.compare`, NAME the folder of a run in it (its label, '_' for ' ').
The score is exact match, of texts bits per byte or perplexity. The means over the seeds of the NAMEs of
a label are joined by a line; with one NAME there is none.
"""

import argparse
import json
import statistics
from pathlib import Path

import matplotlib.figure

from experiments.compare_figures import TASK, metrics_of
from longmem_jax.reporting import figures

MARKERS = 'osD^vP'


def points(folder: Path) -> tuple[list[tuple[float, float]], str]:
    """(mean size, score on test) of all seeds of a run, and the heading of the score."""
    paths = sorted(folder.glob('*/numbers.json'))
    if not paths:
        raise SystemExit(f'{folder}: no finished runs; give the folder and the names of compare.')
    found = [json.loads(path.read_text()) for path in paths]
    shown = metrics_of(found[0]['test'])
    name = 'exact_match' if 'exact_match' in shown else next(iter(shown))
    scale = 100 if name in TASK else 1
    return [(run['memory_size'], scale * run['test'][name]) for run in found], shown[name]


def draw(
    runs: dict[str, list[list[tuple[float, float]]]], heading: str
) -> matplotlib.figure.Figure:
    """The figure; `runs`: label to the points of its runs, `heading`: of the score."""
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
    axes.set_ylabel(f'test {heading}')
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
    draw(runs, headings.pop()).savefig(options.output)


if __name__ == '__main__':
    main()
