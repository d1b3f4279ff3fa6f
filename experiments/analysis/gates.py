"""Gates over training, by layer and head, from the log of a run.

python -m experiments.analysis.gates --workdir=DIR --output=gates.png

One panel per layer, one line per head; a gate is the weight of the memory, from 0 to 1. Printed are the
last gates, and how many heads read almost only the memory (a gate of at least `--share`, .9) or almost
only their local context (at most 1 - share). `--logit` draws log(gate / (1 - gate)): the betas that the
Infini-attention thesis plots (its Figs. 6-8). `--metric=NAME` draws another number that is logged by
head, such as `density_width` of the infinity-former.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags
from matplotlib.figure import Figure

from longmem_jax.commands import entry
from longmem_jax.errors import UsageError
from longmem_jax.reporting import figures
from longmem_jax.reporting.writers import METRICS, read_metrics

PATH = re.compile(r'memory/(\w+)/block_(\d+)/head_(\d+)')

if __name__ == '__main__':
    _WORKDIR = flags.DEFINE_string('workdir', '', 'Folder of the run.')
    _OUTPUT = flags.DEFINE_string('output', 'gates.png', 'The figure.')
    _METRIC = flags.DEFINE_string('metric', 'gate', 'What is drawn.')
    _LOGIT = flags.DEFINE_bool('logit', False, 'Draw log(x / (1 - x)).')
    _SHARE = flags.DEFINE_float('share', 0.9, 'Gate of a head that reads the memory.', 0.5, 1.0)


def by_layer(lines: list[dict[str, Any]], metric: str) -> tuple[np.ndarray, dict[int, np.ndarray]]:
    """What was logged by head in training.

    Args:
      lines: of a `metrics.jsonl`.
      metric: 'gate', ...

    Returns:
      The steps, int64 [lines]; and layer to values, float64 [lines, heads].

    Raises:
      UsageError: nothing of this name was logged, with the names that were.
    """
    steps, rows, names = [], [], set()
    for line in lines:
        found = {}
        for name, value in line.items():
            match = PATH.fullmatch(name)
            if match:
                names.add(match[1])
                if match[1] == metric:
                    found[int(match[2]), int(match[3])] = float(value)
        if found and line['group'] == 'train':
            steps.append(line['step'])
            rows.append(found)
    if not rows:
        raise UsageError(
            f'--metric={metric}: not in {METRICS} by head; there are: {sorted(names) or "none"}. Gates '
            'are logged by memories that have them, such as infini.'
        )
    places = sorted(rows[0])
    layers = {layer: [place for place in places if place[0] == layer] for layer, _ in places}
    return np.asarray(steps), {
        layer: np.asarray([[row[place] for place in heads] for row in rows])
        for layer, heads in layers.items()
    }


def draw(steps: np.ndarray, layers: dict[int, np.ndarray], label: str) -> Figure:
    """The figure; `layers` maps a layer to values [steps, heads]."""
    figure = figures.figure(7, 1.2 + 1.3 * len(layers))
    panels = np.atleast_1d(figure.subplots(len(layers), 1, sharex=True, sharey=True))
    for axes, (layer, values) in zip(panels, layers.items(), strict=True):
        for head in range(values.shape[1]):
            axes.plot(steps, values[:, head], label=f'head {head}', linewidth=1)
        axes.set_ylabel(f'layer {layer}')
        axes.grid(alpha=0.3)
    panels[-1].set_xlabel('step')
    panels[0].legend(fontsize=6, ncols=4)
    figure.suptitle(label, fontsize=10)
    return figure


def gates(workdir: Path, output: Path, metric: str, logit: bool) -> dict[int, np.ndarray]:
    """Draws the figure to `output`.

    Returns:
      Layer to the last values, float64 [heads].

    Raises:
      UsageError: no log in `workdir`, or as in `by_layer`.
    """
    path = workdir / METRICS
    if not path.exists():
        raise UsageError(f'--workdir={workdir}: {path} is missing; give the folder of a run.')
    steps, layers = by_layer(read_metrics(path), metric)
    if logit:
        layers = {i: np.log(values) - np.log1p(-values) for i, values in layers.items()}
    figures.save(draw(steps, layers, f'logit of {metric}' if logit else metric), output)
    return {layer: values[-1] for layer, values in layers.items()}


def count(last: dict[int, np.ndarray], share: float) -> str:
    """How many heads read almost only one side, as text.

    Args:
      last: layer to gates, float64 [heads].
      share: a gate of at least this reads almost only the memory, of at most 1 - share the context.
    """
    values = np.concatenate(list(last.values()))
    memory, local = (values >= share).sum(), (1 - values >= share).sum()
    return (
        f'{memory} of {len(values)} heads read almost only the memory (gate >= {share:g}), {local} '
        f'almost only the local context (gate <= {1 - share:g})'
    )


def _main() -> None:
    if not _WORKDIR.value:
        raise UsageError('--workdir= is missing: the folder of a run.')
    output = Path(_OUTPUT.value)
    last = gates(Path(_WORKDIR.value), output, _METRIC.value, _LOGIT.value)
    for layer, values in last.items():
        print(f'layer {layer}: {" ".join(f"{value:.3f}" for value in values)}')
    if _METRIC.value == 'gate' and not _LOGIT.value:
        print(count(last, _SHARE.value))
    print(output)


if __name__ == '__main__':
    entry.run(_main)
