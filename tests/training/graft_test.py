"""Warm start: which parameters are taken over, and what does not fit."""

import jax.numpy as jnp
import numpy as np
import pytest

from longmem_jax.errors import UsageError
from longmem_jax.models.kinds import KINDS
from longmem_jax.training.graft import graft


def test_memory_tokens_grow():
    own = {'memory_tokens': {'tokens': jnp.zeros((4, 3))}, 'other': jnp.zeros((2,))}
    other = {'memory_tokens': {'tokens': jnp.ones((2, 3))}, 'other': jnp.ones((2,))}
    said, growing = [], KINDS['memory_transformer'].growing
    found = graft(own, other, 'RUN', said.append, growing)
    np.testing.assert_array_equal(
        found['memory_tokens']['tokens'], np.repeat([1.0, 0.0], 2)[:, None] * np.ones((1, 3))
    )
    assert 'rows 2 .. 3 of memory_tokens/tokens' in said[0]
    with pytest.raises(UsageError, match='only what a memory adds'):
        graft(other, own, 'RUN', said.append, growing)
