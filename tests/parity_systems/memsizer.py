"""MemSizer: causal and cross attention, one encoder and one decoder layer."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from longmem_jax.contract import identity
from longmem_jax.memory import memsizer
from longmem_jax.segment import Segment
from tests.parity_systems.common import parameters_of, settings_of


def _model_settings(settings, length):
    return settings_of(
        settings['d_model'],
        settings['heads'],
        settings['d_model'] // settings['heads'],
        length,
        d_feed_forward=settings['ffn'],
    )


def _maps(theirs, name, heads):
    weight = theirs[f'{name}.q_proj.weight']
    parameters = {
        'query': {
            'kernel': weight.T.reshape(weight.shape[1], heads, -1),
            'bias': theirs[f'{name}.q_proj.bias'].reshape(heads, -1),
        }
    }
    for ours, key in (('left', 'k'), ('right', 'v')):
        parameters[ours] = {
            'kernel': theirs[f'{name}.{key}_proj.weight'].T,
            'bias': theirs[f'{name}.{key}_proj.bias'],
        }
        parameters[f'{ours}_norm'] = {
            'scale': theirs[f'{name}.{key}_layer_norm.weight'],
            'bias': theirs[f'{name}.{key}_layer_norm.bias'],
        }
    return parameters


def _norm(x, theirs, name, epsilon):
    mean = x.mean(axis=-1, keepdims=True)
    variance = jnp.square(x - mean).mean(axis=-1, keepdims=True)
    x = (x - mean) * jax.lax.rsqrt(variance + epsilon)
    return x * theirs[f'{name}.weight'] + theirs[f'{name}.bias']


def check(settings, arrays):
    """Yields (name, ours, reference) for every tensor of the golden."""
    theirs = parameters_of(arrays)
    heads, epsilon, length = settings['heads'], settings['layer_norm_eps'], settings['segment']
    activation = {'relu': jax.nn.relu, 'gelu': lambda x: jax.nn.gelu(x, approximate=False)}
    activation = activation[settings['activation']]
    before = settings['normalize_before']

    def layer(chunk):
        return memsizer.MemSizer(
            settings=_model_settings(settings, length), normalize=identity, shared=None,
            num_slots=settings['causal_slots'], bias=True, chunk=chunk, carry=True, gradients=True,
        )  # fmt: skip

    @functools.partial(jax.jit, static_argnames=('chunk', 'pieces'))
    def causal(theirs, x, chunk=3, pieces=length):
        parameters = {'maps': _maps(theirs, 'decoder.self_attn', heads)}
        bound = layer(chunk).bind({'params': parameters})

        def read(state, part):
            segment = Segment(
                jnp.zeros(part.shape[:2], jnp.int32), jnp.ones(part.shape[:2], bool),
                jnp.zeros(part.shape[:1], bool),
            )  # fmt: skip
            y, state, _ = bound(part, state, segment, train=False)
            return state, (y, state)

        batch, width = x.shape[0], x.shape[2]
        whole = x.shape[1] // pieces
        parts = x[:, : whole * pieces].reshape(batch, whole, pieces, width).swapaxes(0, 1)
        state, (y, states) = jax.lax.scan(read, bound.initial_state(batch), parts)
        y = y.swapaxes(0, 1).reshape(batch, whole * pieces, width)
        if whole * pieces < x.shape[1]:
            state, (rest, _) = read(state, x[:, whole * pieces :])
            y = jnp.concatenate([y, rest], axis=1)
            states = jax.tree.map(lambda a, b: jnp.concatenate([a, b[None]]), states, state)
        return y, states

    def cross(theirs, name, slots, queries, source, valid):
        maps = memsizer.SlotProjections(_model_settings(settings, length), slots, True)
        maps = maps.bind({'params': _maps(theirs, name, heads)})
        filled = memsizer.fill(*maps.written(source), valid)
        return memsizer.read(maps.shares(queries, False), filled)

    def around(theirs, name, x, sub):
        if before:
            return x + sub(_norm(x, theirs, name, epsilon))
        return _norm(x + sub(x), theirs, name, epsilon)

    def feed(theirs, side, x):
        def sub(x):
            hidden = activation(x @ theirs[f'{side}.fc1.weight'].T + theirs[f'{side}.fc1.bias'])
            return hidden @ theirs[f'{side}.fc2.weight'].T + theirs[f'{side}.fc2.bias']

        return around(theirs, f'{side}.final_layer_norm', x, sub)

    slots = settings['cross_slots']
    valid = jnp.asarray(arrays['in/encoder_padding_mask'] == 0)

    def encoder(theirs, source):
        def sub(x):
            return cross(theirs, 'encoder.self_attn', slots, x, x, valid)

        source = around(theirs, 'encoder.self_attn_layer_norm', source, sub)
        return feed(theirs, 'encoder', source)

    @functools.partial(jax.jit, static_argnames='pieces')
    def decoder(theirs, x, source, pieces=length):
        x = around(
            theirs, 'decoder.self_attn_layer_norm', x, lambda x: causal(theirs, x, 3, pieces)[0]
        )
        encoded = encoder(theirs, source)
        x = around(
            theirs, 'decoder.encoder_attn_layer_norm', x,
            lambda x: cross(theirs, 'decoder.encoder_attn', slots, x, encoded, valid),
        )  # fmt: skip
        return feed(theirs, 'decoder', x)

    def last(x):
        return jnp.swapaxes(x, 0, 1)

    x, source = (last(jnp.asarray(arrays[f'in/{name}'])) for name in ('x', 'encoder_input'))
    y, states = causal(theirs, x)
    yield 'out/causal', last(y), arrays['out/causal']
    yield 'out/causal_recurrent', last(causal(theirs, x, 1, 1)[0]), arrays['out/causal_recurrent']
    for i in range(len(states.count)):
        yield f'state/s_{i + 1}', states.memory.pairs.matrix[i, :, 0], arrays[f'state/s_{i + 1}']
        yield (
            f'state/n_{i + 1}',
            states.memory.count[i, :, 0].sum(axis=-1),
            np.asarray(arrays[f'state/n_{i + 1}']),
        )
    queries, every = x[:, :length], jnp.ones_like(valid)
    for name, counted in (('nopad', every), ('padded', valid)):
        found = cross(theirs, 'decoder.encoder_attn', slots, queries, source, counted)
        yield f'out/cross_{name}', last(found), arrays[f'out/cross_{name}']
    yield 'out/encoder_layer', last(encoder(theirs, source)), arrays['out/encoder_layer']
    yield 'out/decoder_layer', last(decoder(theirs, x, source)), arrays['out/decoder_layer']
    one = decoder(theirs, x, source, 1)
    yield 'out/decoder_layer_recurrent', last(one), arrays['out/decoder_layer_recurrent']
    weight = last(jnp.asarray(arrays['in/loss_weight']))
    gradients = jax.jit(jax.grad(lambda theirs, x: (causal(theirs, x)[0] * weight).sum(), (0, 1)))(
        theirs, x
    )
    own = {name.removeprefix('decoder.'): gradient for name, gradient in gradients[0].items()}
    for name, gradient in [*own.items(), ('x', last(gradients[1]))]:
        if f'grad/causal_{name}' in arrays:
            yield f'grad/causal_{name}', gradient, arrays[f'grad/causal_{name}']
    gradients = jax.jit(
        jax.grad(lambda theirs, x, source: (decoder(theirs, x, source) * weight).sum(), (0, 1, 2))
    )(theirs, x, source)
    named = gradients[0] | {'x': last(gradients[1]), 'encoder_input': last(gradients[2])}
    for name, gradient in named.items():
        if f'grad/layer_{name}' in arrays:
            yield f'grad/layer_{name}', gradient, arrays[f'grad/layer_{name}']
