"""`--mode=evaluate` on the recall task: accuracy by distance."""

from pathlib import Path
from typing import Any

from longmem_jax import files
from longmem_jax.data.tasks.recall import Recall
from longmem_jax.evaluation.evaluator import Evaluator
from longmem_jax.experiment import Experiment
from longmem_jax.reporting import figures
from longmem_jax.reporting.progress import Progress


def at_distance(
    config: Any,
    evaluator: Evaluator,
    params: Any,
    split: str,
    distance: int,
    *,
    resets: bool = True,
) -> dict[str, float]:
    """Scores `eval_documents` documents at one distance between a key and its question.

    Memory and time per token are constant. Returns distance, accuracy, exact match, and, with
    `resets`, exact match with the memory reset before every segment.
    """
    corpus = Recall(
        config.data.task.to_dict() | {'distances': (distance,)}, split, config.data.seed
    )
    result, _ = evaluator.evaluate(params, corpus, split)
    row = dict(distance=int(distance), accuracy=result.accuracy, exact_match=result.exact_match)
    if resets:
        result, _ = evaluator.evaluate(params, corpus, split, reset=True)
        row['exact_match_reset'] = result.exact_match
    return row


def in_short(row: dict[str, float]) -> str:
    """A result of `at_distance` in a line."""
    text = f'distance {row["distance"]:,}: exact match {row["exact_match"]:.1%}'
    if row['accuracy'] != row['exact_match']:
        text += f', accuracy {row["accuracy"]:.1%}'
    return text + (f'; memory reset {row["exact_match_reset"]:.1%}' if len(row) > 3 else '')


def by_distance(
    experiment: Experiment, evaluator: Evaluator, params: Any, split: str, progress: Progress
) -> list[dict[str, float]]:
    """Scores documents at every distance of `config.data.task`.

    Returns what `at_distance` does for each. Writes `recall.json` and `recall.png` to the workdir.
    """
    config, rows = experiment.config, []
    for distance in config.data.task.distances:
        rows.append(at_distance(config, evaluator, params, split, distance))
        progress.say(in_short(rows[-1]))
    files.write_json(experiment.workdir / 'recall.json', rows)
    draw({'with memory': rows}, experiment.workdir / 'recall.png')
    return rows


def draw(runs: dict[str, list[dict[str, float]]], path: Path) -> None:
    """Draws exact match by distance, one line per run, on a logarithmic axis.

    `runs`: label to the result of `by_distance`; a single run also shows the score with memory
    reset.
    """
    figure = figures.figure(7, 4)
    axes = figure.subplots()
    for label, rows in runs.items():
        distances = [max(row['distance'], 1) for row in rows]
        axes.plot(distances, [100 * row['exact_match'] for row in rows], marker='o', label=label)
    if len(runs) == 1:
        (rows,) = runs.values()
        reset = [100 * row['exact_match_reset'] for row in rows]
        axes.plot(distances, reset, marker='s', linestyle='--', label='memory reset')
    axes.set_xscale('log')
    axes.set_xlabel('distance, tokens')
    axes.set_ylabel('exact match, %')
    axes.set_ylim(-3, 103)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figures.save(figure, path)
