"""Compiles fused attention and search for TPUs: `python -m tests.kernels.fused_compiling v5e:2x2`."""

import json
import re
import sys

import jax
import jax.numpy as jnp

from longmem_jax.commands.compile import find_topology
from longmem_jax.kernels import fused_attention, fused_plan
from longmem_jax.kernels.tpu import fused_search

BATCH, HEADS, KEY_HEADS, LENGTH, MEMORY, WIDTH = 4, 8, 4, 900, 1900, 64  # no multiples of blocks


def value(queries, keys, table, bias, remaining, seeds):
    """A sum of what is read, with everything that the kernel can do."""
    index = jnp.arange(LENGTH + MEMORY, dtype=jnp.int32)[None] - MEMORY
    out = fused_attention.attend_fused(
        queries,
        keys,
        keys,
        since=index,
        until=jnp.full_like(index, fused_plan.NEVER_SINCE),
        by_distance=fused_attention.ByDistance(MEMORY, queries, table, bias),
        remaining=remaining,
        ramp=100,
        dropout=0.1,
        seeds=seeds,
    )
    return out.astype(jnp.float32).sum()


def searched(queries, keys, values, count):
    """A sum of what is read of the nearest rows."""
    return fused_search.attend_nearest(queries, keys, values, count, 32).astype(jnp.float32).sum()


def main(topology):
    """Prints the kernels of the programs, their temporaries and the size of all scores, in bytes."""
    device = jax.sharding.SingleDeviceSharding(find_topology(topology).devices[0])

    def shape(*sizes, dtype=jnp.bfloat16):
        return jax.ShapeDtypeStruct(sizes, dtype, sharding=device)

    lanes = shape(BATCH, dtype=jnp.int32)
    queries = shape(BATCH, HEADS, LENGTH, WIDTH)
    attention = (
        queries,
        shape(BATCH, KEY_HEADS, LENGTH + MEMORY, WIDTH),
        shape(HEADS, LENGTH + MEMORY, WIDTH),
        shape(HEADS, 500, dtype=jnp.float32),
        shape(BATCH, 1, LENGTH + MEMORY, dtype=jnp.float32),
        shape(BATCH, HEADS, dtype=jnp.int32),
    )
    rows = shape(BATCH, HEADS, MEMORY, WIDTH)
    wide = shape(BATCH, HEADS, MEMORY, WIDTH, dtype=jnp.float32)
    pairs = BATCH * HEADS * LENGTH
    found = {}
    for name, function, arguments, keys in (
        ('attention', jax.grad(value, (0, 1, 2, 3, 4)), attention, LENGTH + MEMORY),
        ('search', jax.grad(searched), (queries, rows, rows, lanes), MEMORY),
        ('search of float32', jax.grad(searched), (queries, wide, wide, lanes), MEMORY),
    ):
        compiled = jax.jit(function).lower(*arguments).compile()
        kernels = re.findall(r'fused_(?:attention|search)_(?:for|back)ward', compiled.as_text())
        found[name] = dict(
            kernels=sorted(set(kernels)),
            temporaries=compiled.memory_analysis().temp_size_in_bytes,
            scores=4 * pairs * keys,
        )
    print(json.dumps(found))


if __name__ == '__main__':
    main(sys.argv[1])
