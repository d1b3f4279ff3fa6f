"""Looking inside a model: every layer of a type once, in order, without changing what it reads."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from longmem_jax.errors import UsageError
from longmem_jax.generation.reader import fresh_state
from longmem_jax.memory.transformer_xl import TransformerXL
from longmem_jax.models import inspect
from longmem_jax.models.inspect import capture, looks
from longmem_jax.views import Seen, View
from tests.toys import BATCH, LENGTH, apply, random_segments, toy, with_config

# One of every place that attends, with grouped positions, slots, caches and memories of entries.
LOOKED_AT = (
    'local', 'transformer_xl', 'compressive', 'infinity_former', 'infini', 'memorizing',
    'memorizing:released', 'memory_tokens', 'memformer', 'memformer:joint',
)  # fmt: skip
# Attention without the weights of a softmax, or within learned spans: nothing to look at.
WITHOUT_LOOKS = ('linear', 'expire_span')
# A cache, places between tokens, entries of every query, tokens in a segment, slots, and nothing.
QUICK = (
    'transformer_xl', 'infinity_former', 'memorizing', 'memory_tokens', 'memformer', 'linear',
)  # fmt: skip


def test_layers_of_a_type_are_captured_in_order():
    model, params = toy('transformer_xl')
    segment = of(random_segments(), 0)
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


@functools.cache
def third_segment(name):
    """(state before, `looks`) of the third segment."""
    model, params = toy(name, 1)
    segments, state = random_segments(), fresh_state(model, params, BATCH)
    read = jax.jit(lambda params, segment, state: looks(model, params, segment, state))
    for number in range(3):
        before = state
        state, logits, found = read(params, of(segments, number), before)
    return before, (state, logits, found)


def of(segments, number):
    """One of several segments."""
    return jax.tree.map(lambda leaf: leaf[number], segments)


def product(look):
    """The values mixed by the weights, in numpy."""
    weights, values = np.asarray(look.weights), np.asarray(look.values)
    values = np.repeat(values, weights.shape[1] // values.shape[1], axis=1)
    return np.einsum('bhqk,bhkd->bhqd', weights, values)


@pytest.mark.parametrize(
    'name',
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
        for name in (*LOOKED_AT, *WITHOUT_LOOKS)
    ],
)
def test_looks_are_what_attention_does(name):
    found = third_segment(name)[1][2]
    inside = [path for path in found if path.startswith('block_')]
    assert bool(inside) == (name not in WITHOUT_LOOKS), sorted(found)
    for path, look in found.items():
        weights = np.asarray(look.weights)
        assert weights.min() >= 0, path
        np.testing.assert_allclose(weights.sum(axis=-1), 1.0, rtol=1e-5, err_msg=path)
        assert sum(number for _, number in look.parts) == weights.shape[-1], path
        if look.entries is None:
            np.testing.assert_allclose(product(look), look.out, atol=1e-5, err_msg=path)


@pytest.mark.parametrize('name', ['memorizing', 'memory_tokens'])
def test_looking_changes_nothing(name):
    model, params = toy(name, 1)
    before, (state, logits, _) = third_segment(name)
    expected, after, _ = apply(model, params, of(random_segments(), 2), before)
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), state, after)


def test_masked_columns_are_zero():
    """One segment fills a part of the cache only, and queries do not see what follows them."""
    model, params = toy('transformer_xl')
    size, segments = 2 * LENGTH, random_segments()
    fields = model.config.transformer_xl.to_dict() | {'memory_length': size}
    model = with_config('transformer_xl', transformer_xl=fields)
    state = fresh_state(model, params, BATCH)
    read = jax.jit(lambda params, segment, state: looks(model, params, segment, state))
    state = read(params, of(segments, 0), state)[0]
    look = read(params, of(segments, 1), state)[2]['block_1/attention/attention']
    assert look.parts == (('cache', size), ('segment', LENGTH))
    weights = np.asarray(look.weights)
    assert not weights[..., :LENGTH].any() and (weights[..., LENGTH:size] > 0).all()
    ahead = np.arange(LENGTH)[None] > np.arange(LENGTH)[:, None]
    assert (
        not weights[..., size:][..., ahead].any() and (weights[..., size:][..., ~ahead] > 0).all()
    )


def test_rows_of_a_large_memory_are_named():
    """Weights times the values of the named entries are what the queries read."""
    before, (_, _, found) = third_segment('memorizing')
    look = found['block_0/attention']
    assert look.parts == (('memory, nearest first', 3),)
    values = np.asarray(before[0].attention.rows.rows_values)
    entries = np.asarray(look.entries)
    assert entries.min() >= 0 and len(np.unique(entries)) > 3
    read = np.stack([[values[b, h][entries[b, h]] for h in range(2)] for b in range(BATCH)])
    out = np.einsum('bhqk,bhqkd->bhqd', np.asarray(look.weights), read)
    np.testing.assert_allclose(out, look.out, atol=1e-5)


def test_nothing_is_recorded_unless_asked_for():
    """Neither `init` nor `apply` return looks, so training does not compute them."""
    model, params = toy('memorizing')
    segment = of(random_segments(), 0)
    state = fresh_state(model, params, BATCH)
    abstract = jax.eval_shape(
        lambda key: model.init(key, segment, state, train=False), jax.random.key(0)
    )
    assert set(abstract) == {'params'}


@pytest.mark.parametrize(
    'wrong, message',
    [
        (
            dict(held=lambda layer, state: state),
            r'view.held: gave 3; it must give a dict of names to',
        ),
        (
            dict(read=lambda seen: dict(window=1)),
            r"view.read: gave {'window': 1}; .* to views.Read",
        ),
        (dict(series=lambda seen: {}), r'view.series: gave {}; it must give a views.Series'),
    ],
)
def test_an_answer_of_another_kind_is_told_what_it_must_be(wrong, message):
    seen = Seen(layer=None, x=None, state=3, new=3, segment=None, looks={})
    with pytest.raises(UsageError, match=message):
        inspect._glimpse(View(**wrong), seen, {}, {})
