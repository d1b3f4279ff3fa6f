"""Optimizers and schedules against numbers worked out by hand."""

import itertools
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from ml_collections import config_dict

from longmem_jax.config.base import base, stack, two_cores
from longmem_jax.config.recipes import recipes, use
from longmem_jax.errors import UsageError
from longmem_jax.models.kinds import make_model
from longmem_jax.models.parameters import abstract_parameters, unbox
from longmem_jax.training import optimizer


def make_config(**changes):
    config = base().optimizer
    config.update(dict(name='adamw', learning_rate=0.5, schedule='constant', clip_norm=0.0))
    config.update(changes)
    return config_dict.FrozenConfigDict(config)


def make_params():
    return {
        'block': {'kernel': np.full((2, 3), 2, np.float32), 'bias': np.full(3, 2, np.float32)},
        'head': {'kernel': np.full((3, 2), 2, np.float32)},
    }


def test_shares_of_a_span_stay_shares():
    params = {'attention': {'span_share': jnp.asarray([0.0, 0.4, 1.0]), 'kernel': jnp.zeros((3,))}}
    for gradient, wanted in ((1.0, [0.0, 0.0, 0.5]), (-1.0, [0.5, 0.9, 1.0])):
        chain = optimizer.make_optimizer(make_config(name='sgd'), 10, params)
        gradients = jax.tree.map(lambda leaf, g=gradient: jnp.full_like(leaf, g), params)
        updates, _ = chain.update(gradients, chain.init(params), params)
        new = optax.apply_updates(params, updates)
        np.testing.assert_allclose(new['attention']['span_share'], wanted, atol=1e-6)
        np.testing.assert_allclose(new['attention']['kernel'], -0.5 * gradient)


def first_update(gradient=1.0, **changes):
    """One element of every first update, with the same gradient everywhere."""
    params = make_params()
    chain = optimizer.make_optimizer(make_config(**changes), 10, params)
    gradients = jax.tree.map(lambda leaf: np.full_like(leaf, gradient), params)
    updates, _ = jax.jit(lambda g, p: chain.update(g, chain.init(p), p))(gradients, params)
    return jax.tree.map(lambda leaf: float(np.asarray(leaf).flat[0]), updates)


# Peak 0.5, warm-up 4, 14 updates, end at a tenth: half way is update 4 + 5.
@pytest.mark.parametrize(
    'name, count, expected',
    [
        ('cosine', 0, 0.125),
        ('cosine', 2, 0.375),
        ('cosine', 3, 0.5),
        ('cosine', 4, 0.5),
        ('cosine', 9, 0.5 * (0.1 + 0.9 / 2)),
        ('cosine', 14, 0.05),
        ('cosine', 99, 0.05),
        ('linear', 9, 0.5 * 0.55),
        ('linear', 14, 0.05),
        ('inverse_sqrt', 1, 0.25),
        ('inverse_sqrt', 4, 0.5),
        ('inverse_sqrt', 16, 0.25),
        ('constant', 1, 0.25),
        ('constant', 12, 0.5),
    ],
)
def test_schedule_values(name, count, expected):
    config = make_config(schedule=name, warmup_steps=4, final_fraction=0.1)
    rate = jax.jit(optimizer.make_schedule(config, 14))(jnp.int32(count))
    np.testing.assert_allclose(rate, expected, rtol=1e-6)


def test_schedules_without_warm_up_and_shorter_than_it():
    for name in ('cosine', 'linear', 'constant'):
        np.testing.assert_allclose(optimizer.make_schedule(make_config(schedule=name), 8)(0), 0.5)
    short = optimizer.make_schedule(make_config(schedule='cosine', warmup_steps=100), 10)
    np.testing.assert_allclose(short(9), 0.5 * 10 / 100, rtol=1e-6)


