r"""Tokens per second of generation after contexts of several lengths.

python -m experiments.generation --config=configs/comparison.py:memory=linear,tiny \
    --contexts=512,4096,32768 [--workdir=DIR] [--output=FILE.json]

One lane: reads random tokens, then generates 128 tokens one by one. Only generation is timed: the median
of three runs, after one that compiles. The parameters are those of `--workdir`, or new ones; learned
spans decide how much of the memory is read.
"""

import statistics
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import flags

from experiments import provenance
from experiments.speed.bench import draw, state_bytes
from longmem_jax.commands import entry
from longmem_jax.config import checks
from longmem_jax.devices import initial, sharding
from longmem_jax.errors import UsageError
from longmem_jax.experiment import Experiment
from longmem_jax.generation.reader import Reader, fresh_state
from longmem_jax.workdir import prepare_workdir

if __name__ == '__main__':
    _WORKDIR = flags.DEFINE_string('workdir', '', "Folder of a trained run; '' = new parameters.")
    _CONTEXTS = flags.DEFINE_list('contexts', ['512', '4096', '32768'], 'Tokens read before.')
    _OUTPUT = flags.DEFINE_string('output', '', 'JSON file for the results.')

GENERATED, REPEATS = 128, 3


def speeds(experiment: Experiment, contexts: list[int]) -> dict[str, Any]:
    """Tokens per second after every context, and the bytes of the state."""
    model = experiment.evaluation_model
    if experiment.workdir is None:
        params = initial.arrays(experiment.make_state).params
    else:
        params, _ = experiment.restore_parameters()
    state = fresh_state(model, params, 1)
    random, tokens_per_s = np.random.default_rng(0), {}
    for context in contexts:
        reader = Reader(model, params, state, np.zeros((1, 0), np.int32))
        tokens = random.integers(0, model.config.vocab_size, (1, context))
        reader.read(tokens.astype(np.int32))
        times = []
        for _ in range(REPEATS + 1):
            start = time.perf_counter()
            draw(reader, GENERATED, model.config.vocab_size)
            times.append(time.perf_counter() - start)
        tokens_per_s[str(context)] = GENERATED / statistics.median(times[1:])
    return {'state_bytes': state_bytes(state), 'tokens_per_s': tokens_per_s}


def _main(config: Any) -> None:
    contexts = [int(text) for text in _CONTEXTS.value if text.isdecimal() and int(text)]
    if len(contexts) != len(_CONTEXTS.value):
        raise UsageError(
            f'--contexts={",".join(_CONTEXTS.value)}: must be integers above 0, such as 512,4096.'
        )
    if config.model.kind == 'seq2seq':
        raise UsageError(
            "config.model.kind = 'seq2seq': seq2seq models do not support generation from a context."
        )
    checks.require_runnable(config, jax.device_count())
    mesh = sharding.make_mesh(config.mesh.to_dict())
    workdir = prepare_workdir(_WORKDIR.value) if _WORKDIR.value else None
    result = speeds(Experiment(config, workdir, mesh), contexts)
    print(f'state: {result["state_bytes"]:,} bytes')
    for context, speed in result['tokens_per_s'].items():
        print(f'after {int(context):,} tokens: {speed:,.0f} tokens/s')
    if _OUTPUT.value:
        provenance.save(Path(_OUTPUT.value), result, [config.train.seed])


if __name__ == '__main__':
    entry.command(_main, workdir=False)
