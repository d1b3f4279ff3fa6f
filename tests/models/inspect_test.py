"""Looking inside a model: every layer of a type once, in order, without changing what it reads."""

import jax
import jax.numpy as jnp
import numpy as np

from longmem_jax.generation.reader import fresh_state
from longmem_jax.memory.transformer_xl import TransformerXL
from longmem_jax.models.inspect import capture
from tests.toys import BATCH, apply, random_segments, toy


def test_layers_of_a_type_are_captured_in_order():
    model, params = toy('transformer_xl')
    segment = jax.tree.map(lambda leaf: leaf[0], random_segments())
    state = fresh_state(model, params, BATCH)

    @jax.jit
    def read(params):
        with capture(TransformerXL, lambda layer, x, state, segment: x) as found:
            logits, _, _ = model.apply({'params': params}, segment, state, train=False)
        return logits, found

    logits, (first, second) = read(params)
    np.testing.assert_array_equal(logits, apply(model, params, segment, state)[0])
    # What enters the first layer are the embeddings.
    embedded = params['embedding']['table_0'][segment.tokens] * jnp.sqrt(16.0)
    np.testing.assert_allclose(first, embedded, rtol=1e-6)
    assert np.abs(first - second).max() > 0
