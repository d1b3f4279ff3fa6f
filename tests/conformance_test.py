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
from longmem_jax.generation.stream import open_stream, read_open_segment, read_token
from longmem_jax.in_place import readable_state
from longmem_jax.memory.registry import LAYERS
from longmem_jax.models.kinds import KINDS
from longmem_jax.models.parameters import initial_parameters, unbox
from longmem_jax.segment import Segment, join_pieces, read_segments, split_at_starts
from tests import recurrent, toys
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
# One layer: what several do together is the backbone's, and tested with it and with the goldens. With
# parameters that have moved from their initial values.
toy = toys.moved
# Rows of the programs with gradients: the least that eight devices in a mesh of 2 x 2 x 2 can share.
ROWS = 2 * BATCH
# Axes of logits, and of states after each segment.
LOGITS, STATES = ('segment', 'row', 'position'), ('segment', 'row')
MASK = 'Mask with `segment.valid` (valid tokens come first) before anything is written or summed.'
STREAM = (
    '`open_segment`, `extend` and `close_segment` must give the numbers of `__call__`; '
    '`extend` and `close_segment` read and write the first `count` tokens only.'
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
    return reports(model, params, segments)[:2]


def reports(model, params, segments, state=None, *, train=False):
    """`toys.reports` as numpy arrays, one program whatever the first state is."""
    if state is None:
        state = first_state(model, params, segments.start.shape[1])
    return jax.device_get(toys.reports(model, params, segments, state, train=train))


first_state = jax.jit(fresh_state, static_argnums=(0, 2))


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
        'layer remembers: every leaf [batch, ...]. A kind of model resets the rows with '
        '`segment.start` before it reads them: `in_place.reset_lanes`.'
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
        'What is written follows from the number of valid tokens of each row by itself, '
        '`segment.num_valid[:, None]`: not of the batch, and not of row 0. A state that is made again '
        'as a whole keeps the old one where a row has no tokens: `select_lanes`.',
    )
    assert_equal(
        jax.tree.map(lambda leaf: leaf[:, 0], padded),
        jax.tree.map(lambda leaf: leaf[:, 0], states),
        'padding in row 1 changed the state of row 0',
        'No sum, mean, sort or reshape may mix rows: axis 0 of every array is the batch.',
        axes=('segment',),
    )


# Leaves of states in the dtype of activations: vectors as they were, never added to.
COPIES = {
    'hidden', 'keys', 'values', 'vectors', 'recent', 'tails', 'window', 'buffer', 'pending',
    'compressed', 'rows_keys', 'rows_values',
}  # fmt: skip


def test_sums_are_float32(entry):
    """With bfloat16 activations; a sum of bfloat16 swallows what is added after a few hundred tokens."""
    model = with_config(entry, layers=1, dtype='bfloat16')
    params = jax.eval_shape(lambda: unbox(initial_parameters(model, jax.random.key(0))))
    state = jax.eval_shape(lambda params: fresh_state(model, params, BATCH), params)
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        names = {getattr(key, 'name', '') for key in path}
        assert leaf.dtype != jnp.bfloat16 or names & COPIES, (
            f'state{jax.tree_util.keystr(path)} is bfloat16 if activations are: what is added to wants '
            'float32, `jnp.promote_types(dtype, jnp.float32)`. Vectors that are only copied are named '
            f'{", ".join(sorted(COPIES))}.'
        )


def carries(model):
    """Whether any layer remembers earlier segments, as far as a field `carry` says so."""
    config = model.config
    return all(config[layer].get('carry', True) for layer in config.attention)


CARRY = (
    'With `carry=False` every segment begins with `initial_state`, and the state stays as it is.'
)
DEAD = (
    'What no later segment reads need not be in the state; what it should read, read in `__call__`.'
)


# By the beginning of an entry's name, the end of a leaf's path: arrays that other settings read, and
# that are there so that files of memories name the same arrays. The sum of keys, of memories that do not
# divide by it; the histogram for sticky memories, without these.
UNREAD = (
    ('memsizer', '.normalizer'),
    ('infini:sequential', '.normalizer'),
    ('infinity_former:clearing', '.long.mass'),
)


