"""Optimizers and schedules against numbers worked out by hand."""

import itertools
import math

import chex
import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import optax
import pytest

from longmem_jax import optimizer
from longmem_jax.errors import UsageError


def make_config(**changes):
    config = ml_collections.ConfigDict(
        dict(
            name='adamw',
            learning_rate=0.5,
            b1=0.9,
            b2=0.99,
            eps=1e-8,
            weight_decay=0.0,
            momentum=0.0,
            schedule='constant',
            warmup_steps=0,
            final_fraction=0.0,
            clip_norm=0.0,
            accumulate_steps=1,
            groups=(),
        )
    )
    config.update(changes)
    return config


def make_params():
    return {
        'block': {'kernel': jnp.full((2, 3), 2.0), 'bias': jnp.full((3,), 2.0)},
        'head': {'kernel': jnp.full((3, 2), 2.0)},
    }


def first_update(config, gradient=1.0, num_steps=10):
    params = make_params()
    chain = optimizer.make_optimizer(config, num_steps, params)
    gradients = jax.tree.map(lambda leaf: jnp.full_like(leaf, gradient), params)
    updates, _ = chain.update(gradients, chain.init(params), params)
    return jax.tree.map(lambda leaf: float(leaf.flat[0]), updates)


@pytest.mark.parametrize(
    'name, count, expected',
    [
        # Peak 0.5, warm-up 4, 14 updates, end at a tenth: half way is update 4 + 5.
        ('cosine', 0, 0.1),
        ('cosine', 3, 0.4),
        ('cosine', 4, 0.5),
        ('cosine', 9, 0.5 * (0.1 + 0.9 / 2)),
        ('cosine', 14, 0.05),
        ('cosine', 99, 0.05),
        ('linear', 9, 0.5 * 0.55),
        ('linear', 14, 0.05),
        ('inverse_sqrt', 2, 0.3),
        ('inverse_sqrt', 4, 0.5),
        ('inverse_sqrt', 19, 0.25),
        ('inverse_sqrt', 10_000, 0.05),
        ('constant', 1, 0.2),
        ('constant', 12, 0.5),
    ],
)
def test_schedule_values(name, count, expected):
    config = make_config(schedule=name, warmup_steps=4, final_fraction=0.1)
    rate = optimizer.make_schedule(config, 14)(jnp.int32(count))
    assert rate.dtype == jnp.float32
    np.testing.assert_allclose(rate, expected, rtol=1e-6)


@pytest.mark.parametrize('name', optimizer.SCHEDULES)
def test_schedule_is_the_same_for_arrays_and_without_warm_up(name):
    schedule = optimizer.make_schedule(make_config(schedule=name), 8)
    counts = jnp.arange(12)
    np.testing.assert_allclose(jax.jit(schedule)(counts), [schedule(int(n)) for n in counts], 1e-6)
    np.testing.assert_allclose(schedule(0), 0.5)
    assert (np.diff(schedule(counts)) <= 0).all()


def test_a_run_shorter_than_its_warm_up_never_reaches_the_peak():
    schedule = optimizer.make_schedule(make_config(schedule='cosine', warmup_steps=100), 10)
    np.testing.assert_allclose(schedule(9), 0.5 * 10 / 101, rtol=1e-6)


def test_first_steps_by_hand():
    # The first step of Adam is the sign of the gradient, here with rate 0.5.
    assert first_update(make_config(name='adam'))['head']['kernel'] == pytest.approx(-0.5)
    decayed = first_update(make_config(name='adamw', weight_decay=0.1))
    assert decayed['head']['kernel'] == pytest.approx(-0.5 * (1 + 0.1 * 2))
    assert decayed['block']['bias'] == pytest.approx(-0.5)
    # Coupled: the gradient is 1 + 0.1 * 2, whose sign Adam takes; gradient descent keeps it.
    coupled = first_update(make_config(name='adam', weight_decay=0.1))
    assert coupled['head']['kernel'] == pytest.approx(-0.5)
    plain = first_update(make_config(name='sgd', weight_decay=0.1))
    assert plain['head']['kernel'] == pytest.approx(-0.5 * 1.2)
    assert plain['block']['bias'] == pytest.approx(-0.5)
    # Adafactor: a unit update, times the root mean square of the parameter (2).
    factored = first_update(make_config(name='adafactor', weight_decay=0.1))
    assert factored['block']['bias'] == pytest.approx(-0.5 * 2)
    assert factored['head']['kernel'] == pytest.approx(-0.5 * 2 - 0.5 * 0.1 * 2)


def test_second_step_of_adam_and_of_momentum():
    params = {'w': jnp.zeros(1)}
    gradients = [{'w': jnp.array([1.0])}, {'w': jnp.array([3.0])}]

    def second(config):
        chain = optimizer.make_optimizer(config, 10, params)
        _, state = chain.update(gradients[0], chain.init(params), params)
        return float(chain.update(gradients[1], state, params)[0]['w'][0])

    mean = (0.9 * 0.1 * 1 + 0.1 * 3) / (1 - 0.9**2)
    square = (0.99 * 0.01 * 1 + 0.01 * 9) / (1 - 0.99**2)
    expected = -0.5 * mean / (math.sqrt(square) + 1e-8)
    assert second(make_config(name='adam')) == pytest.approx(expected, rel=1e-5)
    assert second(make_config(name='sgd', momentum=0.9)) == pytest.approx(-0.5 * (3 + 0.9))


