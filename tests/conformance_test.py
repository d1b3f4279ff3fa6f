"""The contract, checked for every layer of the registry; DESIGN's suite, in its order.

A layer joins by its line in `longmem_jax/memory/registry.py`, a kind of model by its toy in
`longmem_jax/models/kinds.py`. Goldens (11) are in `golden_test.py`.
"""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from longmem_jax.devices.sharding import lanes_sharding, make_mesh, parameter_shardings
from longmem_jax.generation.reader import Reader, fresh_state
from longmem_jax.generation.stream import open_stream, read_token
from longmem_jax.segment import Segment, join_pieces, read_segments, split_at_starts
from longmem_jax.training.step import initial_parameters
from tests.toys import (
    BATCH,
    LENGTH,
    SEGMENTS,
    VOCAB,
    every_layer,
    model_config,
    random_segments,
    run,
    toy,
    with_config,
)

NAMES = list(every_layer())


@pytest.fixture(params=NAMES)
def name(request):
    return request.param


@pytest.fixture(params=[name for name in NAMES if ':' not in name])
def layer(request):
    """Every layer once: for what further settings of it cannot change."""
    return request.param


def change_tokens(segments, where):
    """Other tokens wherever `where` (bool [segments, batch, length]) is True."""
    other = (segments.tokens + 1 + jnp.arange(LENGTH, dtype=jnp.int32) % 7) % VOCAB
    return segments.replace(tokens=jnp.where(where, other, segments.tokens))


def test_causal(name):
    model, params = toy(name)
    segments = random_segments()
    logits, _ = run(model, params, segments)
    for segment, place in ((0, LENGTH - 1), (1, 0), (1, 2), (SEGMENTS - 1, 1)):
        later = np.zeros(segments.tokens.shape, bool)
        later[segment, :, place:] = True
        later[segment + 1 :] = True
        changed, _ = run(model, params, change_tokens(segments, jnp.asarray(later)))
        before = ~later[..., None]
        difference = np.abs(np.asarray(logits - changed))
        assert (difference * before).max() == 0.0
        assert (difference * ~before).max() > 0.0


def test_lanes_are_apart(name):
    model, params = toy(name)
    segments = random_segments()
    logits, states = run(model, params, segments)
    only_first = jnp.zeros(segments.tokens.shape, bool).at[:, 0].set(True)
    changed, changed_states = run(model, params, change_tokens(segments, only_first))
    # To rounding: how much of a buffer is read may depend on the other lanes.
    np.testing.assert_allclose(logits[:, 1], changed[:, 1], atol=2e-6)
    assert np.abs(logits[:, 0] - changed[:, 0]).max() > 0.0
    for leaf, other in zip(jax.tree.leaves(states), jax.tree.leaves(changed_states), strict=True):
        np.testing.assert_allclose(leaf[:, 1], other[:, 1], atol=2e-6)


def test_reset_is_a_fresh_state(name):
    model, params = toy(name)
    segments = random_segments()
    start = segments.start.at[2, 1].set(True)
    logits, states = run(model, params, segments.replace(start=start))
    tail = jax.tree.map(lambda leaf: leaf[2:], segments.replace(start=start))
    fresh, fresh_states = run(model, params, tail)
    np.testing.assert_allclose(logits[2:, 1], fresh[:, 1], atol=2e-6)
    last, fresh_last = (jax.tree.map(lambda leaf: leaf[-1], s) for s in (states, fresh_states))
    for leaf, other in zip(jax.tree.leaves(last), jax.tree.leaves(fresh_last), strict=True):
        np.testing.assert_allclose(leaf[1], other[1], atol=2e-6)
    if jax.tree.leaves(states):  # a memory tells: the lane that was not reset differs
        assert np.abs(logits[2:, 0] - fresh[:, 0]).max() > 0.0


def pad(segments, places):
    """The same tokens in longer segments with padding at `places`, and where tokens went."""
    length = LENGTH + len(places)
    kept = np.asarray([place for place in range(length) if place not in places])
    shape = (*segments.tokens.shape[:2], length)
    tokens = np.full(shape, 3, np.int32)
    tokens[..., kept] = segments.tokens
    valid = np.zeros(shape, bool)
    valid[..., kept] = True
    return Segment(jnp.asarray(tokens), jnp.asarray(valid), segments.start), kept


