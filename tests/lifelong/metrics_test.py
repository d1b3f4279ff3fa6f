"""Forgetting and transfer of a matrix worked by hand, the bootstrap, and figures."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.lifelong import comparisons
from longmem_jax.lifelong import episodic, figures, metrics

MATRIX = np.asarray([[0.9, 0.3, 0.2], [0.6, 0.8, 0.5], [0.5, 0.7, 1.0]])
BEFORE = np.asarray([0.1, 0.2, 0.4])


def test_a_matrix_worked_by_hand():
    found = metrics.transfer(MATRIX, BEFORE)
    assert found.average == pytest.approx((0.5 + 0.7 + 1.0) / 3)
    # Task 0: .9 when learned, .5 at the end; task 1: .8 and .7.
    assert found.forgetting == pytest.approx((0.4 + 0.1) / 2)
    assert found.backward == pytest.approx(-0.25)
    # Task 1 after task 0: .3, and .2 before; task 2 after task 1: .5, and .4.
    assert found.forward == pytest.approx((0.1 + 0.1) / 2)


def test_one_task_and_unknown_beginnings():
    assert np.isnan(metrics.transfer(MATRIX).forward)
    alone = metrics.transfer([[0.7]], [0.1])
    assert alone.average == 0.7 and np.isnan(alone[1:]).all()
    with pytest.raises(ValueError, match=r'\(2, 3\)'):
        metrics.transfer(MATRIX[:2])


def test_the_bootstrap_is_paired():
    random = np.random.default_rng(0)
    hard = random.random(400)  # rows differ much more than methods
    better = comparisons.paired_bootstrap(np.minimum(hard + 0.02, 1), hard, draws=500)
    assert better.mean == pytest.approx(0.02, abs=1e-3) and better.p < 0.01
    assert better.low > 0.015 and better.high < 0.0205
    a, b = (random.random(400) < 0.5 for _ in range(2))
    same = comparisons.paired_bootstrap(a, b, draws=500)
    assert same.low < 0 < same.high and same.p > 0.05
    equal = comparisons.paired_bootstrap(a, a, draws=50)
    assert equal == (0, 0, 0, 1)
    turned = comparisons.paired_bootstrap(b, a, draws=500)
    assert turned.mean == -same.mean and turned.p == pytest.approx(same.p)
    with pytest.raises(ValueError, match='same rows'):
        comparisons.paired_bootstrap(a, b[1:])


def test_draws_in_parts_are_the_draws(monkeypatch):
    random = np.random.default_rng(0)
    a, b = random.random(50), random.random(50)
    whole = comparisons.paired_bootstrap(a, b, draws=101)
    monkeypatch.setattr(comparisons, 'DRAWS_AT_ONCE', 500)
    assert comparisons.paired_bootstrap(a, b, draws=101) == whole


def test_the_bytes_of_a_memory():
    memory = episodic.empty(10, width=8)
    assert metrics.num_bytes(memory) == 10 * 4 + 10 * 8 * 2 + 4
    abstract = jax.eval_shape(lambda: episodic.empty(10, width=8))
    assert metrics.num_bytes(abstract) == metrics.num_bytes(memory)
    assert metrics.num_bytes(()) == 0
    assert metrics.num_bytes(jnp.zeros((3,), bool)) == 3


def test_where_neighbours_come_from():
    tasks = np.asarray([0, 0, 1, 1, 2])
    numbers = np.asarray([[0, 2], [1, 4], [4, 0]])
    found = np.asarray([[True, True], [True, True], [True, False]])
    shares = comparisons.origins(numbers, found, np.asarray([0, 0, 2]), tasks, 3)
    np.testing.assert_allclose(shares, [[0.5, 0.25, 0.25], [0, 0, 0], [0, 0, 1]])


def test_figures(made_figures):
    names = ('a', 'b', 'c')
    figures.matrix(MATRIX, names, BEFORE)
    comparisons.first_and_last({'replay': MATRIX, 'none': MATRIX * 0.5}, names)
    figures.shares(np.eye(3), names, names, ('test rows of', 'neighbours from'))
    whole, lines, shares = made_figures
    for figure in made_figures:
        figure.canvas.draw()
    (axes, _) = whole.axes
    assert [text.get_text() for text in axes.texts[:3]] == ['10', '20', '40']
    assert [label.get_text() for label in axes.get_yticklabels()][0] == 'before'
    first, last = lines.axes
    np.testing.assert_allclose(first.lines[0].get_ydata(), [90, 60, 50])
    np.testing.assert_allclose(last.lines[1].get_ydata(), [10, 25, 50])
    assert shares.axes[0].get_xlabel() == 'neighbours from'
