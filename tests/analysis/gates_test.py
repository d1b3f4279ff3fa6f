"""Numbers by layer and head: from the layers through the training step and the log to the figure."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.analysis import gates
from longmem_jax.errors import UsageError
from longmem_jax.reporting.writers import METRICS, Writer
from longmem_jax.training.record import by_head
from tests.toys import apply, random_segments, toy


@pytest.mark.parametrize('name', ['infini', 'memorizing'])
def test_a_layer_reports_the_gate_of_every_head(name):
    model, params = toy(name)
    betas = {'block_0': [0.0, 2.0], 'block_1': [-1.0, 1.0]}
    params = jax.tree.map(lambda leaf: leaf, params)
    for block, values in betas.items():
        params[block]['attention']['gate'] = jnp.asarray(values)
    segment = jax.tree.map(lambda leaf: leaf[0], random_segments())
    state = model.apply({'params': params}, 2, method='initial_state')
    _, _, aux = apply(model, params, segment, state)
    assert set(aux.per_head) == {'gate/block_0', 'gate/block_1'}
    for block, values in betas.items():
        wanted = 1 / (1 + np.exp(-np.asarray(values)))
        np.testing.assert_allclose(aux.per_head[f'gate/{block}'], wanted, rtol=1e-6)


def test_adaptive_span_reports_the_span_of_every_head():
    model, params = toy('adaptive_span')
    for block, shares in (('block_0', [0.0, 0.5]), ('block_1', [0.25, 1.0])):
        params[block]['attention']['span_share'] = jnp.asarray(shares)
    segment = jax.tree.map(lambda leaf: leaf[0], random_segments())
    state = model.apply({'params': params}, 2, method='initial_state')
    _, _, aux = apply(model, params, segment, state)
    np.testing.assert_allclose(aux.per_head['span/block_0'], [0.0, 4.0])
    np.testing.assert_allclose(aux.per_head['span/block_1'], [2.0, 8.0])


def test_vectors_are_logged_by_head():
    metrics = {'loss': jnp.asarray(2.0), 'memory/gate/block_1': jnp.asarray([0.25, 0.75])}
    assert by_head(metrics) == {
        'loss': 2.0,
        'memory/gate/block_1/head_0': 0.25,
        'memory/gate/block_1/head_1': 0.75,
    }


def test_the_figure_shows_what_was_logged(tmp_path):
    with Writer(tmp_path) as writer:
        for step in (1, 2):
            values = {'memory/gate/block_1': np.asarray([0.5, 0.5 + 0.1 * step]), 'loss': 1.0}
            writer.scalars(step, 'train', by_head(values | {'memory/gate/block_10': [0.5, 0.9]}))
        writer.scalars(2, 'validation', {'loss': 1.0})
    last = gates.gates(tmp_path, tmp_path / 'gates.png', 'gate', False)
    assert list(last) == [1, 10]
    np.testing.assert_allclose(last[1], [0.5, 0.7])
    betas = gates.gates(tmp_path, tmp_path / 'betas.png', 'gate', True)
    np.testing.assert_allclose(betas[1], [0.0, np.log(0.7 / 0.3)], atol=1e-9)
    steps, layers = gates.by_layer(gates.read_metrics(tmp_path / METRICS), 'gate')
    figure = gates.draw(steps, layers, 'gate')
    drawn = [line.get_ydata().tolist() for line in figure.axes[0].get_lines()]
    np.testing.assert_allclose(drawn, [[0.5, 0.5], [0.6, 0.7]])
    assert [axes.get_ylabel() for axes in figure.axes] == ['layer 1', 'layer 10']
    with pytest.raises(UsageError, match=r"there are: \['gate'\]"):
        gates.gates(tmp_path, tmp_path / 'x.png', 'span', False)
    with pytest.raises(UsageError, match='folder of a run'):
        gates.gates(tmp_path / 'absent', tmp_path / 'x.png', 'gate', False)


def test_heads_that_read_almost_only_one_side_are_counted():
    last = {0: np.asarray([0.95, 0.5]), 3: np.asarray([0.9, 0.1, 0.05, 0.2])}
    assert gates.count(last, 0.9).startswith('2 of 6 heads read almost only the memory')
    assert gates.count(last, 0.8).endswith('3 almost only the local context (gate <= 0.2)')
