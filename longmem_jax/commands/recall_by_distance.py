"""`--mode=evaluate` on the recall task: accuracy by distance."""

import json
from pathlib import Path
from typing import Any

from longmem_jax.data.tasks.recall import Recall
from longmem_jax.evaluation.evaluator import Evaluator
from longmem_jax.experiment import Experiment
from longmem_jax.reporting import figures
from longmem_jax.reporting.progress import Progress


def by_distance(
    experiment: Experiment, evaluator: Evaluator, params: Any, split: str, progress: Progress
) -> list[dict[str, float]]:
    """Scores `eval_documents` documents at every distance; memory and time per token are constant.

    Writes `recall.json` and `recall.png` to the workdir.

    Args:
      experiment: a trained experiment on the recall task.
      evaluator: of its evaluation model.
      params: its parameters.
      split: 'train', 'validation' or 'test'.
      progress: where the results are printed.

    Returns:
      For every distance: distance, accuracy, exact match, and exact match with the memory reset
      before every segment.
    """
    config, rows = experiment.config, []
    for distance in config.data.task.distances:
        settings = config.data.task.to_dict() | {'distances': (distance,)}
        corpus = Recall(settings, split, config.data.seed)
        results = [
            evaluator.evaluate(params, corpus, split, reset=reset)[0] for reset in (False, True)
        ]
        rows.append(
            {
                'distance': int(distance),
                'accuracy': results[0].accuracy,
                'exact_match': results[0].exact_match,
                'exact_match_reset': results[1].exact_match,
            }
        )
        progress.say(
            f'distance {distance:,}: exact match {rows[-1]["exact_match"]:.1%}, accuracy '
            f'{rows[-1]["accuracy"]:.1%}; memory reset {rows[-1]["exact_match_reset"]:.1%}'
        )
    (experiment.workdir / 'recall.json').write_text(json.dumps(rows, indent=1) + '\n')
    draw({'with memory': rows}, experiment.workdir / 'recall.png')
    return rows


def draw(runs: dict[str, list[dict[str, float]]], path: Path) -> None:
    """Draws exact match by distance, one line per run, on a logarithmic axis.

    Args:
      runs: label to the result of `by_distance`; a single run also shows the score with memory reset.
      path: PNG to write.
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
    figure.savefig(path)
