"""The figure of expire-spans: its numbers, and that it is drawn."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.analysis import expire_spans
from longmem_jax.data.tokenizers import Bytes
from longmem_jax.errors import UsageError
from longmem_jax.segment import Segment
from tests.toys import BATCH, LENGTH, random_segments, run, toy


def test_spans_are_those_that_the_layer_uses():
    """The window keeps the layer's inputs, so the spans can be computed again."""
    model, params = toy('expire_span')
    segments = random_segments(segments=2, batch=1)
    tokens = np.asarray(segments.tokens).reshape(-1)
    _, states = run(model, params, segments)
    spans = expire_spans.text_spans(model, params, tokens)
    assert spans.shape == (2, 2 * LENGTH)
    for layer in range(2):
        own = params[f'block_{layer}']
        x = np.asarray(states[layer].attention.window[-1, 0], np.float64)
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        x = x * own['attention_norm']['scale'] + own['attention_norm']['bias']
        attention = own['attention']
        logits = x @ np.asarray(attention['span_kernel'], np.float64) + attention['span_bias']
        wanted = 12 / (1 + np.exp(-logits))
        np.testing.assert_allclose(spans[layer, -4:], wanted, rtol=1e-4)


def test_a_model_without_spans_is_refused():
    model, params = toy('transformer_xl')
    segment = Segment(
        jnp.zeros((BATCH, LENGTH), jnp.int32),
        jnp.ones((BATCH, LENGTH), bool),
        jnp.zeros((BATCH,), bool),
    )
    state = model.apply({'params': params}, BATCH, method='initial_state')
    with pytest.raises(UsageError, match='no expire_span layer'):
        jax.eval_shape(lambda: expire_spans.segment_spans(model, params, segment, state)[0])


def test_characters_carry_the_span_of_their_token():
    text = 'née\n'
    tokens = Bytes().encode(text.encode())
    shown, values = expire_spans.by_character(Bytes(), tokens, np.arange(5.0))
    # A character of two bytes appears with its second.
    assert shown == text and values.tolist() == [0.0, 2.0, 3.0, 4.0]


def test_the_picture_is_drawn(tmp_path):
    figure = expire_spans.draw([('cost: $5\n' * 20, np.linspace(0, 300, 180), 'spans')])
    axes, colours = figure.axes
    assert axes.get_title() == 'spans' and colours.get_ylabel() == 'span, tokens'
    assert len(axes.texts) == 180
    for position, text in enumerate(axes.texts):
        assert text.get_position() == (position % 80, position // 80)
    assert ''.join(text.get_text() for text in axes.texts[:10]) == 'cost: \\$5\u21b5c'
    (image,) = axes.images
    values = np.asarray(image.get_array()).ravel()
    np.testing.assert_allclose(values[:180], np.linspace(0, 300, 180).clip(1))
    assert np.isnan(values[180:]).all()
    figure.savefig(tmp_path / 'spans.png')


def test_a_text_with_other_words_is_drawn_below_it():
    """All texts have one scale of colours, and a place as high as their lines."""
    texts = [('x' * 81, np.full(81, 7.0), 'first'), ('y', np.asarray([300.0]), 'second')]
    first, second, _ = expire_spans.draw(texts).axes
    for axes, title, rows in ((first, 'first', 2), (second, 'second', 1)):
        assert axes.get_title() == title and axes.images[0].get_array().shape == (rows, 80)
        assert (axes.images[0].norm.vmin, axes.images[0].norm.vmax) == (7, 300)


def test_words_are_replaced_everywhere():
    text, old, new = expire_spans.replaced(b'in Egypt. Egypt!', 'Egypt=old Egypt')
    assert (text, old, new) == (b'in old Egypt. old Egypt!', 'Egypt', 'old Egypt')
    assert expire_spans.span_of('ab', 'ab.ab', np.asarray([1.0, 3, 100, 5, 7])) == 4
    for pair, words in (
        ('Rome=x', "the text has no 'Rome'"),
        ('Egypt', 'OLD=NEW'),
        ('Egypt=', 'OLD'),
    ):
        with pytest.raises(UsageError, match=words):
            expire_spans.replaced(b'in Egypt', pair)
