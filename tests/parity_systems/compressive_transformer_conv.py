"""One attention layer with convolutional compression and attention reconstruction loss."""

import jax
import jax.numpy as jnp
import numpy as np

from longmem_jax.contract import identity
from longmem_jax.memory.compressive.layer import CompressiveTransformer
from longmem_jax.segment import Segment
from tests.parity_systems.common import settings_of


def _layer(settings):
    width, heads = settings['d_model'], settings['heads']
    model_settings = settings_of(
        width, heads, width // heads, settings['length'], d_feed_forward=width
    )
    return CompressiveTransformer(
        settings=model_settings,
        normalize=identity,
        shared=None,
        memory_length=settings['memory_length'],
        compressed_length=settings['compressed_length'],
        rate=settings['compression_rate'],
        compression='convolution',
        reading='segment',
        position='learned_relative',
        reconstruction='attention',
        start='empty',
    )


def _to_ours(theirs, heads):
    """Their torch parameters as ours, and the output bias, which the paper's layer does not have."""
    width = theirs['to_q.weight'].shape[0]

    def heads_in(weight):
        return jnp.asarray(weight.T.reshape(width, heads, -1))

    key, value = np.split(theirs['to_kv.weight'], 2)
    params = {
        'projections': {
            'query': {'kernel': heads_in(theirs['to_q.weight'])},
            'key': {'kernel': heads_in(key)},
            'value': {'kernel': heads_in(value)},
            'out': {'kernel': jnp.asarray(theirs['to_out.weight'].T.reshape(heads, -1, width))},
        },
        'layer': {
            'attention': {'relation': {'table': jnp.asarray(theirs['pos_emb'][:, ::-1])}},
            'compress': {
                'kernel': jnp.asarray(theirs['compress_mem_fn.conv.weight'].transpose(2, 1, 0)),
                'bias': jnp.asarray(theirs['compress_mem_fn.conv.bias']),
            },
        },
    }
    return params, jnp.asarray(theirs['to_out.bias'])


def _to_theirs(gradient, bias):
    projections, layer = gradient['projections'], gradient['layer']
    relation, compress = layer['attention']['relation'], layer['compress']
    flat = {name: np.asarray(projections[name]['kernel']) for name in ('query', 'key', 'value')}
    flat = {name: kernel.reshape(kernel.shape[0], -1).T for name, kernel in flat.items()}
    out = np.asarray(projections['out']['kernel'])
    return {
        'to_q.weight': flat['query'],
        'to_kv.weight': np.concatenate([flat['key'], flat['value']]),
        'to_out.weight': out.reshape(-1, out.shape[2]).T,
        'to_out.bias': np.asarray(bias),
        'pos_emb': np.asarray(relation['table'])[:, ::-1],
        'compress_mem_fn.conv.weight': np.asarray(compress['kernel']).transpose(2, 1, 0),
        'compress_mem_fn.conv.bias': np.asarray(compress['bias']),
    }


def check(settings, arrays):
    """Yields (name, ours, reference) for every tensor of the golden."""
    layer, batch = _layer(settings), settings['batch']
    theirs = {k[len('param/') :]: v for k, v in arrays.items() if k.startswith('param/')}
    params, bias = _to_ours(theirs, settings['heads'])
    numbers = sorted(int(k.rsplit('_', 1)[1]) for k in arrays if k.startswith('in/x_'))
    ones = jnp.ones((batch, settings['length']), bool)
    segment = Segment(jnp.zeros(ones.shape, jnp.int32), ones, jnp.zeros((batch,), bool))

    def read(params, bias, x, state, number):
        y, state, aux = layer.apply({'params': params}, x, state, segment, train=True)
        y, loss = y + bias, aux.losses['compression']
        value = (y * arrays[f'in/loss_weight_{number}']).sum()
        return value + settings.get('aux_weight', 10.0) * loss, (y, loss, state)

    state = layer.bind({'params': params}).initial_state(batch)
    for number in numbers:
        before, x = state, jnp.asarray(arrays[f'in/x_{number}'])
        _, (y, loss, state) = read(params, bias, x, state, number)
        yield f'out/y_{number}', y, arrays[f'out/y_{number}']
        yield f'out/aux_loss_{number}', loss, arrays[f'out/aux_loss_{number}']
        for name, rows in (('memory', state.hidden), ('compressed', state.compressed)):
            reference = arrays.get(f'state/{name}_{number}')
            if reference is not None:
                filled = rows.shape[1] - reference.shape[1]
                yield f'state/{name}_{number}', rows[:, filled:], reference

    def value(params, bias, x, hidden, compressed):
        given = before.replace(hidden=hidden, compressed=compressed)
        return read(params, bias, x, given, numbers[-1])[0]

    gradients = jax.jit(jax.grad(value, argnums=range(5)))(
        params, bias, x, before.hidden, before.compressed
    )
    ours = _to_theirs(*gradients[:2])
    ours[f'x_{numbers[-1]}'] = gradients[2]
    for name, rows in (('memory_in', gradients[3]), ('compressed_in', gradients[4])):
        if f'grad/{name}' in arrays:
            ours[name] = rows[:, rows.shape[1] - arrays[f'grad/{name}'].shape[1] :]
    for name in sorted(arrays):
        if name.startswith('grad/'):
            yield name, ours[name[len('grad/') :]], arrays[name]
