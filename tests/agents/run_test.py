"""Agents through the main command's functions: runs, stops, continues, and is refused what is wrong."""

import json

import chex
import jax
import numpy as np
import pytest

from longmem_jax.agents import commands as reinforcement
from longmem_jax.agents import testing
from longmem_jax.agents.build import Built
from longmem_jax.agents.task import AgentTask, told
from longmem_jax.config import checks
from longmem_jax.errors import UsageError
from longmem_jax.reporting.progress import Progress
from longmem_jax.reporting.writers import read_metrics
from longmem_jax.training import identity
from tests.agents.small import experiment, small_config
from tests.stopping import stopped, stopped_in


def state_of(run):
    """The newest state of a run."""
    built = Built(run.config, run.mesh)
    state, step = reinforcement.restored(run, built, Progress(0, log_every=0))
    return state.replace(key=jax.random.key_data(state.key)), step


@pytest.mark.slow
def test_stopped_and_started_again_ends_bit_for_bit(tmp_path, monkeypatch, capsys):
    config = small_config()
    whole, cut = (experiment(config, tmp_path / part) for part in ('whole', 'cut'))
    result = reinforcement.train(whole)
    said = capsys.readouterr().out
    assert 'corridor: 4 actions, episodes of 3 to 10 steps; 8 lanes, rollouts of 10' in said, said
    with stopped(AgentTask, line=2):
        assert reinforcement.train(cut) is None
    # In the evaluation of the last step, and in the test: each is made when the run resumes.
    for owner, method in ((testing.Tester, 'episodes'), (AgentTask, 'finish')):
        assert 'run the same command to resume' in capsys.readouterr().out
        with stopped_in(owner, method):
            assert reinforcement.train(cut) is None
        assert not (cut.workdir / 'results.json').exists()
    assert 'SIGTERM: saved at step 4; run the same command to resume' in capsys.readouterr().out
    again = reinforcement.train(cut)
    assert 'Finished already' in capsys.readouterr().out
    (found, step), (wanted, steps) = state_of(cut), state_of(whole)
    assert step == steps == 4
    chex.assert_trees_all_equal(found, wanted)
    assert again == result == json.loads((cut.workdir / 'results.json').read_text())
    assert result['environment_steps'] == 4 * 8 * 10
    for name in ('test', 'test_greedy'):
        assert 0 <= result[name]['success'] == result[name]['reward'] <= 1
        assert 3 <= result[name]['length'] <= 10 and result[name]['episodes'] == 8
    lines = [read_metrics(run.workdir / 'metrics.jsonl') for run in (whole, cut)]
    of_evaluations = [[line for line in found if line['group'] == 'validation'] for found in lines]
    assert of_evaluations[0] == of_evaluations[1] and len(of_evaluations[0]) == 2
    of_training = [[line for line in found if line['group'] == 'train'] for found in lines]
    assert of_training[0] == of_training[1] and len(of_training[0]) == 4
    assert of_training[0][-1]['environment_steps_seen'] == 320
    assert {'reward', 'length', 'success', 'entropy', 'memory/memory_size'} <= set(
        of_training[0][-1]
    )
    assert (whole.workdir / 'learning_curve.png').exists()
    # Tested again, the episodes are the same.
    assert reinforcement.evaluate(cut, 'test') == result
    with pytest.raises(UsageError, match='tested in new episodes'):
        reinforcement.evaluate(cut, 'validation')
    config.reinforcement.task.longest = 5
    with pytest.raises(UsageError, match='config.reinforcement.task'):
        reinforcement.evaluate(experiment(config, cut.workdir), 'test')
    with pytest.raises(UsageError, match='train first'):
        reinforcement.evaluate(experiment(config, tmp_path / 'nothing'), 'test')


def one_step(config, devices, folder):
    """The state and the metrics after two steps."""
    built = Built(config, experiment(config, folder, devices).mesh)
    state, compiled = built.first_state(), built.lower_step().compile()
    for _ in range(2):
        state, metrics = compiled(state)
    return jax.device_get((state.params, state.lanes, metrics))


