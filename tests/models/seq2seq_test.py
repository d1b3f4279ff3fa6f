"""The encoder-decoder: visibility, and token by token equals parallel."""

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import pytest

from longmem_jax.config.base import base, stack
from longmem_jax.config.model_checks import model_problems
from longmem_jax.memory.registry import LAYERS
from longmem_jax.models.kinds import make_model
from longmem_jax.segment import NOTHING, Segment
from tests import toys
from tests.toys import apply

pytestmark = pytest.mark.slow  # seven whole models
SOURCE, TARGET, VOCAB, BATCH = 5, 6, 23, 3
# encoder, memory tokens, shared layers, decoder's attention, cross-attention
MODELS = {
    'transformer': ('none', 0, False, 'local', 'softmax'),
    'plain': ('plain', 2, False, 'transformer_xl', 'softmax'),
    'ctrl': ('ctrl', 2, True, 'linear', 'softmax'),
    'bottleneck': ('bottleneck', 3, False, 'memsizer', 'memsizer'),
    'elu': ('none', 0, False, 'linear', 'linear'),
    'rfa': ('none', 0, False, 'linear:rfa', 'linear'),
    't2r': ('none', 0, False, 'linear:t2r', 'linear'),
}


LINEAR = {
    'rfa': dict(features='rfa', guard='magnitude', epsilon=1e-3),
    't2r': dict(features='t2r', guard='clamp', epsilon=1e-2),
}


def config_of(name):
    encoder, tokens, shared, attention, cross = MODELS[name]
    model = base().model
    model.kind = 'seq2seq'
    model.vocab_size, model.d_model, model.d_embed = VOCAB, 16, 16
    model.num_heads, model.head_dim, model.d_feed_forward = 2, 8, 24
    model.position, model.init_std = 'sinusoidal', 0.3
    attention, _, features = attention.partition(':')
    stack(model, 2, attention)
    model[attention] = LAYERS[attention].small() | (LINEAR[features] if features else {})
    model.seq2seq = dict(
        max_source=SOURCE,
        encoder=encoder,
        num_encoder_layers=2,
        num_tokens=tokens,
        shared_layers=shared,
        cross=cross,
        cross_slots=4,
    )
    assert model_problems(model, SOURCE + TARGET) == []
    return model


def make(name):
    return make_model(config_of(name), SOURCE + TARGET)


def parameters(model):
    return toys.parameters(model, 2)


def pairs(seed=0):
    random = np.random.default_rng(seed)
    tokens = random.integers(0, VOCAB, (BATCH, SOURCE + TARGET)).astype(np.int32)
    tokens[1, 3:SOURCE] = NOTHING
    valid = np.ones(tokens.shape, bool)
    valid[2, SOURCE + 4 :] = False
    return Segment(jnp.asarray(tokens), jnp.asarray(valid), jnp.ones((BATCH,), bool))


@pytest.fixture(params=list(MODELS), scope='module')
def trained(request):
    model = make(request.param)
    params = parameters(model)
    read = jax.jit(lambda pairs: model.apply({'params': params}, pairs, (), train=False)[0])
    return model, params, read


def change(segment, row, place):
    return segment.replace(
        tokens=segment.tokens.at[row, place].set((segment.tokens[row, place] + 1) % VOCAB)
    )


def test_the_target_is_causal_and_sees_the_source(trained):
    _, _, read = trained
    segment = pairs()
    logits = read(segment)
    later = read(change(segment, 0, SOURCE + 3))
    np.testing.assert_array_equal(logits[0, : SOURCE + 3], later[0, : SOURCE + 3])
    assert np.abs(logits[0, SOURCE + 3 :] - later[0, SOURCE + 3 :]).max() > 0
    other = read(change(segment, 0, SOURCE - 1))
    assert np.abs(logits[0, SOURCE] - other[0, SOURCE]).max() > 0
    np.testing.assert_allclose(logits[1:], other[1:], atol=1e-6)


def test_the_target_is_said_token_by_token(trained):
    model, params, read = trained
    segment = pairs()
    logits = read(segment)
    variables = {'params': params}
    opened = jax.jit(lambda source: model.apply(variables, source, method='open_target'))
    cache = opened(segment.tokens[:, :SOURCE])
    step = jax.jit(lambda *given: model.apply(variables, *given, method='extend'))
    for place in range(TARGET):
        token = segment.tokens[:, SOURCE + place, None]
        one, cache = step(token, cache, jnp.full((BATCH,), place, jnp.int32))
        alive = np.asarray(segment.valid[:, SOURCE + place])
        np.testing.assert_allclose(
            one[alive, 0], logits[alive, SOURCE + place], atol=5e-5, err_msg=str(place)
        )


