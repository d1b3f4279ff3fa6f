"""`--mode=evaluate` on a task with a series: accuracy by distance, or by length."""

from pathlib import Path
from typing import Any

from longmem_jax import files
from longmem_jax.data.tasks.registry import TASKS
from longmem_jax.evaluation.evaluator import Evaluator
from longmem_jax.experiment import Experiment
from longmem_jax.reporting import figures
from longmem_jax.reporting.progress import Progress

MEASURES = ('accuracy', 'exact_match', 'exact_match_reset')


def named(source: str) -> str:
    """What a number of the series of a task is: 'distance', 'length'."""
    series = TASKS[source].series
    assert series is not None
    return series.removesuffix('s')


def at_value(
    config: Any,
    evaluator: Evaluator,
    params: Any,
    split: str,
    value: int,
    *,
    resets: bool = True,
) -> dict[str, float]:
    """Scores `eval_documents` documents with one value of the series of the task, or the first of them.

    Memory and time per token are constant. Returns the value by its name, such as 'distance', accuracy,
    exact match, and, with `resets`, exact match with the memory reset before every segment.
    """
    data = config.data
    task = TASKS[data.source]
    corpus = task.corpus(data.task.to_dict() | {task.series: (value,)}, split, data.seed)
    most = config.evaluate.max_test_segments
    result, _ = evaluator.evaluate(params, corpus, split, max_segments=most)
    row: dict[str, float] = {named(data.source): int(value)}
    row |= dict(accuracy=result.accuracy, exact_match=result.exact_match)
    if resets:
        result, _ = evaluator.evaluate(params, corpus, split, reset=True, max_segments=most)
        row['exact_match_reset'] = result.exact_match
    return row


def in_short(row: dict[str, float]) -> str:
    """A result of `at_value` in a line."""
    (name,) = set(row) - set(MEASURES)
    text = f'{name} {row[name]:,}: exact match {row["exact_match"]:.1%}'
    if row['accuracy'] != row['exact_match']:
        text += f', accuracy {row["accuracy"]:.1%}'
    return text + (f'; memory reset {row["exact_match_reset"]:.1%}' if len(row) > 3 else '')


def by_value(
    experiment: Experiment, evaluator: Evaluator, params: Any, split: str, progress: Progress
) -> Path:
    """Scores documents with every value of the series of `config.data.task`.

    Writes TASK.json, what `at_value` returns for each, and TASK.png to the workdir; returns the path of
    the second.
    """
    config, rows = experiment.config, []
    source = config.data.source
    for value in config.data.task[TASKS[source].series]:
        rows.append(at_value(config, evaluator, params, split, value))
        progress.say(in_short(rows[-1]))
    files.write_json(experiment.workdir / f'{source}.json', rows)
    figure = experiment.workdir / f'{source}.png'
    draw({'with memory': rows}, figure)
    return figure


def draw(runs: dict[str, list[dict[str, float]]], path: Path) -> None:
    """Draws exact match by value, one line per run, on a logarithmic axis.

    `runs`: label to the rows of `at_value`; a single run also shows the score with memory reset.
    """
    (name,) = set(next(iter(runs.values()))[0]) - set(MEASURES)
    figure = figures.figure(7, 4)
    axes = figure.subplots()
    for label, rows in runs.items():
        values = [max(row[name], 1) for row in rows]
        axes.plot(values, [100 * row['exact_match'] for row in rows], marker='o', label=label)
    if len(runs) == 1:
        (rows,) = runs.values()
        reset = [100 * row['exact_match_reset'] for row in rows]
        axes.plot(values, reset, marker='s', linestyle='--', label='memory reset')
    axes.set_xscale('log')
    axes.set_xlabel(f'{name}, tokens')
    axes.set_ylabel('exact match, %')
    axes.set_ylim(-3, 103)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figures.save(figure, path)
