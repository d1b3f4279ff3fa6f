"""One product-key memory layer, evaluation and training mode, and its usage statistics."""

import jax
import jax.numpy as jnp
import numpy as np

from experiments.analysis import slot_statistics as slot_usage
from longmem_jax.contract import identity
from longmem_jax.memory.product_key import ProductKeyMemory
from longmem_jax.segment import Segment
from longmem_jax.training.step import average_in
from tests.parity_systems.common import settings_of


def _names(settings):
    """Their modules of (map, norm) of every layer of the query network."""
    hidden = settings.get('query_layer_sizes', [0, 0])[1:-1]
    norm = settings['query_batchnorm']
    if not hidden:
        return [('query_proj.query_mlps.0', 'query_proj.query_mlps.1')]
    step = 3 if norm else 2
    return [
        (f'query_proj.query_mlps.0.{step * i}', f'query_proj.query_mlps.0.{step * i + 1}')
        for i in range(len(hidden) + 1)
    ]


def _layer(settings):
    model_settings = settings_of(
        settings['dim'], 1, settings['dim'], settings['length'], d_feed_forward=settings['dim']
    )
    return ProductKeyMemory(
        settings=model_settings,
        normalize=identity,
        shared=None,
        num_keys=settings['n_keys'],
        num_heads=settings['heads'],
        top_k=settings['knn'],
        query_dim=settings['k_dim'],
        query_hidden=tuple(settings.get('query_layer_sizes', [0, 0])[1:-1]),
        query_norm='batch' if settings['query_batchnorm'] else 'none',
        normalize_query=settings.get('normalize_query', False),
        temperature=float(settings.get('temperature', 1.0)),
        keys='flat' if settings.get('implementation') == 'flat' else 'product',
        chunk=4,
    )


def _to_ours(theirs, settings):
    network = {}
    for i, (linear, norm) in enumerate(_names(settings)):
        network[f'map_{i}'] = {
            'kernel': theirs[f'{linear}.weight'].T,
            'bias': theirs[f'{linear}.bias'],
        }
        if settings['query_batchnorm']:
            network[f'norm_{i}'] = {
                'scale': theirs[f'{norm}.weight'],
                'bias': theirs[f'{norm}.bias'],
                'running_mean': theirs[f'{norm}.running_mean'],
                'running_var': theirs[f'{norm}.running_var'],
            }
    return {'network': network, 'key_table': theirs['keys'], 'values': theirs['values.weight']}


def _sorted(slots, *others):
    order = np.argsort(np.asarray(slots), axis=-1)
    return [np.take_along_axis(np.asarray(part), order, axis=-1) for part in (slots, *others)]


def check(settings, arrays):
    """Yields (name, ours, reference) for every tensor of the golden."""
    theirs = {
        k[len('param/') :]: jnp.asarray(v)
        for k, v in arrays.items()
        if k.startswith('param/') and not k.endswith('num_batches_tracked')
    }
    layer, train = _layer(settings), bool(settings['train'])
    x = jnp.asarray(arrays['in/x'])

    def run(theirs, x):
        segment = Segment(
            jnp.zeros(x.shape[:2], jnp.int32), jnp.ones(x.shape[:2], bool),
            jnp.zeros(x.shape[:1], bool),
        )  # fmt: skip
        params = {'params': _to_ours(theirs, settings)}
        y, _, aux = layer.apply(params, x, None, segment, train=train)
        return (y * arrays['in/loss_weight']).sum(), (y, aux.statistics)

    gradients, (y, statistics) = jax.jit(jax.grad(run, argnums=(0, 1), has_aux=True))(theirs, x)
    yield 'out/y', y, arrays['out/y']
    for name, gradient in [*gradients[0].items(), ('x', gradients[1])]:
        if f'grad/{name}' not in arrays:
            continue
        reference = arrays[f'grad/{name}']
        if train and any(name == f'{linear}.bias' for linear, _ in _names(settings)):
            # Batch norm takes a bias away again: both gradients are rounding errors of zero, and
            # are compared on the scale of the gradient of the weights beside it.
            scale = np.abs(arrays[f'grad/{name.removesuffix("bias")}weight']).max()
            gradient, reference = gradient + scale, reference + scale
        yield f'grad/{name}', gradient, reference
    params = _to_ours(theirs, settings)
    bound = layer.bind({'params': params})
    counted = jnp.ones((x.shape[0] * x.shape[1],), bool)
    if 'out/indices' in arrays:
        weights, slots, _ = bound.chosen(x.reshape(-1, x.shape[-1]), counted, train=False)
        for ours, reference, name in zip(
            _sorted(slots, weights), _sorted(arrays['out/indices'], arrays['out/weights']),
            ('out/indices', 'out/weights'), strict=True,
        ):  # fmt: skip
            yield name, ours, reference
    if train:
        moved = average_in(params, {path: part[None] for path, part in statistics.items()})
        for i, (_, norm) in enumerate(_names(settings)):
            for part in ('running_mean', 'running_var'):
                name = f'state/{norm}.{part}'
                yield name, moved['network'][f'norm_{i}'][part], arrays[name]
    if 'in/usage_x' in arrays:
        totals = [np.zeros((bound.num_slots,), np.float32) for _ in range(2)]
        for batch in (x, *arrays['in/usage_x']):
            found = bound.slot_usage(jnp.asarray(batch), jnp.ones(batch.shape[:2], bool))
            totals = [total + np.asarray(part) for total, part in zip(totals, found, strict=True)]
        yield 'out/usage_used', slot_usage.used(totals[0]), arrays['out/usage_used']
        for total, kind in zip(totals, 'wu', strict=True):
            yield (
                f'out/usage_kl_{kind}',
                slot_usage.divergence(total),
                arrays[f'out/usage_kl_{kind}'],
            )
            yield f'out/usage_gini_{kind}', slot_usage.gini(total), arrays[f'out/usage_gini_{kind}']
            for percent in (50, 90, 99):
                name = f'out/usage_top{percent}_{kind}'
                yield name, slot_usage.top(total, percent / 100), arrays[name]
