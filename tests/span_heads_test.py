"""Spans of trained heads, exchanged and made equal."""

import numpy as np
import pytest

from experiments.expire_span import heads
from longmem_jax.errors import UsageError


def params(*layers):
    """Shares of layers, beside something else."""
    return {
        f'block_{i}': {
            'attention': {'span_share': np.asarray(share, np.float32), 'out': np.ones(2)}
        }
        for i, share in enumerate(layers)
    }


def test_the_longest_span_goes_to_the_head_with_the_shortest():
    found = heads.exchanged(np.asarray([0.5, 0.1, 0.9, 0.3], np.float32))
    np.testing.assert_allclose(found, [0.3, 0.9, 0.1, 0.5])


def test_only_spans_are_changed_each_layer_by_itself():
    given = params([0.2, 0.4], [0.9, 0.1])
    found = {label: heads.shares(version) for label, version in heads.versions(given).items()}
    np.testing.assert_allclose(found['as learned'], [[0.2, 0.4], [0.9, 0.1]])
    np.testing.assert_allclose(found['all at the mean'], [[0.4, 0.4], [0.4, 0.4]])
    np.testing.assert_allclose(found['exchanged in each layer'], [[0.4, 0.2], [0.1, 0.9]])
    np.testing.assert_allclose(found['all the longest'], 1.0)
    for version in heads.versions(given).values():
        np.testing.assert_array_equal(version['block_1']['attention']['out'], 1.0)


def test_a_model_without_learned_spans_is_refused():
    with pytest.raises(UsageError, match='adaptive_span'):
        heads.shares({'block_0': {'out': np.ones(2)}})