def test_empty_places_of_the_source_change_nothing(trained):
    model, params, read = trained
    segment = pairs()
    config = ml_collections.ConfigDict(model.config)
    config.seq2seq.max_source = SOURCE + 2
    longer = make_model(config, SOURCE + 2 + TARGET)
    empty = jnp.full((BATCH, 2), NOTHING, jnp.int32)
    tokens = jnp.concatenate(
        [segment.tokens[:, :SOURCE], empty, segment.tokens[:, SOURCE:]], axis=1
    )
    valid = jnp.concatenate([segment.valid[:, :2], segment.valid], axis=1)
    padded, _, _ = apply(longer, params, Segment(tokens, valid, segment.start), ())
    np.testing.assert_allclose(
        padded[:, SOURCE + 2 :][segment.valid[:, SOURCE:]],
        read(segment)[:, SOURCE:][segment.valid[:, SOURCE:]],
        atol=5e-5,
    )


def test_losses_are_those_of_the_logits():
    model = make('transformer')
    params, segment = parameters(model), pairs()
    targets = jnp.asarray(np.random.default_rng(4).integers(0, VOCAB, segment.tokens.shape))
    scores, state, aux = apply(model, params, segment, targets, (), method='nll')
    nll, right = scores.nll, scores.right
    logits, _, _ = apply(model, params, segment, ())
    log = jax.nn.log_softmax(logits[:, SOURCE:])
    valid = segment.valid[:, SOURCE:]
    wanted = -jnp.take_along_axis(log, targets[:, SOURCE:, None], axis=-1)[..., 0]
    np.testing.assert_allclose(nll[:, SOURCE:], jnp.where(valid, wanted, 0), atol=1e-5)
    assert not np.asarray(nll[:, :SOURCE]).any() and not np.asarray(right[:, :SOURCE]).any()
    # Smoothed targets: a tenth of the mass spread over the vocabulary.
    smooth = 0.9 * wanted - 0.1 * log.mean(axis=-1)
    mean = jnp.where(valid, smooth, 0).sum() / valid.sum()
    ours = nll.sum() / valid.sum() + 0.1 * aux.losses['label_smoothing']
    np.testing.assert_allclose(ours, mean, rtol=1e-5)
    assert state == ()


@pytest.mark.parametrize(
    'method, given',
    [
        ('hidden', (pairs(), ())),
        ('open_segment', ((), BATCH)),
        ('close_segment', ((), (), jnp.zeros((BATCH,), jnp.int32))),
    ],
)
def test_what_only_language_models_can_is_refused(method, given):
    """Seq2seq models have no memory: such a method would silently run no block on the empty state."""
    model = make('transformer')
    options = dict(train=False) if method == 'hidden' else {}
    with pytest.raises(AttributeError, match=method):
        jax.eval_shape(lambda: model.init(jax.random.key(0), *given, method=method, **options))


@pytest.mark.parametrize('name', ['elu', 'rfa', 't2r'])
def test_linear_cross_attention_learns(name):
    """A step of gradient descent lowers the loss, and every parameter of cross-attention takes part."""
    model, segment = make(name), pairs()
    params = parameters(model)

    def loss(params):
        targets = jnp.roll(segment.tokens, -1, axis=1) % VOCAB
        given = (segment, targets, ())
        return model.apply({'params': params}, *given, train=False, method='nll')[0].nll.mean()

    step = jax.jit(jax.value_and_grad(loss))
    before, gradient = step(params)
    for block in ('block_0', 'block_1'):
        across = gradient[block]['across']
        learned = {'elu': 0, 'rfa': 1, 't2r': 3}[name]  # sigma; matrices, offsets and sigma
        assert len(jax.tree.leaves(across)) == 8 + learned
        for path, leaf in jax.tree_util.tree_leaves_with_path(across):
            # A bias of T2R's relu features, or of the keys of the sums, may be too weak to see.
            assert np.isfinite(leaf).all() and np.abs(leaf).max() > 0, path
    after, _ = step(jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient))
    assert after < before


def test_cross_attention_of_a_memory_needs_that_memory():
    config = config_of('transformer')
    config.seq2seq.cross = 'linear'
    (problem,) = model_problems(config, SOURCE + TARGET)
    assert "use 'linear' in config.model.attention" in problem
    config.seq2seq.cross = 'infini'
    assert any('allowed are softmax, linear, memsizer' in f for f in model_problems(config, 11))


@pytest.mark.slow
def test_memory_tokens_learn():
    """Gradients reach the memory tokens and both stacks of the encoder."""
    model = make('bottleneck')
    params, segment = parameters(model), pairs()

    def loss(params):
        return model.apply(
            {'params': params}, segment, segment.tokens % VOCAB, (), train=False, method='nll'
        )[0].nll.sum()

    gradient = jax.jit(jax.grad(loss))(params)['encoder']
    for name in ('tokens', 'memory_0', 'memory_1', 'sequence_0', 'sequence_1'):
        assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(gradient[name])) > 0, name