@pytest.mark.slow
def test_eight_devices_learn_what_one_does(tmp_path):
    config = small_config(algorithm='ppo', epochs=2)
    # Adam would make much of the small gradients whose sums have another order.
    config.optimizer.name, config.optimizer.learning_rate = 'sgd', 0.1
    (params, lanes, metrics), other = (one_step(config, n, tmp_path) for n in (1, 8))
    for one, two in zip(jax.tree.leaves(params), jax.tree.leaves(other[0]), strict=True):
        np.testing.assert_allclose(one, two, atol=1e-5)
    chex.assert_trees_all_equal(lanes.environment, other[1].environment)
    assert metrics['loss'] == pytest.approx(other[2]['loss'], abs=1e-5)


def change(path, value):
    def apply(config):
        *parts, last = path.split('.')
        for part in parts:
            config = config[part]
        config[last] = value

    return apply


@pytest.mark.parametrize(
    'path, value, message',
    [
        ('reinforcement.environment', 'coridor', "did you mean 'corridor'"),
        ('reinforcement.algorithm', 'a3c', 'allowed are a2c, ppo'),
        ('reinforcement.discount', 1.1, 'discount = 1.1'),
        (
            'reinforcement.task.shortest',
            9,
            'reinforcement.task.longest = 4: must be at least shortest',
        ),
        (
            'reinforcement.environment',
            'portal',
            "'portal': has the fields mistakes, rooms, size, steps",
        ),
        ('reinforcement.epochs', 2, "use 1 and 1, or 'ppo'"),
        ('model.transformer_xl.memory_length', 11, 'no episode of .corridor. has more than 10'),
        ('model.agent.actions', 5, "agent.actions = 5: 'corridor' needs 4"),
        ('model.agent.observation', 5, "agent.observation = 5: 'corridor' needs 54"),
        ('train.start_from', 'x', 'agents do not have it'),
        ('optimizer.accumulate_steps', 2, 'use more lanes'),
    ],
)
def test_problems(path, value, message, tmp_path):
    config = small_config()
    change(path, value)(config)
    with pytest.raises(UsageError, match='1 problem') as caught:
        reinforcement.make(experiment(config, tmp_path))
    assert message.replace('.corridor.', "'corridor'") in str(caught.value)


def test_problems_of_lanes(tmp_path):
    config = small_config(algorithm='ppo', minibatches=2)
    with pytest.raises(
        UsageError, match='must be a multiple of 16, so that all have the same number of'
    ):
        reinforcement.make(experiment(config, tmp_path, devices=8))
    config.train.num_lanes = 6
    problems = checks.find_problems(config, 8)
    assert any(
        'config.train.num_lanes = 6: must be a multiple of 8' in problem for problem in problems
    )


def test_an_agent_that_learns_in_another_way_says_so():
    config = small_config()
    saved = identity.GoingOn(
        settings=identity.settings_of(config, reinforcement=Built(config, None).learning())
    ).stored()
    config.reinforcement.algorithm, config.reinforcement.test_episodes = 'ppo', 9
    given = identity.settings_of(config, reinforcement=Built(config, None).learning())
    said = identity.other_settings(identity.plain(saved), identity.GoingOn(settings=given))
    assert said == ["config.reinforcement.algorithm: 'a2c' in the checkpoint, 'ppo' given"]


def test_one_episode_has_no_error_of_the_mean():
    one = testing.in_short({'reward': np.asarray([0.5]), 'length': np.asarray([3.0])})
    assert told(one) == 'reward 0.500, 3.0 steps'
    two = testing.in_short({'reward': np.asarray([0.0, 1.0]), 'length': np.asarray([3.0, 3.0])})
    assert told(two) == 'reward 0.500 +- 0.500, 3.0 steps'


def test_an_agent_and_an_environment_belong_together():
    config = small_config()
    assert checks.find_problems(config, 1) == []
    config.reinforcement.environment = 'none'
    assert any('belong together' in problem for problem in checks.find_problems(config, 1))
    config = small_config()
    config.model.dropout, config.model.layer_drop = 0.1, 0.1
    problems = '\n'.join(checks.find_problems(config, 1))
    assert 'config.model.dropout = 0.1 must be 0' in problems and 'layer_drop' in problems
