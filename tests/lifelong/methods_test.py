"""What every method promises: the suite for lifelong learners, on methods that read batch by batch."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from ml_collections import ConfigDict

from longmem_jax.errors import UsageError
from longmem_jax.lifelong import episodic, selection, steps
from longmem_jax.lifelong.methods.registry import METHODS
from longmem_jax.lifelong.rows import take
from longmem_jax.testing.assertions import assert_differs, assert_equal
from tests.lifelong import toy

BATCH, COUNT = 4, 42  # the last batch is smaller
STREAM, ASKED = toy.rows(COUNT), toy.rows(7, seed=1)
EPISODES = ('oml_er', 'anml_er', 'maml_er')
CHANGES = {
    'replay': dict(replay_every=12, replay_rate=0.5, capacity=30),
    'agem': dict(every=8, reference_rows=6, capacity=30),
    'online_ewc': dict(every=10, penalty=0.1),
    'mbpa': dict(num_neighbours=3, adapt_steps=3, adapt_rate=0.1, capacity=30),
    'mbpa_plus': dict(
        num_neighbours=3, adapt_steps=3, adapt_rate=0.1, capacity=30, replay_every=12,
        replay_rate=0.5, write='uncertain', write_rate=0.5,
    ),
    'mbpa_random': dict(
        num_neighbours=3, adapt_steps=3, adapt_rate=0.1, capacity=30, replay_every=12,
        replay_rate=0.5, write='forgettable', write_rate=0.5,
    ),
    'meta_mbpa': dict(
        num_neighbours=3, adapt_steps=3, adapt_rate=0.1, train_rate=0.1, capacity=30,
        replay_every=12, replay_rate=0.5, write_rate=0.5,
    ),
    **{
        name: dict(
            updates=2, inner_rate=0.1, adapt_steps=2, capacity=30, replay_every=12, replay_rate=0.5,
            dropout=False,
        )
        for name in EPISODES
    },
}  # fmt: skip
# The others are in the slow tier.
QUICK = ('agem', 'mbpa_plus')
WITH_MEMORY = [name for name in METHODS if name in CHANGES and 'capacity' in CHANGES[name]]


@functools.cache
def made(name, **changes):
    """A learner, with `observe` and `predict` compiled."""
    method = METHODS[name]
    settings = ConfigDict(method.settings | CHANGES.get(name, {}) | changes)
    assert not method.check(settings)
    learner = method.make(toy.NETWORK, settings, optax.adam(0.03), BATCH)
    return learner._replace(observe=jax.jit(learner.observe), predict=jax.jit(learner.predict))


def read(learner, stream=STREAM, calls=COUNT, state=None):
    """The state after some calls, or the whole stream, and the metrics of each."""
    state, found = state or learner.init(jax.random.key(0)), []
    while int(state.position) < len(stream) and len(found) < calls:
        state, metrics = learner.observe(state, stream)
        found.append(jax.device_get(metrics))
    return state, found


def numbers(state):
    """A state as numbers: keys are no arrays that can be compared."""
    return jax.device_get(state.replace(key=jax.random.key_data(state.key)))


def with_quick(names):
    return [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in names]


@pytest.mark.parametrize('name', with_quick(METHODS))
class TestEveryMethod:
    @pytest.mark.slow
    def test_it_learns(self, name):
        learner = made(name)
        state, metrics = read(learner)
        assert int(state.position) == COUNT and int(state.step) == len(metrics)
        assert sum(m['rows'] for m in metrics) == COUNT
        assert all(np.isfinite(m['loss']) for m in metrics)

        def loss(state):
            scores = learner.predict(state, STREAM, STREAM, jax.random.key(0))
            return toy.NETWORK.head.losses(scores, STREAM).mean()

        assert loss(state) < loss(learner.init(jax.random.key(0)))

    def test_it_resumes_bit_for_bit(self, name):
        learner = made(name)
        whole, _ = read(learner)
        part, _ = read(learner, calls=2)
        stored = numbers(part)
        loaded = jax.tree.map(jnp.asarray, stored)
        loaded = loaded.replace(key=jax.random.wrap_key_data(stored.key))
        resumed, _ = read(learner, state=loaded)
        assert_equal(numbers(resumed), numbers(whole), f'{name} resumed differs', 'keep all state')

    def test_rows_after_the_end_are_not_there(self, name):
        learner = made(name)
        state, _ = read(learner)
        after, metrics = learner.observe(state, STREAM)
        assert metrics['rows'] == 0
        assert_equal(
            numbers(after.replace(step=state.step)), numbers(state),
            f'{name} learned from nothing', 'mask rows after the end of the stream',
        )  # fmt: skip

    def test_the_future_and_the_answers_of_a_test_do_not_leak(self, name):
        learner = made(name)
        state, _ = read(learner, calls=2)
        later = np.arange(COUNT) >= int(state.position)
        other = jax.tree.map(
            lambda leaf: jnp.where(later.reshape(-1, *[1] * (leaf.ndim - 1)), leaf[::-1], leaf),
            STREAM,
        )
        same, _ = read(learner, other, calls=2)
        assert_equal(numbers(same), numbers(state), f'{name} saw later rows', 'read a batch only')
        key = jax.random.key(5)
        unknown = ASKED.replace(answer=(ASKED.answer + 1) % toy.CLASSES)
        found = [learner.predict(state, STREAM, rows, key) for rows in (ASKED, unknown)]
        assert_equal(found[1], found[0], f'{name} saw the answers', 'predict without answers')

    def test_a_step_that_is_not_finite_is_skipped(self, name):
        learner = made(name)
        state, _ = read(learner, calls=1)
        head = jax.tree.map(lambda x: x * 1e38, state.params['head'])  # finite, but not their loss
        params = state.params | {'head': head}
        broken = state.replace(params=params)
        after, metrics = learner.observe(broken, STREAM)
        assert metrics['skipped'] == 1
        assert int(after.position) == int(state.position) + metrics['rows'] > int(state.position)
        assert_equal(
            numbers(after.replace(step=state.step, position=state.position, skipped=state.skipped)),
            numbers(broken), f'{name} learned from NaN', 'use steps.update',
        )  # fmt: skip
        again, _ = learner.observe(after, STREAM)
        assert int(again.skipped) == 2

    def test_unseen_answers(self, name):
        """An answer that never occurred is answered like any other."""
        learner = made(name)
        kept = np.flatnonzero(np.asarray(STREAM.answer) != 2)
        stream = take(STREAM, np.resize(kept, COUNT))  # as long as the others: compiled once
        state, _ = read(learner, stream, calls=6)
        scores = learner.predict(state, stream, ASKED, jax.random.key(0))
        assert scores.shape == (7, toy.CLASSES) and np.isfinite(scores).all()

    def test_the_schedule_is_told(self, name):
        lines = made(name).schedule(COUNT)
        assert lines and all(line.endswith('.') for line in lines)


@pytest.mark.parametrize('name', with_quick(sorted(set(WITH_MEMORY) - set(EPISODES))))
def test_without_a_memory_it_is_sequential(name):
    learner = made(name, capacity=0)
    state, metrics = read(learner, calls=6)
    assert all(m['replayed'] == 0 and m['stored'] == 0 for m in metrics)
    plain, _ = read(made('sequential'), calls=6)
    scores = learner.predict(state, STREAM, ASKED, jax.random.key(0))
    wanted = made('sequential').predict(plain, STREAM, ASKED, jax.random.key(0))
    np.testing.assert_allclose(scores, wanted, atol=1e-5)


@pytest.mark.parametrize(
    'name, rows',
    [
        pytest.param('replay', 6, marks=pytest.mark.slow),
        ('mbpa_plus', 6),
        pytest.param('meta_mbpa', 6, marks=pytest.mark.slow),
    ],
)
def test_replays_are_as_scheduled(name, rows):
    learner = made(name)
    _, metrics = read(learner)
    assert [int(m['replayed']) for m in metrics] == [0, 0, rows] * 3 + [0, 0]
    assert f'{rows} rows are replayed: 3 times in {COUNT} rows' in ' '.join(learner.schedule(COUNT))


def test_gradients_are_compared_as_scheduled():
    _, metrics = read(made('agem'))
    assert [int(m['replayed']) for m in metrics] == [0, 6] * 5 + [0]
    _, metrics = read(made('agem', every=1))
    assert [int(m['replayed']) for m in metrics] == [0] + [6] * 10  # nothing is stored at first
    assert sum(int(m['projected']) for m in metrics) > 0


@pytest.mark.parametrize(
    'name, changes',
    [('replay', dict(replay_every=1000)), ('mbpa_plus', dict(replay_every=1000)),
     ('meta_mbpa', dict(replay_every=1000)), ('agem', dict(every=1000))],
)  # fmt: skip
def test_no_replay_is_refused(name, changes):
    with pytest.raises(UsageError, match='stream of 42 rows'):
        made(name, **changes).schedule(COUNT)
    if 'replay_every' in changes:
        with pytest.raises(UsageError, match='nothing would be replayed'):
            made(name, replay_every=12, replay_rate=0.01)


@pytest.mark.slow
def test_the_memory_holds_what_was_read():
    state, _ = read(made('replay'))
    assert sorted(state.memory.numbers.tolist()) == list(range(COUNT - 30, COUNT))
    state, _ = read(made('mbpa'))
    keys = toy.NETWORK.keys(made('mbpa').init(jax.random.key(0)).params['encoder'], STREAM)
    held = keys[state.memory.numbers].astype(jnp.float16)
    np.testing.assert_allclose(
        np.asarray(state.memory.keys, np.float32), np.asarray(held, np.float32), atol=1e-3
    )


def test_the_key_network_is_never_trained():
    learner = made('mbpa')
    start = learner.init(jax.random.key(0))
    state, _ = read(learner)
    assert_equal(
        state.own['key_network'], start.params['encoder'], 'the key network moved', 'freeze it'
    )
    assert_differs(
        state.params['encoder']['dense.weight'], start.params['encoder']['dense.weight'],
        'the encoder did not learn', 'train it',
    )  # fmt: skip
    learner = made('mbpa', write='random', write_rate=1.0, key_type='float32')
    state, _ = read(learner)
    stored = take(STREAM, np.asarray(state.memory.numbers))
    keys = toy.NETWORK.keys(start.params['encoder'], stored)
    np.testing.assert_allclose(state.memory.keys, keys, atol=1e-6)  # those of no trained encoder


@pytest.mark.parametrize('name', ['mbpa', pytest.param('mbpa_random', marks=pytest.mark.slow)])
def test_answers_are_those_of_parameters_adapted_to_the_neighbours(name):
    """Each from the trained parameters, written out in float64."""
    learner = made(name, write='random', write_rate=1.0, key_type='float32')
    state, _ = read(learner)
    key = jax.random.key(3)
    found = learner.predict(state, STREAM, ASKED, key)
    held = np.asarray(state.memory.numbers)
    if name == 'mbpa':
        own = state.own['key_network']
        keys, queries = (np.asarray(toy.NETWORK.keys(own, r)) for r in (take(STREAM, held), ASKED))
        distances = np.square(queries[:, None] - keys).sum(-1)
        neighbours = held[distances.argsort(axis=1)[:, :3]]
    else:
        neighbours, _ = episodic.draw(state.memory, key, (7, 3))
    for row in range(7):
        tree = toy.adapt(toy.plain(state.params), take(STREAM, neighbours[row]), 3, 0.1, 0.0, 1e-3)
        loss, _ = toy.losses_and_gradient(tree, take(ASKED, np.array([row])), np.ones(1))
        wanted = toy.NETWORK.head.losses(found, ASKED)[row]
        np.testing.assert_allclose(loss[0], wanted, atol=3e-5)


@pytest.mark.slow
def test_a_test_set_is_adapted_to_once_or_row_by_row():
    key = jax.random.key(3)
    found, (state, _) = {}, read(made('meta_mbpa'))
    for test in ('coarse', 'each', 'none'):
        learner = made('meta_mbpa', test=test)
        found[test] = np.asarray(learner.predict(state, STREAM, ASKED, key))
        alone = learner.predict(state, STREAM, take(ASKED, np.arange(2)), key)
        np.testing.assert_allclose(alone, found[test][:2], atol=1e-5)
    assert np.abs(found['coarse'] - found['none']).max() > 1e-4
    assert np.abs(found['each'] - found['none']).max() > 1e-4
    same = made('meta_mbpa', redraw=False)
    once = same.predict(state, STREAM, ASKED, key)
    assert np.abs(once - found['coarse']).max() > 1e-6


class Noisy(type(toy.NETWORK.encoder)):
    """The encoder of `toy` with dropout."""

    def encode(self, params, inputs, key):
        encoded = super().encode(params, inputs, None)
        if key is None:
            return encoded
        shape = encoded.pooled.shape
        return encoded._replace(pooled=encoded.pooled * jax.random.bernoulli(key, 0.5, shape))


@pytest.mark.slow
def test_meta_learning_has_the_dropout_of_its_encoder():
    """In rows of the stream and in replays, a mask for each row; at a test there is none."""
    noisy = toy.NETWORK._replace(encoder=Noisy(toy.WIDTH, toy.VOCAB, toy.EMBEDDING))
    settings = ConfigDict(METHODS['meta_mbpa'].settings | CHANGES['meta_mbpa'])
    learner = METHODS['meta_mbpa'].make(noisy, settings, optax.adam(0.03), BATCH)
    plain = made('meta_mbpa')
    observe, state = jax.jit(learner.observe), learner.init(jax.random.key(0))
    for _ in range(3):  # the third replays
        found, metrics = observe(state, STREAM)
        wanted, _ = plain.observe(state, STREAM)
        moved, other = (each.params['encoder']['dense.weight'] for each in (found, wanted))
        assert_differs(moved, other, 'no dropout', 'pass its key', by=1e-3)
        state = found
    assert metrics['replayed'] == 6
    key = jax.random.key(1)
    assert_equal(
        learner.predict(state, STREAM, ASKED, key), plain.predict(state, STREAM, ASKED, key),
        'dropout at a test', 'pass no key',
    )  # fmt: skip


@pytest.mark.slow
def test_orders_and_own_rows_matter():
    states = [
        numbers(read(made('meta_mbpa', **changes))[0]).params['head']['weight']
        for changes in ({}, dict(order='first'), dict(own_row=True))
    ]
    for other in states[1:]:
        assert np.abs(states[0] - other).max() > 1e-6


@pytest.mark.parametrize('rule', selection.RULES)
def test_every_rule_meets_the_write_rate(rule):
    stream = toy.rows(400)
    method = METHODS['mbpa']
    settings = method.settings | dict(write=rule, write_rate=0.25, write_beta=0.5, capacity=400)
    learner = method.make(toy.NETWORK, settings, optax.sgd(0.1), 20)

    @jax.jit
    def run(state):
        return jax.lax.scan(lambda state, _: learner.observe(state, stream), state, None, length=20)

    state, _ = run(learner.init(jax.random.key(0)))
    assert 75 <= int(state.memory.count) <= 125


@pytest.mark.parametrize(
    'name, changes, text',
    [
        ('replay', dict(replay_rate=0.0), 'replay_rate'),
        ('replay', dict(write_rate=1.5), 'write_rate'),
        ('agem', dict(every=0), 'every'),
        ('online_ewc', dict(gamma=2.0), 'gamma'),
        ('mbpa', dict(capacity=10, num_neighbours=11), 'num_neighbours = 11: .* capacity = 10'),
        ('mbpa', dict(adapted='last'), 'adapted'),
        ('mbpa', dict(neighbours='near'), 'nearest'),
        ('mbpa_random', dict(write='diverse', write_rate=0.5), 'compares keys'),
        ('meta_mbpa', dict(order='third'), 'second'),
        ('meta_mbpa', dict(capacity=10, num_neighbours=11), 'num_neighbours = 11'),
    ],
)
def test_problems(name, changes, text):
    method = METHODS[name]
    assert not method.check(method.settings)
    found = method.check(method.settings | changes)
    assert len(found) == 1
    assert re.search(text, found[0]), found


def test_a_step_without_rows_moves_nothing():
    params = {'w': jnp.ones(3)}
    optimizer = optax.adam(0.1)
    start = optimizer.update({'w': jnp.ones(3)}, optimizer.init(params), params)[1]
    moved = steps.update(optimizer, params, start, {'w': jnp.zeros(3)}, jnp.zeros(()), False)
    assert_equal((moved.params, moved.optimizer), (params, start), 'it moved', 'use `wanted`')
