"""What the slots of Memformers that learned passkeys do at a write, as a Markdown table.

python -m experiments.layer_memories.slots --runs=DIR/memformer --seeds=3 [-- --config.FIELD=VALUE ...]

Reads the parameters that `experiments.recall.run --output=DIR memformer` has left in DIR/memformer/SEED
(with the same flags after `--`) and reads test documents. At every write a slot leaves a share of its
weight on itself: at least a half, it keeps; below a tenth, it is filled with tokens; in between, it
mixes. Writes of a segment with the mark of the key are counted apart from those of filler.
"""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax.serialization import msgpack_restore

from experiments import markdown
from experiments.analysis import memformer_slots
from experiments.options import add_seeds, make_parser
from experiments.recall.run import configuration
from experiments.short_trainings import Trainer
from longmem_jax.config import overrides
from longmem_jax.experiment import Experiment

KEY = 1  # the token <key>
SEGMENTS = 300  # read of every seed
WRITTEN = ('the key', 'filler')


def shares(experiment: Experiment, folder: Path) -> dict[str, np.ndarray]:
    """What slots leave on themselves, by what is written: words to float32 [writes, slots]."""
    saved = msgpack_restore((folder / 'parameters.msgpack').read_bytes())
    found = {name: [] for name in WRITTEN}
    for kept, tokens, age in memformer_slots.writes(
        experiment, jax.tree.map(jnp.asarray, saved), 'test'
    ):
        has_key = (tokens == KEY).any(axis=1)
        found['the key'].append(kept[(age > 0) & has_key])
        found['filler'].append(kept[(age > 0) & ~has_key])
    return {name: np.concatenate(rows) for name, rows in found.items()}


def cells(kept: np.ndarray) -> list[str]:
    """Shares of slots and writes by kind, in %, and the ends of the slots' mean shares.

    Args:
      kept: [writes, slots].
    """
    mean, keeps, follows = kept.mean(axis=0), memformer_slots.KEEPS, memformer_slots.FOLLOWS
    kinds = (kept >= keeps, (kept < keeps) & (kept >= follows), kept < follows)
    percent = [f'{100 * kind.mean():.0f}' for kind in kinds]
    return [f'{len(kept):,}', *percent, f'{mean.min():.2f} - {mean.max():.2f}']


def main() -> None:
    """Runs the command."""
    arguments, changes = overrides.split_arguments(
        [argument for argument in sys.argv[1:] if argument != '--']
    )
    parser = make_parser(__doc__)
    parser.add_argument('--runs', type=Path, required=True)
    add_seeds(parser)
    options = parser.parse_args(arguments)
    config = configuration('memformer', changes)
    config.evaluate.max_test_segments = SEGMENTS
    trainer = Trainer(config)
    lines = []
    for seed in options.seeds:
        found = shares(trainer.seeded(seed), options.runs / str(seed))
        lines += [[str(seed), name, *cells(kept)] for name, kept in found.items()]
    kinds = ('keep, %', 'mix, %', 'filled with tokens, %')
    heads = ('seed', 'written', 'writes', *kinds, 'mean share on itself, by slot')
    print(markdown.table(heads, lines))


if __name__ == '__main__':
    main()
