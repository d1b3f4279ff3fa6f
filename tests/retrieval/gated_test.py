"""The equations of SPALM."""

import numpy as np

from longmem_jax.retrieval import gated


def softmax_mean(hidden, rows):
    """The mean of `rows` [K, d], weighted by the softmax of their products with `hidden` [d]."""
    scores = rows @ hidden
    weights = np.exp(scores - scores.max())
    return weights / weights.sum() @ rows


def some_vectors():
    random = np.random.default_rng(0)
    hidden = random.normal(size=(2, 6)).astype(np.float32)
    return hidden, random.normal(size=(2, 3, 6)).astype(np.float32)


def test_the_gate_chooses_between_model_and_neighbours():
    hidden, rows = some_vectors()
    mean = np.stack([softmax_mean(h, r) for h, r in zip(hidden, rows, strict=True)])
    found = np.ones((2, 3), bool)
    np.testing.assert_allclose(
        gated.combine(hidden, rows, found, np.zeros(6, np.float32)), (hidden + mean) / 2, rtol=1e-5
    )
    toward = 100 * hidden[0] / np.square(hidden[0]).sum()
    np.testing.assert_allclose(gated.combine(hidden, rows, found, toward)[0], hidden[0], rtol=1e-5)
    np.testing.assert_allclose(gated.combine(hidden, rows, found, -toward)[0], mean[0], rtol=1e-4)


def test_what_was_not_found_has_no_weight():
    """A missing neighbour is as if K were smaller; without any, the model is alone."""
    hidden, rows = some_vectors()
    found = np.asarray([[True, False, True], [False, False, False]])
    rows[~found] = 1e3
    mixed = gated.combine(hidden, rows, found, np.zeros(6, np.float32))
    mean = softmax_mean(hidden[0], rows[0, [0, 2]])
    np.testing.assert_allclose(mixed[0], (hidden[0] + mean) / 2, rtol=1e-5)
    np.testing.assert_array_equal(mixed[1], hidden[1])
