"""Every option of the backbone: parallel equals token by token, and each option has its effect."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from longmem_jax.config.recipes import section
from longmem_jax.generation.reader import fresh_state
from longmem_jax.generation.stream import open_stream, read_open_segment, read_token
from longmem_jax.models.parameters import abstract_parameters
from longmem_jax.segment import Segment
from longmem_jax.training.optimizer import parameter_path
from tests.toys import BATCH, LENGTH, VOCAB, apply, parameters, random_segments, run, with_config


def xl(memory_length, **changes):
    return section('transformer_xl', memory_length=memory_length, **changes)


SMALL = dict(cutoffs=(8, 16), tie_projections=(False, True, False))
OPTIONS = {
    'rmsnorm, post, swiglu': dict(
        norm='rmsnorm', pre_norm=False, dense=dict(activation='swiglu', bias=False)
    ),
    'geglu, untied': dict(dense=dict(activation='geglu', bias=True), tie_weights=False),
    'gelu, sinusoidal': dict(dense=dict(activation='gelu', bias=True), position='sinusoidal'),
    'learned, no scale': dict(position='learned', scale_embedding=False, final_norm=False),
    'learned, on through the document': dict(position='learned', num_positions=12),
    'learned, from 0 in every segment': dict(
        position='learned', num_positions=12, positions_restart=True
    ),
    'adaptive': dict(div_val=2, **SMALL),
    'adaptive, one width, projected': dict(div_val=1, d_embed=12, **SMALL),
    'adaptive, untied': dict(div_val=2, tie_weights=False, **SMALL),
    'rotary': dict(transformer_xl=xl(6, position='rotary')),
    'alibi': dict(transformer_xl=xl(6, position='alibi')),
    'alibi beyond': dict(transformer_xl=xl(6, position='alibi_beyond')),
    'alibi beyond, blocks': dict(transformer_xl=xl(6, position='alibi_beyond', block_size=4)),
    't5': dict(transformer_xl=xl(6, position='t5')),
    'learned relative': dict(
        transformer_xl=section(
            'transformer_xl', memory_length=6, position='learned_relative', clamp_length=4
        )
    ),
    'no position': dict(transformer_xl=xl(6, position='none')),
    'same length, clamped, own biases': dict(
        transformer_xl=section(
            'transformer_xl', memory_length=6, same_length=True, clamp_length=4, share_biases=False
        )
    ),
    'blocks': dict(transformer_xl=xl(9, block_size=4)),
    'memory shorter than the segment': dict(transformer_xl=xl(3)),
    'no memory': dict(transformer_xl=xl(0)),
    'half of the token before': dict(token_shift='half'),
    'the last four tokens': dict(token_shift='convolution'),
}


def made(name):
    model = with_config('transformer_xl', **OPTIONS[name])
    params = parameters(model, 1)

    def opened(path, leaf):
        """Biases of a host's memory hide it at first, and with it any problem in how it is read."""
        is_bias = parameter_path(path).endswith('/memory_bias')
        return jnp.linspace(-1.0, 1.0, len(leaf)) if is_bias else leaf

    return model, jax.tree.map_with_path(opened, params)


def streamed(model, params):
    """A new stream, and a compiled function that reads tokens [batch] of it."""
    opened = jax.jit(lambda: open_stream(model, params, fresh_state(model, params, BATCH), BATCH))()
    return opened, jax.jit(lambda tokens, stream: read_token(model, params, tokens, stream))


def assert_opens_alike(model, params, segments, logits, states, number, step):
    """One and three tokens of a segment at once, with padding, then one by one up to its end."""
    before = jax.tree.map(lambda leaf: leaf[number - 1], states)
    tokens, logits = np.asarray(segments.tokens[number]), np.asarray(logits[number])
    counts, lanes = np.array([1, 3]), np.arange(BATCH)
    one, stream = read_open_segment(model, params, before, tokens[:, : LENGTH - 1], counts)
    for place in range(3):
        wanted = logits[lanes, counts + place - 1]
        np.testing.assert_allclose(one, wanted, atol=3e-5, err_msg='opened with padding')
        if place < 2:
            one, stream = step(tokens[lanes, counts + place], stream)


@pytest.mark.slow
@pytest.mark.parametrize('name', OPTIONS)
def test_token_by_token_is_parallel(name):
    model, params = made(name)
    segments = random_segments(segments=3)
    logits, states = run(model, params, segments)
    assert np.isfinite(logits).all()
    stream, step = streamed(model, params)
    for number in range(3):
        for place in range(LENGTH):
            one, stream = step(segments.tokens[number, :, place], stream)
            np.testing.assert_allclose(one, logits[number, :, place], atol=3e-5)
    assert_opens_alike(model, params, segments, logits, states, 2, step)


