r"""How evenly the slots of trained product-key memories are used, as a table and a figure.

python -m experiments.analysis.slot_usage --config=configs/pkm_lm.py[:variant] --workdir=DIR \
    --split=test --output=usage.png

For every memory layer: percentage used, divergence from uniform use by weights and by reads, and how
many slots carry 50, 90 and 99 % of the weight, over a split (`config.evaluate.max_test_segments`).
"""

import itertools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from experiments.analysis import slot_statistics
from longmem_jax.commands import entry
from longmem_jax.data.lanes import in_order
from longmem_jax.errors import UsageError
from longmem_jax.experiment import Experiment
from longmem_jax.generation.reader import fresh_state
from longmem_jax.memory.product_key import ProductKeyMemory
from longmem_jax.models.inspect import capture
from longmem_jax.reporting import figures
from longmem_jax.segment import Segment

if __name__ == '__main__':
    _SPLIT = flags.DEFINE_string('split', 'test', 'train, validation or test.')
    _OUTPUT = flags.DEFINE_string('output', 'usage.png', 'The figure.')


def accumulate(experiment: Experiment, split: str) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """Sums the weights and counts the reads of every slot over a split.

    Returns:
      Layer to (weights, reads), float32 [slots] each.

    Raises:
      UsageError: a model without product-key memories, or no checkpoint.
    """
    model, config = experiment.evaluation_model, experiment.config.evaluate
    layers = [i for i, name in enumerate(model.config.feed_forward) if name == 'product_key']
    if not layers:
        raise UsageError(
            f'config.model.feed_forward = {tuple(model.config.feed_forward)}: no product_key layer.'
        )
    params, _ = experiment.restore_parameters()

    @jax.jit
    def step(memory: Any, tokens: jax.Array, valid: jax.Array, start: jax.Array) -> tuple[Any, Any]:
        def usage(layer, x, state, segment):
            return layer.slot_usage(x, segment.valid)

        with capture(ProductKeyMemory, usage) as captured:
            _, memory, _ = model.apply(
                {'params': params}, Segment(tokens, valid, start), memory, train=False,
                method='hidden',
            )  # fmt: skip
        return memory, captured

    memory, totals = fresh_state(model, params, config.num_lanes), None
    batches = in_order(experiment.corpus(split), config.num_lanes, config.segment_length)
    for batch, _ in itertools.islice(batches, config.max_test_segments or None):
        arrays = (jnp.asarray(array[0]) for array in (batch.tokens, batch.valid, batch.start))
        memory, usage = step(memory, *arrays)
        totals = usage if totals is None else jax.tree.map(jnp.add, totals, usage)
    return {
        layer: tuple(np.asarray(array) for array in usage)
        for layer, usage in zip(layers, totals, strict=True)
    }


def slot_usage_of(experiment: Experiment, split: str, output: Path) -> list[dict[str, Any]]:
    """Statistics of every memory layer, and a figure; errors as in `accumulate`."""
    rows, totals = [], accumulate(experiment, split)
    for layer, (weights, reads) in totals.items():
        row = {
            'layer': layer,
            'slots': len(weights),
            'used': slot_statistics.used(weights),
            'kl_weights': slot_statistics.divergence(weights),
            'kl_reads': slot_statistics.divergence(reads),
            'gini': slot_statistics.gini(weights),
        }
        rows.append(row | {f'top{p}': slot_statistics.top(weights, p / 100) for p in (50, 90, 99)})
    figure, axes = figures.one_panel(7, 3.6)
    for layer, (weights, _) in totals.items():
        falling = np.sort(slot_statistics.shares(weights))[::-1]
        axes.plot(np.arange(1, len(falling) + 1), np.cumsum(falling), label=f'layer {layer}')
    figures.label(axes, 'slots, most used first', 'share of the weight', legend=True)
    figures.save(figure, output)
    return rows


def _main(experiment: Experiment) -> None:
    for row in slot_usage_of(experiment, _SPLIT.value, Path(_OUTPUT.value)):
        numbers = (f'{k} {v:.3f}' if isinstance(v, float) else f'{k} {v}' for k, v in row.items())
        print(', '.join(numbers))
    print(_OUTPUT.value)


if __name__ == '__main__':
    entry.command(_main)