def test_first_updates_by_hand():
    # The first step of Adam is the sign of the gradient, here with rate 0.5; parameters are 2.
    # (1 - 0.999 in float32 is exact to 1e-5.)
    assert first_update(name='adam')['head']['kernel'] == pytest.approx(-0.5, rel=1e-4)
    decayed = first_update(name='adamw', weight_decay=0.1)
    assert decayed['head']['kernel'] == pytest.approx(-0.5 * (1 + 0.1 * 2), rel=1e-4)
    assert decayed['block']['bias'] == pytest.approx(-0.5, rel=1e-4)
    assert first_update(name='sgd')['block']['bias'] == pytest.approx(-0.5, rel=1e-4)
    # Adafactor: a unit update, times the root mean square of the parameter.
    assert first_update(name='adafactor')['block']['bias'] == pytest.approx(-0.5 * 2, rel=1e-4)


def test_adafactor_decays_by_the_learning_rate_as_adamw_does():
    change = dict(weight_decay=0.1, learning_rate=1e-2)
    factored = first_update(name='adafactor', **change)
    assert factored['head']['kernel'] == pytest.approx(-1e-2 * 2 - 1e-2 * 0.1 * 2)
    assert factored['block']['bias'] == pytest.approx(-1e-2 * 2)


def test_second_updates_of_adam_and_of_momentum():
    params = {'w': jnp.zeros(1)}
    gradients = [{'w': jnp.array([1.0])}, {'w': jnp.array([3.0])}]

    def second(**changes):
        chain = optimizer.make_optimizer(make_config(**changes), 10, params)
        update = jax.jit(chain.update)
        _, state = update(gradients[0], jax.jit(chain.init)(params), params)
        return float(update(gradients[1], state, params)[0]['w'][0])

    mean = (0.9 * 0.1 * 1 + 0.1 * 3) / (1 - 0.9**2)
    square = (0.99 * 0.01 * 1 + 0.01 * 9) / (1 - 0.99**2)
    expected = -0.5 * mean / (math.sqrt(square) + 1e-8)
    assert second(name='adam', b1=0.9, b2=0.99) == pytest.approx(expected, rel=1e-4)
    assert second(name='sgd', momentum=0.9) == pytest.approx(-0.5 * (3 + 0.9))
    nesterov = -0.5 * (3 + 0.9 * (3 + 0.9))
    assert second(name='nesterov', momentum=0.9) == pytest.approx(nesterov)


def test_clipping_bounds_the_global_norm():
    # 15 ones have the norm sqrt(15).
    clipped = first_update(name='sgd', clip_norm=1.0)['head']['kernel']
    assert clipped == pytest.approx(-0.5 / math.sqrt(15))
    assert first_update(name='sgd', clip_norm=9.0)['head']['kernel'] == -0.5
    assert first_update(name='sgd', gradient=100.0)['head']['kernel'] == -50


def test_adagrad_divides_by_the_root_of_all_squares():
    """The first update has the size of the rate, the next ones shrink."""
    params = {'a': jnp.asarray([1.0, 1.0])}
    chain = optimizer.make_optimizer(make_config(name='adagrad'), 10, params)
    init, update = jax.jit(chain.init), jax.jit(chain.update)
    state, gradient = init(params), {'a': jnp.asarray([3.0, 1e-4])}
    for number in range(1, 4):
        updates, state = update(gradient, state, params)
        np.testing.assert_allclose(updates['a'], [-0.5 / number**0.5] * 2, rtol=1e-5)
    updates, _ = update({'a': jnp.zeros(2)}, init(params), params)
    assert np.all(np.isfinite(updates['a'])) and not np.any(updates['a'])


def test_rmsprop_divides_by_the_root_of_a_running_mean_of_squares():
    settings = make_config(name='rmsprop', b2=0.75, eps=0.1)
    made = optimizer.make_optimizer(settings, 10, {'w': jnp.zeros(1)})
    params, square = {'w': jnp.zeros(1)}, 0.0
    state, update = jax.jit(made.init)(params), jax.jit(made.update)
    for gradient in (2.0, -1.0, 3.0):
        square = 0.75 * square + 0.25 * gradient**2
        updates, state = update({'w': jnp.full(1, gradient)}, state, params)
        expected = -0.5 * gradient / (math.sqrt(square) + 0.1)
        np.testing.assert_allclose(updates['w'], expected, rtol=1e-5)