def test_clipping_bounds_the_global_norm():
    # 15 ones have the norm sqrt(15).
    clipped = first_update(make_config(name='sgd', clip_norm=1.0))
    assert clipped['head']['kernel'] == pytest.approx(-0.5 / math.sqrt(15))
    assert first_update(make_config(name='sgd', clip_norm=9.0))['head']['kernel'] == -0.5
    assert first_update(make_config(name='sgd'), gradient=100.0)['head']['kernel'] == -50


def test_first_matching_group_decides():
    groups = (('bias$', 0.0, True), ('^block/', 2.0, False), ('kernel', 3.0, True))
    updates = first_update(make_config(name='adamw', weight_decay=0.1, groups=groups))
    assert updates['block']['bias'] == 0
    assert updates['block']['kernel'] == pytest.approx(-0.5 * 2)
    assert updates['head']['kernel'] == pytest.approx(-0.5 * 3 * 1.2)


def test_a_group_hidden_by_an_earlier_one_is_no_fault():
    groups = (('kernel', 2.0, False), ('head/kernel', 5.0, False))
    assert first_update(make_config(groups=groups))['head']['kernel'] == pytest.approx(-1.0)


@pytest.mark.parametrize('name', optimizer.OPTIMIZERS)
def test_accumulation_is_one_step_on_the_mean(name):
    common = dict(name=name, weight_decay=0.1, clip_norm=1.0, momentum=0.9, schedule='linear')
    params = make_params()
    keys = jax.random.split(jax.random.key(0), 4)
    gradients = [jax.tree.map(lambda x, k=k: jax.random.normal(k, x.shape), params) for k in keys]

    def run(accumulate, gradients, num_steps):
        chain = optimizer.make_optimizer(
            make_config(accumulate_steps=accumulate, **common), num_steps, params
        )
        current, state = params, chain.init(params)
        for gradient in gradients:
            updates, state = chain.update(gradient, state, current)
            current = optax.apply_updates(current, updates)
        return current

    means = [jax.tree.map(lambda a, b: (a + b) / 2, *gradients[i : i + 2]) for i in (0, 2)]
    # The schedule counts updates: 8 steps of which 2 make an update are 4 updates.
    chex.assert_trees_all_close(run(2, gradients, 8), run(1, means, 4), atol=1e-6)


@pytest.mark.parametrize(
    'name, accumulate, clip, groups',
    itertools.product(optimizer.OPTIMIZERS, (1, 2), (0.0, 1.0), ((), (('bias', 0.5, True),))),
)
def test_every_combination_runs_compiled_with_a_stable_state(name, accumulate, clip, groups):
    config = make_config(
        name=name,
        accumulate_steps=accumulate,
        clip_norm=clip,
        groups=groups,
        weight_decay=0.1,
        momentum=0.9,
        schedule='cosine',
        warmup_steps=1,
    )
    params = {**make_params(), 'table': jnp.ones((128, 130))}
    shapes = jax.eval_shape(lambda: params)
    chain = optimizer.make_optimizer(config, 10, shapes)

    @jax.jit
    def step(params, state):
        updates, state = chain.update(jax.tree.map(jnp.ones_like, params), state, params)
        return optax.apply_updates(params, updates), state

    with jax.numpy_rank_promotion('raise'):
        state = chain.init(params)
        new_params, new_state = params, state
        for _ in range(3):
            new_params, new_state = step(new_params, new_state)
    chex.assert_trees_all_equal_shapes_and_dtypes((params, state), (new_params, new_state))
    assert jax.tree.structure(state) == jax.tree.structure(new_state)
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(new_params))
    assert not np.array_equal(params['table'], new_params['table'])
    if name == 'adafactor':  # the large matrix is factored, without momentum
        size = sum(leaf.size for leaf in jax.tree.leaves(state))
        assert size < 2000 + (accumulate > 1) * (128 * 130 + 100)


@pytest.mark.parametrize(
    'changes, message',
    [
        (dict(name='adamW'), r"name = 'adamW': did you mean 'adamw'\? allowed are adam, adamw"),
        (dict(schedule='cosin'), r"schedule = 'cosin': did you mean 'cosine'\?"),
        (dict(groups=(('nothing', 1.0, True),)), r"no parameter matches 'nothing'.*kernel"),
        (dict(groups=(('(', 1.0, True),)), 'not a regular expression'),
        (dict(warmup_steps=-1), 'warmup_steps = -1'),
        (dict(final_fraction=1.5), 'final_fraction = 1.5'),
        (dict(clip_norm=-1.0), 'clip_norm = -1.0'),
        (dict(accumulate_steps=0), 'accumulate_steps = 0'),
    ],
)
def test_faults_are_named(changes, message):
    with pytest.raises(UsageError, match=message):
        optimizer.make_optimizer(make_config(**changes), 10, make_params())
