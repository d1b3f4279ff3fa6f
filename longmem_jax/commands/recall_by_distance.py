"""`--mode=evaluate` on the recall task: accuracy by the distance that must be remembered."""

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

    Returns:
      per distance: distance, accuracy and exact match, and exact match with the memory reset
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
    """Exact match by distance, a line per run, on a logarithmic axis."""
    figure = figures.figure(7, 4)
    own = figure.subplots()
    for label, rows in runs.items():
        places = [max(row['distance'], 1) for row in rows]
        own.plot(places, [100 * row['exact_match'] for row in rows], marker='o', label=label)
    if len(runs) == 1:
        (rows,) = runs.values()
        reset = [100 * row['exact_match_reset'] for row in rows]
        own.plot(places, reset, marker='s', linestyle='--', label='memory reset')
    own.set_xscale('log')
    own.set_xlabel('distance, tokens')
    own.set_ylabel('exact match, %')
    own.set_ylim(-3, 103)
    own.grid(alpha=0.3)
    own.legend(fontsize=8)
    figure.savefig(path)