@pytest.mark.parametrize(
    'name',
    [
        'local',
        'memory_tokens',
        *(pytest.param(name, marks=pytest.mark.slow) for name in ('memformer', 'expire_span')),
    ],
)
def test_a_token_shift_suits_every_model(name):
    """It continues from segment to segment, restarts with documents, skips padding, and streams."""
    model = with_config(name, token_shift='half')
    params = parameters(model, 1)
    segments = random_segments(segments=2)
    segments = segments.replace(start=jnp.asarray([[True, True], [False, True]]))
    logits, _ = run(model, params, segments)
    first = jax.tree.map(lambda leaf: leaf[:1], segments)
    second = jax.tree.map(lambda leaf: leaf[1:], segments)
    # The second one with an empty memory; a program for two segments is there already.
    turned, _ = run(model, params, jax.tree.map(lambda leaf: np.roll(leaf, 1, axis=0), segments))
    np.testing.assert_allclose(logits[1, 1], turned[0, 1], atol=2e-6, err_msg='start: no reset')
    # Padding before the last tokens of a segment changes nothing after it.
    moved = second.tokens.at[:, 0, 1:].set(second.tokens[:, 0, :-1])
    valid = second.valid.at[:, 0, 0].set(False)
    padded = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), first, second.replace(
        tokens=moved, valid=valid))  # fmt: skip
    shifted, _ = run(model, params, padded)
    np.testing.assert_allclose(shifted[1, 0, 1:], logits[1, 0, :-1], atol=3e-5)
    stream, step = streamed(model, params)
    for place in range(2 * LENGTH):
        number, at = divmod(place, LENGTH)
        one, stream = step(segments.tokens[number, :, at], stream)
        np.testing.assert_allclose(one[0], logits[number, 0, at], atol=3e-5)
    whole = segments.replace(start=jnp.asarray([[True, True], [False, False]]))
    assert_opens_alike(model, params, segments, *run(model, params, whole), 1, step)
    if name == 'local':  # nothing else goes from segment to segment
        other = first.tokens.at[:, 0, -1].add(1) % VOCAB
        both = jax.tree.map(
            lambda a, b: jnp.concatenate([a, b]), first.replace(tokens=other), second
        )
        changed, _ = run(model, params, both)
        assert np.abs(changed[1, 0] - logits[1, 0]).max() > 1e-3


def test_positions_of_a_longer_table_can_restart():
    """As in a pretrained decoder with a memory: the table ends, texts do not."""
    options = dict(position='learned', num_positions=12, positions_restart=True)
    model = with_config('local', local=dict(position='none'), **options)
    params = parameters(model, 1)
    assert params['embedding']['places'].shape[0] == 12
    segments = random_segments(segments=2)
    segments = segments.replace(tokens=segments.tokens.at[1].set(segments.tokens[0]))
    logits, _ = run(model, params, segments)
    np.testing.assert_allclose(logits[1], logits[0], atol=1e-6)
    counting = with_config(
        'local', local=dict(position='none'), **options | dict(positions_restart=False)
    )
    logits, _ = run(counting, params, segments)
    assert np.abs(logits[1] - logits[0]).max() > 1e-3


def test_positions_of_a_table_of_its_own_count_on_through_the_document():
    """Positions continue across segments, skip padding, restart in new documents, end with the table."""
    name = 'learned, on through the document'
    changes = OPTIONS[name] | dict(transformer_xl=xl(0, position='none'))
    model, (_, params) = with_config('transformer_xl', **changes), made(name)
    one = jax.tree.map(lambda leaf: leaf[:1], random_segments())
    same = jax.tree.map(lambda leaf: jnp.concatenate([leaf] * 4), one)  # the same tokens again
    same = same.replace(start=jnp.asarray([[True] * 2, [False] * 2, [False, True], [False] * 2]))
    logits, states = run(model, params, same)
    np.testing.assert_array_equal(states.position, [[5, 5], [10, 10], [12, 5], [12, 10]])
    assert np.abs(logits[1] - logits[0]).max() > 1e-3, 'position 5 is position 0'
    np.testing.assert_allclose(logits[2, 1], logits[0, 1], atol=2e-6, err_msg='start: no reset')
    np.testing.assert_allclose(logits[3, 1], logits[1, 1], atol=2e-6)
    valid = same.valid.at[0, :, :2].set(False)
    _, padded = run(model, params, same.replace(valid=valid))
    np.testing.assert_array_equal(padded.position[0], [3, 3])


def test_lanes_at_different_places_stream_together():
    """One lane is ahead by two tokens, so their segments end at different calls."""
    model, params = made('rotary')
    segments = random_segments(segments=3)
    logits, _ = run(model, params, segments)
    fresh, step = streamed(model, params)
    tokens = np.asarray(segments.tokens).transpose(1, 0, 2).reshape(BATCH, -1)
    wanted = np.asarray(logits).transpose(1, 0, 2, 3).reshape(BATCH, 3 * LENGTH, VOCAB)
    ahead = fresh
    for place in range(2):
        one, ahead = step(jnp.asarray(tokens[:, place]), ahead)
    stream = jax.tree.map(lambda a, b: np.concatenate([a[:1], b[1:]]), ahead, fresh)
    for place in range(3 * LENGTH - 2):
        pair = jnp.asarray([tokens[0, place + 2], tokens[1, place]])
        one, stream = step(pair, stream)
        np.testing.assert_allclose(one[0], wanted[0, place + 2], atol=3e-5)
        np.testing.assert_allclose(one[1], wanted[1, place], atol=3e-5)


