"""Tokens per second of generation behind contexts of several lengths.

python -m experiments.generation --config=configs/comparison.py:memory=linear,tiny \
    --contexts=512,4096,32768 [--workdir=DIR] [--output=FILE.json]

One lane; random tokens are read, then 128 more are drawn one by one. What is timed are the draws:
median of three times 128, after one that compiles. With the parameters of `--workdir`, or new ones:
where spans are learnt, they decide how much is looked at.
"""

import json
import statistics
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import flags

from longmem_jax.commands import entry
from longmem_jax.commands.bench import state_bytes
from longmem_jax.config import checks
from longmem_jax.devices import allocator, sharding
from longmem_jax.errors import UsageError
from longmem_jax.experiment import Experiment, prepare_workdir
from longmem_jax.generation.reader import Reader, fresh_state

if __name__ == '__main__':
    _WORKDIR = flags.DEFINE_string('workdir', '', 'Folder of a trained run; none: new parameters.')
    _CONTEXTS = flags.DEFINE_list('contexts', ['512', '4096', '32768'], 'Tokens read before.')
    _OUTPUT = flags.DEFINE_string('output', '', 'A JSON file for the numbers.')

DRAWN, REPEATS = 128, 3


def speeds(experiment: Experiment, contexts: list[int]) -> dict[str, Any]:
    """Tokens per second behind every context, and the bytes of the state."""
    model = experiment.evaluation_model
    if experiment.workdir is None:
        params = jax.jit(experiment.make_state)().params
    else:
        params, _ = experiment.restore_parameters()
    state = fresh_state(model, params, 1)
    random, found = np.random.default_rng(0), {}
    for context in contexts:
        reader = Reader(model, params, state, np.zeros((1, 0), np.int32))
        tokens = random.integers(0, model.config.vocab_size, (1, context))
        reader.read(tokens.astype(np.int32))
        times = []
        for _ in range(REPEATS + 1):
            start = time.perf_counter()
            drawn = reader.write(DRAWN, temperature=1.0, top_k=0, top_p=1.0, seed=0, chunk=DRAWN)
            assert sum(part.shape[1] for part in drawn) == DRAWN
            times.append(time.perf_counter() - start)
        found[str(context)] = DRAWN / statistics.median(times[1:])
    return {'state_bytes': state_bytes(state), 'tokens_per_s': found}


def _main(config):
    contexts = [int(text) for text in _CONTEXTS.value if text.isdecimal() and int(text)]
    if len(contexts) != len(_CONTEXTS.value):
        raise UsageError(
            f'--contexts={",".join(_CONTEXTS.value)}: whole numbers from 1 on are needed.'
        )
    if config.model.kind == 'seq2seq':
        raise UsageError("config.model.kind = 'seq2seq': pairs have no context to continue.")
    allocator.keep_pages()
    checks.require_runnable(config, jax.device_count())
    mesh = sharding.make_mesh(config.mesh.to_dict())
    workdir = prepare_workdir(_WORKDIR.value) if _WORKDIR.value else None
    found = speeds(Experiment(config, workdir, mesh), contexts)
    print(f'state: {found["state_bytes"]:,} bytes')
    for context, speed in found['tokens_per_s'].items():
        print(f'after {int(context):,} tokens: {speed:,.0f} tokens/s')
    if _OUTPUT.value:
        Path(_OUTPUT.value).write_text(json.dumps(found, indent=1) + '\n')


if __name__ == '__main__':
    entry.command(_main, workdir=False)
