r"""Whether the slots of a trained Memformer keep, mix or follow the tokens; a table and a figure.

python -m experiments.analysis.memformer_slots --config=configs/memformer_wikitext103.py[:variant] \
    --workdir=DIR --split=test --output=slots.png

At every write a slot puts a share of its weight on itself. With a mean share of at least a half it
mostly keeps its content, below a tenth it is filled with tokens, in between it mixes (the paper's three
kinds). The norm of a slot's learned vector shows how fast it drifts back when nothing is written.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from longmem_jax.commands import entry
from longmem_jax.data.lanes import in_order
from longmem_jax.errors import UsageError
from longmem_jax.experiment import Experiment
from longmem_jax.generation.reader import fresh_state
from longmem_jax.reporting import figures
from longmem_jax.segment import Segment

if __name__ == '__main__':
    _SPLIT = flags.DEFINE_string('split', 'test', 'train, validation or test.')
    _OUTPUT = flags.DEFINE_string('output', 'slots.png', 'The figure.')

KEEPS, FOLLOWS = 0.5, 0.1  # shares on itself that separate the three kinds
EARLY = 4  # first segments of a document that are left out: its slots are new


def writes(
    experiment: Experiment, params: Any, split: str
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """What every slot leaves on itself at each write of a split, segment by segment.

    Args:
      experiment: a Memformer.
      params: its parameters.
      split: 'train', 'validation' or 'test'.

    Yields:
      The share of its weight that each slot leaves on itself, float32 [lanes, slots]; the tokens
      written, int32 [lanes, length]; and the number of writes since the document began, int64
      [lanes], 0 where nothing was written.

    Raises:
      UsageError: another kind of model.
    """
    model, config = experiment.evaluation_model, experiment.config.evaluate
    own = model.config.get('memformer')
    everywhere = {*model.config.around} == {'memformer'}
    if not everywhere or own.encoder != 'slot_attention' or not own.num_slots:
        raise UsageError(
            "config.model.around: 'memformer' in all layers is needed, with encoder 'slot_attention' "
            'and with slots.'
        )

    @jax.jit
    def step(state: Any, tokens: jax.Array, valid: jax.Array, start: jax.Array) -> tuple[Any, Any]:
        def read(module, segment, state):
            around = module.stack.runs[0].around
            opened = around.open_segment(state[0].around, len(start))
            return opened.kept, module.hidden(segment, state, train=False)[1]

        return model.apply({'params': params}, Segment(tokens, valid, start), state, method=read)

    state = fresh_state(model, params, config.num_lanes)
    age = np.zeros((config.num_lanes,), np.int64)
    written = np.zeros((config.num_lanes, config.segment_length), np.int32)
    batches = in_order(experiment.corpus(split), config.num_lanes, config.segment_length)
    for batch, _ in itertools.islice(batches, config.max_test_segments or None):
        tokens, valid, start = (array[0] for array in (batch.tokens, batch.valid, batch.start))
        kept, state = step(state, *(jnp.asarray(array) for array in (tokens, valid, start)))
        age = np.where(start, 0, age + 1)
        there = valid.any(axis=1)
        yield np.asarray(kept), written, np.where(there, age, 0)
        written = np.where(there[:, None], tokens, written)


def kept_shares(experiment: Experiment, split: str) -> tuple[np.ndarray, np.ndarray]:
    """The share of its weight that every slot leaves on itself, at all writes but the early ones.

    Args:
      experiment: a trained Memformer.
      split: 'train', 'validation' or 'test'.

    Returns:
      Shares, float32 [writes, slots], and the norm of every slot's learned vector, [slots].

    Raises:
      UsageError: another kind of model, no checkpoint, or documents that are too short.
    """
    params, _ = experiment.restore_parameters()
    shares = [kept[age >= EARLY] for kept, _, age in writes(experiment, params, split)]
    shares = np.concatenate(shares)
    if not len(shares):
        raise UsageError(f'--split={split}: no document has more than {EARLY} segments.')
    return shares, np.linalg.norm(np.asarray(params['around_0']['encode']['bias']), axis=-1)


def kinds_of(shares: np.ndarray) -> dict[str, np.ndarray]:
    """Which slots are of each kind, bool [slots], by their mean share; `shares` is [writes, slots]."""
    mean = shares.mean(axis=0)
    return {
        'mostly themselves': mean >= KEEPS,
        'mixed': (mean < KEEPS) & (mean >= FOLLOWS),
        'tokens': mean < FOLLOWS,
    }


def draw(shares: np.ndarray, norms: np.ndarray) -> Any:
    """The figure: the density of all shares, and every slot's vector by its mean share.

    Args:
      shares: [writes, slots].
      norms: [slots], of the learned vectors.
    """
    figure = figures.figure(8, 3.4)
    left, right = figure.subplots(1, 2)
    left.hist(shares.ravel(), bins=20, range=(0, 1), density=True)
    left.set_xlabel('share of the weight on itself')
    left.set_ylabel('density of writes')
    right.scatter(shares.mean(axis=0), norms, s=12)
    right.set_xlabel('mean share on itself, by slot')
    right.set_ylabel('norm of the learned vector')
    for axes in (left, right):
        axes.grid(alpha=0.3)
    return figure


def slot_kinds(experiment: Experiment, split: str, output: Path) -> list[dict[str, Any]]:
    """Classifies the slots and draws the figure.

    Args:
      experiment: a trained Memformer.
      split: 'train', 'validation' or 'test'.
      output: PNG to write.

    Returns:
      For every kind: 'slots', its name; 'share' of the slots; 'vector', the mean norm of their vectors.

    Raises:
      UsageError: as in `kept_shares`.
    """
    shares, norms = kept_shares(experiment, split)
    figures.save(draw(shares, norms), output)
    return [
        {
            'slots': name,
            'share': float(mask.mean()),
            'vector': float(norms[mask].mean()) if mask.any() else float('nan'),
        }
        for name, mask in kinds_of(shares).items()
    ]


def _main(experiment: Experiment) -> None:
    for row in slot_kinds(experiment, _SPLIT.value, Path(_OUTPUT.value)):
        # No slots have no vector.
        vector = f', vector {row["vector"]:.2f}' if row['share'] else ''
        print(f'{row["slots"]}: {row["share"]:.1%} of the slots{vector}')
    print(_OUTPUT.value)


if __name__ == '__main__':
    entry.command(_main)
