"""Whole small Transformer-XL language models: losses, hidden vectors, memories and gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from longmem_jax.interop import transformer_xl
from longmem_jax.models.kinds import make_model
from longmem_jax.segment import Segment


def grouped_by_cluster(per_token, targets, cutoffs, vocab_size):
    """Token order [batch, length] to the released loss's order, cluster by cluster."""
    batch, length = targets.shape
    flat = targets.T.reshape(-1)
    cluster = np.searchsorted([*cutoffs, vocab_size], flat, side='right')
    order = np.argsort(cluster, kind='stable')
    return per_token.T.reshape(-1)[order].reshape(length, batch).T


def check(settings, arrays):
    """Yields (name, ours, reference) for every tensor of the golden."""
    config = transformer_xl.model_config(settings)
    theirs = {k[len('param/') :]: v for k, v in arrays.items() if k.startswith('param/')}
    params = transformer_xl.import_parameters(theirs, config)
    numbers = sorted(int(k.rsplit('_', 1)[1]) for k in arrays if k.startswith('in/tokens_'))
    batch, length = arrays['in/tokens_0'].shape
    model = make_model(config, length)

    def reorder(per_token, targets):
        if not len(config.cutoffs) or settings.get('nll_order') == 'token':
            return per_token
        index = jnp.asarray(np.arange(per_token.size).reshape(per_token.shape))
        index = grouped_by_cluster(np.asarray(index), targets, config.cutoffs, config.vocab_size)
        return per_token.reshape(-1)[index.reshape(-1)].reshape(per_token.shape)

    @functools.partial(jax.jit, static_argnums=1)
    def read(params, number, state):
        tokens = jnp.asarray(arrays[f'in/tokens_{number}'], jnp.int32)
        targets = arrays[f'in/targets_{number}'].astype(np.int32)
        segment = Segment(tokens, jnp.ones(tokens.shape, bool), jnp.zeros((batch,), bool))
        hidden, _, _ = model.apply({'params': params}, segment, state, train=False, method='hidden')
        (nll, _, _), state, _ = model.apply(
            {'params': params}, segment, jnp.asarray(targets), state, train=False, method='nll'
        )
        nll = reorder(nll, targets)
        value = (nll * jnp.asarray(arrays[f'in/loss_weight_{number}'])).sum()
        return value, (nll, hidden, state)

    state = model.apply({'params': params}, batch, method='initial_state')
    for number in numbers:
        before = state
        _, (nll, hidden, state) = read(params, number, state)
        if f'out/nll_{number}' in arrays:
            yield f'out/nll_{number}', nll, arrays[f'out/nll_{number}']
        if f'out/hidden_{number}' in arrays:
            yield f'out/hidden_{number}', hidden, arrays[f'out/hidden_{number}']
        for layer, block in enumerate(state):
            name = f'state/memory_layer{layer}_{number}'
            if name in arrays:
                filled = int(block.attention.count[0])
                yield name, block.attention.hidden[:, -filled:], arrays[name]
    gradient = jax.jit(jax.grad(lambda params: read(params, numbers[-1], before)[0]))(params)
    for name in sorted(arrays):
        if name.startswith('grad/'):
            ours = transformer_xl.export_gradient(gradient, name[len('grad/') :], config)
            yield name, ours, arrays[name]
