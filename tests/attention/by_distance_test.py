"""Scores by distance moved to their keys: values and derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from longmem_jax.attention.by_distance import moved_bias, moved_scores

BATCH, HEADS, N, COLUMNS, WIDTH = 2, 3, 4, 6, 5


def of(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape)


# Row i of the table is for distance COLUMNS - 1 - i; the last query is at the last key.
DISTANCE = COLUMNS - N + np.arange(N)[:, None] - np.arange(COLUMNS)
ROW = np.clip(COLUMNS - 1 - DISTANCE, 0, COLUMNS - 1)
SEEN = DISTANCE >= 0


def gathered_scores(queries, rows):
    scores = jnp.einsum('bhqd,hcd->bhqc', queries, rows)
    return jnp.take_along_axis(scores, jnp.broadcast_to(ROW, (BATCH, HEADS, N, COLUMNS)), -1)


def gathered_bias(rows):
    return jnp.broadcast_to(rows[:, ROW], (BATCH, HEADS, N, COLUMNS))


CASES = {
    'scores': (
        moved_scores,
        gathered_scores,
        [of(0, BATCH, HEADS, N, WIDTH), of(1, HEADS, COLUMNS, WIDTH)],
    ),
    'bias': (lambda rows: moved_bias(rows, BATCH, N), gathered_bias, [of(2, HEADS, COLUMNS)]),
}


@pytest.mark.parametrize('case', CASES)
def test_as_by_gathers(case):
    moved, wanted, inputs = CASES[case]
    weight = of(5, BATCH, HEADS, N, COLUMNS)

    def value_and_gradients(read):
        def total(*inputs):
            out = jnp.where(SEEN, read(*inputs), 0)
            return (out * weight).sum(), out

        return jax.value_and_grad(total, range(len(inputs)), has_aux=True)(*inputs)

    for ours, plain in zip(
        jax.tree.leaves(value_and_gradients(moved)),
        jax.tree.leaves(value_and_gradients(wanted)),
        strict=True,
    ):
        np.testing.assert_allclose(ours, plain, rtol=1e-5, atol=1e-5)
