"""Whole small Transformer-XL language models: losses, hidden vectors, memories and gradients."""

import jax
import jax.numpy as jnp
import numpy as np

from longmem_jax.models.kinds import make_model
from longmem_jax.released import transformer_xl
from longmem_jax.segment import Segment


def grouped_by_cluster(per_token, targets, cutoffs, vocab_size):
    """Token order [batch, length] to the released loss's order, cluster by cluster."""
    batch, length = targets.shape
    flat = targets.T.reshape(-1)
    cluster = np.searchsorted([*cutoffs, vocab_size], flat, side='right')
    order = np.argsort(cluster, kind='stable')
    return per_token.T.reshape(-1)[order].reshape(length, batch).T


def export_gradient(gradient, name, model):
    """The gradient of their parameter `name`, in their layout, taken from our gradients."""
    path, layout = transformer_xl.names(model)[name]

    def find(path):
        node = gradient
        for key in path.split('/'):
            node = node[key]
        return np.asarray(node)

    def flat(kernel):
        return kernel.reshape(model.d_model, -1).T

    if layout == 'heads_in' and name.endswith('qkv_net.weight'):
        kernels = [flat(find(f'{path}/{name}/kernel')) for name in ('query', 'key', 'value')]
        return np.concatenate(kernels)
    if layout == 'heads_in':
        return flat(find(path))
    if layout == 'heads_out':
        return find(path).reshape(-1, model.d_model).T
    return find(path).T if layout == 'transposed' else find(path)


def check(settings, arrays):
    """Yields (name, ours, reference) for every tensor of the golden."""
    config = transformer_xl.model_config(settings)
    theirs = {k[len('param/') :]: v for k, v in arrays.items() if k.startswith('param/')}
    params = transformer_xl.import_parameters(theirs, config)
    numbers = sorted(int(k.rsplit('_', 1)[1]) for k in arrays if k.startswith('in/tokens_'))
    batch, length = arrays['in/tokens_0'].shape
    model = make_model(config, length)

    def given(number):
        """Tokens, targets, weight in the loss, and the order that the reference has losses in."""
        tokens, targets, weight = (
            arrays[f'in/{name}_{number}'] for name in ('tokens', 'targets', 'loss_weight')
        )
        targets = targets.astype(np.int32)
        order = np.arange(targets.size).reshape(targets.shape)
        if len(config.cutoffs) and settings.get('nll_order') != 'token':
            order = grouped_by_cluster(order, targets, config.cutoffs, config.vocab_size)
        return tokens.astype(np.int32), targets, weight, order.reshape(targets.shape)

    @jax.jit
    def read(params, given, state):
        tokens, targets, weight, order = given
        segment = Segment(tokens, jnp.ones(tokens.shape, bool), jnp.zeros((batch,), bool))
        hidden, _, _ = model.apply({'params': params}, segment, state, train=False, method='hidden')
        scores, state, _ = model.apply(
            {'params': params}, segment, targets, state, train=False, method='nll'
        )
        nll = scores.nll.reshape(-1)[order]
        return (nll * weight).sum(), (nll, hidden, state)

    state = model.apply({'params': params}, batch, method='initial_state')
    for number in numbers:
        before = state
        _, (nll, hidden, state) = read(params, given(number), state)
        if f'out/nll_{number}' in arrays:
            yield f'out/nll_{number}', nll, arrays[f'out/nll_{number}']
        if f'out/hidden_{number}' in arrays:
            yield f'out/hidden_{number}', hidden, arrays[f'out/hidden_{number}']
        for layer, block in enumerate(state):
            name = f'state/memory_layer{layer}_{number}'
            if name in arrays:
                filled = int(block.attention.count[0])
                yield name, block.attention.hidden[:, -filled:], arrays[name]
    last = given(numbers[-1])
    gradient = jax.jit(jax.grad(lambda params: read(params, last, before)[0]))(params)
    for name in sorted(arrays):
        if name.startswith('grad/'):
            ours = export_gradient(gradient, name[len('grad/') :], config)
            yield name, ours, arrays[name]