def test_clipping_each_parameter_by_itself():
    params = {'large': jnp.zeros(4), 'small': jnp.zeros(2), 'none': jnp.zeros(2)}
    gradients = {
        'large': jnp.full(4, -50.0), 'small': jnp.asarray([0.03, -0.04]), 'none': jnp.zeros(2)
    }  # fmt: skip
    settings = make_config(name='sgd', learning_rate=1.0, clip_norm=0.1, clip_each=True)
    chain = optimizer.make_optimizer(settings, 10, params)
    updates, _ = chain.update(gradients, chain.init(params), params)
    np.testing.assert_allclose(updates['large'], 0.05, rtol=1e-6)
    np.testing.assert_allclose(updates['small'], [-0.03, 0.04], rtol=1e-6)
    np.testing.assert_array_equal(updates['none'], 0.0)


def test_first_matching_group_decides():
    groups = (('bias$', 0.0, True), ('^block/', 2.0, False), ('kernel', 3.0, True))
    updates = first_update(name='adamw', weight_decay=0.1, groups=groups)
    assert updates['block']['bias'] == 0
    assert updates['block']['kernel'] == pytest.approx(-0.5 * 2, rel=1e-4)
    assert updates['head']['kernel'] == pytest.approx(-0.5 * 3 * 1.2, rel=1e-4)


def test_a_group_may_have_its_own_optimizer():
    groups = (('bias$', 1.0, False, 'adam'),)
    updates = first_update(name='sgd', gradient=100.0, groups=groups)
    assert updates['block']['bias'] == pytest.approx(-0.5, rel=1e-4)
    assert updates['block']['kernel'] == -50
    decayed = first_update(name='adamw', weight_decay=0.1, groups=(('head', 1.0, True, 'sgd'),))
    assert decayed['head']['kernel'] == -0.5
    assert decayed['block']['kernel'] == pytest.approx(-0.5 * 1.2, rel=1e-4)


# What counts steps is outside of them: one that scales by moments, one that has some of its own.
@pytest.mark.parametrize(
    'name',
    [
        pytest.param(name, marks=() if name in ('adamw', 'muon') else pytest.mark.slow)
        for name in optimizer.NAMES
    ],
)
def test_accumulation_is_one_step_on_the_mean(name):
    common = dict(name=name, weight_decay=0.1, clip_norm=1.0, momentum=0.9, schedule='linear')
    params, random = {'kernel': np.full((2, 3), 2, np.float32)}, np.random.default_rng(0)
    gradients = [{'kernel': random.normal(size=(2, 3)).astype(np.float32)} for _ in range(4)]

    def run(accumulate, gradients, num_steps):
        config = make_config(accumulate_steps=accumulate, **common)
        chain = optimizer.make_optimizer(config, num_steps, params)
        update, current, state = jax.jit(chain.update), params, jax.jit(chain.init)(params)
        for gradient in gradients:
            updates, state = update(gradient, state, current)
            current = jax.tree.map(np.add, current, updates)
        return current

    means = [jax.tree.map(lambda a, b: (a + b) / 2, *gradients[i : i + 2]) for i in (0, 2)]
    # The schedule counts updates: 8 steps of which 2 make an update are 4 updates.
    chex.assert_trees_all_close(run(2, gradients, 8), run(1, means, 4), atol=1e-6)


GROUPS = ((), (('bias', 0.5, False),), (('bias', 1.0, False, 'adam'),))
# Of every optimizer all at once; the factored one also by itself, for its size.
QUICK = {(name, 2, GROUPS[2]) for name in optimizer.NAMES} | {('adafactor', 1, ())}


