"""Attention sinks: which tokens are held, and how old they are."""

import jax.numpy as jnp
import numpy as np
import pytest

from longmem_jax.memory.sinks import SinksState, ages, remember


class Layer:
    memory_length, sinks = 6, 2


@pytest.mark.parametrize('parts', [(3, 2), (5, 4), (4, 4, 0, 5), (1, 9)])
def test_the_first_tokens_and_the_last_ones_are_held(parts):
    """Tokens are numbered in the text; the age of the last one is 1."""
    state = SinksState(jnp.zeros((1, Layer.memory_length, 1)), jnp.zeros((1,), jnp.int32))
    read = 0
    for number in parts:
        new = read + jnp.arange(number + 2, dtype=jnp.float32)[None, :, None]  # two of padding
        state = remember(state, new, jnp.asarray([number], jnp.int32), Layer.sinks)
        read += number
    tokens = np.arange(read)
    wanted = tokens if read <= 6 else np.concatenate([tokens[:2], tokens[-4:]])
    there, age = ages(Layer(), state.count)
    np.testing.assert_array_equal(state.hidden[0, np.asarray(there[0]), 0], wanted)
    np.testing.assert_array_equal(
        np.broadcast_to(age, (1, 6))[0, np.asarray(there[0])], read - wanted
    )
