"""The nearest entries, the ring buffer, and models whose memory size changes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import softmax

from longmem_jax.devices.sharding import make_mesh, memory_shardings
from longmem_jax.layers import nearest
from longmem_jax.layers.ring import no_rows, write
from longmem_jax.memory.registry import LAYERS
from longmem_jax.models.stack import make_settings
from tests.toys import model_config, parameters, random_segments, run, toy, with_config


def rows(seed, shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


find = jax.jit(nearest.nearest, static_argnums=(2, 3, 4, 5))


def filled(seed, size, number, dtype='float32', width=4):
    ring = no_rows(2, 3, size, width, dtype)
    keys, values = rows(seed, (2, 3, number, width)), rows(seed + 1, (2, 3, number, width))
    return write(ring, keys, values, jnp.full((2,), number, jnp.int32)), keys, values


@pytest.mark.parametrize(
    'block', [4, 24, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 8))]
)
def test_blocks_find_what_all_at_once_find(block):
    ring, keys, values = filled(0, 24, 20)
    queries = rows(5, (2, 3, 7, 4))
    found = find(ring, queries, 6, 'exact', 1.0, block)
    scores = np.einsum('bhnd,bhmd->bhnm', queries, keys)
    at = np.argsort(-scores, axis=-1)[..., :6, None]
    for part, rows_of in zip(found, (keys, values), strict=False):
        wanted = np.take_along_axis(np.asarray(rows_of)[:, :, None], at, axis=3)
        np.testing.assert_allclose(part, wanted, atol=1e-6)
    assert found[2].all()


def test_rows_not_written_are_not_found():
    ring, keys, _ = filled(0, 12, 2)
    found = find(ring, rows(5, (2, 3, 7, 4)), 5, 'exact', 1.0, 4)
    assert np.array_equal(np.asarray(found[2]).sum(axis=-1), np.full((2, 3, 7), 2))
    assert not np.asarray(found[1])[~np.asarray(found[2])].any()


written_to = jax.jit(write)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(3, 8))
def test_the_ring_keeps_the_last_rows(numbers, size):
    ring, written = no_rows(1, 1, size, 1, 'float32'), []
    for number in numbers:
        new = np.arange(len(written), len(written) + 9, dtype=np.float32)
        ring = written_to(
            ring, *(jnp.asarray(new).reshape(1, 1, 9, 1),) * 2, jnp.asarray([number], jnp.int32)
        )
        written += new[:number].tolist()
    # Of more rows than there is room for, only the remainder says where the next one goes.
    wanted = len(written) if len(written) < size else size + len(written) % size
    assert int(ring.count[0]) == wanted
    kept = sorted(np.asarray(ring.rows_keys).reshape(-1)[: min(len(written), size)].tolist())
    assert kept == sorted(written[-size:])


@pytest.mark.parametrize('dtype, close', [('bfloat16', 2e-2), ('int8', 2e-2)])
def test_small_types_hold_nearly_the_same(dtype, close):
    ring, keys, values = filled(0, 24, 24, dtype)
    queries = rows(5, (2, 3, 7, 4))
    small = [np.asarray(part, np.float32) for part in find(ring, queries, 24, 'exact', 1.0, 8)]
    whole = [np.broadcast_to(part[:, :, None], (2, 3, 7, 24, 4)) for part in (keys, values)]
    scores = [np.einsum('bhnd,bhnkd->bhnk', queries, part) for part in (small[0], whole[0])]
    order = [np.argsort(part, axis=-1)[..., None] for part in scores]
    for name, part, exact in zip(('keys', 'values'), small[:2], whole, strict=True):
        # Rows of nearly equal scores may stand in another order.
        found, wanted = (
            np.take_along_axis(rows, at, axis=3)
            for rows, at in zip((part, exact), order, strict=True)
        )
        wrong = np.abs(found - wanted).max(axis=-1) > close * np.abs(wanted).max()
        assert wrong.mean() < 0.05, f'{name}: {wrong.mean():.0%} of the rows differ'
    read = [
        np.einsum('bhnk,bhnkd->bhnd', softmax(s, axis=-1), v)
        for s, v in zip(scores, (small[1], whole[1]), strict=True)
    ]
    np.testing.assert_allclose(read[0], read[1], atol=close * np.abs(values).max())


def approximate_searches(function, *arguments):
    """The settings of every approximate search in a function, also inside of its parts."""
    found, waiting = [], [jax.make_jaxpr(function)(*arguments)]
    while waiting:
        part = waiting.pop()
        if hasattr(part, 'eqns'):
            for equation in part.eqns:
                found += [equation.params] * (equation.primitive.name == 'approx_top_k')
                waiting += equation.params.values()
        elif hasattr(part, 'jaxpr'):
            waiting.append(part.jaxpr)
        elif isinstance(part, (tuple, list)):
            waiting += part
    return found


def test_the_layer_searches_as_it_is_told():
    """Approximate search is exact on CPUs, so the program is looked at, and its numbers."""
    model, params = toy('memorizing', layers=1)
    own = dict(model.config.memorizing.to_dict(), memory_size=24, block_size=8)
    segments = random_segments(segments=6)
    exact, near = (
        with_config('memorizing', layers=1, memorizing=own | dict(search=search, recall_target=0.7))
        for search in ('exact', 'approximate')
    )
    assert not approximate_searches(lambda: run(exact, params, segments))
    searches = approximate_searches(lambda: run(near, params, segments))
    assert searches
    for settings in searches:
        assert settings['is_max_k'] and settings['recall_target'] == 0.7
        assert settings['k'] == own['top_k'] and settings['aggregate_to_topk']
    wanted, found = (run(model, params, segments)[0] for model in (exact, near))
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_a_closed_gate_reads_nothing_from_the_memory():
    model, _ = toy('memorizing', layers=1)
    own, segments = model.config.memorizing.to_dict(), random_segments()
    closed = with_config('memorizing', layers=1, memorizing=own | dict(gate_init=-30.0))
    params = parameters(closed, 1)
    attention = dict(params['block_0']['attention'])
    np.testing.assert_array_equal(attention.pop('gate'), -30.0)
    shared = {k: v for k, v in own.items() if k in LAYERS['normalized_xl'].fields()}
    without = with_config('normalized_xl', layers=1, normalized_xl=shared)
    bare = params | {'block_0': params['block_0'] | {'attention': attention}}
    wanted, _ = run(without, bare, segments)
    np.testing.assert_allclose(run(closed, params, segments)[0], wanted, atol=1e-5)
    half, _ = run(model, params | {'block_0': _with_gate(params['block_0'], 0.0)}, segments)
    assert np.abs(half[1:] - wanted[1:]).max() > 1e-2


def _with_gate(block, value):
    gate = jnp.full_like(block['attention']['gate'], value)
    return block | {'attention': block['attention'] | {'gate': gate}}


def test_recall_of_the_released_search():
    """32 buckets find about 64 % of the true 32 nearest."""
    keys, queries = rows(0, (1, 1, 8192, 16)), rows(1, (1, 1, 64, 16))
    ring = write(no_rows(1, 1, 8192, 16, 'float32'), keys, keys, jnp.asarray([8192]))

    def found(method):
        values = find(ring, queries, 32, method, 0.9, 8192)[1]
        return [{tuple(row) for row in query} for query in np.asarray(values)[0, 0]]

    pairs = zip(found('exact'), found('bucketed'), strict=True)
    assert 0.55 < np.mean([len(a & b) / 32 for a, b in pairs]) < 0.72


@pytest.mark.slow
def test_memory_spread_over_devices_is_the_same():
    model, params = toy('memorizing')
    changes = dict(model.config.memorizing.to_dict(), memory_size=16)
    model = with_config('memorizing', memorizing=changes)
    segments = random_segments(segments=6, batch=4)
    logits, states = run(model, params, segments)
    for sizes in (dict(memory=8), dict(data=2, memory=4)):
        mesh = make_mesh(sizes)
        state = model.apply({'params': params}, 4, method='initial_state')
        places = memory_shardings(mesh, state)
        with jax.set_mesh(mesh):
            spread = jax.device_put(state, places)
            sharded, after = run(model, params, segments, spread)
        parts = {
            shard.data.shape for shard in spread[0].attention.rows.rows_keys.addressable_shards
        }
        assert {part[2] for part in parts} == {16 // sizes['memory']}
        np.testing.assert_allclose(sharded, logits, atol=1e-5)
        for leaf, other in zip(jax.tree.leaves(after), jax.tree.leaves(states), strict=True):
            np.testing.assert_allclose(leaf, other, atol=1e-5)


def test_a_larger_memory_runs_with_the_same_parameters():
    model, params = toy('memorizing', layers=1)
    segments = random_segments(segments=8)
    small, _ = run(model, params, segments)
    larger = dict(model.config.memorizing.to_dict(), memory_size=36)
    large, _ = run(with_config('memorizing', layers=1, memorizing=larger), params, segments)
    # The same until 12 rows are full, that is for segments of 5 tokens three segments long.
    np.testing.assert_allclose(large[:3], small[:3], atol=1e-5)
    assert np.abs(large[3:] - small[3:]).max() > 1e-4


@pytest.mark.parametrize('normalized', [False, True])
def test_a_memory_in_a_host_is_read_with_its_scores(normalized):
    """Queries that are not normalised have the model's scale; others bring a learned one with them."""
    settings = make_settings(model_config('memorizing'), 6)
    heads, width = settings.num_heads, settings.head_dim
    keys, values = rows(0, (2, heads, 5, width)), rows(1, (2, heads, 5, width))
    empty = no_rows(2, heads, 8, width, 'float32')
    ring = write(empty, keys, values, jnp.full((2,), 5, jnp.int32))
    queries = rows(2, (2, heads, 4, width))
    sizes = dict(memory_size=8, top_k=8, block_size=8)
    layer = LAYERS['memorizing'].layer.module(settings, None, None, normalized=normalized, **sizes)
    init = jax.jit(functools.partial(layer.init_with_output, method='retrieve'))
    found, _ = init(jax.random.key(0), queries, ring)
    scores = np.einsum('bhnd,bhmd->bhnm', queries, keys) * (1 if normalized else width**-0.5)
    wanted = np.einsum('bhnm,bhmd->bhnd', softmax(scores, axis=-1), values)
    np.testing.assert_allclose(found, wanted, atol=1e-5)