def test_all_that_is_remembered_is_written_and_read(entry):
    """Every leaf of a state but whole numbers, which are compared with those of streams."""
    model, params = toy(entry)
    segments = random_segments()
    _, states, _ = reports(model, params, segments)
    fresh = jax.device_get(first_state(model, params, BATCH))
    later = segments.replace(start=jnp.zeros_like(segments.start))
    random = np.random.default_rng(0)
    for number, (path, begin) in enumerate(jax.tree_util.tree_leaves_with_path(fresh)):
        if not np.issubdtype(begin.dtype, np.floating):
            continue
        name = f'state{jax.tree_util.keystr(path)}'
        unread = any(entry.startswith(first) and name.endswith(last) for first, last in UNREAD)
        if unread or not begin.size:
            continue
        written = jax.tree.leaves(states)[number]
        unchanged = np.broadcast_to(begin, written.shape)
        if not carries(model):
            assert_equal(written, unchanged, f'a segment changed {name}', CARRY)
            continue
        assert_differs(written, unchanged, f'{name} is never written', DEAD)
        read = False
        for segment in (1, 2):  # vectors that wait for others may be none at one of these borders
            leaves, structure = jax.tree.flatten(at(states, segment))
            noise = random.normal(size=begin.shape).astype(begin.dtype)
            changed = [*leaves[:number], leaves[number] + noise, *leaves[number + 1 :]]
            logits, found = (
                reports(model, params, later, structure.unflatten(state))[0]
                for state in (leaves, changed)
            )
            read = read or not np.array_equal(logits, found)
        assert read, f'{name}, when changed, left all later logits as they were. {DEAD}'


def test_every_parameter_has_an_influence(entry):
    """On the losses of several segments, with no parameter at its initial value.

    A parameter without a gradient is trained by a loss of its own, or is a running average: then the
    logits must change with it.
    """
    model, params = toy(entry)
    segments, every = random_segments(), np.ones((SEGMENTS,), bool)
    _, gradient = scan_gradient(entry)(params, twice(segments), every)
    leaves, structure = jax.tree.flatten(params)
    for number, (path, leaf) in enumerate(jax.tree_util.tree_leaves_with_path(gradient)):
        if np.any(leaf):
            continue
        name = '/'.join(key.key for key in path)
        logits, _, aux = reports(model, params, segments)
        assert names_of_losses(model.config) or aux.statistics, (
            f'{name} has no gradient: no logit depends on it, or `stop_gradient` is on the only way to '
            'it. Detach the state, not what is computed from parameters in this segment.'
        )
        more = np.linspace(0.5, 1, leaf.size, dtype=leaf.dtype).reshape(leaf.shape)
        changed = [*leaves[:number], leaves[number] + more, *leaves[number + 1 :]]
        found, _, _ = reports(model, structure.unflatten(changed), segments)
        assert_differs(found, logits, f'{name}, when changed, left all logits as they were', DEAD)


def names_of_losses(config):
    """Names of all auxiliary losses that a model of `config.model` declares."""
    layers = {*config.attention, *config.feed_forward}
    declared = [LAYERS[layer].losses(config[layer]) for layer in sorted(layers)]
    return sorted({*sum(declared, ()), *KINDS[config.kind].losses})


def test_reports(entry):
    """`Aux`: declared losses, finite without tokens, blind to padding, means over the batch."""
    model, params = toy(entry)
    declared, segments = names_of_losses(model.config), jax.device_get(random_segments())

    def read(segments):  # some losses are computed in training only
        return reports(model, params, segments, train=bool(declared))[2]

    plain = read(segments)
    assert sorted(plain.losses) == declared, (
        f'`Aux.losses` are {sorted(plain.losses)}, but `Entry.losses` declares {declared}'
    )
    valid = np.array(segments.valid)
    valid[1:3] = False
    empty = read(segments.replace(valid=valid))
    assert_finite(
        empty,
        'a segment of padding in all rows gives an `Aux` that is not finite',
        'Divide by `jnp.maximum(number, 1)`: there may be no token to average over.',
    )
    valid = np.array(segments.valid)
    valid[:, 0, 3:] = valid[:, 1, 2:] = valid[2, 0] = False
    padded, other = (
        read(some.replace(valid=valid)) for some in (segments, change_tokens(segments, ~valid))
    )
    assert_equal(other, padded, 'what stands in the padding changed `Aux`', MASK, axes=('segment',))
    # Rows keep their places, since draws may differ between them: what is a mean over rows is the same
    # for (A, B) and (C, D) as for (A, D) and (C, B).
    others = change_tokens(segments, np.ones(valid.shape, bool))
    rows = np.arange(BATCH)[None, :, None] == 0
    mixed = [
        read(segments.replace(tokens=np.where(rows, first.tokens, second.tokens)))
        for first, second in ((others, others), (segments, others), (others, segments))
    ]
    every = np.ones((SEGMENTS,), bool)
    (_, (_, _, doubled)), _ = scan_gradient(entry)(params, twice(segments), every)
    for kind in ('losses', 'metrics'):
        # The largest of all rows is no mean over them.
        both, other, left, right, larger = (
            {name: leaf for name, leaf in getattr(aux, kind).items() if not name.endswith('_max')}
            for aux in (plain, *mixed, doubled)
        )
        assert_close(
            jax.tree.map(np.add, left, right),
            jax.tree.map(np.add, both, other),
            f'`Aux.{kind}` of a batch are not the means of those of its halves',
            MEANS,
            axes=('segment',),
            atol=1e-6,
            rtol=1e-4,
        )
        assert_close(
            jax.device_get(larger),
            {name: both[name] for name in larger},
            f'`Aux.{kind}` of twice as many rows differ',
            MEANS,
            axes=('segment',),
            atol=1e-6,
            rtol=0.05,
        )


