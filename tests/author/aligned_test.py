"""Chunks that begin where documents have a multiple of `chunk` tokens."""

import jax
import numpy as np
import pytest

import longmem_jax
from longmem_jax.author import aligned

LANES = 400
chunks = jax.jit(aligned.chunks, static_argnums=3)


def sequences(length, starts):
    """Tokens before, valid and starts of many lanes, from no start to one at every token."""
    random = np.random.default_rng(length)
    before = random.integers(0, 40, LANES).astype(np.int32)
    count = random.integers(0, length + 1, LANES)
    valid = np.arange(length) < count[:, None]
    if not starts:
        return before, valid, None
    often = random.choice([0.02, 0.2, 0.6, 1.0], (LANES, 1))
    # A start at padding is at the first one, see `segment.pack`.
    start = (random.random(valid.shape) < often) & (np.arange(length) <= count[:, None])
    return before, valid, start


def positions(before, start):
    """Document and position in it of every token of a lane; a walk over the tokens."""
    document, position, found = 0, before - 1, []
    for starts in start:
        document, position = (document + 1, 0) if starts else (document, position + 1)
        found.append((document, position))
    return found


@pytest.mark.parametrize('starts', [False, True])
@pytest.mark.parametrize('length, chunk', [(1, 3), (5, 3), (7, 16), (24, 4), (24, 1)])
def test_chunks_lie_within_borders_and_hold_every_token(length, chunk, starts):
    before, valid, start = sequences(length, starts)
    source, there, place = (
        np.asarray(leaf) for leaf in vars(chunks(before, valid, start, chunk)).values()
    )
    of_token, in_chunk = place // chunk, place % chunk
    assert source.shape[1] <= 3 * (length // chunk) + 3
    for lane in range(LANES):
        begins = start[lane] if starts else np.zeros(length, bool)
        tokens = [i for i in range(length) if valid[lane, i] or begins[i]]
        where = positions(before[lane], begins)
        for i in tokens:
            slot = of_token[lane, i], in_chunk[lane, i]
            assert source[lane][slot] == i and there[lane][slot], 'a token is in no chunk'
        assert there[lane].sum() <= length, 'a token is in two chunks'
        for number in set(of_token[lane, tokens]):
            inside = [where[i] for i in tokens if of_token[lane, i] == number]
            periods = {(document, position // chunk) for document, position in inside}
            first_ones = all(document > 0 and period == 0 for document, period in periods)
            assert len(periods) == 1 or first_ones, f'tokens of {sorted(periods)} share a chunk'
            # What follows the end of a mini-batch begins with other weights.
            ends = [position == chunk - 1 for _, position in inside]
            assert not any(ends[:-1]), 'a chunk goes on behind a border'


def test_a_sequence_that_begins_at_a_border_has_no_more_chunks_than_it_must():
    found = chunks(np.asarray([0, 5], np.int32), np.ones((2, 12), bool), None, 4)
    used = np.asarray(found.there).any(axis=2)
    assert used.tolist() == [[True, True, True, False], [True, True, True, True]]


def test_chunks_that_no_lane_has_are_skipped():
    where = chunks(np.zeros(2, np.int32), np.ones((2, 12), bool), None, 4)

    def read(state, flags, inputs):
        return state + 1, inputs[0]

    x = np.arange(24, dtype=np.float32).reshape(2, 1, 12)
    state, y = jax.jit(lambda x: aligned.read_chunks(read, where, 0, (x,), x[:, 0] > 0))(x)
    assert state == 3, 'a chunk without tokens was read'
    np.testing.assert_array_equal(y, x)


@pytest.mark.parametrize(
    'make', [longmem_jax.Titans, pytest.param(longmem_jax.TTT, marks=pytest.mark.slow)]
)
def test_starts_anywhere_are_read_as_token_by_token(make):
    """Three segments of many lanes, of which every one has other starts."""
    lanes, length = 24, 7
    layer = make(d_model=8, num_heads=2, segment_length=length, chunk=3, init_std=0.5)
    random = np.random.default_rng(0)
    x = random.normal(size=(3, lanes, length, 8)).astype(np.float32)
    start = random.random(x.shape[:3]) < random.choice([0.1, 0.3, 0.6], (lanes, 1))
    state = layer.start(lanes)
    variables = jax.jit(layer.init)(jax.random.key(0), x[0], state)

    @jax.jit
    def read(x, start, state):
        return layer.apply(variables, x, state, start=start)[:2]

    alone = state
    for segment, (given, begins) in enumerate(zip(x, start, strict=True)):
        y, state = read(given, begins, state)
        for i in range(length):
            wanted, alone = read(given[:, i : i + 1], begins[:, i : i + 1], alone)
            where = f'segment {segment}, token {i}: tokens of earlier documents were seen'
            np.testing.assert_allclose(y[:, i], wanted[:, 0], atol=1e-4, err_msg=where)
