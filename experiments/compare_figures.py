"""The figures of `experiments.compare`, and which metrics of a result it shows."""

import statistics
from pathlib import Path

import matplotlib.figure
import numpy as np

from experiments.floors import HEADINGS
from experiments.floors import PERCENT as TASK
from longmem_jax.reporting import figures

STYLES = ('-', '--', ':')


def metrics_of(result: dict) -> dict[str, str]:
    """The metrics of a result to show, with their headings."""
    if 'reward' in result:
        return {'reward': 'reward'}
    if result.get('answers'):
        return {name: heading for name, heading in TASK.items() if name in result}
    name = 'bits_per_byte' if result['num_bytes'] else 'perplexity'
    return {name: HEADINGS[name]}


def points(seeds: list[dict], name: str) -> tuple[list[float], list[float]]:
    """(mean, least, greatest) over seeds of the memory's size and of the metric `name` on test."""
    scale = 100 if name in TASK else 1
    sizes = [numbers['memory_size'] for numbers in seeds]
    scores = [scale * numbers['test'][name] for numbers in seeds]
    return tuple([statistics.mean(column), min(column), max(column)] for column in (sizes, scores))


def draw_scores(
    runs: dict[str, dict[str, list[dict]]], path: Path, field: str, by_size: bool
) -> matplotlib.figure.Figure:
    """Draws the score on test against the mean size of the memory, or against the swept value.

    Args:
      runs: label to value to the numbers of its seeds.
      path: PNG to write.
      field: that was swept; '' if none was.
      by_size: against the size; otherwise against the value, in order if values are not numbers.
    """
    first = next(iter(next(iter(runs.values())).values()))[0]
    name, heading = next(iter(metrics_of(first['test']).items()))
    values = list(dict.fromkeys(value for by_value in runs.values() for value in by_value))
    numeric = all(_is_number(value) for value in values)
    places = {value: float(value) if numeric else float(i) for i, value in enumerate(values)}
    figure, axes = figures.one_panel(7, 4.5)
    for index, (label, by_value) in enumerate(runs.items()):
        both = [points(seeds, name) for seeds in by_value.values()]
        if not by_size:
            both = [([places[v]] * 3, score) for v, (_, score) in zip(by_value, both, strict=True)]
        # Sizes and scores: mean, least and greatest of every value.
        x, y = np.moveaxis(np.asarray(sorted(both)), 0, 2)
        style = dict(color=f'C{index % 10}', linestyle=STYLES[index // 10 % len(STYLES)])
        errors = abs(y[1:] - y[0]), abs(x[1:] - x[0])
        axes.errorbar(x[0], y[0], *errors, marker='o', capsize=3, label=label, **style)
    if not by_size and not numeric:
        axes.set_xticks(list(places.values()), list(places))
    figures.label(
        axes, 'mean size of the memory' if by_size else field, f'test {heading}', legend=True
    )
    figures.save(figure, path)
    return figure


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def draw(runs: dict[str, list[dict]], path: Path) -> None:
    """Draws validation by step (mean and range over seeds), and generation by context."""
    first = next(iter(runs.values()))[0]
    panels = 2 if 'tokens_per_s' in first else 1
    figure = figures.figure(6 * panels + 2, 4.5)
    (by_step,), *rest = figure.subplots(1, panels, squeeze=False).T
    name, heading = list(metrics_of(first['test']).items())[-1]
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
    figures.save(figure, path)
