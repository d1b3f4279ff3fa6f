"""ARMT around one block that stands for a Transformer's: outputs, W and z by segments."""

import jax
import jax.numpy as jnp

from longmem_jax.contract import identity
from longmem_jax.memory.associative_tokens import ARMT
from tests.parity_systems.common import parameters_of, settings_of, stacked

MAPS = dict(query='W_mq.weight', key='W_mk.weight', value='W_mv.weight', strength='W_mb.weight')


def check(settings, arrays):
    """Yields (name, ours, reference) for every tensor of the golden."""
    number, own, width = settings['num_segments'], settings['num_mem_tokens'], settings['d_model']
    memory = ARMT(
        settings=settings_of(width, 1, width, settings['segment_length']),
        normalize=identity,
        shared=None,
        depth=1,
        num_tokens=own,
        d_mem=settings['d_mem'],
        nu=settings['nu'],
        correction=settings['correction'],
    )
    theirs = parameters_of(arrays)
    xs, weights = stacked(arrays, number, 'x', 'loss_weight')

    def parameters(theirs):
        maps = {ours: theirs[name].T for ours, name in MAPS.items()}
        # The memory tokens of the golden are those at the end of every segment.
        tokens = jnp.zeros((own, width))
        return {
            'maps_0': maps | {'bias': theirs['W_mb.bias']},
            'memory_tokens': {'tokens': tokens},
        }

    def segments(memory, xs, inner):
        def body(state, x):
            count = jnp.full(x.shape[:1], x.shape[1] - own, jnp.int32)
            h, opened = memory.before(0, x, memory.open_segment(state, len(x)), 0)
            y = h + jnp.tanh(h @ inner)
            state = memory.close_segment(state, memory.after(0, y[:, -own:], opened), count)
            return state, (y, state.pairs[0])

        return jax.lax.scan(body, memory.initial_state(xs.shape[1]), xs)[1]

    @jax.jit
    @jax.grad
    def of_loss(given):
        return (run(*given)[0] * weights).sum()

    def run(theirs, xs):
        return memory.apply({'params': parameters(theirs)}, xs, theirs['inner.W'], method=segments)

    y, pairs = jax.jit(run)(theirs, xs)
    slopes, of_x = of_loss((theirs, xs))
    for i in range(number):
        yield f'out/y_{i}', y[i], arrays[f'out/y_{i}']
        yield f'state/W_mem_{i}', pairs.matrix[i], arrays[f'state/W_mem_{i}']
        yield f'state/z_{i}', pairs.normalizer[i], arrays[f'state/z_{i}']
        yield f'grad/x_{i}', of_x[i], arrays[f'grad/x_{i}']
    for name, slope in slopes.items():
        yield f'grad/param/{name}', slope, arrays[f'grad/param/{name}']
