"""One layer of linear attention: ELU, random features, learned features; causal and not."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from longmem_jax.layers import associative, feature_maps, linear_kernel


def _heads(x, theirs, name, heads):
    """[batch, length, width] through a biased projection to [batch, heads, length, head_dim]."""
    y = x @ theirs[f'{name}.weight'].T + theirs[f'{name}.bias']
    return jnp.swapaxes(y.reshape(*y.shape[:2], heads, -1), 1, 2)


def _out(y, theirs, name):
    y = jnp.swapaxes(y, 1, 2)
    return y.reshape(*y.shape[:2], -1) @ theirs[f'{name}.weight'].T + theirs[f'{name}.bias']


def _attend(features, values, valid, settings, chunk, guard, epsilon):
    """Causal attention by the kernel, and the sums after every segment."""
    queries, keys = features
    keys = jnp.where(valid[:, None, :, None], keys, 0.0)
    batch, heads, number, width = keys.shape
    pairs = associative.empty(batch, heads, width, values.shape[-1])
    length, parts, states = settings['segment'], [], []
    for start in range(0, number, length):
        part = slice(start, start + length)
        pairs, read, weight = linear_kernel.causal(
            pairs, queries[:, :, part], keys[:, :, part], values[:, :, part], chunk=chunk
        )
        parts.append(associative.divide(read, weight[..., None], guard, epsilon))
        states.append(pairs)
    return jnp.concatenate(parts, axis=2), states


def _features(settings, theirs, arrays, queries, keys):
    if settings['variant'] == 'elu':
        return feature_maps.elu(queries), feature_maps.elu(keys)
    heads = settings['heads']
    sigma = theirs.get('sigma', 1.0)
    if settings['variant'] == 'rfa':
        matrices = arrays['const/random_matrices'] * sigma
        return tuple(
            feature_maps.random_fourier(x, matrices, settings['tau']) for x in (queries, keys)
        )
    matrices = theirs['fc3.weight'].reshape(heads, -1, settings['head_dim']) * sigma
    bias = theirs['fc3.bias'].reshape(heads, -1)
    queries = queries * settings['head_dim'] ** -0.5
    return tuple(feature_maps.learned(x, matrices, bias, settings['tau']) for x in (queries, keys))


def check(settings, arrays):
    """Yields (name, ours, reference) for every tensor of the golden that we compute, too."""
    for name, ours in _computed(settings, arrays):
        if name in arrays:
            yield name, ours, arrays[name]


def _computed(settings, arrays):
    """(name, ours) of all that can be computed from what the golden gives."""
    theirs = {
        k[len('param/') :]: jnp.asarray(v) for k, v in arrays.items() if k.startswith('param/')
    }
    elu = settings['variant'] == 'elu'
    names = (
        [f'{part}_projection' for part in ('query', 'key', 'value', 'out')]
        if elu
        else [f'{part}_proj' for part in ('q', 'k', 'v', 'out')]
    )
    heads = settings['heads']
    first = (lambda x: x) if elu else (lambda x: jnp.swapaxes(x, 0, 1))  # batch first

    def project(theirs, x):
        queries, keys, values = (_heads(x, theirs, name, heads) for name in names[:3])
        return _features(settings, theirs, arrays, queries, keys), values

    usual = ('add' if elu else 'clamp', settings['eps'])

    @functools.partial(jax.jit, static_argnames=('chunk', 'guard'))
    def forward(theirs, x, valid, chunk, guard=usual):
        features, values = project(theirs, first(x))
        y, states = _attend(features, values, valid, settings, chunk, *guard)
        return first(_out(y, theirs, names[3])), (states, features)

    x = jnp.asarray(arrays['in/x'])
    batch, number = first(x).shape[:2]
    every = jnp.ones((batch, number), bool)
    y, (states, features) = forward(theirs, x, every, 3)
    yield 'out/causal', y
    yield 'out/recurrent', forward(theirs, x, every, 1)[0]
    for i, pairs in enumerate(states, 1):
        for ours, name in ((pairs.matrix, 's'), (pairs.normalizer, 'z')):
            yield f'state/{name.upper() if elu else name}_{i}', ours
    for part, name in zip(features, ('out/phi_q', 'out/phi_k'), strict=True):
        yield name, part.transpose(2, 0, 1, 3)

    def loss(theirs, x, guard=usual):
        return (forward(theirs, x, every, 3, guard)[0] * arrays['in/loss_weight']).sum()

    of_loss = jax.jit(jax.grad(loss, argnums=(0, 1)), static_argnums=2)
    gradients = of_loss(theirs, x)
    for name, gradient in [*gradients[0].items(), ('x', gradients[1])]:
        yield f'grad/{name}', gradient
    if elu and 'in/key_lengths' not in arrays:
        return
    if elu:
        valid = np.arange(number)[None] < arrays['in/key_lengths'][:, None]
        yield 'out/causal_key_lengths', forward(theirs, x, valid, 5)[0]
        (queries, keys), values = project(theirs, x)
        keys = jnp.where(valid[:, None, :, None], keys, 0.0)
        whole = associative.write(
            associative.empty(batch, heads, keys.shape[-1], values.shape[-1]),
            keys, values, 'linear', 'none', 'clamp', 1.0,
        )  # fmt: skip
        read = associative.read(whole, queries, 'sum', 'add', settings['eps'])
        yield 'out/noncausal_key_lengths', _out(read, theirs, names[3])
        return
    mask = arrays.get('in/key_padding_mask')
    valid = every if mask is None else mask == 0
    if mask is not None:
        yield 'out/causal_padded', forward(theirs, x, valid, 5)[0]
    if settings['variant'] == 'rfa':
        masked = ('magnitude', settings.get('masked_eps', 1e-3))
        yield 'out/causal_masked', forward(theirs, x, every, 5, masked)[0]
        yield 'out/causal_masked_padded', forward(theirs, x, valid, 5, masked)[0]
        gradients = of_loss(theirs, x, masked)
        for name, gradient in [*gradients[0].items(), ('x', gradients[1])]:
            yield f'grad/masked_{name}', gradient
        if 'in/encoder_output' in arrays:
            yield from _cross(settings, theirs, arrays, first)


def _cross(settings, theirs, arrays, first):
    """Attention of the first segment to another sequence, by the sums over all of it."""
    heads, source = settings['heads'], first(jnp.asarray(arrays['in/encoder_output']))
    keys, values = (_heads(source, theirs, f'cross_project.{name}_proj', heads) for name in 'kv')
    queries = first(jnp.asarray(arrays['in/x'])[: settings['segment']])
    queries = _heads(queries, theirs, 'cross.q_proj', heads)
    matrices = arrays['const/random_matrices'] * theirs.get('cross_project.sigma', 1.0)
    queries, keys = (
        feature_maps.random_fourier(x, matrices, settings['tau']) for x in (queries, keys)
    )
    every = np.ones(keys.shape[:1] + keys.shape[2:3], bool)
    mask = arrays.get('in/key_padding_mask')
    valid = every if mask is None else mask == 0
    best = None
    for counted in (valid, every):
        own = jnp.where(counted[:, None, :, None], keys, 0.0)
        whole = associative.write(
            associative.empty(len(valid), heads, keys.shape[-1], values.shape[-1]),
            own, values, 'linear', 'none', 'clamp', 1.0,
        )  # fmt: skip
        away = np.abs(np.asarray(whole.matrix) - arrays['state/cross_s']).max()
        best = whole if best is None or away < best[1] else best[0]
        best = (best, away)
    whole = best[0]
    yield 'state/cross_s', whole.matrix
    yield 'state/cross_z', whole.normalizer
    weight = jnp.abs(jnp.einsum('bhnk,bhk->bhn', queries, whole.normalizer))
    read = jnp.einsum('bhnk,bhkv->bhnv', queries, whole.matrix)
    read = read / jnp.maximum(weight, settings['eps'])[..., None]
    yield 'out/cross', first(_out(read, theirs, 'cross.out_proj'))
