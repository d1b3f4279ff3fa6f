"""Tokens per second of generation behind contexts of several lengths, as a Markdown table.

python -m experiments.layer_memories.generation --memories linear memformer --contexts 512 4096 32768

The models of configs/comparison.py:tiny, not trained; one lane; random bytes are read, then 128 more are
drawn one by one. What is timed are the draws: median of three times 128, after one that compiles.
"""

import argparse
import statistics
import time

import jax
import numpy as np

from configs import comparison
from longmem_jax import allocator
from longmem_jax.checks import evaluation_model
from longmem_jax.generate import Reader, fresh_state
from longmem_jax.models.kinds import make_model
from longmem_jax.side_by_side import MEMORIES
from longmem_jax.train_step import initial_parameters, unbox

DRAWN, REPEATS = 128, 3


def speeds(memory: str, contexts: list[int]) -> list[str]:
    """Tokens per second behind every context, and bytes of the state."""
    config = comparison.get_config(f'memory={memory},tiny')
    model = make_model(evaluation_model(config), config.evaluate.segment_length)
    params = unbox(jax.jit(lambda: initial_parameters(model, jax.random.key(0)))())
    state = fresh_state(model, params, 1)
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    random, cells = np.random.default_rng(0), [f'{size / 1000:,.0f}']
    for context in contexts:
        reader = Reader(model, params, state, np.zeros((1, 0), np.int32))
        reader.read(random.integers(0, 256, (1, context)).astype(np.int32))
        times = []
        for _ in range(REPEATS + 1):
            start = time.perf_counter()
            drawn = reader.write(DRAWN, temperature=1.0, top_k=0, top_p=1.0, seed=0, chunk=DRAWN)
            assert sum(part.shape[1] for part in drawn) == DRAWN
            times.append(time.perf_counter() - start)
        cells.append(f'{DRAWN / statistics.median(times[1:]):,.0f}')
    return cells


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--memories', nargs='+', default=list(MEMORIES))
    parser.add_argument('--contexts', nargs='+', type=int, default=[512, 4096, 32_768])
    options = parser.parse_args()
    allocator.keep_pages()
    heads = ['memory', 'state, kB', *(f'tokens/s after {n:,}' for n in options.contexts)]
    print(f'| {" | ".join(heads)} |\n|{"---|" * len(heads)}')
    for memory in options.memories:
        print(f'| `{memory}` | {" | ".join(speeds(memory, options.contexts))} |', flush=True)


if __name__ == '__main__':
    main()
