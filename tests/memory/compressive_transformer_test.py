"""Compressive Transformer: eviction, compression and its training."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longmem_jax.memory.compressive.by_age import at_shifts, of_segment, shift_right
from longmem_jax.memory.compressive.compression import most_used
from longmem_jax.memory.compressive.evicting import CompressiveState, evict
from longmem_jax.memory.registry import LAYERS
from tests.toys import BATCH, LENGTH, parameters, random_segments, run, toy, with_config


@given(st.integers(2, 4), st.integers(1, 4), st.lists(st.integers(0, 5), min_size=1, max_size=9))
def test_evict_loses_and_repeats_nothing(rate, groups, lengths):
    """Segments of any length: memory, pending and compressed vectors contain all tokens, in order."""
    capacity = rate * groups
    spare = rate - 1
    state = CompressiveState(
        hidden=np.zeros((1, capacity, 1), np.float32),
        count=np.zeros((1,), np.int32),
        compressed=np.zeros((1, 1, 1), np.float32),
        compressed_count=np.zeros((1,), np.int32),
        pending=np.zeros((1, spare, 1), np.float32),
        pending_count=np.zeros((1,), np.int32),
        usage=np.zeros((1, spare + capacity), np.float32),
    )
    step = jax.jit(evict, static_argnums=4)
    seen, compressed, usage = 0, [], []
    for length in lengths:
        # A vector's usage grows to its own number, whatever its position.
        rows = np.zeros((1, 5, 1), np.float32)
        rows[0, :length, 0] = seen + 1 + np.arange(length)
        received = np.where(state.hidden[..., 0] > state.usage[:, spare:], state.hidden[..., 0], 0)
        given = state, rows, np.asarray([length], np.int32), np.float32(received), rate
        state, out = jax.device_get(step(*given))
        seen += length
        number = int(out.groups[0]) * rate
        compressed += np.asarray(out.vectors)[0, :number, 0].tolist()
        usage += np.asarray(out.usage)[0, :number].tolist()
        kept, waiting = int(state.count[0]), int(state.pending_count[0])
        memory = np.asarray(state.hidden)[0, capacity - kept :, 0].tolist()
        pending = np.asarray(state.pending)[0, spare - waiting :, 0].tolist()
        assert compressed + pending + memory == list(range(1, seen + 1))
        assert kept == min(seen, capacity) and waiting < rate


@given(st.data())
def test_most_used_is_the_top_in_order(data):
    rate, number = 2, 8
    groups = data.draw(st.integers(0, number // rate))
    usage = np.asarray(data.draw(st.permutations(range(number))), np.float32)
    rows = np.arange(number, dtype=np.float32).reshape(1, number, 1)
    kept = most_used(
        jnp.asarray(rows), jnp.asarray(usage)[None], jnp.asarray([groups], jnp.int32), rate
    )
    best = sorted(sorted(range(groups * rate), key=lambda i: -usage[i])[:groups])
    assert kept.shape == (1, number // rate, 1)
    np.testing.assert_array_equal(kept[0, :groups, 0], best)


@given(st.lists(st.integers(0, 5), min_size=3, max_size=3))
def test_shift_right(places):
    rows = np.random.default_rng(0).normal(size=(1, 2, 3, 4)).astype(np.float32)
    moved = shift_right(jnp.asarray(rows), jnp.asarray([places]), 5)
    for query, by in enumerate(places):
        wanted = np.zeros((2, 9), np.float32)
        wanted[:, by : by + 4] = rows[0, :, query]
        np.testing.assert_array_equal(moved[0, :, query], wanted)


@pytest.mark.parametrize('n', [6, 7])
def test_scores_by_age_of_a_segment_are_those_at_its_shifts(n):
    rate, old, slots = 3, 4, 7
    random = np.random.default_rng(0)
    queries, table, weight = (
        jnp.asarray(random.normal(size=shape), jnp.float32)
        for shape in ((rate, 2, n, 5), (old, 5), (n, slots))
    )
    first = np.arange(rate, dtype=np.int32)
    position = np.arange(n, dtype=np.int32)[None]
    seen = np.where(position >= first[:, None], (position - first[:, None]) // rate + 1, 0)

    def moved(queries, table):
        return of_segment(queries, table, first, rate, slots)

    def shifted(queries, table):
        return at_shifts(queries, table, seen, slots)

    @functools.partial(jax.jit, static_argnums=0)
    def results(read):
        def total(*inputs):
            scores = read(*inputs)
            return (scores * weight).sum(), scores

        (_, scores), gradients = jax.value_and_grad(total, (0, 1), has_aux=True)(queries, table)
        return scores, gradients

    (scores, gradients), (wanted, expected) = results(moved), results(shifted)
    np.testing.assert_allclose(scores, wanted, rtol=1e-6)
    for ours, theirs in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def losses(model, params, segments):
    """The reconstruction loss of the last segment, in training."""
    _, states = run(model, params, segments)
    state = jax.tree.map(lambda leaf: leaf[-2], states)
    segment = jax.tree.map(lambda leaf: leaf[-1], segments)
    _, _, aux = model.apply({'params': params}, segment, state, train=True)
    return aux.losses['compression']


@pytest.mark.parametrize('kind', ['attention', 'autoencoding'])
def test_only_the_compression_learns_from_reconstruction(kind):
    fields = LAYERS['compressive'].small() | dict(reconstruction=kind)
    model = with_config('compressive', layers=1, compressive=fields)
    if kind == 'attention':
        _, params = toy('compressive', layers=1)
    else:
        params = parameters(model, 1)
    segments = random_segments()
    read = jax.jit(jax.value_and_grad(lambda params: losses(model, params, segments)))
    loss, gradient = read(params)
    assert loss > 0
    for path, leaf in jax.tree_util.tree_leaves_with_path(gradient):
        name = jax.tree_util.keystr(path)
        learns = "['compress']" in name
        assert np.any(leaf) == learns, name


def test_usage_is_the_attention_received():
    """Weights from the derivative trick sum to one per query over everything it sees."""
    model, params = toy('compressive:most_used', layers=1)
    segments = random_segments(segments=4)
    _, states = run(model, params, segments)
    usage = np.asarray(states[0].attention.usage)
    assert usage[0].max() == 0.0  # nothing was in memory yet
    # Whole segments: at most one unit of attention per query that the memory has met.
    assert 0 < usage[1].sum() <= BATCH * LENGTH
    assert np.all(usage >= 0)


def test_compression_by_max_is_a_loop_over_the_stream():
    fields = LAYERS['compressive'].small() | dict(compression='max', reconstruction='none')
    model = with_config('compressive', layers=1, compressive=fields)
    _, params = toy('compressive', layers=1)
    full = params['block_0']['attention']
    attention = {
        'projections': full['projections'],
        'layer': {'attention': full['layer']['attention']},
    }
    params = params | {'block_0': params['block_0'] | {'attention': attention}}
    segments = random_segments(segments=5)
    _, states = run(model, params, segments)
    state, rate = states[0].attention, fields['rate']
    memory, slots = fields['memory_length'], fields['compressed_length']
    # Vectors of the first layer do not depend on its memory, whose last ones are the segment's.
    stream = np.concatenate(np.asarray(state.hidden[:, :, -LENGTH:]), axis=1)
    for number in range(len(state.hidden)):
        for row in range(BATCH):
            kept = []
            for start in range(0, (number + 1) * LENGTH - memory - rate + 1, rate):
                kept.append(np.max(stream[row, start : start + rate], axis=0))
            kept = kept[-slots:]
            found = np.asarray(state.compressed[number, row])
            assert int(state.compressed_count[number, row]) == len(kept)
            if kept:
                np.testing.assert_allclose(found[-len(kept) :], kept, atol=1e-6)
    assert len(kept) == slots, 'the oldest slots must have left too'