@pytest.mark.parametrize(
    'name, accumulate, groups',
    [
        pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow)
        for case in itertools.product(optimizer.NAMES, (1, 2), GROUPS)
    ],
)
def test_every_combination_is_compiled_and_keeps_its_state(name, accumulate, groups):
    config = make_config(
        name=name,
        accumulate_steps=accumulate,
        clip_norm=1.0 if groups else 0.0,
        groups=groups,
        weight_decay=0.1,
        momentum=0.9,
        schedule='cosine',
        warmup_steps=1,
    )
    params = {'table': jnp.ones((128, 130)), 'bias': jnp.ones(3)}
    chain = optimizer.make_optimizer(config, 10, jax.eval_shape(lambda: params))

    @jax.jit
    def step(params, state):
        updates, state = chain.update(jax.tree.map(jnp.ones_like, params), state, params)
        return optax.apply_updates(params, updates), state

    with jax.numpy_rank_promotion('raise'):
        start = (params, jax.jit(chain.init)(params))
        end = start
        for _ in range(3):
            end = step(*end)
    chex.assert_trees_all_equal_shapes_and_dtypes(start, end)
    assert jax.tree.structure(start) == jax.tree.structure(end)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(end[0]))
    assert not np.array_equal(params['table'], end[0]['table'])
    if name == 'adafactor':  # the large matrix is factored
        size = sum(leaf.size for leaf in jax.tree.leaves(end[1]))
        assert size < 1000 + (accumulate > 1) * 128 * 130


@pytest.mark.parametrize(
    'changes, message',
    [
        (
            dict(name='adafacto'),
            r"name = 'adafacto': did you mean 'adafactor'\? allowed are adam, ",
        ),
        (dict(schedule='cosin'), r"schedule = 'cosin': did you mean 'cosine'\?"),
        (dict(groups=(('nothing', 1.0, True),)), r"\['nothing'\].*block/kernel"),
        (dict(groups=(('(', 1.0, True),)), 'tuples .* are needed'),
        (dict(groups=(('kernel', 1.0),)), 'tuples .* are needed'),
        (dict(groups=(('kernel', 1.0, True, 'lamb'),)), 'optimizers are adam'),
        (dict(schedule='inverse_sqrt'), 'warmup_steps = 0'),
    ],
)
def test_problems_are_named(changes, message):
    with pytest.raises(UsageError, match=message):
        optimizer.make_optimizer(make_config(**changes), 10, make_params())


@pytest.mark.parametrize('name', optimizer.NAMES)
@pytest.mark.parametrize(
    'groups', [pytest.param((), marks=pytest.mark.slow), (('head', 2.0, False, 'sgd'),)]
)
def test_updates_are_counted_and_gradients_that_only_accumulate_are_not(name, groups):
    params = make_params()
    gradients = jax.tree.map(np.ones_like, params)
    chain = optimizer.make_optimizer(
        make_config(name=name, groups=groups, accumulate_steps=2), 10, params
    )
    state, counted, update = jax.jit(chain.init)(params), [], jax.jit(chain.update)
    for _ in range(5):
        _, state = update(gradients, state, params)
        counted.append(int(optimizer.updates_made(state)))
    assert counted == [0, 1, 1, 2, 2]


def is_gate(path):
    """Whether a parameter weighs a memory: its gate, the kernel or bias of one, or a beta."""
    name = path.rpartition('/')[2]
    return name in ('gate', 'beta', 'betas') or name.startswith('gate_')


@pytest.mark.slow
def test_gates_of_every_memory_have_their_own_rate_and_no_decay():
    gated = set()
    for memory in recipes():
        config = base()
        two_cores(config, steps=10, lanes=2, segment=16)
        stack(config.model, 1, 'transformer_xl')
        use(config, memory)
        shapes = unbox(abstract_parameters(make_model(config.model, 16)))
        groups = config.optimizer.groups
        assigned, _ = jax.tree_util.tree_flatten_with_path(
            optimizer.parameter_groups(groups, shapes)
        )
        for path, group in assigned:
            name = optimizer.parameter_path(path)
            if is_gate(name):
                gated.add(memory)
                assert group >= 0, f'{memory}: {name} has the rate of everything else'
                assert groups[group][1] > 1 and not groups[group][2], name
    assert gated >= {'infini', 'memorizing', 'infinity_former'}


