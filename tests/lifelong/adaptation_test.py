"""Local and coarse adaptation and meta-gradients, against the same written out in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from longmem_jax.errors import UsageError
from longmem_jax.lifelong import adaptation
from longmem_jax.lifelong.adaptation import Adaptation
from longmem_jax.lifelong.rows import take
from tests.lifelong import toy

STREAM, ASKED, PARAMS = toy.rows(30), toy.rows(7, seed=1), toy.params()
NUMBERS = np.random.default_rng(2).integers(0, 30, (7, 3)).astype(np.int32)
FOUND = np.ones(NUMBERS.shape, bool)
SETTINGS = Adaptation(
    steps=4, rate=0.3, momentum=0.5, anchor=0.1, adapted='all', chunk=3, first_order=False
)


def close(found, wanted, tolerance=2e-5):
    for name, leaf in wanted.items():
        np.testing.assert_allclose(found[name], leaf, atol=tolerance, err_msg=name)


@functools.partial(jax.jit, static_argnames='settings')
def adapted(numbers, found, settings):
    part, losses = adaptation.adapt_to(toy.NETWORK, PARAMS, STREAM, numbers, found, settings)
    return adaptation.put(PARAMS, part), losses


@functools.partial(jax.jit, static_argnames='settings')
def answers(found, settings):
    return adaptation.predict_each(toy.NETWORK, PARAMS, STREAM, ASKED, NUMBERS, found, settings)


@functools.partial(jax.jit, static_argnames='settings')
def meta(params, there, settings):
    return adaptation.meta_gradient(
        toy.NETWORK, params, STREAM, ASKED, there, NUMBERS, FOUND, settings
    )


@pytest.mark.parametrize('momentum', [0.0, 0.9])
@pytest.mark.parametrize('anchor', [0.0, 0.2])
def test_steps_are_those_of_the_formula(momentum, anchor):
    settings = SETTINGS._replace(momentum=momentum, anchor=anchor)
    found, losses = adapted(NUMBERS[0], FOUND[0], settings)
    neighbours = take(STREAM, NUMBERS[0])
    wanted = toy.adapt(toy.plain(PARAMS), neighbours, 4, 0.3, momentum, anchor)
    close(toy.plain(found), wanted)
    first, _ = toy.losses_and_gradient(toy.plain(PARAMS), neighbours, np.ones(3))
    assert losses.shape == (4,) and abs(losses[0] - first.mean()) < 1e-5


def test_the_anchor_keeps_parameters_near():
    near, _ = adapted(NUMBERS[0], FOUND[0], SETTINGS._replace(anchor=1.0))
    far, _ = adapted(NUMBERS[0], FOUND[0], SETTINGS._replace(anchor=0.0))
    moved = [
        sum(np.square(leaf - toy.plain(PARAMS)[name]).sum() for name, leaf in tree.items())
        for tree in (toy.plain(near), toy.plain(far))
    ]
    assert moved[0] < 0.5 * moved[1]


def test_only_the_head_is_adapted():
    found, _ = adapted(NUMBERS[0], FOUND[0], SETTINGS._replace(adapted='head'))
    wanted = toy.adapt(
        toy.plain(PARAMS), take(STREAM, NUMBERS[0]), 4, 0.3, 0.5, 0.1, ('weight', 'bias')
    )
    close(toy.plain(found), wanted)
    for name, leaf in PARAMS['encoder'].items():
        np.testing.assert_array_equal(found['encoder'][name], leaf)


def test_rows_that_were_not_found_count_for_nothing():
    some = np.array([True, False, True])
    found, _ = adapted(NUMBERS[0], some, SETTINGS)
    wanted = toy.adapt(toy.plain(PARAMS), take(STREAM, NUMBERS[0][some]), 4, 0.3, 0.5, 0.1)
    close(toy.plain(found), wanted)
    unmoved, _ = adapted(NUMBERS[0], np.zeros(3, bool), SETTINGS)
    close(toy.plain(unmoved), toy.plain(PARAMS), 0)


@pytest.mark.slow
def test_any_chunk_gives_the_same_numbers():
    wanted = []
    for row in range(7):  # by hand, one row after another, each from the same parameters
        tree = toy.adapt(toy.plain(PARAMS), take(STREAM, NUMBERS[row]), 4, 0.3, 0.5, 0.1)
        tree = {name: leaf.astype(np.float32) for name, leaf in tree.items()}
        params = {
            'encoder': {name: tree[name] for name in toy.NAMES[:3]},
            'head': {name: tree[name] for name in toy.NAMES[3:]},
        }
        wanted.append(toy.NETWORK.scores(params, take(ASKED, np.array([row])))[0])
    for chunk in (1, 3, 100):
        found = answers(FOUND, SETTINGS._replace(chunk=chunk))
        np.testing.assert_allclose(found, wanted, atol=3e-5, err_msg=f'chunk {chunk}')


@pytest.mark.parametrize('part', ['all', pytest.param('head', marks=pytest.mark.slow)])
def test_meta_gradients(part):
    """Second order against differences of the float64 loss, first order against its formula."""
    names = toy.NAMES if part == 'all' else toy.NAMES[3:]
    there = np.array([True] * 5 + [False] * 2)
    settings = SETTINGS._replace(steps=2, adapted=part, momentum=0.0)

    def after(params, row):
        tree = toy.adapt(params, take(STREAM, NUMBERS[row]), 2, 0.3, 0.0, 0.1, names)
        return toy.losses_and_gradient(tree, take(ASKED, np.array([row])), np.ones(1))

    def loss(params):
        return np.mean([after(params, row)[0][0] for row in range(5)])

    start, rng = toy.plain(PARAMS), np.random.default_rng(3)
    second = meta(PARAMS, there, settings)
    np.testing.assert_allclose(second.loss, loss(start), atol=1e-5)
    gradient = toy.plain(second.gradient)
    for _ in range(6):
        way = {name: rng.normal(size=leaf.shape) for name, leaf in start.items()}
        ahead, back = (
            loss({name: leaf + sign * 1e-5 * way[name] for name, leaf in start.items()})
            for sign in (1, -1)
        )
        slope = sum((gradient[name] * way[name]).sum() for name in way)
        np.testing.assert_allclose(slope, (ahead - back) / 2e-5, atol=2e-5)
    first = meta(PARAMS, there, settings._replace(first_order=True))
    trees = [after(start, row)[1] for row in range(5)]
    wanted = {name: np.mean([tree[name] for tree in trees], axis=0) for name in start}
    close(toy.plain(first.gradient), wanted)
    np.testing.assert_allclose(first.losses, second.losses, atol=1e-6)
    assert max(np.abs(wanted[name] - gradient[name]).max() for name in wanted) > 1e-2


@pytest.mark.slow
def test_dropout_is_of_the_answer_alone():
    """Every row has its own; the neighbours are learned without."""
    seen = []

    class Marked(type(toy.NETWORK.encoder)):
        def encode(self, params, inputs, key):
            encoded = super().encode(params, inputs, None)
            seen.append(key is not None)
            return (
                encoded if key is None else encoded._replace(pooled=jax.random.normal(key, (1, 6)))
            )

    network = toy.NETWORK._replace(encoder=Marked(toy.WIDTH, toy.VOCAB, toy.EMBEDDING))
    key, there = jax.random.key(4), np.ones(7, bool)
    for chunk in (3, 7):
        settings = SETTINGS._replace(chunk=chunk, momentum=0.0)
        given = network, PARAMS, STREAM, ASKED, there, NUMBERS, FOUND, settings
        found = jax.jit(functools.partial(adaptation.meta_gradient, *given))(key)
        for row, own in enumerate(jax.random.split(key, 7)):
            part, _ = adapted(NUMBERS[row], FOUND[row], settings)
            logits = part['head']['weight'] @ jax.random.normal(own, (6,)) + part['head']['bias']
            np.testing.assert_allclose(found.scores[row], logits, atol=2e-5)
    assert True in seen and False in seen


@pytest.mark.slow
def test_meta_gradients_are_the_same_for_any_chunk():
    there = np.array([True] * 6 + [False])
    found = [meta(PARAMS, there, SETTINGS._replace(chunk=chunk)) for chunk in (1, 3, 50)]
    for other in found[1:]:
        np.testing.assert_allclose(other.losses, found[0].losses, atol=1e-6)
        close(toy.plain(other.gradient), toy.plain(found[0].gradient), 1e-6)


def test_coarse_adaptation_reads_other_rows_in_every_step():
    settings = SETTINGS._replace(momentum=0.0, anchor=0.1)
    found = adaptation.adapt_once(toy.NETWORK, PARAMS, STREAM, NUMBERS[:4], FOUND[:4], settings)
    now, start = toy.plain(PARAMS), toy.plain(PARAMS)
    for step in range(4):
        _, gradient = toy.losses_and_gradient(now, take(STREAM, NUMBERS[step]), np.ones(3) / 3)
        now = {
            name: leaf - 0.3 * (gradient[name] + 0.2 * (leaf - start[name]))
            for name, leaf in now.items()
        }
    close(toy.plain(found), now)


def blocks():
    names = ('embedding/table_0', 'block_0/w_1', 'block_1/w_1', 'block_10/w_1', 'pooler/bias')
    tree = {'encoder': {'types': jnp.zeros(1)}, 'head': {'weight': jnp.zeros(1)}}
    for name in names:
        room, leaf = name.split('/')
        tree['encoder'][room] = {leaf: jnp.zeros(1)}
    return tree


@pytest.mark.parametrize(
    'choice, wanted',
    [
        ('head', []),
        ('last:1', ['block_10/w_1', 'pooler/bias']),
        ('last:2', ['block_1/w_1', 'block_10/w_1', 'pooler/bias']),
    ],
)
def test_parts_are_chosen_by_path(choice, wanted):
    part = adaptation.part_of(blocks(), choice)
    assert sorted(part) == sorted([f'encoder/{name}' for name in wanted] + ['head/weight'])


def test_all_is_every_parameter():
    assert len(adaptation.part_of(blocks(), 'all')) == 7


def test_more_blocks_than_there_are():
    with pytest.raises(UsageError, match='3 numbered blocks.*at most last:3'):
        adaptation.part_of(blocks(), 'last:4')
    with pytest.raises(UsageError, match='0 numbered blocks'):
        adaptation.part_of(PARAMS, 'last:1')


@pytest.mark.parametrize('choice', ['body', 'last:0', 'last:x', 'last', 3])
def test_unknown_parts(choice):
    assert 'last:2' in adaptation.adapted_problem(choice)
    assert not adaptation.adapted_problem('last:12')
