"""Patterns of attention to and from memory tokens: known maps, and those of real models."""

import numpy as np
import pytest

from experiments.analysis import memory_token_maps as maps
from longmem_jax.errors import UsageError
from tests.models import seq2seq_test
from tests.toys import LENGTH, VOCAB, toy


def known():
    """Two memory tokens before two tokens: one head reads and copies, the other writes and sums."""
    first = [[1, 0, 0, 0], [0, 1, 0, 0], [0.5, 0.5, 0, 0], [0.5, 0.25, 0.25, 0]]
    second = [[0.25, 0.25, 0.5, 0], [0.1, 0.1, 0.4, 0.4], [0, 0, 1, 0], [0, 0, 0.5, 0.5]]
    is_memory = np.asarray([True, True, False, False])
    counted = np.ones((1, 4), bool)
    return maps.Map(0, np.asarray([[first, second]]), is_memory, is_memory, counted)


def test_patterns_of_a_known_map():
    found, _ = maps.means(iter([[known()], [known()]]))
    np.testing.assert_allclose(found['read'], [[0.875, 0.0]])
    np.testing.assert_allclose(found['write'], [[0.0, 0.65]])
    np.testing.assert_allclose(found['copy'], [[1.0, 0.175]])
    np.testing.assert_allclose(found['sum'], [[0.0, 0.175]])
    assert maps.strongest(found) == {'read': (0, 0), 'write': (0, 1), 'copy': (0, 0), 'sum': (0, 1)}


def test_padding_does_not_count():
    padded = known()._replace(counted=np.asarray([[True, True, True, False]]))
    assert maps.means(iter([[padded]]))[0]['read'].tolist() == [[1.0, 0.0]]


def test_the_strongest_maps_are_drawn():
    found, last = maps.means(iter([[known()]]))
    figure = maps.draw(found, last)
    panels = {axes.get_title(): axes for axes in figure.axes}
    np.testing.assert_allclose(panels['write'].images[0].get_array(), found['write'])
    below = figure.axes[len(maps.PATTERNS) + maps.PATTERNS.index('write')]
    assert below.get_title() == 'layer 0, head 1'
    np.testing.assert_array_equal(below.images[0].get_array(), last[0].weights[0, 1])
    assert [line.get_xdata()[0] for line in below.lines][0] == 1.5


def test_memory_tokens_of_a_language_model():
    model, params = toy('memory_tokens')
    tokens = np.random.default_rng(0).integers(0, VOCAB, (2, LENGTH)).astype(np.int32)
    found, last = maps.means(maps.of_text(model, params, tokens))
    fields = model.config.memory_tokens
    memories = fields.num_tokens * (1 + fields.at_end)
    assert [m.layer for m in last] == [0, 1]
    assert (
        last[0].query_is_memory.sum() == memories
        and len(last[0].query_is_memory) == memories + LENGTH
    )
    assert last[0].key_is_memory.sum() == memories
    # Those before the segment cannot see it, so they do not count.
    assert fields.at_end and last[0].counted[0].sum() == LENGTH + fields.num_tokens
    assert not last[0].counted[0, : fields.num_tokens].any()
    for values in found.values():
        assert values.shape == (2, 2) and (values > 0).all() and (values < 1).all()
    np.testing.assert_allclose(found['write'] + found['copy'] + found['sum'], 1.0, rtol=1e-5)


def test_models_without_memory_tokens_are_refused():
    model, params = toy('local')
    with pytest.raises(UsageError, match='has no memory tokens'):
        next(maps.of_text(model, params, np.zeros((1, LENGTH), np.int32)))
    model = seq2seq_test.make('transformer')
    with pytest.raises(UsageError, match="encoder = 'none': has no memory tokens"):
        maps.of_pairs(model, None, np.zeros((1, 3), np.int32))


@pytest.mark.slow  # three whole models
@pytest.mark.parametrize('name', ['plain', 'ctrl', 'bottleneck'])
def test_memory_tokens_of_an_encoder(name):
    model = seq2seq_test.make(name)
    params = seq2seq_test.parameters(model)
    tokens = np.asarray(seq2seq_test.pairs().tokens)
    found, last = maps.means(iter([maps.of_pairs(model, params, tokens)]))
    assert {m.layer for m in last} == {0, 1} and len(last) == (2 if name == 'plain' else 4)
    # All that tokens learn passes through the memory of a bottleneck.
    assert np.allclose(found['read'], 1.0) == (name == 'bottleneck')
    for values in found.values():
        assert values.shape == (2, 2) and np.isfinite(values).all()
    np.testing.assert_allclose(found['write'] + found['copy'] + found['sum'], 1.0, rtol=1e-5)
    # Two tokens of one source are padding: nobody looks at them, and they are not counted.
    tokens_only = next(m for m in last if not m.query_is_memory.all())
    assert (~tokens_only.counted).sum() == 2
