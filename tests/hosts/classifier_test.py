"""A classifier is its encoder and a head; memory tokens before the text; what is padding is not read."""

from pathlib import Path

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import pytest

from longmem_jax.hosts import hosts
from longmem_jax.hosts.model_fields import model_of
from longmem_jax.models.kinds import KINDS, make_model
from longmem_jax.models.parameters import unbox
from longmem_jax.segment import NOTHING, Segment, of_second
from tests import toys

GOLDEN = Path(__file__).parents[1] / 'goldens' / 'bert'
SHAPE = dict(
    model_type='bert', vocab_size=11, num_hidden_layers=1, hidden_size=16, num_attention_heads=2,
    intermediate_size=16, max_position_embeddings=8, type_vocab_size=2,
)  # fmt: skip


def config_of(model, **fields):
    """`config.model` of a classifier with the encoder of `model`."""
    model = ml_collections.ConfigDict(model.to_dict())
    model.kind, model.init_std = 'classifier', 0.3
    model.classifier = dict(classes=3, by_choice=False, num_tokens=0, dropout=0.0) | fields
    return model


def made(length=8, **fields):
    """A small classifier and its parameters."""
    config = config_of(model_of(SHAPE, 'bert'), **fields)
    assert KINDS['classifier'].check(config, length) == []
    model = make_model(config, length)
    return model, parameters(model)


def parameters(model):
    return toys.parameters(model)


def apply(model, params, *inputs, **options):
    """`model.apply` in evaluation, compiled."""
    read = jax.jit(lambda params: model.apply({'params': params}, *inputs, train=False, **options))
    return read(params)


def segment_of(tokens):
    """A segment of int [batch, n]; `NOTHING` after the last token is padding."""
    tokens = jnp.asarray(tokens, jnp.int32)
    later = jnp.cumsum((tokens != NOTHING)[:, ::-1], axis=1)[:, ::-1]
    return Segment(tokens, later > 0, jnp.ones(len(tokens), bool))


def scores(model, params, tokens):
    logits, state, _ = apply(model, params, segment_of(tokens), ())
    assert state == () and logits.dtype == jnp.float32
    return np.asarray(logits)


def padded(rows, length):
    return [row + [NOTHING] * (length - len(row)) for row in rows]


def test_without_memory_tokens_it_is_the_reference_encoder_and_a_head():
    arrays = dict(np.load(GOLDEN / 'caseA.npz'))
    host = hosts.find(GOLDEN / 'hf')
    tokens, length = arrays['in/tokens'], arrays['in/tokens'].shape[1]
    model = make_model(config_of(host.plain), length)
    new = parameters(model)
    loaded = hosts.load(host, hosts.make(host.model, 1), report=lambda line: None)
    assert set(new) - set(loaded) == {'head'} and set(loaded) <= set(new)
    tokens = np.where(arrays['in/token_type_ids'] == 1, of_second(tokens), tokens)
    tokens = np.where(arrays['in/attention_mask'] == 1, tokens, NOTHING)
    found = scores(model, {**loaded, 'head': new['head']}, tokens)
    expected = arrays['out/pooled'] @ np.asarray(new['head']['kernel'])
    np.testing.assert_allclose(found, expected, atol=1e-5)


ROWS = [[1, 4, 2, of_second(5), of_second(2)], [1, 6, 2]]


@pytest.mark.parametrize('num_tokens', [0, 3])
def test_padding_changes_nothing(num_tokens):
    model, params = made(num_tokens=num_tokens)
    longer = scores(model, params, padded(ROWS, 8))
    np.testing.assert_allclose(scores(model, params, [ROWS[1]])[0], longer[1], atol=1e-6)
    # What stands in positions after the end is not read either.
    tokens = jnp.asarray(padded(ROWS, 8))
    segment = segment_of(tokens).replace(tokens=jnp.where(tokens == NOTHING, 9, tokens))
    found, _, _ = apply(model, params, segment, ())
    np.testing.assert_allclose(found, longer, atol=1e-6)


def test_the_second_text_has_another_type():
    model, params = made()
    one, other = scores(model, params, [[1, 4, 2, 5, 2], ROWS[0]])
    assert np.abs(one - other).max() > 1e-4


