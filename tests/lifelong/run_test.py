"""Streams through the main command's functions: runs, stops, goes on, and says what was learned."""

import json

import chex
import jax
import numpy as np
import pytest

from configs import quickstart
from longmem_jax.devices import sharding
from longmem_jax.errors import UsageError
from longmem_jax.experiment import Experiment
from longmem_jax.lifelong import commands as lifelong
from longmem_jax.lifelong import settings, task
from longmem_jax.lifelong.build import Built
from longmem_jax.lifelong.methods.registry import METHODS
from longmem_jax.lifelong.task import LifelongTask
from longmem_jax.reporting.writers import read_metrics
from tests.lifelong.small import ROWS, TESTS, small_config
from tests.stopping import stopped, stopped_in

SMALL = {
    'mbpa_plus': dict(num_neighbours=2, adapt_steps=2),
    'anml_er': dict(updates=2, adapt_steps=1),
}


def experiment(config, workdir, devices=1):
    workdir.mkdir(parents=True, exist_ok=True)
    mesh = sharding.make_mesh(config.mesh.to_dict(), jax.devices()[:devices])
    return Experiment(config, workdir, mesh)


def state_of(run):
    """The newest state of a run."""
    built = Built(run.config, run.workdir, run.mesh, lambda line: None)
    saver = run.other_checkpointer(built.identity(), print)
    state, step = saver.restore(built.abstract_state)
    saver.close()
    return state.replace(key=jax.random.key_data(state.key)), step


def config_of(folder, name):
    config = small_config(folder, f'method={name}')
    config.lifelong[name].update(SMALL[name])
    return config


@pytest.mark.slow
@pytest.mark.parametrize('name', SMALL)
def test_stopped_and_started_again_ends_bit_for_bit(name, tmp_path, monkeypatch, capsys):
    config = config_of(tmp_path / 'data', name)
    whole, cut = (experiment(config, tmp_path / part) for part in ('whole', 'cut'))
    result = lifelong.train(whole)
    said = capsys.readouterr().out
    assert 'ag_news (20)' in said and 'times in 100 rows' in said, said
    with stopped(LifelongTask, line=1):
        assert lifelong.train(cut) is None
    with stopped_in(task.Tests, 'right'):  # after a task: the scores are made when the run resumes
        assert lifelong.train(cut) is None
    assert not (cut.workdir / 'results.json').exists()
    assert capsys.readouterr().out.count('run the same command to resume') == 2
    again = lifelong.train(cut)
    assert 'Resuming at step' in capsys.readouterr().out
    (found, step), (wanted, steps) = state_of(cut), state_of(whole)
    assert step == steps and int(wanted.position) == 5 * ROWS
    chex.assert_trees_all_equal(found, wanted)
    for one in (result, again):
        del one['test_seconds']
    assert again == result
    # What was known after every task, and before the first, is in both.
    matrix = np.asarray(result['matrix'])
    assert matrix.shape == (5, 5) and 0 <= matrix.min() and matrix.max() <= 1
    assert result['transfer']['average'] == pytest.approx(matrix[-1].mean())
    right = np.load(whole.workdir / 'right.npz')
    assert {name: len(right[name]) for name in right} == dict.fromkeys(result['tasks'], TESTS)
    assert result['test']['accuracy'] == pytest.approx(np.mean([right[n].mean() for n in right]))
    assert (whole.workdir / 'matrix.png').exists()
    ended = [
        line['ended'] for line in read_metrics(cut.workdir / 'metrics.jsonl') if 'ended' in line
    ]
    assert ended == [0, 1, 2, 3, 4, 5]
    # Evaluated again, the answers are the same.
    (whole.workdir / 'results.json').unlink()
    asked = lifelong.evaluate(whole, 'test')
    assert asked['tasks'] == result['tasks']
    saved = json.loads((whole.workdir / 'results.json').read_text())
    assert saved['memory_bytes'] == result['memory_bytes'] > 0
    with pytest.raises(UsageError, match='use test'):
        lifelong.evaluate(whole, 'validation')
    other = config.copy_and_resolve_references()
    other.lifelong.order = 'ii'
    with pytest.raises(
        UsageError, match="config.lifelong.order: 'i' in the checkpoint, 'ii' given"
    ):
        lifelong.evaluate(experiment(other, whole.workdir), 'test')


