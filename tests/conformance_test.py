"""The contract, checked for every layer of the registry; DESIGN's suite, in its order.

A layer joins by its line in `longmem_jax/memory/registry.py`, a kind of model by its toy in
`longmem_jax/models/kinds.py`. Goldens (11) are in `golden_test.py`.
One memory: `pytest tests/conformance_test.py -k NAME`.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from longmem_jax.devices.sharding import lanes_sharding, make_mesh, parameter_shardings
from longmem_jax.generation import memory_file
from longmem_jax.generation.reader import Reader, fresh_state
from longmem_jax.generation.stream import open_stream, read_token
from longmem_jax.in_place import readable_state
from longmem_jax.memory.registry import LAYERS
from longmem_jax.models.parameters import initial_parameters, unbox
from longmem_jax.segment import Segment, join_pieces, read_segments, split_at_starts
from tests import toys
from tests.assertions import (
    assert_close,
    assert_differs,
    assert_equal,
    assert_finite,
    assert_no_open_loop,
    assert_same_types,
)
from tests.toys import (
    BATCH,
    LENGTH,
    SEGMENTS,
    VOCAB,
    every_layer,
    model_config,
    random_segments,
    with_config,
)

NAMES = list(every_layer())
# One layer: what several do together is the backbone's, and tested with it and with the goldens.
toy = functools.partial(toys.toy, layers=1)
# Rows of the programs with gradients: the least that eight devices in a mesh of 2 x 2 x 2 can share.
ROWS = 2 * BATCH
# Axes of logits, and of states after each segment.
LOGITS, STATES = ('segment', 'row', 'position'), ('segment', 'row')
MASK = 'Mask with `segment.valid` (valid tokens come first) before anything is written or summed.'
STREAM = (
    '`open_segment`, `extend` and `close_segment` must give the numbers of `__call__`; '
    '`close_segment` writes the first `count` tokens only.'
)


@pytest.fixture(
    params=[pytest.param(name, marks=pytest.mark.slow) if ':' in name else name for name in NAMES]
)
def entry(request):
    """Every layer and its variants `NAME:VARIANT`, for promises that settings can break."""
    return request.param


@pytest.fixture(params=[name for name in NAMES if ':' not in name])
def base_entry(request):
    """Every layer once, for promises that its settings cannot break."""
    return request.param


def run(model, params, segments):
    """`toys.run` as numpy arrays: parts of them are taken without compiling programs for it."""
    return jax.device_get(toys.run(model, params, segments))


def at(tree, number):
    """The part of a pytree that belongs to segment `number`."""
    return jax.tree.map(lambda leaf: leaf[number], tree)


def change_tokens(segments, where):
    """Other tokens wherever `where` (bool [segments, batch, length]) is True."""
    tokens = np.asarray(segments.tokens)
    other = (tokens + 1 + np.arange(LENGTH, dtype=np.int32) % 7) % VOCAB
    return segments.replace(tokens=np.where(where, other, tokens))


def test_causal(base_entry):
    """Variants are causal where `test_decode_is_forward` holds."""
    model, params = toy(base_entry)
    segments = random_segments()
    logits, _ = run(model, params, segments)
    for segment, position in ((0, LENGTH - 1), (1, 0), (1, 2), (SEGMENTS - 1, 1)):
        later = np.zeros(segments.tokens.shape, bool)
        later[segment, :, position:] = True
        later[segment + 1 :] = True
        changed, _ = run(model, params, change_tokens(segments, later))
        what = f'tokens from position {position} of segment {segment} on, when changed,'
        assert_equal(
            np.where(later[..., None], 0, changed),
            np.where(later[..., None], 0, logits),
            f'{what} changed earlier logits',
            'A query may see keys up to its own position only, and the memory as it was before '
            'the segment: return what is written as the new state, do not read it.',
            axes=LOGITS,
        )
        assert_differs(
            np.where(later[..., None], changed, 0),
            np.where(later[..., None], logits, 0),
            f'{what} left all logits as they were',
            'The layer must read its input `x`.',
        )


def test_rows_are_apart(base_entry):
    model, params = toy(base_entry)
    segments = random_segments()
    only_first = np.zeros(segments.tokens.shape, bool)
    only_first[:, 0] = True
    read, changed = (
        run(model, params, part) for part in (segments, change_tokens(segments, only_first))
    )
    (found, found_states), (wanted, states) = (
        jax.tree.map(lambda leaf: leaf[:, 1], part) for part in (changed, read)
    )
    broken = 'the tokens of row 0, when changed, changed the {} of row 1'
    fix = 'No sum, mean, sort or reshape may mix rows: axis 0 of every array is the batch.'
    # To rounding: how much of a buffer is read may depend on the other rows.
    assert_close(
        found, wanted, broken.format('logits'), fix, axes=('segment', 'position'), atol=2e-6
    )
    assert_close(found_states, states, broken.format('state'), fix, axes=('segment',), atol=2e-6)
    assert_differs(
        read[0][:, 0],
        changed[0][:, 0],
        'the tokens of row 0, when changed, left its logits as they were',
        'The layer must read its input `x`.',
    )


def test_reset_is_a_fresh_state(base_entry):
    model, params = toy(base_entry)
    segments = random_segments()
    segments = segments.replace(start=segments.start.at[2, 1].set(True))
    logits, states = run(model, params, segments)
    turned = jax.tree.map(lambda leaf: np.roll(leaf, -2, axis=0), segments)
    fresh, fresh_states = run(model, params, turned)  # the last two segments first
    broken = 'a start in segment 2 of row 1 gives other {} than a fresh state'
    fix = (
        '`initial_state` must be all that a document begins with, and the state all that the '
        'layer remembers: every leaf [batch, ...].'
    )
    assert_close(
        logits[2:, 1],
        fresh[:2, 1],
        broken.format('logits'),
        fix,
        axes=('segment after the start', 'position'),
        atol=2e-6,
    )
    last, fresh_last = (
        jax.tree.map(lambda leaf: leaf[1], part) for part in (at(states, 3), at(fresh_states, 1))
    )
    assert_close(last, fresh_last, broken.format('states'), fix, atol=2e-6)
    if jax.tree.leaves(states):
        assert_differs(
            logits[2:, 0],
            fresh[:2, 0],
            'row 0, which was not reset, gives the logits of a fresh state',
            'The layer has a state but does not read it: use `state` in `__call__`.',
        )


def pad(segments, places):
    """The same tokens in longer segments padded at `places`, and their new positions."""
    length = LENGTH + len(places)
    kept = np.asarray([place for place in range(length) if place not in places])
    shape = (*segments.tokens.shape[:2], length)
    tokens = np.full(shape, 3, np.int32)
    tokens[..., kept] = segments.tokens
    valid = np.zeros(shape, bool)
    valid[..., kept] = True
    return Segment(jnp.asarray(tokens), jnp.asarray(valid), segments.start), kept


@pytest.mark.parametrize('places', [(LENGTH, LENGTH + 1), (0, 1), (1, 4)])
def test_padding_changes_nothing_wherever_it_stands(entry, places):
    model, params = toy(entry)
    segments = random_segments()
    logits, states = run(model, params, segments)
    padded, kept = pad(segments, places)
    longer = model.clone(segment_length=padded.tokens.shape[-1])
    padded_logits, padded_states = run(longer, params, padded)
    broken = f'padding at positions {places} changed the'
    assert_close(
        padded_logits[:, :, kept], logits, f'{broken} logits', MASK, axes=LOGITS, atol=2e-5
    )
    # A model that keeps the segment itself has room for a longer one.
    same = jax.tree.map(
        lambda longer, leaf: longer[tuple(map(slice, leaf.shape))], padded_states, states
    )
    assert_close(same, states, f'{broken} state', MASK, axes=STATES, atol=2e-5)


def test_padded_row_keeps_its_state(entry):
    model, params = toy(entry)
    segments = random_segments()
    _, states = run(model, params, segments)
    _, padded = run(model, params, segments.replace(valid=segments.valid.at[2, 1].set(False)))
    assert_equal(
        jax.tree.map(lambda leaf: leaf[2, 1], padded),
        jax.tree.map(lambda leaf: leaf[1, 1], padded),
        'segment 2 of row 1 is all padding and changed its state',
        'Keep the old state where `segment.valid.any(axis=1)` is False: `select_lanes`.',
    )
    assert_equal(
        jax.tree.map(lambda leaf: leaf[:, 0], padded),
        jax.tree.map(lambda leaf: leaf[:, 0], states),
        'padding in row 1 changed the state of row 0',
        'No sum, mean, sort or reshape may mix rows: axis 0 of every array is the batch.',
        axes=('segment',),
    )


def loss_of(logits, valid):
    """Contribution of one or more segments to the losses in this file."""
    return jnp.where(valid[..., None], jnp.square(jax.nn.log_softmax(logits)), 0.0).sum()


@functools.cache
def scan_gradient(name):
    """Reads segments in a scan, compiled once; segments are recomputed in the backward pass.

    Returns:
      (parameters, segments, used) to ((loss, (logits, states)), gradients of the parameters).
    """
    model, params = toy(name)

    def loss(params, segments, used):
        def read(state, segment, key):
            logits, state, _ = model.apply({'params': params}, segment, state, train=False)
            return state, (logits, readable_state(state))

        state = fresh_state(model, params, ROWS)
        _, found = read_segments(read, state, segments, jax.random.key(0), used=used)
        return loss_of(found[0], segments.valid), found

    return jax.jit(jax.value_and_grad(loss, has_aux=True))


def twice(segments):
    """`ROWS` rows: all of them two times."""
    return jax.tree.map(lambda leaf: np.concatenate([leaf, leaf], axis=1), jax.device_get(segments))


def test_scan_is_loop(base_entry):
    """A scan that recomputes segments in the backward pass, and a Python loop: values and gradients.

    The first is memory replay back-propagation (Memformer), the second plain.
    """
    model, params = toy(base_entry)
    segments = jax.device_get(random_segments(batch=ROWS))

    @jax.jit  # once, for all segments
    def read(params, state, segment):
        logits, state, _ = model.apply({'params': params}, segment, state, train=False)
        return state, loss_of(logits, segment.valid)

    def loop(params):
        state, total = fresh_state(model, params, ROWS), jnp.zeros(())
        for number in range(SEGMENTS):
            state, value = read(params, state, at(segments, number))
            total = total + value
        return total

    value, gradient = jax.value_and_grad(loop)(params)
    every = np.ones((SEGMENTS,), bool)
    (other, _), its_gradient = scan_gradient(base_entry)(params, segments, every)
    fix = (
        'The state must be all that goes from segment to segment: no attribute set in `__call__`, '
        'no mutable collection, no random numbers in evaluation.'
    )
    assert_close(value, other, 'a loop and a scan give other values', fix, atol=0.0, rtol=5e-6)
    assert_gradients_close(gradient, its_gradient, 'a loop and a scan give other gradients', fix)


def assert_gradients_close(found, wanted, broken, fix):
    """Equal to 1e-5 of the largest value."""
    largest = max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(wanted))
    assert_close(found, wanted, broken, fix, atol=1e-5 * largest)


@functools.cache
def stream_step(name):
    """A new stream of a toy and how it reads a token, compiled once for the tests that need it."""
    model, params = toy(name)
    opened = jax.jit(lambda: open_stream(model, params, fresh_state(model, params, BATCH), BATCH))()
    read = jax.jit(lambda tokens, stream, start: read_token(model, params, tokens, stream, start))
    return opened, read


def stream_tokens(name, segments):
    """Reads `segments`, with starts [segments, batch, length], token by token.

    Returns:
      logits like those of the segments, and the memories at the start of each segment.
    """
    stream, read = stream_step(name)
    segments = jax.device_get(segments)
    logits, states = [], []
    for number, position in np.ndindex(len(segments.tokens), LENGTH):
        one, stream = read(
            segments.tokens[number, :, position], stream, segments.start[number, :, position]
        )
        logits.append(one)
        if position == LENGTH - 1:
            states.append(jax.device_get(readable_state(stream.state)))
    logits = np.stack(logits).reshape(len(segments.tokens), LENGTH, BATCH, VOCAB)
    return logits.swapaxes(1, 2), states


def test_decode_is_forward(entry):
    model, params = toy(entry)
    segments = random_segments()
    logits, states = run(model, params, segments)
    nowhere = segments.replace(start=jnp.zeros(segments.tokens.shape, bool))
    found, before = stream_tokens(entry, nowhere)
    broken = 'token by token, other {} than whole segments give'
    assert_close(found, logits, broken.format('logits'), STREAM, axes=LOGITS, atol=2e-5)
    for number in range(1, SEGMENTS):
        assert_close(
            before[number],
            at(states, number - 1),
            broken.format(f'states after segment {number - 1}'),
            STREAM,
            axes=('row',),
            atol=2e-5,
        )


def test_a_memory_is_a_file(entry, tmp_path):
    """As `--save_state` writes it and `--load_state` reads it, which refuses what no memory has."""
    model, params = toy(entry)
    _, states = run(model, params, random_segments())
    one = jax.tree.map(lambda leaf: leaf[-1, :1], states)
    about, none = memory_file.described(model), np.zeros((1, 0), np.int32)
    memory_file.save(str(tmp_path / 'memory'), one, none, about, params)
    found, _ = memory_file.load(str(tmp_path / 'memory'), one, about, params)
    fix = 'every leaf must be finite, and whole numbers (int32) counts, distances or tokens'
    assert_equal(found, one, 'a memory out of a file differs', fix, axes=('row',))


split = jax.jit(split_at_starts, static_argnums=1)
join = jax.jit(join_pieces)


def starts_inside(segments, places):
    """Segments with a document start in every row: in the second segment, at one position per row."""
    start = np.zeros(segments.tokens.shape, bool)
    start[0, :, 0] = True
    start[1, range(BATCH), places] = True
    return segments.replace(start=jnp.asarray(start))


def apart(segments, places):
    """The two documents in every row of `starts_inside`, each with a first segment of its own.

    Tokens come first, padding after them; two segments of tokens, the rest of `SEGMENTS` padding.
    """
    tokens = np.zeros((2, SEGMENTS, BATCH, LENGTH), np.int32)
    valid = np.zeros(tokens.shape, bool)
    tokens[0, 0], tokens[1, 1] = segments.tokens[0], segments.tokens[2]
    valid[0, 0] = valid[1, 1] = True
    for row, place in enumerate(places):
        tokens[0, 1, row, :place] = segments.tokens[1, row, :place]
        valid[0, 1, row, :place] = True
        tokens[1, 0, row, : LENGTH - place] = segments.tokens[1, row, place:]
        valid[1, 0, row, : LENGTH - place] = True
    start = jnp.zeros((SEGMENTS, BATCH), bool)
    return [Segment(jnp.asarray(tokens[i]), jnp.asarray(valid[i]), start) for i in range(2)]


def test_start_at_every_place(entry):
    """A document that starts inside a segment reads like two separate documents, whole and streamed."""
    model, params = toy(entry)
    segments = random_segments(segments=SEGMENTS - 1)
    for place in range(LENGTH):
        places = (place, (place + 2) % LENGTH)
        inside = starts_inside(segments, places)
        pieces = split(inside, 1)  # as many pieces as other tests have segments
        logits, states = run(model, params, pieces.segments)
        (early, _), (late, late_states) = (
            run(model, params, document) for document in apart(segments, places)
        )
        wanted = np.stack([early[0], early[1], late[1]])
        for row, own in enumerate(places):
            wanted[1, row, own:] = late[0, row, : LENGTH - own]
        broken = f'starts at positions {places} of segment 1 give other {{}} than documents apart'
        fix = (
            'A row without tokens in a piece must keep its state, and `initial_state` must be all '
            'that a document begins with.'
        )
        joined = join(pieces, logits)
        assert_close(joined, wanted, broken.format('logits'), fix, axes=LOGITS, atol=2e-5)
        last = at(late_states, 1)
        assert_close(at(states, -1), last, broken.format('states'), fix, axes=('row',), atol=2e-5)
        found, before = stream_tokens(entry, inside)
        broken = f'token by token, {broken}'
        assert_close(found, wanted, broken.format('logits'), STREAM, axes=LOGITS, atol=2e-5)
        border = at(late_states, 0)
        assert_close(before[2], border, broken.format('states'), STREAM, axes=('row',), atol=2e-5)


def test_gradients_with_starts_inside(entry):
    """Gradients are finite, and pieces without tokens add nothing to them, skipped or read."""
    segments = starts_inside(random_segments(segments=2), (2, 0))
    pieces = split(segments, 2)  # one piece is used by one row, one by none
    used, (_, params) = np.asarray(pieces.used), toy(entry)
    (_, skipped), (_, read) = (
        jax.device_get(scan_gradient(entry)(params, twice(pieces.segments), each))
        for each in (used, used | True)
    )
    fix = (
        'A row without tokens must not divide by their number or take a root of zero, not even '
        'in what `jnp.where` throws away: guard the argument, not the result.'
    )
    assert_finite(skipped, 'gradients are not finite where a row has no tokens in a piece', fix)
    broken = 'reading a piece without tokens changed the gradient'
    assert_gradients_close(read, skipped, broken, fix)


def test_bounded(base_entry):
    """By induction: a step returns the kind of state it was given, and no loop waits on its values."""
    model, params = toy(base_entry)
    segment = at(random_segments(), 0)
    tokens, start = segment.tokens[:, 0], segment.start
    fix = 'A state has a fixed capacity, told by the fields of the layer; say what is filled.'

    def read(state):
        return model.apply({'params': params}, segment, state, train=False)

    def stream(stream):
        return read_token(model, params, tokens, stream, start)

    fresh = fresh_state(model, params, BATCH)
    opened = jax.eval_shape(lambda state: open_stream(model, params, state, BATCH), fresh)
    for step, before, what in ((read, fresh, 'segment'), (stream, opened, 'token')):
        program, (_, after, *_) = jax.make_jaxpr(step, return_shape=True)(before)
        assert_same_types(after, before, f'a {what} changed the kind of state', fix)
        assert_no_open_loop(
            program.jaxpr,
            f'the time for a {what} depends on what is in the memory',
            'Use `scan` or `fori_loop` of a fixed length, or `switch` between fixed sizes.',
        )


@pytest.mark.slow
def test_sharded_is_unsharded(base_entry):
    sizes = dict(data=2, fsdp=2, tensor=2)
    model, params = toy(base_entry)
    segments, every = random_segments(batch=ROWS), np.ones((SEGMENTS,), bool)
    (_, (logits, states)), gradient = scan_gradient(base_entry)(params, segments, every)
    mesh = make_mesh(sizes)
    boxed = jax.eval_shape(lambda: initial_parameters(model, jax.random.key(0)))
    placed = jax.device_put(params, parameter_shardings(mesh, boxed))
    spread = jax.device_put(segments, lanes_sharding(mesh, 1))
    with jax.set_mesh(mesh):
        read = scan_gradient(base_entry)
        (_, (sharded, sharded_states)), its_gradient = read(placed, spread, every)
    broken = f'devices {sizes} changed the'
    fix = (
        'Name the logical axes of the parameters as other layers do, and let no shape or random '
        'number depend on the number of devices.'
    )
    assert_close(sharded, logits, f'{broken} logits', fix, axes=LOGITS, atol=1e-5)
    assert_close(sharded_states, states, f'{broken} states', fix, axes=STATES, atol=1e-5)
    assert_gradients_close(its_gradient, gradient, f'{broken} gradients', fix)


def test_gradients_are_finite_and_right(entry):
    """Directional derivatives against float64 differences, through writes of several segments.

    The function differentiated is the loss of the last segment as a function of the parameters,
    with the memories before it held fixed, so that what a paper detaches is detached on both sides.
    """
    _, params = toy(entry)  # outside: it is kept for other tests, which want float32
    with jax.enable_x64(True):
        model = with_config(entry, layers=1, dtype='float64')
        params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
        segments = jax.device_get(random_segments(segments=3))

        @jax.jit
        def read(params, state, segment):
            def value(params):
                logits, new, _ = model.apply({'params': params}, segment, state, train=False)
                return (jax.nn.log_softmax(logits) * jnp.cos(jnp.arange(VOCAB * 1.0))).sum(), new

            return jax.value_and_grad(value, has_aux=True)(params)

        state = jax.jit(lambda: fresh_state(model, params, BATCH))()
        for number in range(2):
            (_, state), _ = read(params, state, at(segments, number))
        segment = at(segments, 2)
        gradient = jax.device_get(read(params, state, segment)[1])
        random = np.random.default_rng(0)
        direction = jax.tree.map(lambda leaf: random.normal(size=leaf.shape), params)
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
        assert_finite(
            gradient,
            'gradients are not finite',
            'Guard the argument of a division, root or logarithm, not its result.',
        )
        assert_close(
            slope,
            (high - low) / (2 * step),
            'the gradient is not the slope of the loss',
            'A `stop_gradient` or `custom_vjp` on the way from parameters to output of one segment '
            'is wrong; only what goes into the new state may be detached.',
            atol=0.0,
            rtol=1e-5,
        )


def test_float64_is_for_activations_only(base_entry):
    """With JAX_ENABLE_X64, parameters and states are what they are without it."""
    model, segment = with_config(base_entry, layers=1), at(random_segments(), 0)

    def types():
        params = unbox(jax.eval_shape(lambda: initial_parameters(model, jax.random.key(1))))
        read = jax.eval_shape(
            lambda params: model.apply(
                {'params': params}, segment, fresh_state(model, params, BATCH), train=False
            ),
            params,
        )
        return params, read[:2]

    wanted = types()
    with jax.enable_x64(True):
        found = types()
    fix = 'Name the dtype of what is made or drawn; `initial_parameters` casts the parameters.'
    assert_same_types(found, wanted, 'JAX_ENABLE_X64 changed a type', fix)


@pytest.mark.slow
def test_long_streams_stay_accurate(base_entry):
    """60 segments: errors of float32 and of bfloat16 activations do not add up in the memory."""
    _, params = toy(base_entry)
    nearest, changes = LAYERS[base_entry].nearest if base_entry in LAYERS else '', {}
    if nearest:  # a change of dtype can change which entries are nearest: take all
        own = model_config(base_entry)[base_entry]
        changes[base_entry] = own.to_dict() | dict(top_k=own[nearest])
    exact, single, half = (
        with_config(base_entry, layers=1, dtype=dtype, **changes)
        for dtype in ('float64', 'float32', 'bfloat16')
    )
    segments = random_segments(segments=60)
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
        logits = run(exact, wide, segments)[0]
    scale = float(np.abs(logits).max())
    broken = '{} activations move the logits of a long text too far from those of {}'
    fix = (
        'Softmax, sums over tokens, normalizers and state want float32: '
        '`preferred_element_type`, `jnp.promote_types(dtype, jnp.float32)`.'
    )
    found, _ = run(single, params, segments)
    text = broken.format('float32', 'float64')
    assert_close(found, logits, text, fix, axes=LOGITS, atol=5e-6 * scale, rtol=0.0)
    close, states = run(half, params, segments)
    assert close.dtype == jnp.float32, f'logits are {close.dtype}, not float32'
    assert_same_types(
        at(states, -1),
        fresh_state(half, params, BATCH),
        'bfloat16 activations changed the type of a state',
        'Cast what is written to the dtype of the state: `new.astype(old.dtype)`.',
    )
    text = broken.format('bfloat16', 'float64')
    # Of the pairs of two halves some are still chosen and others not.
    most = (6e-2 if nearest else 2e-2) * scale
    assert_close(close, logits, text, fix, axes=LOGITS, atol=most, rtol=0.0)


def test_state_is_stable_under_strict_promotion(base_entry):
    model, params = toy(base_entry)
    segment = at(random_segments(), 0)
    state = fresh_state(model, params, BATCH)
    with jax.numpy_rank_promotion('raise'), jax.numpy_dtype_promotion('strict'):

        def step(state):
            read = functools.partial(model.apply, {'params': params}, segment, train=False)
            return jax.eval_shape(read, state)[1]

        after = step(state)
        for new in (after, step(after)):
            assert_same_types(
                new,
                state,
                'a segment changed the type of a state',
                'A scan carries states: return the shapes and dtypes of `initial_state`.',
            )


@pytest.mark.slow
def test_dropout_draws_anew_in_every_segment(base_entry):
    _, params = toy(base_entry)
    noisy = with_config(base_entry, layers=1, dropout=0.5, attention_dropout=0.5)
    segments = random_segments(segments=1)
    same = jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf]), segments)

    def read(state, segment, key):
        logits, state, _ = noisy.apply(
            {'params': params}, segment, state, train=True, rngs={'dropout': key, 'memory': key}
        )
        return state, logits

    def both(key):
        return read_segments(read, fresh_state(noisy, params, BATCH), same, key)[1]

    compiled = jax.jit(both)
    first, again = (compiled(jax.random.key(3)) for _ in range(2))
    fix = 'Draw from `self.make_rng`, with nothing but the key of the segment.'
    assert_finite(first, 'logits are not finite in training', fix)
    assert_equal(first, again, 'the same key gives other logits', fix, axes=LOGITS)
    # Both segments start a document with the same tokens.
    assert_differs(first[0], first[1], 'two segments have the same dropout', fix)


@pytest.mark.slow
def test_the_whole_prompt_is_read(base_entry):
    """Changing the first tokens of a long prompt changes what follows, if there is a memory."""
    model, params = toys.toy(base_entry)  # two windows together reach the first tokens
    state = fresh_state(model, params, 1)
    if not jax.tree.leaves(state):
        pytest.skip(f'{base_entry} remembers nothing')
    prompts = np.random.default_rng(5).integers(0, VOCAB, (1, 2 * LENGTH + 2)).astype(np.int32)
    other = prompts.copy()
    other[:, 3:LENGTH] = (other[:, 3:LENGTH] + 1) % VOCAB
    logits = []
    for prompt in (prompts, other):
        reader = Reader(model, params, state, np.zeros((1, 0), np.int32))
        reader.read(prompt)
        logits.append(np.asarray(reader.logits))
    assert_differs(
        *logits,
        'the first segment of a prompt, when changed, leaves the logits after it as they were',
        'The state must keep earlier segments of a prompt, and queries must read it.',
        by=1e-4,
    )
