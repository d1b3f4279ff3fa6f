"""Dropout behind a barrier."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from longmem_jax.layers.dropout import Dropout


@pytest.mark.parametrize('dtype', [jnp.float32, jnp.bfloat16])
def test_draws_are_those_of_flax(dtype):
    """Values and derivatives, bit for bit, so that a training is what it was."""
    x = jax.random.normal(jax.random.key(0), (3, 50), dtype)

    class Model(nn.Module):
        kind: type

        def setup(self) -> None:
            self.drop = self.kind(0.3)

        def __call__(self, x, train):
            return self.drop(self.drop(x, deterministic=not train), deterministic=not train)

    def read(kind, x, train=True):
        return Model(kind).apply({}, x, train, rngs={'dropout': jax.random.key(1)})

    results = [jax.vjp(lambda x, kind=kind: read(kind, x), x) for kind in (Dropout, nn.Dropout)]
    (ours, to_x), (theirs, to_theirs) = results
    assert 0.3 < (np.asarray(ours) == 0).mean() < 0.7
    np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(to_x(ours)[0], to_theirs(ours)[0])
    np.testing.assert_array_equal(read(Dropout, x, train=False), x)


def test_masks_are_kept_not_drawn_in_every_reader():
    program = jax.make_jaxpr(
        lambda x: Dropout(0.3).apply(
            {}, x, deterministic=False, rngs={'dropout': jax.random.key(1)}
        )
    )(jnp.zeros((2, 3)))
    assert 'optimization_barrier' in str(program)