@pytest.mark.slow
def test_a_step_that_ends_two_tasks_leaves_no_matrix_and_says_so(tmp_path, capsys):
    config = small_config(tmp_path / 'data')
    config.train.num_lanes = config.evaluate.num_lanes = 2 * ROWS
    run = experiment(config, tmp_path / 'run')
    assert 'matrix' not in lifelong.train(run) and not (run.workdir / 'matrix.png').exists()
    assert 'No matrix.png, forgetting and transfer: scores are not known' in capsys.readouterr().out


@pytest.mark.parametrize('name', ['agem', 'online_ewc', 'replay'])
def test_a_stream_in_which_a_method_would_do_nothing_is_refused(name, tmp_path):
    config = small_config(tmp_path, f'method={name}')
    field = 'replay_every' if name == 'replay' else 'every'
    config.lifelong[name][field] = 800
    built = Built(config, tmp_path, sharding.make_mesh(config.mesh.to_dict(), jax.devices()[:1]))
    with pytest.raises(UsageError, match=f'{field} = 800.* in a stream of 100 rows') as caught:
        built.learner.schedule(len(built.stream.rows))
    assert 'config.lifelong.' in str(caught.value) and 'set replay' not in str(caught.value)


def test_a_config_of_something_else_is_refused():
    with pytest.raises(UsageError, match='begin with configs/lifelong_classification.py'):
        settings.require(quickstart.get_config('tiny'))


@pytest.mark.slow
def test_eight_devices_learn_what_one_does(tmp_path):
    config = small_config(tmp_path / 'data', 'method=replay')
    config.train.num_lanes = config.evaluate.num_lanes = 8
    config.lifelong.measure = 'end'
    # Adam would make much of the small gradients whose sums have another order.
    config.optimizer.name, config.optimizer.learning_rate = 'sgd', 0.1
    found = []
    for devices in (1, 8):
        run = experiment(config, tmp_path / str(devices), devices)
        lifelong.train(run)
        found.append(state_of(run)[0])
    first, second = found
    chex.assert_trees_all_equal(first.memory, second.memory)
    for one, other in zip(*(jax.tree.leaves(s.params) for s in found), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize(
    'stream, rows, tasks', [('tasks', 100, 5), ('joint', 200, 5), ('ag_news', 40, 1)]
)
def test_streams(stream, rows, tasks, tmp_path):
    config = small_config(tmp_path)
    config.lifelong.stream, config.lifelong.epochs = stream, 1 if stream == 'tasks' else 2
    assert settings.find_problems(config) == []
    built = Built(config, tmp_path, sharding.make_mesh(config.mesh.to_dict(), jax.devices()[:1]))
    assert len(built.stream.rows) == rows and len(built.stream.names) == tasks


@pytest.mark.parametrize(
    'field, value, message',
    [
        ('method', 'oml', "did you mean 'oml_er'"),
        ('order', 'v', 'lifelong.order'),
        ('measure', 'never', 'ends, end'),
        ('epochs', 2, 'are read once'),
        ('draws', 0, 'draws = 0'),
    ],
)
def test_problems(field, value, message, tmp_path):
    config = small_config(tmp_path)
    config.lifelong[field] = value
    with pytest.raises(UsageError, match=message):
        settings.require(config)


def test_problems_of_data_and_of_methods(tmp_path):
    config = small_config(tmp_path, 'method=mbpa')
    config.lifelong.mbpa.num_neighbours = 0
    config.data.task.rows = 0
    with pytest.raises(UsageError, match='2 problems') as caught:
        settings.require(config)
    assert 'config.lifelong.mbpa.num_neighbours = 0' in str(caught.value)
    assert 'config.data.task.rows = 0' in str(caught.value)
    config.data.source = 'text'
    with pytest.raises(UsageError, match='classification, qa, relations'):
        settings.require(config)
    config = small_config(tmp_path)
    config.lifelong.stream = 'ag'
    built = Built(config, tmp_path, sharding.make_mesh(config.mesh.to_dict(), jax.devices()[:1]))
    with pytest.raises(UsageError, match='tasks, joint, or one of yelp'):
        _ = built.stream


def test_the_suites_know_every_method():
    from tests.lifelong import episodes_test, methods_test

    known = {'sequential', *methods_test.CHANGES, *episodes_test.METHODS}
    assert known == set(METHODS), 'a new method: add it to tests/lifelong/methods_test.py'
