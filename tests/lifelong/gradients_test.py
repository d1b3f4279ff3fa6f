"""Sparse replay, A-GEM and online EWC against the same written out in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longmem_jax.lifelong import replays, schedule, steps
from longmem_jax.lifelong.methods import agem, mbpa, online_ewc, replay
from longmem_jax.lifelong.rows import take
from tests.lifelong import toy

STREAM, PARAMS = toy.rows(30), toy.params()


@given(seed=st.integers(0, 1000), scale=st.sampled_from([1e-3, 1.0, 1e3]))
def test_projection(seed, scale):
    rng = np.random.default_rng(seed)
    g, r = ({'a': rng.normal(size=(2, 3)), 'b': rng.normal(size=4)} for _ in range(2))
    r = {name: scale * leaf for name, leaf in r.items()}
    flat = [np.concatenate([tree['a'].ravel(), tree['b']]) for tree in (g, r)]
    dot = flat[0] @ flat[1]
    wanted = flat[0] - min(dot, 0) / (flat[1] @ flat[1]) * flat[1]
    found = agem.project(*jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), (g, r)))
    got = np.concatenate([np.ravel(found.gradient['a']), found.gradient['b']])
    np.testing.assert_allclose(got, wanted, atol=1e-5)
    np.testing.assert_allclose(found.dot, dot, rtol=1e-3, atol=1e-5 * scale)
    assert got @ flat[1] > -1e-5 * scale * 10


def test_projection_on_nothing():
    found = agem.project({'a': jnp.ones(2)}, {'a': jnp.zeros(2)})
    assert found.gradient['a'].tolist() == [1, 1]
    broken = agem.project({'a': jnp.ones(2)}, {'a': jnp.array([jnp.nan, 0])})
    assert not np.isfinite(broken.gradient['a']).any()


def test_a_replay_is_the_sum_over_batches():
    reads = np.random.default_rng(0).integers(0, 30, (3, 4))
    losses, gradient = replay.replay_gradient(toy.NETWORK, PARAMS, STREAM, reads, None)
    trees = [
        toy.losses_and_gradient(toy.plain(PARAMS), take(STREAM, row), np.full(4, 0.25))
        for row in reads
    ]
    np.testing.assert_allclose(losses, [tree[0].mean() for tree in trees], atol=1e-5)
    for name, leaf in toy.plain(gradient).items():
        np.testing.assert_allclose(leaf, sum(tree[1][name] for tree in trees), atol=1e-5)


def test_clipping():
    tree = {'a': jnp.full(4, 10.0)}
    assert abs(optax.global_norm(replay.clipped(tree, 5.0)) - 5) < 1e-5
    assert optax.global_norm(replay.clipped(tree, 50.0)) == 20
    assert replay.clipped(tree, 0.0) is tree


def test_squares_are_those_of_single_rows():
    there = jnp.arange(7) < 5
    batch = steps.batch_of(STREAM, jnp.arange(7), there)
    for chunk in (1, 3, 100):
        read = lambda batch, n=chunk: online_ewc.squared_gradients(toy.NETWORK, PARAMS, batch, n)  # noqa: E731
        found = jax.jit(read)(batch)
        wanted = {name: 0 for name in toy.NAMES}
        for row in range(5):
            _, tree = toy.losses_and_gradient(
                toy.plain(PARAMS), take(STREAM, np.array([row])), np.ones(1)
            )
            wanted = {name: wanted[name] + np.square(leaf) for name, leaf in tree.items()}
        for name, leaf in toy.plain(found).items():
            np.testing.assert_allclose(leaf, wanted[name], atol=1e-5)


def test_springs():
    """Some batches of online EWC with plain SGD: the penalty, its gradient and both updates."""
    settings = online_ewc.SETTINGS | dict(every=8, gamma=0.5, penalty=0.3, chunk=2)
    learner = online_ewc.make(toy.NETWORK, settings, optax.sgd(0.1), 4)
    state, observe = learner.init(jax.random.key(1)), jax.jit(learner.observe)
    now = toy.plain(state.params)
    center = now
    importance = {name: np.zeros_like(leaf) for name, leaf in now.items()}
    squares, count = dict(importance), 0
    for step in range(6):
        rows = [take(STREAM, np.array([row])) for row in range(4 * step, 4 * step + 4)]
        trees = [toy.losses_and_gradient(now, row, np.ones(1))[1] for row in rows]
        value = 0.15 * sum((importance[n] * np.square(now[n] - center[n])).sum() for n in now)
        for name in now:
            squares = squares | {name: squares[name] + sum(np.square(t[name]) for t in trees)}
        now = {
            name: leaf
            - 0.1 * (np.mean([tree[name] for tree in trees], axis=0)
                     + 0.3 * importance[name] * (leaf - center[name]))
            for name, leaf in now.items()
        }  # fmt: skip
        count += 4
        if count == 8:
            importance = {n: 0.5 * importance[n] + squares[n] / count for n in now}
            center, squares, count = now, {n: np.zeros_like(now[n]) for n in now}, 0
        state, metrics = observe(state, STREAM)
        np.testing.assert_allclose(metrics['penalty'], value, atol=1e-5)
        pairs = (state.params, now), (state.own.importance, importance), (state.own.center, center)
        for found, wanted in pairs:
            for name, leaf in toy.plain(found).items():
                np.testing.assert_allclose(leaf, wanted[name], atol=3e-5, err_msg=f'{step} {name}')
    assert value > 1e-6


@pytest.mark.parametrize(
    'batch, every, rate, rest',
    [
        (5, 17, 0.6, 3),
        *(pytest.param(*c, marks=pytest.mark.slow) for c in ((4, 16, 0.5, 2), (3, 9, 0.4, 0))),
    ],
)
def test_the_released_schedule(batch, every, rate, rest):
    """Reads as the released code counts them, also after a smaller last batch."""
    num_rows = 5 * batch + rest
    stream = toy.rows(num_rows)
    settings = replay.SETTINGS | replay.released() | dict(
        replay_every=every, replay_rate=rate, capacity=50
    )  # fmt: skip
    learner = replay.make(toy.NETWORK, settings, optax.sgd(0.1), batch)
    state, observe, found, wanted = (
        learner.init(jax.random.key(0)),
        jax.jit(learner.observe),
        [],
        [],
    )
    for step in range(5 + bool(rest)):
        size = min(batch, num_rows - step * batch)
        due = (step + 1) % (every // size) == 0
        wanted.append(int(every * rate / size) * size if due else 0)
        state, metrics = observe(state, stream)
        found.append(int(metrics['replayed']))
    assert found == wanted and sum(found)


def test_defaults_differ_from_the_released_settings():
    for module in (replay, agem, mbpa):
        changed = module.released()
        assert changed and all(module.SETTINGS[name] != value for name, value in changed.items())
    sparse = schedule.Sparse(16, 0.5)
    assert replays.plan(sparse, 3).shape == (1, 8) and replays.plan(sparse, 3, True).shape == (2, 3)
    reads = jnp.arange(8).reshape(2, 4)
    _, summed = replay.replay_gradient(toy.NETWORK, PARAMS, STREAM, reads, None)
    _, mean = replay.replay_gradient(toy.NETWORK, PARAMS, STREAM, reads.reshape(1, 8), None)
    for one, other in zip(jax.tree.leaves(summed), jax.tree.leaves(mean), strict=True):
        np.testing.assert_allclose(one, 2 * other, atol=1e-5)  # the release takes S times the mean
