"""What the slots of a trained Memformer do: keep, mix or follow the tokens; a table and a figure.

python -m longmem_jax.analysis.memformer_slots --config=configs/memformer_wikitext103.py[:variant] \
    --workdir=DIR --split=test --output=slots.png

A slot leaves some share of its writing weight on itself: from a half up it mostly keeps, below a tenth
it is filled with tokens, between them it mixes (the paper's three kinds). The length of a slot's
learned vector says how fast it drifts back when nothing is written.
"""

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

KEEPS, FOLLOWS = 0.5, 0.1  # shares on itself that part the three kinds
EARLY = 4  # segments of a document that are not looked at: its slots are new


def kept_shares(experiment: Experiment, split: str) -> tuple[np.ndarray, np.ndarray]:
    """How much every slot kept at every write in the middle of documents.

    Returns:
      Shares, float32 [writes, slots], and the length of every slot's learned vector, [slots].

    Raises:
      UsageError: another kind of model, no checkpoint, or documents that are too short.
    """
    model, config = experiment.evaluation_model, experiment.config.evaluate
    if model.config.kind != 'memformer' or model.config.memformer.encoder != 'slot_attention':
        raise UsageError("config.model: a 'memformer' with encoder 'slot_attention' is needed.")
    params, _ = experiment.restore_parameters()

    @jax.jit
    def step(state, tokens, valid, start):
        def read(module, segment, state):
            _, _, kept = module.encode(state, train=False)
            return kept, module.hidden(segment, state, train=False)[1]

        return model.apply({'params': params}, Segment(tokens, valid, start), state, method=read)

    state = fresh_state(model, params, config.num_lanes)
    age, found, number = np.zeros((config.num_lanes,), np.int64), [], 0
    for batch, _ in in_order(experiment.corpus(split), config.num_lanes, config.segment_length):
        tokens, valid, start = (part[0] for part in (batch.tokens, batch.valid, batch.start))
        kept, state = step(state, *(jnp.asarray(part) for part in (tokens, valid, start)))
        age = np.where(start, 0, age + 1)
        found.append(np.asarray(kept)[(age >= EARLY) & valid.any(axis=1)])
        number += 1
        if config.max_test_segments and number >= config.max_test_segments:
            break
    shares = np.concatenate(found)
    if not len(shares):
        raise UsageError(f'--split={split}: no document has more than {EARLY} segments.')
    return shares, np.linalg.norm(np.asarray(params['encoder']['bias']), axis=-1)


def slot_kinds(experiment: Experiment, split: str, output: Path) -> list[dict[str, Any]]:
    """Share of the slots of each kind and the mean length of their vectors, and the figure."""
    shares, lengths = kept_shares(experiment, split)
    mean = shares.mean(axis=0)
    kinds = {
        'mostly themselves': mean >= KEEPS,
        'mixed': (mean < KEEPS) & (mean >= FOLLOWS),
        'tokens': mean < FOLLOWS,
    }
    figure = figures.figure(8, 3.4)
    left, right = figure.subplots(1, 2)
    left.hist(shares.ravel(), bins=20, range=(0, 1), density=True)
    left.set_xlabel('share of the weight on itself')
    left.set_ylabel('density of writes')
    right.scatter(mean, lengths, s=12)
    right.set_xlabel('mean share on itself, by slot')
    right.set_ylabel('length of the learned vector')
    for own in (left, right):
        own.grid(alpha=0.3)
    figure.savefig(output)
    return [
        {
            'slots': name,
            'share': float(chosen.mean()),
            'vector': float(lengths[chosen].mean()) if chosen.any() else float('nan'),
        }
        for name, chosen in kinds.items()
    ]


def _main(experiment):
    for row in slot_kinds(experiment, _SPLIT.value, Path(_OUTPUT.value)):
        print(f'{row["slots"]}: {row["share"]:.1%} of the slots, vector {row["vector"]:.2f}')
    print(_OUTPUT.value)


if __name__ == '__main__':
    entry.command(_main)
