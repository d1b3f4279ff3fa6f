"""Memory replay back-propagation against plain back-propagation through time, as a Markdown table.

python -m experiments.layer_memories.replay [--output=FILE.json]

A small Memformer (configs/memformer_wikitext103.py:tiny), one training step of T segments: bytes of
temporaries as reported by XLA, milliseconds, and the largest difference of any gradient, relative to
the largest gradient of its parameter.
"""

import argparse
import functools
from pathlib import Path
from typing import Any

import jax
import numpy as np

from configs import memformer_wikitext103
from experiments import provenance
from experiments.speed.bench import measure
from longmem_jax.data.lanes import Batch
from longmem_jax.generation.reader import fresh_state
from longmem_jax.models.kinds import make_model
from longmem_jax.models.parameters import initial_parameters, unbox
from longmem_jax.segment import read_segments
from longmem_jax.training.step import score_segment

REPEATS = 5


def batch_of(segments: int, lanes: int, length: int, vocab: int) -> Batch:
    """A batch of random tokens, [segments, lanes, length]."""
    random = np.random.default_rng(0)
    tokens = random.integers(0, vocab, (segments, lanes, length + 1)).astype(np.int32)
    valid = np.ones((segments, lanes, length), bool)
    start = np.zeros((segments, lanes), bool)
    start[0] = True
    return Batch(
        tokens=tokens[..., :-1], targets=tokens[..., 1:], valid=valid,
        scored=valid.astype(np.uint8), start=start,
        num_bytes=np.ones((segments, lanes), np.float32),
    )  # fmt: skip


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    parser.add_argument('--output', type=Path, help='JSON file for MB and differences')
    options = parser.parse_args()
    config = memformer_wikitext103.get_config('tiny')
    lanes, length = config.train.num_lanes, config.train.segment_length
    model = make_model(config.model, length)
    params = unbox(jax.jit(lambda: initial_parameters(model, jax.random.key(0)))())
    memory = fresh_state(model, params, lanes)

    def loss(params, batch, remat):
        _, (sums, _, _) = read_segments(
            lambda memory, inputs, key: score_segment(
                model, params, memory, inputs, key, train=True
            ),
            memory,
            batch,
            jax.random.key(1),
            remat=remat,
        )
        return sums['nll'].sum() / sums['scored'].sum()

    print(
        '| T | plain, MB | ms | replay, MB | ms | largest difference |\n|---|---|---|---|---|---|'
    )
    found: dict[str, Any] = {}
    for segments in (2, 8, 32):
        batch, cells, gradients = batch_of(segments, lanes, length, config.model.vocab_size), [], []
        for remat in (False, True):
            gradient = jax.jit(jax.grad(lambda p, b, remat=remat: loss(p, b, remat)))
            compiled = gradient.lower(params, batch).compile()
            gradients.append(jax.block_until_ready(compiled(params, batch)))
            call = functools.partial(compiled, params, batch)
            times = measure(call, REPEATS, tokens=1, fill=0)
            size = compiled.memory_analysis().temp_size_in_bytes / 1e6
            found.setdefault(str(segments), {})['replay' if remat else 'plain'] = size
            cells += [f'{size:,.1f}', f'{times["ms_median"]:,.0f}']
        worst = max(
            float(np.abs(a - b).max() / max(np.abs(a).max(), 1e-30))
            for a, b in zip(*map(jax.tree.leaves, gradients), strict=True)
        )
        found[str(segments)]['difference'] = worst
        print(f'| {segments} | {" | ".join(cells)} | {worst:.1e} |', flush=True)
    if options.output:
        provenance.save(options.output, found, [0])


if __name__ == '__main__':
    main()
