"""Feature maps: their promises about norms, zeros and dtypes."""

import jax
import jax.numpy as jnp
import numpy as np

from longmem_jax.layers import feature_maps


def test_unit_vectors_have_length_one_in_their_own_dtype():
    vectors = np.random.default_rng(0).normal(size=(3, 4, 8)).astype(np.float32)
    for epsilon in (0.0, 1e-6):
        length = np.linalg.norm(feature_maps.unit(jnp.asarray(vectors), epsilon), axis=-1)
        np.testing.assert_allclose(length, 1.0, atol=1e-5)
    half = feature_maps.unit(jnp.asarray(vectors, jnp.bfloat16), 1e-6)
    assert half.dtype == jnp.bfloat16
    # The sum of squares is float32: only the rounding of the vectors is left.
    np.testing.assert_allclose(np.linalg.norm(half.astype(np.float32), axis=-1), 1.0, atol=5e-3)


def test_a_zero_vector_needs_an_epsilon():
    zeros = jnp.zeros((2, 8))

    def gradient(epsilon):
        return jax.grad(lambda x: feature_maps.unit(x, epsilon).sum())(zeros)

    assert np.isfinite(gradient(1e-6)).all()
    assert np.isnan(gradient(0.0)).all()
    np.testing.assert_array_equal(feature_maps.unit(zeros, 1e-6), 0.0)
