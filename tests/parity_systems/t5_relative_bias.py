"""T5's relative position buckets and biases."""

import jax
import jax.numpy as jnp
import numpy as np

from longmem_jax.layers import positions


def check(settings, arrays):
    """Yields (name, ours, reference) for buckets, biases and gradients."""
    rules = dict(
        num_buckets=settings['num_buckets'],
        max_distance=settings['max_distance'],
        bidirectional=settings['bidirectional'],
    )
    buckets = positions.t5_bucket(arrays['in/relative_position'], **rules)
    yield 'out/bucket', buckets, arrays['out/bucket']
    table = jnp.asarray(arrays['param/rel_embedding'])
    number = 0
    while f'in/num_queries_{number}' in arrays:
        queries, keys, offset = (
            int(arrays[f'in/{name}_{number}']) for name in ('num_queries', 'num_keys', 'offset')
        )
        offset = keys - queries if offset < 0 else offset

        def bias(table, queries=queries, keys=keys, offset=offset):
            relative = np.arange(keys) - (np.arange(queries)[:, None] + offset)
            return table[:, positions.t5_bucket(relative, **rules)][None]

        weight = jnp.asarray(arrays[f'in/loss_weight_{number}'])
        yield f'out/bias_{number}', bias(table), arrays[f'out/bias_{number}']
        gradient = jax.grad(lambda table, w=weight, f=bias: (f(table) * w).sum())(table)
        yield f'grad/rel_embedding_{number}', gradient, arrays[f'grad/rel_embedding_{number}']
        number += 1
