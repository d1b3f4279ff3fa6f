"""Whether the heads of a trained Adaptive-Span need their own spans, as Markdown tables.

python -m experiments.expire_span.heads --config=configs/NAME.py:VARIANTS --workdir=DIR --seeds=3

Reads the newest checkpoints of `experiments.trainings` in DIR/0, DIR/1, ... and scores the test split
with the learned spans, and with the same parameters and other spans, without any training: all heads at
the mean of the model; in every layer the longest span for the head that learned the shortest, and so
on; all as long as they may be. Bits per byte, seed by seed. The other table has the spans.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments import markdown
from experiments.options import define_seeds
from experiments.trainings import seeded
from longmem_jax.commands import entry
from longmem_jax.errors import UsageError
from longmem_jax.evaluation.evaluator import Evaluator
from longmem_jax.experiment import Experiment

if __name__ == '__main__':
    _SEEDS = define_seeds()

NAME = 'span_share'


def shares(params: Any) -> list[np.ndarray]:
    """The spans of every layer's heads as shares of the longest, float [heads] each.

    Raises:
      UsageError: there are none.
    """
    leaves = jax.tree_util.tree_leaves_with_path(params)
    found = [np.asarray(leaf) for path, leaf in leaves if NAME in jax.tree_util.keystr(path)]
    if not found:
        raise UsageError("config.model.attention: no 'adaptive_span' layer that learns its spans.")
    return found


def changed(params: Any, change: Callable[[jax.Array], jax.Array]) -> Any:
    """`params` with `change` of every layer's shares, [heads], in their place."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: change(leaf) if NAME in jax.tree_util.keystr(path) else leaf, params
    )


def exchanged(share: jax.Array) -> jax.Array:
    """The same spans, [heads], the longest for the head that had the shortest, and so on."""
    rank = jnp.argsort(jnp.argsort(share))
    return jnp.sort(share)[::-1][rank]


def versions(params: Any) -> dict[str, Any]:
    """What is scored: words to parameters."""
    mean = float(np.mean(np.concatenate(shares(params))))
    return {
        'as learned': params,
        'all at the mean': changed(params, lambda share: jnp.full_like(share, mean)),
        'exchanged in each layer': changed(params, exchanged),
        'all the longest': changed(params, jnp.ones_like),
    }


def _main(experiment: Experiment) -> None:
    evaluator = Evaluator(experiment.evaluation_model, experiment.mesh, experiment.config)
    longest = experiment.config.model.adaptive_span.max_span
    most = experiment.config.evaluate.max_test_segments
    spans, scores = [], {}
    for seed in _SEEDS.value:
        run = seeded(experiment, seed)
        params, _ = run.restore_parameters()
        for layer, share in enumerate(shares(params)):
            spans.append([str(seed), str(layer), ', '.join(f'{longest * s:.0f}' for s in share)])
        for label, version in versions(params).items():
            result, _ = evaluator.evaluate(version, run.corpus('test'), 'test', max_segments=most)
            scores.setdefault(label, []).append(f'{result.bits_per_byte:.3f}')
    print(markdown.table(['seed', 'layer', 'spans of the heads, tokens'], spans))
    heads = ['spans', *(f'seed {seed}' for seed in _SEEDS.value)]
    print('\n' + markdown.table(heads, [[label, *found] for label, found in scores.items()]))


if __name__ == '__main__':
    entry.command(_main)
