"""Recall by distance of several memories and seeds, as a Markdown table and a figure.

python -m experiments.recall.run --output=DIR --seeds=3 MEMORY [MEMORY ...] [-- --config.FIELD=VALUE ...]

Trains `configs/recall.py:tiny,kind=passkey,memory=MEMORY` with every seed, of the parameters and of the
data, in one process, so that a memory is compiled once, and tests it at every one of `--distances`. A
training ends when nearly all answers of the last `RECENT` steps were right, and at the latest after
`config.train.num_steps`. DIR/MEMORY/SEED has the parameters, `training.json` and `recall.json`; what is
there is not done again, so the table of everything, or other distances, are one more, short run. The
memory is also reset before every segment, at distances that are trained.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import jax
from flax.serialization import msgpack_restore, msgpack_serialize

from configs import recall
from experiments import provenance
from experiments.options import add_seeds, make_parser, whole_numbers
from experiments.recall import report
from experiments.short_trainings import Trainer
from longmem_jax.commands.task_series import at_value, in_short
from longmem_jax.config import checks, overrides
from longmem_jax.data.tasks.recall import greatest_distance
from longmem_jax.errors import UsageError

RECENT = 50  # steps whose answers decide whether a training may end
DISTANCES = (16, 64, 128, 256, 512, 1024)


def configuration(memory: str, changes: list[tuple[str, str]]) -> Any:
    """The config of all runs of a memory."""
    config = recall.get_config(f'tiny,kind=passkey,memory={memory}')
    overrides.apply(config, changes)
    checks.require_runnable(config, 1)
    return config


class Runs:
    """Trains and tests the seeds of a memory; what is finished is kept in a folder per seed."""

    def __init__(self, memory: str, config: Any, folder: Path):
        """`config`: from `configuration`; nothing is compiled before it is needed."""
        self._memory, self._folder = memory, folder
        self._trainer = Trainer(config)

    def trained(self, seed: int, changes: list[list[str]], enough: float) -> Any:
        """The parameters of a seed; trains it if that has not been done, whatever was `enough` then.

        Raises:
          UsageError: the folder has a training with other settings.
        """
        workdir = self._folder / str(seed)
        if (workdir / 'training.json').exists():
            found = json.loads((workdir / 'training.json').read_text())
            if found['changes'] != changes:
                raise UsageError(
                    f'{workdir} has a training with {found["changes"]}, not {changes}: choose another '
                    '--output, or delete it.'
                )
            return msgpack_restore((workdir / 'parameters.msgpack').read_bytes())
        workdir.mkdir(parents=True, exist_ok=True)
        print(f'{self._memory}, seed {seed}', flush=True)
        started = time.monotonic()
        trained = self._trainer.train(seed, enough, RECENT)
        seconds = time.monotonic() - started
        print(f'{self._memory}, seed {seed}: {trained.steps} steps in {seconds:.0f} s', flush=True)
        params = jax.device_get(trained.params)
        (workdir / 'parameters.msgpack').write_bytes(msgpack_serialize(params))
        training = {'changes': changes, 'enough': enough, 'seconds': seconds}
        training |= {'decided': trained.decided, 'lines': trained.lines}
        provenance.save(workdir / 'training.json', training, [seed])
        return params

    def test(self, seed: int, params: Any, distance: int, options: argparse.Namespace) -> None:
        """Tests a seed at a distance, unless its `recall.json` has that."""
        documents = options.documents
        path = self._folder / str(seed) / 'recall.json'
        rows = provenance.saved(path) or []
        if any((row['distance'], row['documents']) == (distance, documents) for row in rows):
            return
        config = self._trainer.seeded(seed).config
        config.data.task.eval_documents = documents
        lanes = min(options.lanes or config.evaluate.num_lanes, documents)
        evaluator = self._trainer.evaluator_of(lanes)
        started = time.monotonic()
        resets = distance <= greatest_distance(config.data.task)
        row = at_value(config, evaluator, params, 'test', distance, resets=resets)
        print(f'{self._memory}, seed {seed}, {in_short(row)}', flush=True)
        row |= {'documents': documents, 'seconds': round(time.monotonic() - started, 1)}
        rows = [other for other in rows if other['distance'] != distance]
        rows = sorted([*rows, row], key=lambda row: row['distance'])
        provenance.save(path, rows, [seed])


def main() -> None:
    """Runs the command."""
    arguments, changes = overrides.split_arguments(
        [argument for argument in sys.argv[1:] if argument != '--']
    )
    parser = make_parser(__doc__)
    parser.add_argument('memories', nargs='+')
    parser.add_argument('--output', type=Path, required=True)
    add_seeds(parser)
    parser.add_argument('--distances', type=whole_numbers, default=DISTANCES)
    parser.add_argument('--documents', type=int, default=128, help='at every distance')
    parser.add_argument(
        '--lanes', type=int, default=0, help='documents read together; 0 = as in the config'
    )
    parser.add_argument(
        '--enough', type=float, default=0.995, help='share of right answers that ends a training'
    )
    options = parser.parse_args(arguments)
    configs = {memory: configuration(memory, changes) for memory in options.memories}
    found = {}
    for memory, config in configs.items():
        runs = Runs(memory, config, options.output / memory)
        for seed in options.seeds:
            params = runs.trained(seed, [list(change) for change in changes], options.enough)
            for distance in options.distances:
                runs.test(seed, params, distance, options)
        found[memory] = [report.read(options.output / memory / str(seed)) for seed in options.seeds]
    print(report.table(found, configs, options.distances))
    print('\n'.join(report.floors(next(iter(configs.values())), options)))
    report.draw(found, configs, options.distances, options.output / 'recall.png')


if __name__ == '__main__':
    main()
