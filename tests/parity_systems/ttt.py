"""One layer of TTT-Linear or TTT-MLP, by segments and by tokens."""

import jax

from longmem_jax.contract import identity
from longmem_jax.memory.test_time import TTT
from tests.parity_systems.common import parameters_of, read_segments, settings_of, stacked


def _parameters(theirs, heads):
    """Theirs in our layout."""

    def into_heads(name):
        weight = theirs[f'{name}.weight']
        return {'kernel': weight.T.reshape(weight.shape[1], heads, -1)}

    out = theirs['o_proj.weight']
    maps = dict(query='q_proj', key='k_proj', value='v_proj')
    params = {
        'projections': {
            ours: into_heads(name) for ours, name in maps.items() if f'{name}.weight' in theirs
        }
        | {'out': {'kernel': out.T.reshape(heads, -1, out.shape[0])}},
        'rate': theirs['learnable_ttt_lr_weight'][:, 0].T,
        'rate_bias': theirs['learnable_ttt_lr_bias'][:, 0],
        'share': theirs['learnable_token_idx'],
        'scale': theirs['ttt_norm_weight'],
        'bias': theirs['ttt_norm_bias'],
        'out_scale': theirs['post_norm.weight'].reshape(heads, -1),
        'out_bias': theirs['post_norm.bias'].reshape(heads, -1),
    }
    for name in ('W1', 'W2'):
        params |= {name: theirs[name]} if name in theirs else {}
    for name in ('b1', 'b2'):
        params |= {name: theirs[name][:, 0]} if name in theirs else {}
    if 'g_proj.weight' in theirs:
        params['shown'] = into_heads('g_proj')
    for ours, name in dict(query_convolution='conv_q', key_convolution='conv_k').items():
        if f'{name}.weight' in theirs:
            taps, bias = theirs[f'{name}.weight'], theirs[f'{name}.bias']
            taps = taps[:, 0].T.reshape(taps.shape[2], heads, -1)
            params[ours] = {'kernel': taps, 'bias': bias.reshape(heads, -1)}
    return {'params': params}


def _in_parts(size):
    """The same in segments of `size` tokens, whole mini-batches or not: outputs [segments, ...]."""

    def read(layer, xs):
        number, batch, length, width = xs.shape
        parts = xs.swapaxes(1, 2).reshape(number * length // size, size, batch, width)
        y, _ = read_segments(layer, parts.swapaxes(1, 2))
        return y.swapaxes(1, 2).reshape(number, length, batch, width).swapaxes(1, 2)

    return read


def check(settings, arrays):
    """Yields (name, ours, reference) for every tensor of the golden."""
    heads, number, length = (settings[n] for n in ('num_heads', 'num_segments', 'segment_length'))
    theirs = parameters_of(arrays)
    xs, weights = stacked(arrays, number, 'x', 'loss_weight')
    model = settings_of(settings['d_model'], heads, settings['d_model'] // heads, length)
    layer = TTT(
        settings=model,
        normalize=identity,
        shared=None,
        inner=settings['kind'],
        chunk=settings['mini_batch_size'],
        base_rate=settings['base_lr'],
        rope_base=settings['rope_theta'],
        convolution=settings['conv_kernel'] if settings['share_qk'] else 0,
        gate=settings['use_gate'],
    )

    def run(theirs, xs, method=read_segments):
        return layer.apply(_parameters(theirs, heads), xs, method=method)

    def loss(theirs, xs):
        y, states = run(theirs, xs)
        return (y * weights).sum(), (y, states)

    of_loss = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
    (_, (y, states)), (slopes, of_x) = of_loss(theirs, xs)
    # Token by token, and by segments whose borders are not those of mini-batches.
    sizes = [n for n in range(2, number * length) if number * length % n == 0]
    odd = next((n for n in sizes if n % layer.chunk and layer.chunk % n), sizes[0])
    others = {
        f', {size} tokens at once': jax.jit(lambda *given, n=size: run(*given, _in_parts(n)))(
            theirs, xs
        )
        for size in (1, odd)
    }
    for i in range(number):
        for how, read in {'': y, **others}.items():
            yield f'out/y_{i}{how}', read[i], arrays[f'out/y_{i}']
        yield f'grad/x_{i}', of_x[i], arrays[f'grad/x_{i}']
        for name in ('W1', 'b1', 'W2', 'b2'):
            if name in theirs:
                found = states.memory[name][i].reshape(arrays[f'state/{name}_{i}'].shape)
                yield f'state/{name}_{i}', theirs[name] + found, arrays[f'state/{name}_{i}']
        if settings['share_qk']:
            tail = states.tails['query_convolution'][i].swapaxes(1, 2)
            tail = tail.reshape(*tail.shape[:2], -1)
            yield f'state/conv_{i}', tail, arrays[f'state/conv_{i}']
    for name, slope in slopes.items():
        yield f'grad/param/{name}', slope, arrays[f'grad/param/{name}']