@pytest.mark.parametrize('places', [(LENGTH, LENGTH + 1), (0, 1), (1, 4)])
def test_padding_changes_nothing_wherever_it_stands(name, places):
    model, params = toy(name)
    segments = random_segments()
    logits, states = run(model, params, segments)
    padded, kept = pad(segments, places)
    longer = model.clone(segment_length=padded.tokens.shape[-1])
    padded_logits, padded_states = run(longer, params, padded)
    np.testing.assert_allclose(padded_logits[:, :, kept], logits, atol=2e-5)
    # A model that keeps the segment itself has room for a longer one.
    same = jax.tree.map(
        lambda longer, leaf: longer[tuple(map(slice, leaf.shape))], padded_states, states
    )
    chex.assert_trees_all_close(same, states, atol=2e-5)


def test_padded_lane_keeps_its_state(name):
    model, params = toy(name)
    segments = random_segments()
    _, states = run(model, params, segments)
    valid = segments.valid.at[2, 1].set(False)
    start = segments.start
    _, padded = run(model, params, segments.replace(valid=valid, start=start))
    for leaf in jax.tree.leaves(padded):
        np.testing.assert_array_equal(leaf[2, 1], leaf[1, 1])
    for leaf, other in zip(jax.tree.leaves(padded), jax.tree.leaves(states), strict=True):
        np.testing.assert_array_equal(leaf[:, 0], other[:, 0])


def test_scan_is_loop(layer):
    """A scan that computes segments again on the way back, and a Python loop: values and gradients.

    The first is memory replay back-propagation (Memformer), the second plain.
    """
    model, params = toy(layer, layers=1)
    segments = random_segments(segments=3)
    state = fresh_state(model, params, BATCH)

    def read(params, state, segment):
        logits, state, aux = model.apply({'params': params}, segment, state, train=False)
        return state, jax.nn.logsumexp(logits, axis=-1).mean()

    def scan(params):
        def one(state, segment, key):
            return read(params, state, segment)

        return read_segments(one, state, segments, jax.random.key(0), remat=True)[1].sum()

    compiled = jax.jit(read)  # once, for all segments

    def loop(params):
        now, total = state, jnp.zeros(())
        for number in range(segments.start.shape[0]):
            segment = jax.tree.map(lambda leaf, n=number: leaf[n], segments)
            now, value = compiled(params, now, segment)
            total = total + value
        return total

    value, gradient = jax.value_and_grad(loop)(params)
    other, its_gradient = jax.jit(jax.value_and_grad(scan))(params)
    np.testing.assert_allclose(value, other, rtol=1e-6)
    chex.assert_trees_all_close(gradient, its_gradient, atol=1e-5)


@functools.cache
def stream_step(name):
    """The streaming path of a toy, compiled once for the tests that need it."""
    model, params = toy(name)
    return jax.jit(lambda tokens, stream, start: read_token(model, params, tokens, stream, start))


def stream_tokens(name, segments):
    """Reads `segments`, with starts [segments, batch, length], token by token.

    Yields (segment, position, logits [batch, vocab], stream).
    """
    model, params = toy(name)
    stream = open_stream(model, params, fresh_state(model, params, BATCH), BATCH)
    for number, position in np.ndindex(len(segments.tokens), LENGTH):
        logits, stream = stream_step(name)(
            segments.tokens[number, :, position], stream, segments.start[number, :, position]
        )
        yield number, position, logits, stream


def test_decode_is_forward(name):
    model, params = toy(name)
    segments = random_segments()
    logits, states = run(model, params, segments)
    nowhere = segments.replace(start=jnp.zeros(segments.tokens.shape, bool))
    for number, position, one, stream in stream_tokens(name, nowhere):
        np.testing.assert_allclose(one, logits[number, :, position], atol=2e-5)
        if number and position == LENGTH - 1:
            before = jax.tree.map(lambda leaf, n=number: leaf[n - 1], states)
            chex.assert_trees_all_close(stream.state, before, atol=2e-5)


def starts_inside(segments, places):
    """The segments with a start in every lane: in the second segment, at one place per lane."""
    start = np.zeros(segments.tokens.shape, bool)
    start[0, :, 0] = True
    start[1, range(BATCH), places] = True
    return segments.replace(start=jnp.asarray(start))


def apart(segments, places):
    """The two documents of every lane of `starts_inside`, each from its own first segment on.

    Tokens come first, padding last; the shapes are those of `SEGMENTS` segments.
    """
    documents = []
    for tail in (False, True):
        tokens = np.zeros((SEGMENTS, BATCH, LENGTH), np.int32)
        valid = np.zeros(tokens.shape, bool)
        for lane, place in enumerate(places):
            whole, cut = (0, 1) if not tail else (1, 0)
            part = segments.tokens[1, lane, place:] if tail else segments.tokens[1, lane, :place]
            tokens[whole, lane] = segments.tokens[2 * whole, lane]
            tokens[cut, lane, : len(part)] = part
            valid[whole, lane], valid[cut, lane, : len(part)] = True, True
        start = np.zeros((SEGMENTS, BATCH), bool)
        documents.append(Segment(*map(jnp.asarray, (tokens, valid, start))))
    return documents