MEANS = 'Average over the rows: hosts and devices have a part of the batch each, of equal size.'
# Layers and kinds with a field `gradients`, as their sections are named.
DETACHED = [
    name
    for name in NAMES
    if ':' not in name
    and 'gradients' in (model_config(name)[name] if name in model_config(name) else {})
]


@pytest.mark.parametrize('name', DETACHED)
@pytest.mark.parametrize('gradients', [True, False])
def test_gradients_reach_earlier_segments_only_where_asked(name, gradients):
    _, params = toy(name)
    section = model_config(name)[name].to_dict() | dict(gradients=gradients)
    model = with_config(name, layers=1, **{name: section})
    first, second = (at(random_segments(), number) for number in range(2))

    @jax.jit
    @jax.grad
    def to_first(early):
        state = fresh_state(model, params, BATCH)
        state = model.apply({'params': early}, first, state, train=False)[1]
        logits, _, _ = model.apply({'params': params}, second, state, train=False)
        return loss_of(logits, second.valid)

    found = any(np.any(leaf) for leaf in jax.tree.leaves(to_first(params)))
    assert found == gradients, (
        f'with gradients={gradients} {"no" if gradients else "a"} gradient of the second segment '
        'reaches the first: `if not self.gradients: state = jax.lax.stop_gradient(state)`'
    )


def test_no_lapack(entry):
    """In a training step: on CPUs, two of its calls at once can wait for each other for ever."""
    _, params = toy(entry)
    model = with_config(entry, layers=1, dropout=0.1, attention_dropout=0.1)
    segment, key = at(random_segments(), 0), jax.random.key(0)

    def loss(params):
        state = fresh_state(model, params, BATCH)
        rngs = {'dropout': key, 'memory': key}
        return model.apply({'params': params}, segment, state, train=True, rngs=rngs)[0].sum()

    text = jax.jit(jax.grad(loss)).lower(params).as_text()
    assert 'lapack' not in text, (
        'the step calls LAPACK: see `layers/triangular.py` for solves and orthonormal vectors by '
        'products of matrices'
    )


def loss_of(logits, valid):
    """Contribution of one or more segments to the losses in this file."""
    return jnp.where(valid[..., None], jnp.square(jax.nn.log_softmax(logits)), 0.0).sum()


@functools.cache
def scan_gradient(name):
    """Reads segments in a scan, compiled once; segments are recomputed in the backward pass.

    Returns:
      (parameters, segments, used) to ((loss, (logits, states, aux)), gradients of the
      parameters).
    """
    model, params = toy(name)

    def loss(params, segments, used):
        def read(state, segment, key):
            logits, state, aux = model.apply({'params': params}, segment, state, train=False)
            return state, (logits, readable_state(state), aux)

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


@pytest.mark.parametrize('room', [LENGTH - 1, LENGTH])
def test_open_at_once_is_forward(entry, room):
    """The first tokens of a segment at once, then token by token over its border.

    Some lanes get all `room` tokens, others fewer or none, and padding.
    """
    model, params = toy(entry)
    segments = jax.device_get(random_segments())
    wanted, _ = run(model, params, segments)
    text = segments.tokens[1:].swapaxes(0, 1).reshape(BATCH, -1)
    wanted = wanted[1:].swapaxes(0, 1).reshape(BATCH, -1, VOCAB)
    _, read = stream_step(entry)
    lanes, nowhere = np.arange(BATCH), np.zeros((BATCH,), bool)

    @jax.jit
    def opened(counts):
        fresh = fresh_state(model, params, BATCH)
        before = model.apply(
            {'params': params}, at(segments, 0), fresh, train=False, method='hidden'
        )[1]
        return read_open_segment(model, params, before, text[:, :room], counts)

    for counts in ((room, 0), (1, room), (room - 1, 2)):
        where, found = np.asarray(counts, np.int32), []
        broken = f'{counts} of {room} tokens at once, then token by token, give other logits'
        logits, stream = opened(where)
        some = where > 0
        assert_close(
            logits[some], wanted[lanes, where - 1][some], broken, STREAM, axes=('row',), atol=2e-5
        )
        for step in range(LENGTH + 1):
            one, stream = read(text[lanes, where + step], stream, nowhere)
            found.append(one)
        then = wanted[lanes[:, None], where[:, None] + np.arange(LENGTH + 1)]
        assert_close(np.stack(found, 1), then, broken, STREAM, axes=('row', 'position'), atol=2e-5)


