"""The neural memory of Titans: by segments and by tokens, in float64.

In float32 the norms of heads and the steps of Newton-Schulz amplify rounding: gradients of a file with
the Muon step agree to 1e-3 there.
"""

import jax
import jax.numpy as jnp
import numpy as np

from longmem_jax.contract import identity
from longmem_jax.memory.titans.layer import Titans
from tests.parity_systems.common import parameters_of, segment_of, settings_of, stacked

# Their options to our fields; others are refused.
OPTIONS = {
    'momentum': 'momentum',
    'spectral_norm_surprises': 'muon',
    'default_step_transform_max_lr': 'largest_step',
    'max_grad_norm': 'largest_surprise',
    'qk_rmsnorm': 'key_norm',
    'post_rmsnorm': 'read_norm',
    'pre_rmsnorm': 'own_norms',
}


def fields_of(settings):
    """The fields of our layer."""
    options = {'pre_rmsnorm': True, **settings.get('options', {})}
    if unknown := sorted({*options} - {*OPTIONS}):
        raise ValueError(f'options {unknown}: known are {sorted(OPTIONS)}')
    found = dict(read_norm=False, key_norm='none', largest_step=1.0)
    found |= {OPTIONS[name]: value for name, value in options.items()}
    found['key_norm'] = {True: 'rmsnorm', False: 'none'}.get(found['key_norm'], 'none')
    found['largest_surprise'] = found.get('largest_surprise') or 0.0
    return found | dict(
        chunk=settings['chunk_size'],
        batch=(settings['batch_size'] or 0) // settings['chunk_size'],
        matrices=settings['depth'],
        expansion=settings['expansion_factor'],
        convolution=0,
        epsilon=float(jnp.finfo(jnp.float64).eps),  # torch's
        silu=False,
    )


def parameters(theirs, heads):
    """Our parameters of theirs."""

    def into(name):
        weight = theirs[f'{name}.weight']
        return {'kernel': weight.T.reshape(weight.shape[1], heads, -1)}

    names = dict(query='to_queries', key='to_keys', value='to_values')
    own = {'projections': {ours: into(name) for ours, name in names.items()}}
    width = theirs['to_queries.weight'].shape[1]
    if 'combine_heads.weight' in theirs:
        out, own['shown'] = theirs['combine_heads.weight'].T, theirs['retrieve_gate.0.weight'].T
    else:  # with one head, theirs has neither: a gate of 1/2, and a map of 2
        out, own['shown'] = 2 * jnp.eye(width), jnp.zeros((width, heads))
    own['projections']['out'] = {'kernel': out.reshape(heads, -1, width)}
    names = dict(step='to_adaptive_step', momentum='to_momentum', decay='to_decay_factor')
    for ours, name in names.items():
        if f'{name}.0.weight' in theirs:
            own[f'{ours}_kernel'] = theirs[f'{name}.0.weight'].T
            own[f'{ours}_bias'] = theirs[f'{name}.0.bias']
    for name in ('store_norm', 'retrieve_norm'):
        if f'{name}.weight' in theirs:
            own[name] = {'scale': theirs[f'{name}.weight']}
    scales = dict(query_scale='q_norm', key_scale='k_norm', read_scale='multihead_rmsnorm')
    for ours, name in scales.items():
        if f'{name}.gamma' in theirs:
            own[ours] = theirs[f'{name}.gamma'][:, 0] + 1
    return own | {ours: theirs[name] for ours, name in weight_names(theirs).items()}


def weight_names(theirs):
    """Names of the weights of the inner network: ours to theirs."""
    matrices = sorted(name for name in theirs if name.startswith('model.weights.'))
    return {'gamma': 'norm.gamma'} | {f'matrix_{i}': name for i, name in enumerate(matrices)}


def check(settings, arrays):
    """Yields (name, ours, reference) for every tensor of the golden."""
    with jax.enable_x64(True):
        yield from _check(settings, arrays)


def _check(settings, arrays):
    heads, number = settings['heads'], settings['num_segments']
    theirs = jax.tree.map(jnp.float64, parameters_of(arrays))
    layer = Titans(
        settings=settings_of(
            settings['dim'],
            heads,
            settings['dim_head'],
            settings['segment_length'],
            dtype=jnp.dtype('float64'),
        ),
        normalize=identity,
        shared=None,
        **fields_of(settings),
    )
    xs, weights = map(jnp.float64, stacked(arrays, number, 'x', 'loss_weight'))

    def segments(layer, xs):
        """Outputs and states of segments, xs [segments, batch, length, d_model]."""

        def body(state, x):
            y, state, _ = layer(x, state, segment_of(x), train=False)
            return state, (y, state.memory)

        return jax.lax.scan(body, layer.initial_state(xs.shape[1]), xs)[1]

    def run(theirs, xs):
        return layer.apply({'params': parameters(theirs, heads)}, xs, method=segments)

    @jax.jit
    def everything(theirs, xs):
        by_token, _ = run(theirs, xs.swapaxes(1, 2).reshape(-1, xs.shape[1], 1, xs.shape[3]))
        by_token = by_token.reshape(*xs.swapaxes(1, 2).shape).swapaxes(1, 2)
        slopes = jax.grad(lambda *given: (run(*given)[0] * weights).sum(), (0, 1))(theirs, xs)
        return *run(theirs, xs), by_token, slopes

    y, states, by_token, (slopes, of_x) = everything(theirs, xs)
    base = states.base
    if base is None:
        base = states.memory if layer.batch else jax.tree.map(jnp.zeros_like, states.memory)
    parts = dict(M=(states.memory, 1), S=(states.momentum, 0), W=(base, 1))
    for i in range(number):
        yield f'out/y_{i}', y[i], arrays[f'out/y_{i}']
        yield f'out/y_{i}_by_token', by_token[i], arrays[f'out/y_{i}']
        yield f'grad/x_{i}', of_x[i], arrays[f'grad/x_{i}']
        for part, (found, is_difference) in parts.items():
            for ours, name in weight_names(theirs).items():
                if f'state/{part}.{name}_{i}' not in arrays:
                    continue
                reference = arrays[f'state/{part}.{name}_{i}']
                if found is None:  # without momentum theirs stays at 0
                    yield f'state/{part}.{name}_{i}', np.zeros_like(reference), reference
                    continue
                value = found[ours][i] + is_difference * theirs[name]
                yield f'state/{part}.{name}_{i}', value, reference
    for name, slope in slopes.items():
        yield f'grad/param/{name}', slope, arrays[f'grad/param/{name}']
