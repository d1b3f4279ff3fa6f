"""Figures of agents that learn."""

import typing
from pathlib import Path
from typing import Any

from longmem_jax.reporting import figures
from longmem_jax.reporting.writers import read_metrics

if typing.TYPE_CHECKING:
    from matplotlib.figure import Figure


def learning_curve(metrics: Path) -> 'Figure':
    """Reward per episode by steps of the environment, in training and in new episodes, of a
    `metrics.jsonl`.
    """
    lines = read_metrics(metrics)
    seen = {
        line['step']: line['environment_steps_seen'] for line in lines if line['group'] == 'train'
    }
    figure, axes = figures.one_panel(7, 4.2)
    styles: dict[str, dict[str, Any]] = {
        'train': dict(label='training', linewidth=1.0),
        'validation': dict(label='new episodes', marker='o', markersize=4),
    }
    for group, style in styles.items():
        points = {
            seen[line['step']]: line['reward']
            for line in lines
            if line['group'] == group and line['step'] in seen
        }
        if points:
            axes.plot(list(points), list(points.values()), **style)
    figures.label(axes, 'steps of the environment', 'reward per episode')
    if seen:
        axes.legend()
    return figure
