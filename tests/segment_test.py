"""Cutting segments at document starts, reading only the pieces in use, and packing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longmem_jax.errors import UsageError
from longmem_jax.segment import Segment, join_pieces, pack, read_segments, split_at_starts

SEGMENTS, BATCH, LENGTH = 3, 2, 4
SHAPE = (SEGMENTS, BATCH, LENGTH)
SIZE = SEGMENTS * BATCH * LENGTH
FLAGS = st.lists(st.booleans(), min_size=SIZE, max_size=SIZE)
split = jax.jit(split_at_starts, static_argnums=1)


def numbered(valid, start):
    """Segments whose tokens are 0, 1, ... in every lane."""
    tokens = np.arange(SEGMENTS * LENGTH).reshape(SEGMENTS, 1, LENGTH)
    tokens = jnp.asarray(np.broadcast_to(tokens, SHAPE), jnp.int32)
    return Segment(tokens, jnp.asarray(valid), jnp.asarray(start))


def naive(valid, start, max_starts):
    """(reset, tokens) of the pieces of every lane in order, and the number of starts without room."""
    lanes = []
    for lane in range(BATCH):
        pieces, room, dropped = [], max_starts, 0
        for segment in range(SEGMENTS):
            reset, tokens, waiting = False, [], False
            for position in range(LENGTH):
                waiting |= bool(start[segment, lane, position])
                if waiting and not tokens:
                    reset, waiting = True, False
                elif waiting and room:
                    pieces.append((reset, tokens))
                    reset, tokens, waiting, room = True, [], False, room - 1
                elif waiting and valid[segment, lane, position]:
                    dropped, waiting = dropped + 1, False
                if valid[segment, lane, position]:
                    tokens.append(segment * LENGTH + position)
            dropped += waiting
            pieces.append((reset, tokens))
        lanes.append((pieces, dropped))
    return lanes


@given(FLAGS, FLAGS, st.integers(0, 4))
def test_pieces_are_those_of_a_walk_over_the_tokens(valid, start, max_starts):
    valid, start = (np.reshape(flags, SHAPE) for flags in (valid, start))
    segments = numbered(valid, start)
    pieces = jax.device_get(split(segments, max_starts))
    cut = pieces.segments
    assert cut.tokens.shape == (SEGMENTS + max_starts, BATCH, LENGTH)
    for lane, (wanted, dropped) in enumerate(naive(valid, start, max_starts)):
        assert pieces.dropped[lane] == dropped
        wanted = wanted + [(False, [])] * (len(cut.tokens) - len(wanted))
        found = [
            (bool(cut.start[i, lane]), cut.tokens[i, lane][cut.valid[i, lane]].tolist())
            for i in range(len(cut.tokens))
        ]
        assert found == wanted
    used = np.asarray(cut.valid).any((1, 2)) | np.asarray(cut.start).any(1)
    np.testing.assert_array_equal(pieces.used, used)
    np.testing.assert_array_equal(join_pieces(pieces, cut.tokens), segments.tokens)
    np.testing.assert_array_equal(join_pieces(pieces, cut.valid), valid)


def test_enough_room_for_a_start_at_every_position():
    flags = np.ones(SHAPE, bool)
    pieces = split(numbered(flags, flags), SEGMENTS * (LENGTH - 1))
    assert pieces.used.all() and not pieces.dropped.any()
    assert (np.asarray(pieces.segments.valid).sum(2) == 1).all()


def test_without_starts_inside_the_pieces_are_the_segments():
    valid, start = np.ones(SHAPE, bool), np.zeros(SHAPE, bool)
    start[1, 0, 0] = True
    segments = numbered(valid, start)
    pieces = split(segments, 2)
    np.testing.assert_array_equal(pieces.used, [True] * SEGMENTS + [False] * 2)
    np.testing.assert_array_equal(pieces.segments.tokens[:SEGMENTS], segments.tokens)
    np.testing.assert_array_equal(pieces.segments.valid[:SEGMENTS], valid)
    np.testing.assert_array_equal(pieces.segments.start[:SEGMENTS], start[..., 0])


def test_unused_pieces_are_not_read_and_gradients_flow_past_them():
    flags = np.ones(SHAPE, bool)
    pieces = split(numbered(flags, flags & False), 2)

    def read(state, segment, key):
        # A division by the number of tokens: NaN if a piece without any were read.
        mean = (segment.tokens * segment.valid).sum(1) / segment.valid.sum(1)
        return state * 0.5 + mean, mean

    def total(state, remat):
        state, means = read_segments(
            read, state, pieces.segments, jax.random.key(0), remat=remat, used=pieces.used
        )
        return state.sum(), means

    for remat in (False, True):
        gradient, means = jax.grad(total, has_aux=True)(jnp.ones((BATCH,)), remat)
        np.testing.assert_array_equal(gradient, 0.5**SEGMENTS)
        np.testing.assert_array_equal(means[:, 0], [1.5, 5.5, 9.5, 0.0, 0.0])


def test_starts_of_the_wrong_shape_are_refused():
    flags = jnp.ones(SHAPE, bool)
    segments = numbered(flags, flags)
    with pytest.raises(UsageError, match='call split_at_starts first'):
        pack(jax.tree.map(lambda leaf: leaf[0], segments))
    with pytest.raises(UsageError, match='need no splitting'):
        split_at_starts(segments.replace(start=flags[..., 0]), 1)
    with pytest.raises(UsageError, match='max_starts = -1, allowed are 0 and more'):
        split_at_starts(segments, -1)


def test_packed_tokens_come_first_in_their_order():
    tokens = jnp.asarray([[5, 6, 7, 8], [1, 2, 3, 4], [9, 9, 9, 9]], jnp.int32)
    valid = jnp.asarray([[False, True, False, True], [True] * 4, [False] * 4])
    packed, packing = pack(Segment(tokens, valid, jnp.zeros((3,), bool)))
    np.testing.assert_array_equal(packed.tokens[0, :2], [6, 8])
    np.testing.assert_array_equal(packed.tokens[1], [1, 2, 3, 4])
    np.testing.assert_array_equal(packed.valid.sum(axis=1), [2, 4, 0])
    np.testing.assert_array_equal(packed.valid[0], [True, True, False, False])
    np.testing.assert_array_equal(packing.unpack(packed.tokens), tokens)


def test_results_of_any_rank_are_packed_and_unpacked():
    random = np.random.default_rng(0)
    valid = random.random((3, 6)) < 0.5
    segment = Segment(np.zeros((3, 6), np.int32), valid, np.zeros((3,), bool))

    @jax.jit
    def both(leaf):
        _, packing = pack(segment)
        there = packing.pack(leaf)
        return there, packing.unpack(there)

    for shape in ((3, 6), (3, 6, 2), (3, 6, 2, 4)):
        leaf = random.normal(size=shape).astype(np.float32)
        there, back = jax.device_get(both(leaf))
        np.testing.assert_array_equal(back, leaf)
        for lane in range(3):
            number = int(valid[lane].sum())
            np.testing.assert_array_equal(there[lane, :number], leaf[lane][valid[lane]])
