"""Classes and candidates: what is read, what is trained, and that no answer is told."""

import jax
import jax.numpy as jnp
import numpy as np

from longmem_jax.lifelong import heads
from longmem_jax.lifelong.network import Network
from longmem_jax.lifelong.rows import Rows
from tests.parity_systems.lifelong_episodes import Bag

RELATIONS = np.asarray([[5, 6, -1], [7, -1, -1], [8, 9, 4], [1, 2, 3]])


def make_rows(candidates=((0, 2, 3), (1, 3, -1)), gold=(2, 1)):
    tokens = jnp.asarray([[1, 2, -1, -1], [3, 4, 5, -1]])
    answer = heads.Choice(jnp.asarray(candidates), jnp.asarray(gold))
    return Rows(tokens, jnp.zeros(tokens.shape, jnp.uint8), answer)


def make_network(**changes):
    network = Network(Bag(10, 4, 6), heads.Candidates(RELATIONS, **changes))
    return network, network.init(jax.random.key(0))


def test_a_candidate_follows_its_text():
    inputs = heads.Candidates(RELATIONS).inputs(make_rows())
    assert inputs.tokens.shape == (6, 7)
    np.testing.assert_array_equal(inputs.tokens[0], [1, 2, 5, 6, 0, 0, 0])
    np.testing.assert_array_equal(inputs.types[0][:4], [0, 0, 1, 1])
    np.testing.assert_array_equal(inputs.valid[0], [1, 1, 1, 1, 0, 0, 0])
    np.testing.assert_array_equal(inputs.tokens[4], [3, 4, 5, 1, 2, 3, 0])


def test_scores_are_of_candidates_wherever_they_are():
    network, params = make_network()
    scores = network.scores(params, make_rows())
    turned = network.scores(params, make_rows(candidates=((3, 0, 2), (-1, 1, 3))))
    np.testing.assert_allclose(turned[0], scores[0, jnp.asarray([2, 0, 1])], rtol=1e-5)
    np.testing.assert_allclose(turned[1, 1:], scores[1, :2], rtol=1e-5)
    assert turned[1, 0] == scores[1, 2] == -jnp.inf


def test_the_right_one_is_found_by_its_number():
    head, rows = heads.Candidates(RELATIONS), make_rows()
    found = head.right(jnp.asarray([[0.0, 2.0, 1.0], [1.0, 2.0, -jnp.inf]]), rows)
    np.testing.assert_array_equal(found, [1, 0])
    same = head.scores({'kernel': jnp.zeros((6, 1)), 'bias': jnp.zeros(1)}, make_encoded(), rows)
    np.testing.assert_array_equal(head.right(same, rows), [0, 1])  # no better than the first


def make_encoded():
    return Bag(10, 4, 6).encode(
        Bag(10, 4, 6).init(jax.random.key(0)), heads.Candidates(RELATIONS).inputs(make_rows())
    )


def test_scores_do_not_see_the_answer():
    network, params = make_network()
    first, second = (network.scores(params, make_rows(gold=gold)) for gold in ((2, 1), (0, 3)))
    np.testing.assert_array_equal(first, second)


def test_losses_are_plain_binary_cross_entropies():
    scores = np.asarray([[0.3, -1.2, 2.0], [0.7, -0.1, -np.inf]])
    rows, share = make_rows(), 1 / (1 + np.exp(-scores))
    each = [-np.log(share[0, 1]), *-np.log(1 - share[0, [0, 2]])]
    other = [-np.log(share[1, 0]), -np.log(1 - share[1, 1])]
    found = heads.Candidates(RELATIONS).losses(jnp.asarray(scores), rows)
    np.testing.assert_allclose(found, [np.mean(each), np.mean(other)], rtol=1e-6)
    found = heads.Candidates(RELATIONS, over_inputs=True).losses(jnp.asarray(scores), rows)
    np.testing.assert_allclose(found.mean(), np.mean(each + other), rtol=1e-6)


def test_a_missing_candidate_has_no_gradient():
    network, params = make_network()
    gradient = jax.jit(jax.grad(lambda p, rows: network.loss(p, rows, jnp.ones(2, bool))))
    gradients = gradient(params, make_rows())
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))
    other = Rows(make_rows().tokens, make_rows().types, make_rows(((0, 2, 3), (1, 3, -5))).answer)
    again = gradient(params, other)
    jax.tree.map(np.testing.assert_array_equal, gradients, again)


def test_candidates_are_in_an_order_that_tells_nothing():
    first = heads.choose_from(np.asarray([2]), np.asarray([[0, 3, -1]]))
    second = heads.choose_from(np.asarray([3]), np.asarray([[2, 0, -1]]))
    np.testing.assert_array_equal(first.candidates, second.candidates)
    assert first.gold == 2 and second.gold == 3


def test_classes():
    head = heads.Classes(3)
    rows = Rows(jnp.asarray([[1, -1], [2, 3]]), jnp.zeros((2, 2), jnp.uint8), jnp.asarray([2, 0]))
    scores = jnp.asarray([[0.0, 1.0, 2.0], [0.5, 1.5, 0.0]])
    np.testing.assert_array_equal(head.right(scores, rows), [1, 0])
    wanted = [
        np.log(np.exp(s).sum()) - s[i] for s, i in zip(np.asarray(scores), (2, 0), strict=True)
    ]
    np.testing.assert_allclose(head.losses(scores, rows), wanted, rtol=1e-6)
    assert head.inputs(rows).tokens.shape == head.key_inputs(rows).tokens.shape == (2, 2)
