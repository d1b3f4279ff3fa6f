"""Whole small models of the released Expire-Span code and its baselines, segment after segment."""

from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from longmem_jax.memory.expire_span import layer as expire_span
from longmem_jax.models import block as block_module
from longmem_jax.models.kinds import make_model
from longmem_jax.released import transformer_sequential as interop
from longmem_jax.segment import Segment

LOSSES = {'expire_span': 'expire_span_loss', 'adaptive_span': 'adapt_span_loss'}


def _to_theirs(array, kind, shape):
    """Our array in their layout, which has `shape`."""
    if kind in ('heads_in', 'heads_out'):
        return array.reshape(shape[1], shape[0]).T
    if kind == 'linear':
        return array.T
    if kind == 'table':
        return array[::-1].T[None]
    return array.reshape(shape)


def _gradient_of(name, shape, gradient, model):
    """The gradient of their tensor `name`, of their `shape`, taken from our gradients."""
    path, kind = interop.our_path(name, model)
    for key in path.split('/'):
        gradient = gradient[key]
    return _to_theirs(np.asarray(gradient), kind, shape)


def _hidden_states(state, number):
    """(name, ours) of the memories that the reference keeps as they are."""
    for layer, block in enumerate(state):
        memory = block.attention
        for name in ('hidden', 'compressed'):
            rows = getattr(memory, name, None)
            if rows is not None:
                yield f'state/{name}_layer{layer}_{number}', rows


def checker(layer):
    """The `check` of one layer; see `tests.parity`."""

    def check(settings, arrays):
        config = interop.model_config(settings, layer)
        theirs = {k[len('param/') :]: v for k, v in arrays.items() if k.startswith('param/')}
        params = interop.import_parameters(theirs, config)
        numbers = sorted(int(k.rsplit('_', 1)[1]) for k in arrays if k.startswith('in/tokens_'))
        batch, length = arrays['in/tokens_0'].shape
        model = make_model(config, length)
        train = bool(settings.get('training', False))

        def given(number):
            """Tokens of a segment, its weight in the loss, and the reference's random numbers for it."""
            noise = arrays.get(f'in/block_span_noise_{number}', np.ones(()))
            skips = arrays.get(f'in/skip_layer_{number}', np.zeros(config.num_layers))
            tokens, weight = (arrays[f'in/{name}_{number}'] for name in ('tokens', 'loss_weight'))
            return tokens.astype(np.int32), weight, noise.astype(np.float32), skips > 0

        @jax.jit
        def read(params, given, state):
            tokens, weight, noise, skips = given
            segment = Segment(tokens, jnp.ones(tokens.shape, bool), jnp.zeros((batch,), bool))
            skips = iter(skips)
            with (
                mock.patch.object(expire_span, 'draw_shortening', lambda key: noise),
                mock.patch.object(block_module, 'draw_skipped', lambda key, rate: next(skips)),
            ):
                logits, state, aux = model.apply(
                    {'params': params},
                    segment,
                    state,
                    train=train,
                    rngs={'memory': jax.random.key(0), 'dropout': jax.random.key(1)},
                )
            log_probs = jax.nn.log_softmax(logits)
            loss = sum((value * settings[LOSSES[term]] for term, value in aux.losses.items()), 0.0)
            value = (log_probs * weight).sum()
            return value + 100.0 * loss, (log_probs, loss, state)

        state = model.apply({'params': params}, batch, method='initial_state')
        for number in numbers:
            before = state
            _, (log_probs, loss, state) = read(params, given(number), state)
            yield f'out/log_probs_{number}', log_probs, arrays[f'out/log_probs_{number}']
            for name in (f'out/aux_loss_{number}', f'out/span_loss_{number}'):
                if name in arrays:
                    yield name, loss, arrays[name].mean()
            if layer != 'expire_span':
                for name, ours in _hidden_states(state, number):
                    if name in arrays:
                        yield name, ours[:, -arrays[name].shape[1] :], arrays[name]
        last = given(numbers[-1])
        gradient = jax.jit(jax.grad(lambda params: read(params, last, before)[0]))(params)
        for name in sorted(arrays):
            if name.startswith('grad/'):
                path = name[len('grad/') :]
                ours = _gradient_of(path, arrays[name].shape, gradient, config)
                yield name, ours, arrays[name]

    return check