@pytest.mark.parametrize('b1, eps', [(0.9, 1e-6), (0.5, 0.3)])
def test_adamw_of_hugging_face_is_a_plain_loop(b1, eps):
    """Its eps is added to the root that is not corrected; decay follows the step."""
    settings = make_config(
        name='adamw_hf', b1=b1, b2=0.99, eps=eps, weight_decay=0.1, learning_rate=0.2,
        schedule='linear', final_fraction=0.5,
    )  # fmt: skip
    generator = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: generator.normal(size=leaf.shape), make_params())
    kernel, bias = params['block']['kernel'].copy(), params['block']['bias'].copy()
    params = jax.tree.map(np.float32, params)
    chain = optimizer.make_optimizer(settings, 6, params)
    state, update = jax.jit(chain.init)(params), jax.jit(chain.update)
    moments = {'kernel': [0.0, 0.0], 'bias': [0.0, 0.0]}
    for t in range(1, 7):
        gradients = jax.tree.map(lambda leaf: generator.normal(size=leaf.shape), params)
        rate = 0.2 + (0.1 - 0.2) * (t - 1) / 6
        for name, weight in (('kernel', kernel), ('bias', bias)):
            gradient, (mean, square) = gradients['block'][name], moments[name]
            mean, square = b1 * mean + (1 - b1) * gradient, 0.99 * square + 0.01 * gradient**2
            moments[name] = mean, square
            size = rate * math.sqrt(1 - 0.99**t) / (1 - b1**t)
            weight -= size * mean / (np.sqrt(square) + eps)
            if name == 'kernel':  # vectors do not decay
                weight -= rate * 0.1 * weight
        updates, state = update(jax.tree.map(np.float32, gradients), state, params)
        params = jax.tree.map(np.add, params, updates)
        np.testing.assert_allclose(params['block']['kernel'], kernel, rtol=2e-6, atol=1e-6)
        np.testing.assert_allclose(params['block']['bias'], bias, rtol=2e-6, atol=1e-6)
    assert optimizer.updates_made(state) == 6


def test_adamw_of_hugging_face_in_a_group():
    """The others have another optimizer, and no moments here."""
    changes = dict(groups=(('head', 1.0, True, 'adamw_hf'),), b1=0.9, b2=0.999, eps=1e-6)
    found = first_update(1e-4, **changes, weight_decay=0.0)
    share = 1e-4 / (1e-4 + 1e-6 / math.sqrt(0.001))  # what is left of a whole step
    assert found['head']['kernel'] == pytest.approx(-0.5 * share, rel=1e-4)
    assert found['block']['kernel'] == pytest.approx(-0.5 * 1e-4 / (1e-4 + 1e-6), rel=1e-4)


def test_lion_steps_by_signs():
    updates = first_update(gradient=-3.0, name='lion', b1=0.9, b2=0.99, weight_decay=0.0)
    assert updates['head']['kernel'] == pytest.approx(0.5)  # the rate, against the sign


def test_muon_makes_matrices_orthogonal_and_leaves_the_others_to_adamw():
    params = {
        'attention': {
            'query': {'kernel': np.ones((6, 2, 3), np.float32)},
            'out': {'kernel': np.ones((2, 3, 6), np.float32)},
        },
        'embedding': {'table_0': np.ones((5, 6), np.float32)},
        'norm': {'scale': np.ones(6, np.float32)},
    }
    random = np.random.default_rng(0)
    gradients = jax.tree.map(lambda leaf: random.normal(size=leaf.shape).astype('f'), params)
    chain = optimizer.make_optimizer(make_config(name='muon', weight_decay=0.0), 10, params)
    updates, _ = jax.jit(lambda g, p: chain.update(g, chain.init(p), p))(gradients, params)
    for name, kernel in updates['attention'].items():
        matrix = np.asarray(kernel['kernel']).reshape(6, 6)
        assert np.sqrt(np.mean(matrix**2)) == pytest.approx(0.5 * optimizer.MUON_SIZE, rel=1e-4)
        values = np.linalg.svd(matrix, compute_uv=False)
        assert values.max() / values.min() < 3, f'{name}: not all directions are equally long'
        raw = gradients['attention'][name]['kernel'].reshape(6, 6)
        assert np.sum(matrix * raw) < 0, 'against the gradient'
    alone = optimizer.make_optimizer(make_config(name='adamw', weight_decay=0.0), 10, params)
    wanted, _ = alone.update(gradients, alone.init(params), params)
    for name in ('embedding', 'norm'):
        chex.assert_trees_all_close(updates[name], wanted[name], rtol=1e-5)


