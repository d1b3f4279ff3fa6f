"""One layer of a delta rule: Gated DeltaNet as in Qwen3-Next, Kimi delta attention."""

import jax
import jax.numpy as jnp

from longmem_jax.contract import identity
from longmem_jax.memory.delta import PAPERS, DeltaNet
from tests.parity_systems.common import parameters_of, read_segments, settings_of, stacked


def _gated(settings, theirs):
    """Fields and parameters of Gated DeltaNet; queries to gates lie side by side for each key head."""
    keys, heads = settings['num_key_heads'], settings['num_value_heads']
    width, head_dim = settings['key_head_dim'], settings['value_head_dim']
    d_model, group = settings['hidden_size'], heads // keys

    def into_heads(weight, number):
        return weight.reshape(number, -1, d_model).transpose(2, 0, 1)

    of_key_head = theirs['in_proj_qkvz.weight'].reshape(keys, -1, d_model)
    edges = (width, 2 * width, 2 * width + group * head_dim)
    query, key, value, shown = jnp.split(of_key_head, edges, axis=1)
    write, decay = jnp.split(theirs['in_proj_ba.weight'].reshape(keys, -1, d_model), 2, axis=1)
    projections = dict(query=(query, keys), key=(key, keys), value=(value, heads))
    params = {
        'projections': {
            name: {'kernel': into_heads(*given)} for name, given in projections.items()
        },
        'shown': {'kernel': into_heads(shown, heads)},
        'write': write.reshape(heads, d_model).T,
        'decay': decay.reshape(heads, d_model).T,
        'decay_bias': theirs['dt_bias'],
        'log_rate': theirs['A_log'],
        'norm': {'scale': theirs['norm.weight']},
    }
    params |= _convolutions(theirs, (keys, keys, heads), (width, width, head_dim))
    sizes = dict(key_heads=keys, key_dim=width, epsilon=settings['rms_norm_eps'])
    return PAPERS['gated_delta_net'] | sizes, params, (heads, head_dim), 'out_proj.weight'


def _kimi(settings, theirs):
    """Fields and parameters of Kimi delta attention."""
    heads, head_dim, d_model = (settings[n] for n in ('num_heads', 'head_dim', 'hidden_size'))

    def into_heads(name):
        return theirs[f'{name}.weight'].T.reshape(-1, heads, head_dim)

    names = dict(query='q_proj', key='k_proj', value='v_proj')
    params = {
        'projections': {ours: {'kernel': into_heads(name)} for ours, name in names.items()},
        'write': theirs['b_proj.weight'].T,
        'decay_in': theirs['forget_gate.f_a_proj.weight'].T,
        'decay_out': into_heads('forget_gate.f_b_proj'),
        'decay_bias': theirs['forget_gate.dt_bias'].reshape(heads, head_dim),
        'log_rate': theirs['forget_gate.A_log'].reshape(heads),
        'shown_in': theirs['g_a_proj.weight'].T,
        'shown_out': into_heads('g_b_proj'),
        'norm': {'scale': theirs['o_norm.weight']},
    }
    params |= _convolutions(theirs, (heads,) * 3, (head_dim,) * 3)
    rank = theirs['g_a_proj.weight'].shape[0]
    fields = PAPERS['kimi_delta'] | dict(rank=rank, epsilon=settings['norm_eps'])
    return fields, params, (heads, head_dim), 'o_proj.weight'


def _convolutions(theirs, heads, widths):
    """Taps of queries, keys and values, which lie side by side."""
    taps, found, first = theirs['conv1d.weight'][:, 0], {}, 0
    for name, number, width in zip(('query', 'key', 'value'), heads, widths, strict=True):
        own = taps[first : first + number * width].reshape(number, width, -1)
        found[f'{name}_convolution'] = {'kernel': own.transpose(2, 0, 1)}
        first += number * width
    return found


def _layer(settings, theirs, convert, **changes):
    """Our layer, and its parameters as functions of the golden's."""
    fields, params, (heads, head_dim), out = convert(settings, theirs)
    params['projections']['out'] = {'kernel': theirs[out].T.reshape(heads, head_dim, -1)}
    model = settings_of(settings['hidden_size'], heads, head_dim, settings['segment_length'])
    fields |= dict(convolution=settings['conv_kernel'], chunk=3) | changes
    layer = DeltaNet(settings=model, normalize=identity, shared=None, **fields)
    return layer, {'params': params}


def _tokens(layer, xs):
    """The same token by token: outputs."""
    number, batch, length, width = xs.shape
    tokens = xs.swapaxes(1, 2).reshape(number * length, batch, 1, width)
    y, _ = read_segments(layer, tokens)
    return y.reshape(number, length, batch, width).swapaxes(1, 2)


def check(settings, arrays):
    """Yields (name, ours, reference) for every tensor of the golden."""
    if settings['activation'] != 'silu' or settings.get('options'):
        raise ValueError(f'activation and options of {settings}: only silu without options')
    theirs = parameters_of(arrays)
    convert = _kimi if 'q_proj.weight' in theirs else _gated
    number = settings['num_segments']
    xs, weights = stacked(arrays, number, 'x', 'loss_weight')

    def run(theirs, xs, method=read_segments, **changes):
        layer, variables = _layer(settings, theirs, convert, **changes)
        return layer.apply(variables, xs, method=method)

    def loss(theirs, xs):
        y, states = run(theirs, xs)
        return (y * weights).sum(), (y, states)

    of_loss = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
    (_, (y, states)), (slopes, of_x) = of_loss(theirs, xs)
    one_chunk = jax.jit(lambda *given: run(*given, chunk=64)[0])(theirs, xs)
    by_tokens = jax.jit(lambda *given: run(*given, method=_tokens))(theirs, xs)
    # The tails of convolutions, side by side as theirs: [batch, tokens, heads * width].
    tails = [states.tails[f'{name}_convolution'] for name in ('query', 'key', 'value')]
    tails = [tail.swapaxes(2, 3).reshape(*tail.shape[:2], tail.shape[3], -1) for tail in tails]
    tails = jnp.concatenate(tails, axis=-1)
    for i in range(number):
        for how, read in (('', y), (', one chunk', one_chunk), (', by tokens', by_tokens)):
            yield f'out/y_{i}{how}', read[i], arrays[f'out/y_{i}']
        yield f'state/S_{i}', states.memory[i], arrays[f'state/S_{i}']
        for name, ours in (('state/conv', tails), ('grad/x', of_x)):
            if f'{name}_{i}' in arrays:
                yield f'{name}_{i}', ours[i], arrays[f'{name}_{i}']
    if 'grad/x' in arrays:
        yield 'grad/x', jnp.concatenate(list(of_x), axis=1), arrays['grad/x']
    for name, slope in slopes.items():
        yield f'grad/param/{name}', slope, arrays[f'grad/param/{name}']
