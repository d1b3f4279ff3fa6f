"""ARMT around one block that stands for a Transformer's: outputs, W and z by segments."""

import jax
import jax.numpy as jnp

from longmem_jax.contract import ModelSettings, identity
from longmem_jax.memory.associative_tokens import ARMT

MAPS = dict(query='W_mq.weight', key='W_mk.weight', value='W_mv.weight', strength='W_mb.weight')


def check(settings, arrays):
    """Yields (name, ours, reference) for every tensor of the golden."""
    number, own, width = settings['num_segments'], settings['num_mem_tokens'], settings['d_model']
    memory = ARMT(
        settings=ModelSettings(
            d_model=width,
            num_heads=1,
            head_dim=width,
            d_feed_forward=1,
            num_layers=1,
            segment_length=settings['segment_length'],
            dropout=0.0,
            attention_dropout=0.0,
            init_std=0.02,
            dtype=jnp.dtype('float32'),
        ),
        normalize=identity,
        shared=None,
        depth=1,
        num_tokens=own,
        d_mem=settings['d_mem'],
        nu=settings['nu'],
        correction=settings['correction'],
    )
    theirs = {
        name.removeprefix('param/'): jnp.asarray(value)
        for name, value in arrays.items()
        if name.startswith('param/')
    }
    xs, weights = (
        jnp.stack([arrays[f'in/{name}_{i}'] for i in range(number)])
        for name in ('x', 'loss_weight')
    )

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