@pytest.mark.parametrize(
    'name',
    [
        'adaptive',
        pytest.param('adaptive, one width, projected', marks=pytest.mark.slow),
        'geglu, untied',
    ],
)
def test_nll_is_that_of_the_logits(name):
    model, params = made(name)
    segment = jax.tree.map(lambda leaf: leaf[0], random_segments())
    state = fresh_state(model, params, BATCH)
    logits, _, _ = apply(model, params, segment, state)
    probabilities = jax.nn.softmax(logits)
    np.testing.assert_allclose(probabilities.sum(-1), 1.0, rtol=1e-5)
    if 'adaptive' in name:  # they are log-probabilities as they are
        np.testing.assert_allclose(jnp.exp(logits).sum(-1), 1.0, rtol=1e-5)
    targets = (segment.tokens * 5 + 3) % VOCAB
    nll = apply(model, params, segment, targets, state, method='nll')[0].nll
    wanted = -jnp.log(jnp.take_along_axis(probabilities, targets[..., None], -1))[..., 0]
    np.testing.assert_allclose(nll, wanted, rtol=2e-5)


def test_nll_of_padding_is_zero():
    model, params = made('rotary')
    segment = jax.tree.map(lambda leaf: leaf[0], random_segments())
    segment = segment.replace(valid=segment.valid.at[0, 1].set(False))
    state = fresh_state(model, params, BATCH)
    scores, _, _ = apply(model, params, segment, segment.tokens, state, method='nll')
    nll, log_z = scores.nll, scores.log_z
    assert nll[0, 1] == 0 and log_z[0, 1] == 0 and (np.asarray(nll) > 0).sum() == nll.size - 1


def test_parameters_follow_the_options():
    paths = {}
    for name in (
        'geglu, untied',
        'adaptive',
        'same length, clamped, own biases',
        'rmsnorm, post, swiglu',
        'learned, no scale',
    ):
        model = with_config('transformer_xl', **OPTIONS[name])
        shapes = abstract_parameters(model)
        paths[name] = set(flatten_dict(shapes, sep='/'))
    assert 'embedding/out_table_0' in paths['geglu, untied']
    assert not any('out_table' in path for path in paths['adaptive'])
    assert 'embedding/out_projection_1' not in paths['adaptive']  # tied
    assert 'embedding/out_projection_2' in paths['adaptive']
    assert 'shared_transformer_xl/content' in paths['adaptive']
    own = paths['same length, clamped, own biases']
    assert 'block_1/attention/attention/relation/biases/content' in own
    assert not any('shared' in path for path in own)
    assert not any(path.endswith('norm/bias') for path in paths['rmsnorm, post, swiglu'])
    assert 'block_0/feed_forward/gate/kernel' in paths['geglu, untied']
    assert 'final_norm/scale' not in paths['learned, no scale']


def test_a_longer_memory_reads_further_with_the_same_parameters():
    model, params = made('rotary')
    longer = with_config(
        'transformer_xl',
        transformer_xl=xl(11, position='rotary'),
    )
    segments = random_segments()
    short, _ = run(model, params, segments)
    far, _ = run(longer, params, segments)
    np.testing.assert_allclose(short[:2], far[:2], atol=1e-5)  # six positions hold one segment
    assert np.abs(short[3] - far[3]).max() > 1e-4


def test_no_gradient_reaches_the_memory():
    """The loss of a segment does not depend, for the gradient, on the embeddings of earlier ones."""
    model, params = made('rotary')
    segments = random_segments(segments=2)

    def value(memory_params):
        first, second = (jax.tree.map(lambda leaf, n=n: leaf[n], segments) for n in (0, 1))
        state = fresh_state(model, params, BATCH)
        _, state, _ = model.apply({'params': memory_params}, first, state, train=False)
        return model.apply({'params': params}, second, state, train=False)[0].sum()

    for leaf in jax.tree.leaves(jax.jit(jax.grad(value))(params)):
        np.testing.assert_array_equal(leaf, 0.0)


def test_segment_order_is_given_back():
    """Logits are at the positions of their tokens, with or without padding between them."""
    model, params = made('rotary')
    valid = jnp.asarray([[True, False, True, True, False]] * BATCH)
    tokens = random_segments().tokens[0]
    start = jnp.ones((BATCH,), bool)
    state = fresh_state(model, params, BATCH)
    logits, _, _ = apply(model, params, Segment(tokens, valid, start), state)
    packed = jnp.asarray(np.asarray(tokens)[:, [0, 2, 3, 1, 4]])
    front = jnp.asarray([[True, True, True, False, False]] * BATCH)
    other, _, _ = apply(model, params, Segment(packed, front, start), state)
    np.testing.assert_allclose(logits[:, [0, 2, 3]], other[:, :3], atol=1e-6)
