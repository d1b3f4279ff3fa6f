"""Tables, floors and the figure of `experiments.recall.run`."""

import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments import markdown
from longmem_jax.config.reach import reaches
from longmem_jax.data.tasks.recall import Recall
from longmem_jax.evaluation import floors as rules
from longmem_jax.reporting import figures

COLUMNS = 4  # of small figures
RULES = ('look up: the question', 'look up: its segment of {}', 'look up: everything')


class Run(NamedTuple):
    """A seed of a memory.

    Attributes:
      steps: trained.
      decided: training ended since its answers were right.
      rows: distance to the result of `task_series.at_value`.
    """

    steps: int
    decided: bool
    rows: dict[int, dict[str, float]]

    def score(self, name: str, distance: int) -> float:
        """A number of a distance, nan if it was not measured."""
        return self.rows[distance].get(name, math.nan)


def read(workdir: Path) -> Run:
    """What a finished seed has written."""
    training = json.loads((workdir / 'training.json').read_text())
    rows = json.loads((workdir / 'recall.json').read_text())
    by_distance = {row['distance']: row for row in rows}
    return Run(training['lines'][-1]['step'], training['decided'], by_distance)


def percent(values: list[float]) -> str:
    """Mean (minimum - maximum) in %; one number if all are the same, nothing if one is missing."""
    if any(math.isnan(value) for value in values):
        return ''
    return markdown.span([100 * value for value in values], 0)


def table(runs: dict[str, list[Run]], configs: dict[str, Any], distances: Sequence[int]) -> str:
    """A Markdown table: exact match by distance with the memory, and with it reset.

    Args:
      runs: memory to its seeds.
      configs: memory to its config, for how far its layers read.
      distances: columns.

    Returns:
      The table; trainings that took all their steps without being decided have a star.
    """
    heads = ['memory', 'reads back', 'steps', *(f'{distance:,}' for distance in distances)]
    lines = []
    for memory, seeds in runs.items():
        steps = ', '.join(f'{run.steps:,}' + '*' * (not run.decided) for run in seeds)
        for name, first in (
            ('exact_match', (f'`{memory}`', _reach(configs[memory]), steps)),
            ('exact_match_reset', ('... reset', '', '')),
        ):
            cells = [
                percent([run.score(name, distance) for run in seeds]) for distance in distances
            ]
            lines.append([*first, *cells])
    return markdown.table(heads, lines)


def _reach(config: Any) -> str:
    """How many tokens before its segment a layer reads."""
    found = reaches(config)
    return 'no limit' if found is None else f'{max(tokens for _, tokens in found):,}'


def floors(config: Any, options: Any) -> list[str]:
    """Rows of the same table: players that look the key up in what they see; expected scores."""
    segment = config.evaluate.segment_length
    config, scores = config.copy_and_resolve_references(), []
    for distance in options.distances:
        task = dict(distances=(distance,), eval_documents=options.documents * len(options.seeds))
        config.data.task.update(task)
        corpus = Recall(config.data.task.to_dict(), 'test', config.data.seed)
        scores.append(rules.measure(config, 'test', corpus, lambda: None).scores)
    names = [rule.format(segment) for rule in RULES]
    return [
        f'| {name} | | | {" | ".join(percent([found[name]["exact_match"]]) for found in scores)} |'
        for name in names
    ]


def draw(
    runs: dict[str, list[Run]], configs: dict[str, Any], distances: Sequence[int], path: Path
) -> None:
    """One small figure per memory: the mean of its seeds, their range, and the memory reset."""
    lines = math.ceil(len(runs) / COLUMNS)
    figure = figures.figure(2.6 * min(len(runs), COLUMNS), 1.9 * lines + 0.4)
    axes = figure.subplots(lines, min(len(runs), COLUMNS), sharex=True, sharey=True, squeeze=False)
    for part in axes.flat[len(runs) :]:
        part.set_visible(False)
    for part, (memory, seeds) in zip(axes.flat, runs.items(), strict=False):
        _draw_one(part, seeds, distances, reaches(configs[memory]))
        part.set_title(memory, fontsize=9)
    named = {}
    for part in axes.flat:
        handles, labels = part.get_legend_handles_labels()
        named |= dict(zip(labels, handles, strict=True))
    place = dict(loc='outside upper center', ncols=len(named), fontsize=8)
    figure.legend(list(named.values()), list(named), **place)
    figure.supxlabel('distance, tokens', fontsize=9)
    figure.supylabel('exact match, %', fontsize=9)
    figures.save(figure, path)


def _draw_one(
    part: Any, seeds: list[Run], distances: Sequence[int], reach: list[tuple[str, int]] | None
) -> None:
    for name, label, style in (
        ('exact_match', 'with memory', dict(color='C0', marker='o', markersize=3)),
        ('exact_match_reset', 'memory reset', dict(color='C1', linestyle='--')),
    ):
        values = [[100 * run.score(name, distance) for run in seeds] for distance in distances]
        part.plot(distances, [statistics.mean(found) for found in values], label=label, **style)
        least, greatest = [min(found) for found in values], [max(found) for found in values]
        part.fill_between(distances, least, greatest, color=style['color'], alpha=0.2, linewidth=0)
    if reach is not None:
        farthest = max(tokens for _, tokens in reach)
        part.axvline(max(farthest, 1), color='gray', linewidth=1, label='a layer reads so far')
    part.set_xscale('log', base=2)
    part.set_xticks(distances, [f'{distance:,}' for distance in distances], fontsize=6, rotation=45)
    part.tick_params(axis='y', labelsize=7)
    part.set_xlim(distances[0] / 1.3, distances[-1] * 1.3)
    part.set_ylim(-3, 103)
    part.grid(alpha=0.3)
