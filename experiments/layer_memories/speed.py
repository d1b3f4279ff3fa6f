"""Speed of linear attention, and of Adam on the values of product keys, as Markdown tables.

python -m experiments.layer_memories.speed

Linear attention: batch 4, 2,048 tokens, 4 heads of 64, forward and backward, by chunk size, next to
softmax attention. Adam on tables of width 256, with a dense gradient or only on the rows that 4 heads
with k = 32 read. (`experiments.speed.compare` times whole layers of product keys.)
"""

import functools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from experiments.speed.bench import measure
from longmem_jax.attention.attend import attend
from longmem_jax.attention.rules import Rules
from longmem_jax.author.chunks import read_tokens
from longmem_jax.contract import ModelSettings, identity
from longmem_jax.layers import feature_maps
from longmem_jax.memory.linear_attention.layer import LinearAttention

REPEATS = 9


def timed(function: Callable[..., Any], *arguments: Any) -> str:
    """Median (minimum) milliseconds of a compiled function."""
    compiled = jax.jit(function).lower(*arguments).compile()
    times = measure(lambda: compiled(*arguments), REPEATS, tokens=1, fill=1)
    return f'{times["ms_median"]:.1f} ({times["ms_min"]:.1f})'


def linear_attention() -> None:
    """Linear attention by chunk size, and softmax attention."""
    keys = jax.random.split(jax.random.key(0), 3)
    queries, rows, values = (jax.random.normal(key, (4, 4, 2048, 64)) for key in keys)

    sizes = dict(d_model=256, num_heads=4, head_dim=64, d_feed_forward=256, num_layers=1)
    rates = dict(dropout=0.0, attention_dropout=0.0, init_std=0.1, dtype=jnp.dtype('float32'))
    settings = ModelSettings(**sizes, segment_length=2048, **rates)

    def linear(queries, rows, values, chunk):
        layer = LinearAttention(settings, identity, None).bind({})
        inputs = (feature_maps.elu(queries), feature_maps.elu(rows), values)
        every, memory = jnp.ones((4, 2048), bool), layer.initial_state(4).memory
        own = (layer.step, layer.chunked, layer.state(), memory)
        return read_tokens(*own, inputs, every, None, chunk)[1].sum()

    def softmax(queries, rows, values, block):
        return attend(queries, rows, values, Rules(offset=0), block_size=block).sum()

    print('| attention | forward and backward, ms: median (least) |\n|---|---|')
    for chunk in (16, 32, 64, 128, 256, 512):
        gradient = jax.grad(lambda *a, c=chunk: linear(*a, c), (0, 1, 2))
        print(
            f'| linear, chunks of {chunk} | {timed(gradient, queries, rows, values)} |', flush=True
        )
    for block in (0, 256):
        gradient = jax.grad(lambda *a, b=block: softmax(*a, b), (0, 1, 2))
        name = f'softmax, blocks of {block}' if block else 'softmax, all keys at once'
        print(f'| {name} | {timed(gradient, queries, rows, values)} |', flush=True)


Tables = Sequence[jax.Array]  # values and both moments of Adam


def adam(tables: Tables, gradient: jax.Array) -> tuple[jax.Array, ...]:
    """One step of Adam; all arrays have the shape of `gradient`."""
    values, first, second = tables
    first = 0.9 * first + 0.1 * gradient
    second = 0.999 * second + 0.001 * jnp.square(gradient)
    return values - 1e-3 * first / (jnp.sqrt(second) + 1e-8), first, second


@functools.partial(jax.jit, donate_argnums=0)
def dense_update(tables: Tables, slots: jax.Array, rows: jax.Array) -> tuple[jax.Array, ...]:
    """Adam on whole tables.

    Args:
      tables: [slots, width] each.
      slots: int32 [reads], the slots that were read.
      rows: [reads, width], their gradients.
    """
    return adam(tables, jnp.zeros_like(tables[0]).at[slots].add(rows))


@functools.partial(jax.jit, donate_argnums=0)
def rows_update(tables: Tables, slots: jax.Array, rows: jax.Array) -> tuple[jax.Array, ...]:
    """Adam only on the rows read, each once; the moments of other rows do not change."""
    order = jnp.argsort(slots)
    sorted_slots = slots[order]
    first = jnp.concatenate([jnp.ones((1,), bool), sorted_slots[1:] != sorted_slots[:-1]])
    position = jnp.cumsum(first) - 1
    gradient = jnp.zeros_like(rows).at[position].add(rows[order])
    outside = tables[0].shape[0]
    unique = jnp.full_like(slots, outside).at[position].set(sorted_slots)
    updated = adam([table.at[unique].get(mode='clip') for table in tables], gradient)
    return tuple(
        table.at[unique].set(new, mode='drop') for table, new in zip(tables, updated, strict=True)
    )


def value_updates() -> None:
    """Dense updates of the values against updates of rows."""
    print('| slots | tokens read | dense, ms | rows only, ms |\n|---|---|---|---|')
    for number, tokens in ((512, 64), (512, 512), (512, 2048), (1024, 512)):
        slots = jax.random.randint(jax.random.key(0), (tokens * 4 * 32,), 0, number**2)
        rows = jax.random.normal(jax.random.key(1), (*slots.shape, 256))
        cells = []
        for update in (dense_update, rows_update):
            tables = tuple(jnp.zeros((number**2, 256)) for _ in range(3))
            times = []
            for _ in range(REPEATS + 1):
                start = time.perf_counter()
                tables = jax.block_until_ready(update(tables, slots, rows))
                times.append(1000 * (time.perf_counter() - start))
            cells.append(f'{statistics.median(times[1:]):.0f} ({min(times[1:]):.0f})')
        print(f'| {number} x {number} | {tokens:,} | {cells[0]} | {cells[1]} |', flush=True)


def main() -> None:
    """Runs the command."""
    linear_attention()
    value_updates()


if __name__ == '__main__':
    main()