@pytest.mark.slow
def test_an_open_segment_is_extended_with_padding(entry):
    """Rows at different positions get different numbers; padding may pass the segment's end."""
    model, params = toy(entry)
    segments = jax.device_get(random_segments())
    wanted, _ = run(model, params, segments)
    text = segments.tokens.swapaxes(0, 1).reshape(BATCH, -1)
    wanted = wanted.swapaxes(0, 1).reshape(BATCH, -1, VOCAB)
    opened, read = stream_step(entry)
    lanes, nowhere = np.arange(BATCH), np.zeros((BATCH,), bool)
    begin, size = np.asarray([LENGTH - 2, 1], np.int32), LENGTH - 2

    @jax.jit
    def extend(stream, tokens, counts):
        logits, cache = model.apply(
            {'params': params}, tokens, stream.cache, stream.index, counts, method='extend'
        )
        return logits[:, 0], stream.replace(cache=cache, index=stream.index + counts)

    for counts in ((2, size), (1, 2), (0, 1)):
        stream, where = jax.tree.map(jnp.copy, opened), np.zeros_like(begin)
        while (where < begin).any():  # rows that are where they should be get padding
            one = (where < begin).astype(np.int32)
            _, stream = extend(stream, text[lanes[:, None], where[:, None] + np.arange(size)], one)
            where = where + one
        logits, stream = extend(
            stream, text[lanes[:, None], where[:, None] + np.arange(size)], np.asarray(counts)
        )
        where, some = where + np.asarray(counts), np.asarray(counts) > 0
        broken = (
            f'{counts} tokens at positions {tuple(begin)} and padding after them give other logits'
        )
        assert_close(
            logits[some], wanted[lanes, where - 1][some], broken, STREAM, axes=('row',), atol=2e-5
        )
        for step in range(LENGTH + 1):
            found, stream = read(text[lanes, where + step], stream, nowhere)
            then = wanted[lanes, where + step]
            assert_close(found, then, f'later, {broken}', STREAM, axes=('row',), atol=2e-5)


@pytest.mark.parametrize(
    'name', [pytest.param(n, marks=pytest.mark.slow) if ':' in n else n for n in recurrent.NAMES]
)
@pytest.mark.parametrize('starts', [False, True])
def test_chunks_are_steps(name, starts):
    """Values and gradients of a recurrent memory, with padding and starts inside of chunks."""
    length = 8
    inputs, memory = recurrent.some_inputs(name, length)
    number = np.arange(length)
    valid = number < np.asarray([length, 5])[:, None]
    start = np.isin(number, (1, 2, 5)) & (np.arange(BATCH)[:, None] == 0) if starts else None

    @functools.partial(jax.jit, static_argnums=2)
    @functools.partial(jax.value_and_grad, argnums=(0, 1), has_aux=True)
    def read(inputs, memory, by_steps):
        found = recurrent.read_inputs(name, inputs, memory, valid, start, by_steps=by_steps)
        random = np.random.default_rng(0)
        total = sum(
            (leaf * random.normal(size=leaf.shape)).sum() for leaf in jax.tree.leaves(found)
        )
        return total, found

    (_, wanted), slopes = read(inputs, memory, True)
    (_, found), found_slopes = read(inputs, memory, False)
    fix = (
        '`chunked` must be `step` for n tokens: `sight.pairs` are the pairs of one document, '
        '`sight.before` and `sight.at_end` what is seen of the state before and after; inputs of zeros, '
        'the padding, must write nothing, so decays are logarithms.'
    )
    for what, part, right in (
        ('states', found[0], wanted[0]),
        ('reads', found[1], wanted[1]),
        ('gradients', found_slopes, slopes),
    ):
        largest = max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(right))
        assert_close(part, right, f'chunks give other {what} than steps', fix, atol=2e-5 * largest)


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
    (_, (logits, states, _)), gradient = scan_gradient(base_entry)(params, segments, every)
    mesh = make_mesh(sizes)
    boxed = jax.eval_shape(lambda: initial_parameters(model, jax.random.key(0)))
    placed = jax.device_put(params, parameter_shardings(mesh, boxed))
    spread = jax.device_put(segments, lanes_sharding(mesh, 1))
    with jax.set_mesh(mesh):
        read = scan_gradient(base_entry)
        (_, (sharded, sharded_states, _)), its_gradient = read(placed, spread, every)
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
