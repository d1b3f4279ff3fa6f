"""The long-term memory of one layer: write, then read, segment after segment."""

import jax
import jax.numpy as jnp
import numpy as np

from longmem_jax.memory.infinity_former import continuous
from longmem_jax.memory.infinity_former.continuous_layer import ContinuousMemory
from tests.parity_systems.common import settings_of


def _layer(settings):
    width = settings['heads'] * settings['head_dim']
    model_settings = settings_of(
        width, settings['heads'], settings['head_dim'], settings['length'], d_feed_forward=width
    )
    return ContinuousMemory(
        settings=model_settings,
        num_basis=settings['num_basis'],
        widths=tuple(settings['sigmas']),
        num_samples=settings['nb_samples'],
        tau=float(settings['tau']),
        ridge=float(settings['ridge_penalty']),
        first_length=settings['length'],
        write_length=settings['length'],
        sigma_sq_min=float(settings['sigma_sq_min']),
        density='gaussian',
        padding=True,
    )


def _to_ours(theirs, heads):
    width = theirs['proj_key.weight'].shape[0]
    return {
        'key': {'kernel': jnp.asarray(theirs['proj_key.weight'].T.reshape(width, heads, -1))},
        'value': {'kernel': jnp.asarray(theirs['proj_value.weight'].T.reshape(width, heads, -1))},
        'out': {'kernel': jnp.asarray(theirs['attn_out.weight'].T.reshape(heads, -1, width))},
        'gate_kernel': jnp.asarray(theirs['mask_net.weight'].transpose(2, 1, 0)),
        'gate_bias': jnp.asarray(theirs['mask_net.bias']),
        'mu_kernel': jnp.asarray(theirs['mu.weight'][0]),
        'sigma_kernel': jnp.asarray(theirs['sigma.weight'][0]),
    }


def _to_theirs(gradient):
    def matrix(name):
        kernel = np.asarray(gradient[name]['kernel'])
        return kernel.reshape(kernel.shape[0], -1).T

    out = np.asarray(gradient['out']['kernel'])
    return {
        'proj_key.weight': matrix('key'),
        'proj_value.weight': matrix('value'),
        'attn_out.weight': out.reshape(-1, out.shape[2]).T,
        'mask_net.weight': np.asarray(gradient['gate_kernel']).transpose(2, 1, 0),
        'mask_net.bias': np.asarray(gradient['gate_bias']),
        'mu.weight': np.asarray(gradient['mu_kernel'])[None],
        'sigma.weight': np.asarray(gradient['sigma_kernel'])[None],
    }


def check(settings, arrays):
    """Yields (name, ours, reference) for every tensor of the golden."""
    layer = _layer(settings)
    theirs = {k[len('param/') :]: v for k, v in arrays.items() if k.startswith('param/')}
    params = _to_ours(theirs, settings['heads'])
    length, samples = settings['length'], settings['nb_samples']
    widths = tuple(settings['sigmas'])
    first, update = continuous.fit_matrices(
        length,
        samples,
        float(settings['tau']),
        float(settings['ridge_penalty']),
        settings['num_basis'],
        widths,
    )
    centres, sizes = continuous.gaussian_basis(settings['num_basis'], widths)
    bins = settings.get('bins', 128)
    constants = {
        'const/G_first': first,
        'const/G_update': update,
        'const/basis_mu': centres,
        'const/basis_sigma': sizes,
        'const/bins': continuous.bin_edges(bins),
    }
    for name, value in constants.items():
        if name in arrays:
            yield name, value, arrays[name]

    def read(params, rows, queries, old, number):
        def run(module):
            if old is None:
                coefficients = module.fit_first(rows)
            elif settings['sticky']:
                drawn = jnp.asarray(arrays[f'in/sampled_bins_{number}'].T)
                places = continuous.sampled_places(drawn, bins)
                coefficients = module.update(old, places, rows)
            else:
                coefficients = module.update(old, module.linear_places(), rows)
            context, mu, sigma_sq, scores = module.read(queries, *module.project(coefficients))
            return coefficients, context, mu, sigma_sq, scores, module.gate(rows)

        found = run(layer.bind({'params': params}))
        kl = continuous.kl_divergence(found[2], found[3], settings['sigma_0'], 'true')
        weight = arrays[f'in/loss_weight_{number}']
        return (found[1] * weight).sum() + kl.mean(), (*found, kl)

    old, mass = None, None
    numbers = sorted(int(k.rsplit('_', 1)[1]) for k in arrays if k.startswith('in/query_'))
    for number in numbers:
        rows, queries = (
            jnp.asarray(arrays[f'in/{name}_{number}']) for name in ('memory_input', 'query')
        )
        (loss, found), gradients = jax.value_and_grad(read, argnums=(0, 1, 2), has_aux=True)(
            params, rows, queries, old, number
        )
        coefficients, context, mu, sigma_sq, scores, gated, kl = found
        batch = rows.shape[0]
        expected = continuous.expectation(
            mu, sigma_sq, jnp.asarray(centres, jnp.float32), jnp.asarray(sizes, jnp.float32), 'gaussian'
        )  # fmt: skip
        ours = {
            'out/B': coefficients,
            'out/context': context,
            'out/mu': mu,
            'out/sigma_sq': sigma_sq,
            'out/scores': scores,
            'out/kl': kl.reshape(batch, -1),
            'aux/expected_psi': expected,
            'aux/loss': loss,
            'grad/memory_input': gradients[1],
            'grad/query': gradients[2],
        }
        if mass is not None:
            ours['out/bin_probs'] = continuous.bin_probabilities(mass)
        counted = jnp.ones((batch, queries.shape[2]), bool)
        mass = continuous.attention_mass(mu, sigma_sq, bins, 'gaussian', counted)
        ours['aux/next_bin_probs'] = continuous.bin_probabilities(mass)
        shipped = continuous.kl_divergence(mu, sigma_sq, settings['sigma_0'], 'as_released')
        ours['aux/kl_shipped_mu0_minus1'] = shipped.reshape(batch, -1)
        for name, gradient in _to_theirs(gradients[0]).items():
            ours[f'aux/grad_{name}'] = gradient
        for name, value in ours.items():
            if f'{name}_{number}' in arrays:
                yield f'{name}_{number}', value, arrays[f'{name}_{number}']
        old = coefficients
    for name, gradient in _to_theirs(gradients[0]).items():
        if f'grad/{name}' in arrays:
            yield f'grad/{name}', gradient, arrays[f'grad/{name}']
