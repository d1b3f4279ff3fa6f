"""One layer of attention sinks: what is held before a segment, as keys and values before rotation."""

import jax
import jax.numpy as jnp

from longmem_jax.contract import identity
from longmem_jax.memory.sinks import AttentionSinks
from tests.parity_systems.common import parameters_of, segment_of, settings_of, stacked


def check(settings, arrays):
    """Yields (name, ours, reference) for every tensor of the golden."""
    number, length = settings['num_segments'], settings['segment_length']
    heads, kv_heads = settings['num_heads'], settings['num_key_value_heads']
    sinks = settings['start_size']
    # Their room for recent tokens counts the segment that is read.
    size = sinks + settings['recent_size'] - length
    layer = AttentionSinks(
        settings=settings_of(
            settings['hidden_size'],
            heads,
            settings['head_dim'],
            length,
            num_kv_heads=kv_heads,
            rotary_base=settings['rope_theta'],
        ),
        normalize=identity,
        shared=None,
        memory_length=size,
        sinks=sinks,
        gradients=True,
    )
    theirs = parameters_of(arrays)

    def into(weight, heads):
        return {'kernel': weight.T.reshape(weight.shape[1], heads, -1)}

    def parameters(theirs):
        out = theirs['o_proj.weight']
        return {
            'projections': {
                'query': into(theirs['q_proj.weight'], heads),
                'key': into(theirs['k_proj.weight'], kv_heads),
                'value': into(theirs['v_proj.weight'], kv_heads),
                'out': {'kernel': out.T.reshape(heads, -1, out.shape[0])},
            }
        }

    xs, weights = stacked(arrays, number, 'x', 'loss_weight')

    def segments(layer, xs):
        def body(state, x):
            y, state, _ = layer(x, state, segment_of(x), train=False)
            maps = layer.projections
            return state, (y, maps.keys(state.hidden), maps.values(state.hidden), state.count)

        return jax.lax.scan(body, layer.initial_state(xs.shape[1]), xs)[1]

    @jax.jit
    @jax.value_and_grad
    def of_loss(given):
        y = layer.apply({'params': parameters(given[0])}, given[1], method=segments)[0]
        return (y * weights).sum()

    _, (slopes, of_x) = of_loss((theirs, xs))
    y, keys, values, counts = layer.apply({'params': parameters(theirs)}, xs, method=segments)
    for i in range(number):
        yield f'out/y_{i}', y[i], arrays[f'out/y_{i}']
        yield f'grad/x_{i}', of_x[i], arrays[f'grad/x_{i}']
        filled = min(int(counts[i, 0]), size)
        for name, ours in (('k', keys[i]), ('v', values[i])):
            wanted = jnp.asarray(arrays[f'state/{name}_{i}'])
            if wanted.shape[2] > filled:  # theirs makes room when the next segment comes
                first, last = wanted[:, :, :sinks], wanted[:, :, wanted.shape[2] - filled + sinks :]
                wanted = jnp.concatenate([first, last], axis=2)
            yield f'state/{name}_{i}', ours[:, :, size - filled :], wanted
    for name, slope in slopes.items():
        yield f'grad/param/{name}', slope, arrays[f'grad/param/{name}']
