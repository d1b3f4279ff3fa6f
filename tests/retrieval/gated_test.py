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


def gate(weights, scale=None):
    return gated.Gate(weights.astype(np.float32), None if scale is None else np.log(scale))


def test_the_gate_chooses_between_model_and_neighbours():
    hidden, rows = some_vectors()
    mean = np.stack([softmax_mean(h, r) for h, r in zip(hidden, rows, strict=True)])
    found, even = np.ones((2, 3), bool), np.zeros(6)
    mixed, share, _ = gated.combine(hidden, rows, found, gate(even))
    np.testing.assert_allclose(mixed, (hidden + mean) / 2, rtol=1e-5)
    np.testing.assert_array_equal(share, 0.5)
    mixed, _, _ = gated.combine(hidden, rows, found, gate(even, 7.0))
    np.testing.assert_allclose(mixed, (hidden + 7 * mean) / 2, rtol=1e-5)
    toward = 100 * hidden[0] / np.square(hidden[0]).sum()
    for weights, wanted in ((toward, hidden[0]), (-toward, mean[0])):
        mixed, _, _ = gated.combine(hidden, rows, found, gate(weights))
        np.testing.assert_allclose(mixed[0], wanted, rtol=1e-4)


def test_what_was_not_found_has_no_weight():
    """A missing neighbour is as if K were smaller; without any, the model is alone."""
    hidden, rows = some_vectors()
    found = np.asarray([[True, False, True], [False, False, False]])
    rows[~found] = 1e3
    mixed, share, weights = gated.combine(hidden, rows, found, gate(np.zeros(6)))
    mean = softmax_mean(hidden[0], rows[0, [0, 2]])
    np.testing.assert_allclose(mixed[0], (hidden[0] + mean) / 2, rtol=1e-5)
    np.testing.assert_array_equal(mixed[1], hidden[1])
    np.testing.assert_array_equal(share, [0.5, 1])
    assert not np.asarray(weights)[~found].any()
