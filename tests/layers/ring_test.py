"""The ring against lists: what can be read after segments, resets and steps that were undone."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from longmem_jax.devices.sharding import make_mesh, memory_shardings
from longmem_jax.in_place import keep_state, readable_state, reset_lanes, restore_state
from longmem_jax.layers.nearest import nearest
from longmem_jax.layers.ring import no_rows, write

LANES, LENGTH, SEGMENTS = 3, 5, 2
HALF_FULL = dict(valid=[[5, 2, 0], [5, 5, 3]], start=[[False] * 3] * 2, bad=False)
# A ring that was full, and a bad step that begins two documents.
WORST = [HALF_FULL, HALF_FULL, HALF_FULL, HALF_FULL] + [
    dict(valid=[[5, 5, 5], [5, 1, 5]], start=[[False, True, False], [True, False, False]], bad=True)
]

in_lanes = functools.partial(st.lists, min_size=LANES, max_size=LANES)
in_segments = functools.partial(st.lists, min_size=SEGMENTS, max_size=SEGMENTS)
steps = st.lists(
    st.fixed_dictionaries(
        dict(
            valid=in_segments(in_lanes(st.integers(0, LENGTH))),
            start=in_segments(in_lanes(st.sampled_from([False, False, False, True]))),
            bad=st.booleans(),
        )
    ),
    max_size=7,
)


@jax.jit
def take_step(ring, number, valid, start, bad):
    """A training step: entries are numbered from `number`; those of a bad step are not finite."""
    ring, kept = keep_state(ring, SEGMENTS * LENGTH)
    for segment in range(SEGMENTS):
        empty = no_rows(LANES, 1, *ring.rows_keys.shape[2:], ring.rows_keys.dtype.name)
        ring = reset_lanes(start[segment], empty, ring)
        new = number + segment * LENGTH + jnp.arange(LENGTH, dtype=jnp.float32)
        new = jnp.where(bad, jnp.nan, new)
        new = jnp.broadcast_to(new[None, None, :, None], (LANES, 1, LENGTH, 1))
        ring = write(ring, new, new, valid[segment])
    return restore_state(~bad, ring, kept)


@jax.jit
def read(ring):
    """Every value that a query can find, and which were found: [lanes, size] each."""
    size = ring.rows_keys.shape[2]
    queries = jnp.ones((LANES, 1, 1, 1), jnp.float32)
    _, values, found, _ = nearest(ring, queries, size, 'exact', 1.0, size)
    return values[:, 0, 0, :, 0], found[:, 0, 0]


def check(ring, steps):
    size, lists, number = ring.rows_keys.shape[2], [[] for _ in range(LANES)], 1
    for at, step in enumerate(steps):
        ring = take_step(ring, number, *(jnp.asarray(step[k]) for k in ('valid', 'start', 'bad')))
        if not step['bad']:
            for segment, lane in np.ndindex(SEGMENTS, LANES):
                if step['start'][segment][lane]:
                    lists[lane] = []
                first = number + segment * LENGTH
                lists[lane] += range(first, first + step['valid'][segment][lane])
        number += SEGMENTS * LENGTH
        values, found = (np.asarray(part) for part in read(ring))
        for lane in range(LANES):
            seen = sorted(values[lane][found[lane]].tolist())
            assert seen == lists[lane][-size:], f'lane {lane} after step {at}'
        assert not values[~found].any(), 'what is not found must read as zeros'
        # What leaves the program, such as a memory in a file, has nothing of earlier documents.
        stored = np.asarray(readable_state(ring).rows_values)
        wanted = [sorted(part[-size:]) for part in lists]
        assert [sorted(part[part > 0].tolist()) for part in stored] == wanted
        assert np.isfinite(stored).all()


# Rows that a step replaces are kept: two windows of 23 and 40 rows, all of 12 and of 4.
@pytest.mark.parametrize(
    'size', [23, 4, *(pytest.param(n, marks=pytest.mark.slow) for n in (40, 12))]
)
@given(steps=steps)
@example(steps=WORST)
@example(steps=WORST + [HALF_FULL] * 2)
def test_only_the_last_entries_of_a_document_can_be_read(size, steps):
    check(no_rows(LANES, 1, size, 1, 'float32'), steps)


# Shards of 24, 6 and 3 rows: smaller than what a step writes, and than a segment.
@pytest.mark.slow
@pytest.mark.parametrize('size', [192, 48, 24])
@given(steps=steps)
@example(steps=[HALF_FULL] * 20 + WORST + [HALF_FULL] * 2)
def test_it_is_the_same_on_several_devices(size, steps):
    mesh = make_mesh(dict(memory=8))
    ring = no_rows(LANES, 1, size, 1, 'float32')
    with jax.set_mesh(mesh):
        check(jax.device_put(ring, memory_shardings(mesh, ring)), steps)


def test_scales_stay_with_their_rows():
    ring = no_rows(1, 1, 30, 2, 'int8')
    valid, new = jnp.asarray([5]), np.random.default_rng(0).normal(size=(9, 1, 1, 5, 2))

    @jax.jit
    def step(ring, part, sound):
        ring, kept = keep_state(ring, 5)
        return restore_state(sound, write(ring, part, part, valid), kept)

    for at, part in enumerate(np.float32(new)):
        ring = step(ring, part, at != 7)
    stored = np.asarray(ring.rows_values) * np.asarray(ring.rows_value_scale)
    wanted = np.concatenate([new[6], new[8], *new[2:6]], axis=2)
    np.testing.assert_allclose(stored, wanted, atol=0.02)
