"""Initial values of kernels: schemes, and the kernels that they reach."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from longmem_jax.contract import ModelSettings
from longmem_jax.layers import initializers
from tests import toys


def settings(**changes):
    sizes = dict(d_model=48, num_heads=4, head_dim=12, d_feed_forward=96, num_layers=8)
    rates = dict(dropout=0.0, attention_dropout=0.0, dtype=jnp.float32, init_std=0.1)
    return ModelSettings(segment_length=8, **sizes, **rates | changes)


@pytest.mark.parametrize(
    'scheme, inputs, shape, std',
    [
        ('normal', 1, (48, 4, 12), 0.1),
        ('normal', 2, (4, 12, 96), 0.1),
        ('glorot_uniform', 1, (96, 4, 12), (2 / (96 + 48)) ** 0.5),
        ('glorot_uniform', 2, (4, 12, 96), (2 / (48 + 96)) ** 0.5),
        ('torch', 1, (96, 4, 12), (3 * 96) ** -0.5),
        ('torch', 2, (4, 12, 96), (3 * 48) ** -0.5),
    ],
)
def test_schemes_know_the_axes_that_are_summed_over(scheme, inputs, shape, std):
    draw = initializers.kernel(settings(init=scheme), inputs=inputs)
    values = np.asarray(draw(jax.random.key(0), shape))
    assert values.std() == pytest.approx(std, rel=0.05)
    if scheme != 'normal':
        assert abs(values).max() <= 3**0.5 * std * 1.0001
    shared = initializers.kernel(settings(init=scheme), inputs=inputs, residual=True)
    np.testing.assert_array_equal(shared(jax.random.key(0), shape), values)
    shrunk = settings(init=scheme, scale_residual_init=True)
    divided = initializers.kernel(shrunk, inputs=inputs, residual=True)(jax.random.key(0), shape)
    np.testing.assert_allclose(divided, values / 4, rtol=1e-6)  # sqrt(2 * 8 layers)


def test_a_gain_of_its_own():
    values = np.asarray(initializers.xavier_uniform(0.25)(jax.random.key(0), (96, 48)))
    assert values.std() == pytest.approx(0.25 * (2 / 144) ** 0.5, rel=0.05)


def deviations(**changes):
    """Standard deviation of every kernel and table of a toy of two layers, d_model 16."""
    model = toys.with_config('transformer_xl', init_std=0.0, **changes)
    params = jax.device_get(toys.parameters(model))
    flat, _ = jax.tree_util.tree_flatten_with_path(params)
    return {
        '/'.join(key.key for key in path).replace('block_0/', ''): float(np.std(leaf))
        for path, leaf in flat
    }


def test_the_scheme_of_a_config_reaches_all_kernels():
    query, key = ('attention/projections/query/kernel', 'attention/projections/key/kernel')
    out, up, down = ('attention/projections/out/kernel', 'feed_forward/up/kernel',
                     'feed_forward/down/kernel')  # fmt: skip
    normal = deviations()
    for name in (query, key, out, up, down, 'embedding/table_0'):
        assert normal[name] == pytest.approx(16**-0.5, rel=0.15), name
    torch = deviations(init='torch', embedding_std=1.0, tie_weights=False, scale_residual_init=True)
    assert torch['embedding/table_0'] == pytest.approx(1.0, rel=0.15)
    for name, std in {
        query: 48**-0.5,
        up: 48**-0.5,
        'embedding/out_table_0': 48**-0.5,
        out: 48**-0.5 / 2,
        down: 72**-0.5 / 2,
    }.items():
        assert torch[name] == pytest.approx(std, rel=0.15), name