def test_optimizers_of_optax_by_name_keep_the_masks_of_weight_decay():
    """With a mask of their own, without one, without any weight decay; options come last."""
    for name in ('optax.lamb', 'optax.novograd'):
        plain, decayed = (
            first_update(name=name, weight_decay=decay, schedule='constant') for decay in (0.0, 0.1)
        )
        assert plain['block']['bias'] == decayed['block']['bias'] != 0, name
        assert plain['head']['kernel'] != decayed['head']['kernel'], name
    # Adamax: the sign of the gradient times the rate; the decay is that of the updated parameter.
    assert first_update(name='optax.adamax')['head']['kernel'] == pytest.approx(-0.5, rel=1e-4)
    decayed = first_update(name='optax.adamax', weight_decay=0.1)['head']['kernel']
    assert decayed == pytest.approx(-0.5 - 0.5 * 0.1 * (2 - 0.5), rel=1e-4)
    # A second field of the same name as one of the options: the option counts.
    twice = first_update(name='optax.sgd', options=(('momentum', 0.5), ('nesterov', True)))
    assert twice['head']['kernel'] == pytest.approx(-0.5 * 1.5)


def test_an_optimizer_that_is_given_stays_inside_of_clipping_groups_and_bounds():
    groups, params = (('head', 0.5, True), ('bias', 0.0, False)), make_params()
    settings = make_config(name='given', groups=groups, clip_norm=1.0)
    chain = optimizer.make_optimizer(settings, 10, params, optax.sgd(0.25))
    ones = jax.tree.map(np.ones_like, params)
    updates, state = chain.update(ones, chain.init(params), params)
    size = 0.25 / math.sqrt(15)
    np.testing.assert_allclose(updates['block']['kernel'], -size, rtol=1e-6)
    np.testing.assert_allclose(updates['head']['kernel'], -size / 2, rtol=1e-6)
    assert not updates['block']['bias'].any() and optimizer.updates_made(state) == 1


@pytest.mark.parametrize(
    'changes, said',
    [
        (dict(name='optax.lam'), "did you mean 'optax.lamb'"),
        (dict(name='optax.lamb', options=(('b4', 1.0),)), 'takes b1, b2, eps, .*b4'),
        (dict(name='optax.lamb', options=('b1',)), 'pairs of a name and a value'),
        (dict(name='optax.contrib.momo'), 'needs more than the mean gradient'),
        (dict(groups=(('.', -1.0, False),)), 'a rate multiplier is a number of at least 0'),
        (dict(groups=(('.', math.nan, False),)), 'a rate multiplier is a number of at least 0'),
        (dict(name='optax.lbfgs'), 'needs more than the mean gradient'),
        (dict(name='optax.contrib.schedule_free_sgd'), 'is not one of|allowed|did you mean'),
        (dict(name='given'), 'longmem_jax.train'),
    ],
)
def test_optimizers_that_cannot_be_used_are_refused(changes, said):
    with pytest.raises(UsageError, match=said):
        optimizer.make_optimizer(make_config(**changes), 10, make_params())
    with pytest.raises(UsageError, match='GradientTransformation is needed'):
        optimizer.make_optimizer(make_config(name='given'), 10, make_params(), 'adam')
