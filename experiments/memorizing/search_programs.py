"""What searches of the nearest rows need on a TPU chip, read from their compiled programs; no TPU.

python -m experiments.memorizing.search_programs [--topology=v5e:2x2] [--rows=8192] [--searches NAME ...]

One layer's reading of its memory, forwards and backwards, at the sizes of a chip in
configs/memorizing_pg19.py on 16 chips: 16 lanes, 8 heads of 128, 512 queries, k = 32. Blocks of 8,192
rows; XLA counts a loop over blocks once. Needs the extra `[tpu-aot]`; up to some minutes each.
"""

import argparse
from typing import Any

import jax
import jax.numpy as jnp

from experiments import markdown
from longmem_jax.attention.rules import NEVER
from longmem_jax.kernels.tpu.fused_search import attend_nearest
from longmem_jax.layers.nearest import nearest
from longmem_jax.layers.ring import Rows

LANES, HEADS, QUERIES, WIDTH, K, BLOCK = 16, 8, 512, 128, 32, 8192
SEARCHES = ('exact', 'approximate', 'fused')


def read(search: str, queries: jax.Array, keys: Any, values: Any, count: jax.Array) -> jax.Array:
    """What a memory layer reads, without its gate."""
    if search == 'fused':
        return attend_nearest(queries, keys, values, count, K)
    rows = Rows(keys, values, None, None, count)
    keys, values, found, _ = nearest(rows, queries, K, search, 0.95, BLOCK)
    scores = jnp.einsum('bhnd,bhnkd->bhnk', queries, keys, preferred_element_type=jnp.float32)
    weights = jax.nn.softmax(jnp.where(found, scores, NEVER), axis=-1)
    weights = jnp.where(found, weights, 0).astype(values.dtype)
    return jnp.einsum('bhnk,bhnkd->bhnd', weights, values)


def compile_search(search: str, rows: int, topology: str) -> Any:
    """The program of a search with its derivative."""
    from longmem_jax.commands.compile import find_topology

    device = jax.sharding.SingleDeviceSharding(find_topology(topology).devices[0])

    def shape(*sizes: int, dtype: Any = jnp.bfloat16) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(sizes, dtype, sharding=device)

    def value(*arrays: jax.Array) -> jax.Array:
        return jnp.square(read(search, *arrays).astype(jnp.float32)).sum()

    stored = shape(LANES, HEADS, rows, WIDTH)
    lowered = jax.jit(jax.value_and_grad(value)).lower(
        shape(LANES, HEADS, QUERIES, WIDTH), stored, stored, shape(LANES, dtype=jnp.int32)
    )
    return lowered.compile()


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    parser.add_argument('--topology', default='v5e:2x2')
    parser.add_argument('--rows', type=int, default=8192)
    parser.add_argument('--searches', nargs='+', choices=SEARCHES, default=SEARCHES)
    options = parser.parse_args()
    lines = []
    for search in options.searches:
        compiled = compile_search(search, options.rows, options.topology)
        cost = compiled.cost_analysis()
        temporaries = compiled.memory_analysis().temp_size_in_bytes / 2**30
        moved = cost['bytes accessed'] / 1e9
        lines.append([search, f'{cost["flops"]:.3g}', f'{moved:.1f}', f'{temporaries:.2f}'])
    heads = ['search', 'operations', 'moved, GB', 'temporaries, GiB']
    print(markdown.table(heads, lines))


if __name__ == '__main__':
    main()