def test_memory_tokens_are_read_and_do_not_move_the_text():
    model, params = made(num_tokens=3)
    assert params['memory_tokens']['tokens'].shape == (3, 16)
    found = scores(model, params, padded(ROWS, 8))

    def changed(path, leaf):
        return {**params, path: jax.tree.map(leaf, params[path])}

    other = scores(model, changed('memory_tokens', lambda leaf: leaf[::-1] ** 2), padded(ROWS, 8))
    assert np.abs(other - found).max() > 1e-4
    # Places 5 to 7 are beyond the texts, also behind three memory tokens.
    cut = changed('embedding', lambda leaf: leaf.at[5:].set(0) if leaf.shape[0] == 8 else leaf)
    np.testing.assert_array_equal(scores(model, cut, padded(ROWS, 8)), found)

    def loss(params):
        segment = segment_of(padded(ROWS, 8))
        targets = jnp.ones(segment.tokens.shape, jnp.int32)
        scores, _, _ = model.apply(
            {'params': params}, segment, targets, (), train=False, method='nll'
        )
        return scores.nll.sum()

    gradient = jax.jit(jax.grad(loss))(params)['memory_tokens']['tokens']
    assert (np.abs(np.asarray(gradient)).max(axis=1) > 1e-6).all()


def test_the_vector_of_a_text_is_that_of_its_first_token_after_the_memory():
    encoder = hosts.make(model_of(SHAPE, 'bert'), 8)
    params = jax.jit(lambda: unbox(encoder.init(jax.random.key(0), method='initial')['params']))()
    tokens, before = jnp.asarray([[1, 4, 2]]), jax.random.normal(jax.random.key(1), (1, 2, 16))
    hidden, pooled = apply(encoder, params, tokens, tokens > 0, 0 * tokens, before=before)
    assert hidden.shape == (1, 5, 16)
    pooler = params['pooler']
    expected = np.tanh(hidden[:, 2] @ pooler['kernel'] + pooler['bias'])
    np.testing.assert_allclose(pooled, expected, atol=1e-6)


def test_choices_are_scored_one_by_one():
    model, params = made(length=10, classes=2, by_choice=True, num_tokens=2)
    assert params['head']['kernel'].shape == (16, 1)
    first, second = ([*row, *[NOTHING] * (5 - len(row))] for row in ROWS)
    found = scores(model, params, [first + second, second + first])
    np.testing.assert_allclose(found[1], found[0][::-1], atol=1e-6)
    assert abs(found[0, 0] - found[0, 1]) > 1e-4


def test_only_the_class_of_an_example_is_scored():
    """At the first position; a lane without an example has no score, and no nan."""
    model, params = made()
    segment = segment_of(padded([*ROWS, []], 8))
    targets = jnp.asarray(padded([[2], [0], []], 8))
    found, _, _ = apply(model, params, segment, targets, (), method='nll')
    logits = scores(model, params, padded(ROWS, 8))
    expected = -np.asarray(jax.nn.log_softmax(logits))[[0, 1], [2, 0]]
    np.testing.assert_allclose(found.nll[:2, 0], expected, rtol=1e-5)
    np.testing.assert_array_equal(found.right[:2, 0], logits.argmax(1) == [2, 0])
    for score in (found.nll, found.log_z, found.right):
        assert score.shape == (3, 8) and not np.any(score[:, 1:]) and not np.any(score[2])


@pytest.mark.parametrize(
    'changes, message',
    [
        (dict(attention=('infini',)), "must be 'local'"),
        (dict(feed_forward=('product_key',)), "'dense' in all layers"),
        (dict(pre_norm=True), 'must be False'),
        (dict(num_positions=4), 'texts of 8 tokens, and there are config.model.num_positions = 4'),
        (dict(num_positions=0), 'num_positions = 0 does not belong to position'),
        (dict(text_encoder=dict(token_types=1, pooler=True)), 'needs config.model.text_encoder'),
        (dict(text_encoder=dict(token_types=2, pooler=False)), 'pooler = True'),
        (dict(classifier=dict(classes=1, by_choice=False, num_tokens=0, dropout=0.0)), 'at least 2'),
        (dict(classifier=dict(classes=3, by_choice=True, num_tokens=0, dropout=0.0)), 'must divide'),
    ],
)  # fmt: skip
def test_what_the_encoder_would_ignore_is_a_problem(changes, message):
    config = config_of(model_of(SHAPE, 'bert'))
    with config.ignore_type():
        config.update(changes)
    (problem,) = KINDS['classifier'].check(config, 8)
    assert message in problem
