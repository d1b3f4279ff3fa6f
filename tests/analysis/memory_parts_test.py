"""Parts of a memory reset one at a time: the right ones, and the numbers of the evaluation."""

import jax
import numpy as np
import pytest

from experiments.analysis import memory_parts
from longmem_jax.errors import UsageError
from longmem_jax.evaluation.evaluator import Evaluator
from longmem_jax.experiment import Experiment
from longmem_jax.generation.reader import fresh_state
from longmem_jax.memory.registry import LAYERS
from tests.commands.train_test import experiment, small_config, texts  # noqa: F401
from tests.toys import BATCH, random_segments, run, toy


def states(name):
    """(state after a few segments, state before the first)."""
    model, params = toy(name)
    _, after = run(model, params, random_segments())
    return jax.tree.map(lambda leaf: leaf[-1], after), fresh_state(model, params, BATCH)


def changed(name, part):
    """Names of the leaves that a reset changes."""
    state, initial = states(name)
    after = memory_parts.reset_part(state, initial, part)
    paths = memory_parts.paths_of(state)
    leaves = zip(paths, *(jax.tree.leaves(tree) for tree in (state, after, initial)), strict=True)
    found = set()
    for path, before, now, first in leaves:
        if not np.array_equal(before, now):
            assert np.array_equal(now, first)
            found.add(path)
    return found


def test_only_the_part_is_reset():
    rows = {'rows_keys', 'rows_values', 'count'}
    assert changed('memorizing', 'attention/rows/') == {
        f'block_{layer}/attention/rows/{name}' for layer in range(2) for name in rows
    }
    assert changed('memorizing', '^block_1/attention/recent') == {
        f'block_1/attention/recent/{name}' for name in ('keys', 'values', 'count')
    }


@pytest.mark.parametrize(
    ('name', 'expected'),
    [
        ('memorizing', ['(^|/)attention/recent/', '(^|/)attention/rows/']),
        ('transformer_xl', ['(^|/)attention/(hidden|count)$']),
        ('memformer', ['(^|/)around/(slots|hidden|count)$']),
    ],
)
def test_parts_of_a_model(name, expected):
    state, _ = states(name)
    parts = memory_parts.parts_of(state)
    assert parts == expected
    memory_parts.require_parts(state, parts)
    # Together they are everything.
    assert set.union(*(changed(name, part) for part in parts)) == changed(name, '.')


def test_parts_that_do_not_exist():
    state, _ = states('transformer_xl')
    with pytest.raises(UsageError, match='--reset=rows: matches none of block_0/attention/hidden'):
        memory_parts.require_parts(state, ['rows'])
    with pytest.raises(UsageError, match='not a regular expression'):
        memory_parts.require_parts(state, ['(rows'])


@pytest.mark.slow
def test_the_scores_are_those_of_the_evaluation(texts, tmp_path, monkeypatch):  # noqa: F811
    """Rows and cache are told apart; kept and reset are what `--mode=evaluate` gives."""
    config = small_config(texts)
    config.model.num_layers, config.model.feed_forward = 2, ('dense', 'dense')
    config.model.attention = ('memorizing', 'normalized_xl')
    for name in config.model.attention:
        config.model[name] = LAYERS[name].small()
    config.evaluate.num_lanes, config.evaluate.max_test_segments = 2, 24
    small = experiment(config, tmp_path)
    params = jax.jit(small.make_state)().params
    params['block_0']['attention']['gate'] += 1.0
    monkeypatch.setattr(Experiment, 'restore_parameters', lambda self: (params, 12))
    parts = ['attention/rows/', '/recent/|attention/(keys|values|count)$']
    rows = memory_parts.contributions(small, 'test', parts)
    evaluator = Evaluator(small.evaluation_model, small.mesh, config)
    for name, reset in ((memory_parts.KEPT, False), (memory_parts.EVERYTHING, True)):
        expected, _ = evaluator.evaluate(
            params, small.corpus('test'), 'test', reset=reset, max_segments=24
        )
        assert rows[name][0].tokens == expected.tokens
        assert rows[name][0].nll == pytest.approx(expected.nll, rel=1e-5)
    scores = [result.nll for result, _ in rows.values()]
    assert len({round(score, 3) for score in scores}) == 4
    sizes = [metrics['memory_size'] for _, metrics in rows.values()]
    assert sizes[0] > sizes[1] > sizes[3] == 0
    lines = memory_parts.table(rows).splitlines()
    assert lines[2].endswith('| +0.0000 |') and lines[3].startswith('| attention/rows/ reset | ')
