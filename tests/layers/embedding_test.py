"""Absolute positions beyond a segment."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from longmem_jax.models.parameters import initial_parameters, unbox
from tests.toys import LENGTH, with_config


@pytest.mark.parametrize('position', ['learned', 'sinusoidal'])
def test_positions_go_on_beyond_a_segment_up_to_the_table(position):
    model = with_config('local', layers=1, position=position, num_positions=3 * LENGTH)
    params = unbox(jax.jit(lambda: initial_parameters(model, jax.random.key(1)))())
    tokens = jnp.zeros((1, 4 * LENGTH), jnp.int32)

    @jax.jit
    def encode(tokens, index):
        method = lambda module, *given: module.stack.embedding.encode(*given)  # noqa: E731
        return model.apply({'params': params}, tokens, index, method=method)

    whole = np.asarray(encode(tokens, jnp.asarray([0], jnp.int32))[0])
    assert len({row.tobytes() for row in whole}) == 3 * LENGTH
    np.testing.assert_array_equal(whole[3 * LENGTH :], whole[[3 * LENGTH - 1] * LENGTH])
    later = encode(tokens[:, :LENGTH], jnp.asarray([LENGTH + 1], jnp.int32))[0]
    np.testing.assert_array_equal(later, whole[LENGTH + 1 : 2 * LENGTH + 1])


def test_a_learned_table_is_a_segment_long_unless_it_has_its_own_length():
    for number, wanted in ((0, LENGTH), (3 * LENGTH, 3 * LENGTH)):
        model = with_config('local', layers=1, position='learned', num_positions=number)
        params = unbox(jax.eval_shape(lambda m=model: initial_parameters(m, jax.random.key(0))))
        assert params['embedding']['places'].shape[0] == wanted