def test_start_at_every_place(name):
    """A document that starts inside a segment: two documents read apart, whole and as a stream."""
    model, params = toy(name)
    segments = random_segments(segments=SEGMENTS - 1)
    for place in range(LENGTH):
        places = (place, (place + 2) % LENGTH)
        inside = starts_inside(segments, places)
        pieces = split_at_starts(inside, 1)  # as many pieces as other tests have segments
        assert not pieces.dropped.any()
        logits, states = run(model, params, pieces.segments)
        logits = np.asarray(join_pieces(pieces, logits))
        (early, _), (late, late_states) = (
            run(model, params, document) for document in apart(segments, places)
        )
        wanted = np.stack([early[0], late[0], late[1]])
        for lane, position in enumerate(places):
            wanted[1, lane] = np.concatenate([early[1], late[0]], axis=1)[
                lane, [*range(position), *range(LENGTH, 2 * LENGTH - position)]
            ]
        np.testing.assert_allclose(logits, wanted, atol=2e-5)
        border, last = (jax.tree.map(lambda leaf, n=n: leaf[n], late_states) for n in (0, 1))
        chex.assert_trees_all_close(jax.tree.map(lambda leaf: leaf[-1], states), last, atol=2e-5)
        for number, position, one, _stream in stream_tokens(name, inside):
            np.testing.assert_allclose(one, wanted[number, :, position], atol=2e-5)
        chex.assert_trees_all_close(_stream.state, border, atol=2e-5)


def test_gradients_with_starts_inside(name):
    """They are finite, and pieces without tokens add nothing to them, skipped or read."""
    model, params = toy(name, layers=1)
    segments = starts_inside(random_segments(segments=2), (2, 0))
    pieces = split_at_starts(segments, 2)  # one piece is used by one lane, one by none

    def loss(params, used):
        def read(state, segment, key):
            logits, state, _ = model.apply({'params': params}, segment, state, train=False)
            return state, logits

        state = fresh_state(model, params, BATCH)
        _, logits = read_segments(read, state, pieces.segments, jax.random.key(0), used=used)
        return jnp.square(jax.nn.log_softmax(join_pieces(pieces, logits))).mean()

    gradient = jax.jit(jax.grad(loss))
    skipped, all_read = gradient(params, pieces.used), gradient(params, pieces.used | True)
    for path, leaf in flatten_dict(skipped).items():
        assert np.isfinite(leaf).all(), path
    chex.assert_trees_all_close(skipped, all_read, atol=1e-6)


def test_bounded(layer):
    model, params = toy(layer)
    segments = random_segments()
    _, states = run(model, params, segments)
    first, last = (jax.tree.map(lambda leaf, n=n: leaf[n], states) for n in (0, -1))
    chex.assert_trees_all_equal_shapes_and_dtypes(first, last, fresh_state(model, params, BATCH))

    def cost(state):
        segment = jax.tree.map(lambda leaf: leaf[1], segments)
        step = jax.jit(lambda state: model.apply({'params': params}, segment, state, train=False))
        return step.lower(state).cost_analysis()['flops']

    assert cost(first) == cost(last) > 0


def test_sharded_over_lanes_is_unsharded(layer):
    check_sharded(layer, dict(data=8))


def test_sharded_over_all_axes_is_unsharded(layer):
    check_sharded(layer, dict(data=2, fsdp=2, tensor=2))


def check_sharded(name, sizes):
    model, params = toy(name)
    segments = random_segments(batch=8)
    logits, states = run(model, params, segments)
    mesh = make_mesh(sizes)
    boxed = jax.eval_shape(lambda: initial_parameters(model, jax.random.key(0)))
    placed = jax.device_put(params, parameter_shardings(mesh, boxed))
    spread = jax.device_put(segments, lanes_sharding(mesh, 1))
    with jax.set_mesh(mesh):
        sharded, sharded_states = run(model, placed, spread)
    np.testing.assert_allclose(sharded, logits, atol=1e-5)
    chex.assert_trees_all_close(sharded_states, states, atol=1e-5)


