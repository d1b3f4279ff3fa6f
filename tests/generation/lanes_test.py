"""Lanes that are read, and begin their segments, one after the other give what all at once give."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from longmem_jax.devices.sharding import make_mesh
from longmem_jax.generation import cache, contexts, continuations, lanes, reader, stream
from longmem_jax.models.kinds import make_model
from tests.toys import LENGTH, VOCAB, model_config, parameters, random_segments, toy

LANES = 3


def texts():
    """int32 [LANES, 3 segments]."""
    tokens = np.asarray(random_segments(segments=3, batch=LANES).tokens)
    return tokens.swapaxes(0, 1).reshape(LANES, -1)


def read_at(monkeypatch, many, program, *args):
    """What a program gives whose lanes are read in turn from `many` tokens on, and its loops."""
    monkeypatch.setattr(lanes, 'MANY', many)
    lowered = jax.jit(functools.partial(program.__wrapped__, *args[:2])).lower(*args[2:])
    return lowered.compile()(*args[2:]), lowered.as_text().count('stablehlo.while')


def assert_same(found, wanted):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5)


@pytest.mark.parametrize('name', ['full', 'infini'])
def test_read_one_after_the_other(name, monkeypatch):
    model, params = toy(name)
    tokens = np.asarray(random_segments(batch=LANES).tokens)
    counts, row = jnp.asarray([LENGTH, 1, 3]), jnp.asarray(tokens[1])
    state = reader.fresh_state(model, params, LANES)

    def read(many):
        call = functools.partial(read_at, monkeypatch, many)
        after, loops = call(reader._read_segment, model, params, state, tokens[0])
        opened, more = call(stream._read_first, model, params, after, row, counts)
        return (after, opened), loops, more

    (found, *in_turn), (wanted, *at_once) = read(LENGTH), read(LENGTH + 1)
    assert_same(found, wanted)
    assert all(a > b for a, b in zip(in_turn, at_once, strict=True)), 'lanes are read at once'


def test_texts_of_several_lengths_one_after_the_other(monkeypatch):
    model, params = toy('compressive')
    text = texts()
    rows = contexts.cut([text[0], text[1][:LENGTH]], LANES, LENGTH)
    state, found = reader.fresh_state(model, params, LANES), []
    for many in (LENGTH, LENGTH + 1):
        monkeypatch.setattr(lanes, 'MANY', many)
        found.append(contexts._read(model, params, state, rows))
    assert_same(*found)


@pytest.mark.parametrize('starts', [False, True], ids=['', 'with starts'])
@pytest.mark.parametrize('name', ['compressive', 'infini'])
def test_segments_begin_one_after_the_other(name, starts):
    """Lanes are at different places of their segments, and some begin new texts."""
    model, params = toy(name)
    tokens, state = texts(), reader._fresh(model, params, LANES)
    counts = jnp.asarray([LENGTH, LENGTH - 1, 2])
    _, opened = stream.read_open_segment(model, params, state, tokens[:, :LENGTH], counts)

    def read(in_turn):
        step = jax.jit(functools.partial(stream.read_token, model, params, in_turn=in_turn))
        reached, found = opened, []
        for place in range(LENGTH + 3):
            start = jnp.asarray([place == 2, False, place in (0, 2)]) if starts else None
            logits, reached = step(tokens[:, LENGTH + place], reached, start)
            found.append(logits)
        return found, reached

    assert_same(read(True), read(False))


@pytest.mark.parametrize('many', [4, 5], ids=['in turn', 'at once'])
def test_a_text_in_one_segment_is_read_in_pieces(monkeypatch, many):
    """Its numbers are those of segments, in what was read and in what is drawn."""
    monkeypatch.setattr(lanes, 'MANY', many)
    monkeypatch.setattr(stream, 'PIECE', 4)
    monkeypatch.setattr(cache, 'ROOM', 1)
    config = model_config('full')
    config.full.window = 3 * LENGTH
    model = make_model(config, LENGTH)
    params, tokens, longest = parameters(model, 0), texts()[:, : 2 * LENGTH + 1], 2 * LENGTH + 3
    whole = cache.for_texts(model, longest, in_one_segment=LANES)
    assert whole.segment_length == longest and cache.num_tokens(whole.config) == 1
    for counts in ([2 * LENGTH + 1, 4, 7], [1, 2 * LENGTH, 0]):
        found = []
        for made in (whole, model):
            mesh = make_mesh(dict(data=1), jax.devices()[:1])
            read, length = contexts.ContextReader(made, params, mesh, LANES), made.segment_length
            ends = [contexts.num_full(count, length) for count in counts]
            states = read.read([row[:end] for row, end in zip(tokens, ends, strict=True)])
            rows = zip(tokens, ends, counts, strict=True)
            pending = [row[end:count] for row, end, count in rows]
            drawn = continuations.continue_texts(read, states, pending, 2, vocab_size=VOCAB)
            found.append(np.stack([row for row in next(drawn) if row.size]))
        some = np.asarray(counts) > 0
        np.testing.assert_array_equal(*(drawn[some] for drawn in found))


def test_many_tokens_are_read_one_lane_at_a_time():
    seen, rows = [], jnp.ones((LANES, 2))
    for tokens in (lanes.MANY - 1, lanes.MANY):
        found = lanes.lane_by_lane(lambda row: seen.append(row.shape) or 2 * row, tokens, rows)
        np.testing.assert_array_equal(found, 2 * rows)
    assert seen == [(LANES, 2), (1, 2)]


@pytest.mark.parametrize('axis', ['', 'data'])
def test_only_lanes_that_devices_do_not_share_are_read_in_turn(axis):
    mesh = jax.make_mesh((2,), (axis or 'model',), devices=jax.devices()[:2])
    with jax.set_mesh(mesh):
        assert lanes.one_by_one() == (not axis)
