"""The figure and the file of attention weights: what they hold is what the model attended to."""

import numpy as np
import pytest

from experiments.analysis import attention
from experiments.analysis.reading import full_segments
from longmem_jax.data.tokenizers import Bytes
from longmem_jax.errors import UsageError
from longmem_jax.reporting import figures
from tests.toys import LENGTH, VOCAB, toy


def text(segments):
    random = np.random.default_rng(0)
    return random.integers(0, VOCAB, (segments, LENGTH)).astype(np.int32)


def test_a_text_is_cut_into_full_segments():
    inputs, targets = full_segments(Bytes(), b'abcdefgh', 3)
    assert bytes(targets.ravel().astype(np.uint8)) == b'abcdef'
    assert (
        inputs[0, 0] == Bytes().begin
        and inputs.ravel()[1:].tolist() == targets.ravel()[:-1].tolist()
    )
    with pytest.raises(UsageError, match='at least one segment, 9 tokens'):
        full_segments(Bytes(), b'abcdefgh', 9)


def test_weights_of_the_segment_asked_for():
    model, params = toy('transformer_xl')
    first, last = (
        attention.looks_at(model, params, text(3), '1', segment)['block_1/attention/attention']
        for segment in (0, -1)
    )
    assert last.weights.shape == (2, LENGTH, 6 + LENGTH)
    # Nothing is cached before the first segment; before the third the cache is full.
    assert not first.weights[..., :6].any() and (last.weights[..., :6] > 0).all()
    shares = attention.shares(last)
    assert list(shares) == ['cache', 'segment']
    np.testing.assert_allclose(sum(shares.values()), 1.0, rtol=1e-5)
    np.testing.assert_allclose(shares['cache'], last.weights[..., :6].sum(-1).mean(-1), rtol=1e-5)


@pytest.mark.slow
def test_what_is_drawn_and_saved(tmp_path):
    model, params = toy('memorizing')
    found = attention.looks_at(model, params, text(4), '0')
    assert set(found) == {'block_0/attention', 'block_0/attention/attention'}
    local = found['block_0/attention/attention']
    for query, expected in ((-1, local.weights.mean(axis=1)), (2, local.weights[:, 2])):
        figure = attention.draw(found, 'title', query)
        axes = next(axes for axes in figure.axes if axes.get_title('left').endswith('n/attention'))
        np.testing.assert_array_equal(axes.images[0].get_array(), expected)
        assert [line.get_xdata()[0] for line in axes.lines] == [3.5]
        assert [tick.get_text() for tick in axes.get_xticklabels()] == ['cache (4)', 'segment (5)']
    attention.save(found, tmp_path / 'weights.npz')
    with np.load(tmp_path / 'weights.npz') as saved:
        np.testing.assert_array_equal(saved['block_0/attention/attention/weights'], local.weights)
        columns = saved['block_0/attention/attention/columns'].tolist()
        assert columns == ['cache'] * 4 + ['segment'] * 5
        assert saved['block_0/attention/entries'].shape == (2, LENGTH, 3)


@pytest.mark.parametrize('name', ['linear', 'expire_span'])
def test_layers_without_weights_are_refused(name):
    model, params = toy(name)
    with pytest.raises(UsageError, match='no attention weights there.*none in this model'):
        attention.looks_at(model, params, text(1), '0')


def test_layers_and_segments_that_do_not_exist():
    model, params = toy('transformer_xl')
    with pytest.raises(UsageError, match='--layer=7.*block_0/attention/attention, block_1'):
        attention.looks_at(model, params, text(1), '7')
    with pytest.raises(UsageError, match='--segment=2: the full segments are 0 to 1'):
        attention.looks_at(model, params, text(2), '0', 2)


def test_a_figure_of_another_kind_is_refused(tmp_path):
    figure, _ = figures.one_panel(2, 2)
    with pytest.raises(UsageError, match=r'cannot be a .docx file; allowed are .*\.pdf, .*\.png'):
        figures.save(figure, tmp_path / 'weights.docx')
    assert not list(tmp_path.iterdir())