def test_gradients_are_finite_and_right(name):
    """Directional derivatives against float64 differences, through writes of several segments.

    The function differentiated is the loss of the last segment as a function of the parameters,
    with the memories before it held fixed: what a paper detaches is so on both sides.
    """
    _, params = toy(name, layers=1)  # outside: it is kept for other tests, which want float32
    with jax.enable_x64(True):
        model = with_config(name, layers=1, dtype='float64')
        params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), params)
        segments = random_segments(segments=3)

        @jax.jit
        def read(params, state, segment):
            def value(params):
                logits, new, _ = model.apply({'params': params}, segment, state, train=False)
                return (jax.nn.log_softmax(logits) * jnp.cos(jnp.arange(VOCAB * 1.0))).sum(), new

            return jax.value_and_grad(value, has_aux=True)(params)

        state = jax.jit(lambda: fresh_state(model, params, BATCH))()
        for number in range(2):
            segment = jax.tree.map(lambda leaf, n=number: leaf[n], segments)
            (_, state), _ = read(params, state, segment)
        segment = jax.tree.map(lambda leaf: leaf[2], segments)
        _, gradient = read(params, state, segment)
        random = np.random.default_rng(0)
        direction = jax.tree.map(lambda leaf: jnp.asarray(random.normal(size=leaf.shape)), params)
        step = 1e-6  # so small that hardly any ReLU changes sides
        high, low = (
            read(
                jax.tree.map(lambda p, d, s=s: p + s * step * d, params, direction), state, segment
            )[0][0]
            for s in (1, -1)
        )
        slope = sum(
            (g * d).sum()
            for g, d in zip(jax.tree.leaves(gradient), jax.tree.leaves(direction), strict=True)
        )
        for path, leaf in flatten_dict(gradient).items():
            assert np.isfinite(leaf).all(), path
        np.testing.assert_allclose(slope, (high - low) / (2 * step), rtol=1e-5)


def test_bfloat16_keeps_states_and_stays_close(layer):
    name = layer
    _, params = toy(name)
    changes = {}
    # Which rows are nearest is no matter of closeness: all are taken.
    for kind, size in (('memorizing', 'memory_size'), ('product_key', 'num_keys')):
        if name.startswith(kind):
            own = model_config(name)[kind]
            changes[kind] = own.to_dict() | dict(top_k=own[size])
    model, half = with_config(name, **changes), with_config(name, dtype='bfloat16', **changes)
    segments = random_segments()
    logits, _ = run(model, params, segments)
    close, states = run(half, params, segments)
    assert close.dtype == jnp.float32
    last = jax.tree.map(lambda leaf: leaf[-1], states)
    chex.assert_trees_all_equal_dtypes(last, fresh_state(half, params, BATCH))
    scale = np.abs(logits).max()
    # Of the pairs of two halves some are still chosen and others not.
    close_enough = 6e-2 if name == 'product_key' else 3e-2
    assert np.abs(close - logits).max() <= close_enough * scale


def test_state_is_stable_under_strict_promotion(layer):
    model, params = toy(layer)
    segment = jax.tree.map(lambda leaf: leaf[0], random_segments())
    state = fresh_state(model, params, BATCH)
    with jax.numpy_rank_promotion('raise'), jax.numpy_dtype_promotion('strict'):
        step = jax.jit(lambda s: model.apply({'params': params}, segment, s, train=False)[1])
        chex.assert_trees_all_equal_shapes_and_dtypes(state, step(state), step(step(state)))


def test_dropout_draws_anew_in_every_segment(layer):
    model, params = toy(layer)
    noisy = with_config(layer, dropout=0.5, attention_dropout=0.5)
    segments = random_segments(segments=1)
    same = jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf]), segments)

    def read(state, segment, key):
        logits, state, _ = noisy.apply(
            {'params': params}, segment, state, train=True, rngs={'dropout': key, 'memory': key}
        )
        return state, logits

    def both(key):
        return read_segments(read, fresh_state(noisy, params, BATCH), same, key)[1]

    first, again = (jax.jit(both)(jax.random.key(3)) for _ in range(2))
    assert np.abs(first[0] - first[1]).max() > 0.0  # both start a document on the same tokens
    np.testing.assert_array_equal(first, again)
    assert np.isfinite(first).all()


def test_the_whole_prompt_is_read(layer):
    """Changing the first tokens of a long prompt changes what follows, where there is a memory."""
    model, params = toy(layer)
    state = fresh_state(model, params, 1)
    if not jax.tree.leaves(state):
        pytest.skip(f'{layer} remembers nothing')
    prompts = np.random.default_rng(5).integers(0, VOCAB, (1, 2 * LENGTH + 2)).astype(np.int32)
    other = prompts.copy()
    other[:, 3:LENGTH] = (other[:, 3:LENGTH] + 1) % VOCAB
    logits = []
    for prompt in (prompts, other):
        reader = Reader(model, params, state, np.zeros((1, 0), np.int32))
        reader.read(prompt)
        logits.append(np.asarray(reader.logits))
    assert np.abs(logits[0] - logits[1]).max() > 1e-4
