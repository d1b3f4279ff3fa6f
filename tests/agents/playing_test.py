"""Episodes that are played: whole, drawn, and with what the memory held."""

import json

import jax
import numpy as np
import pytest

from longmem_jax.agents import commands as reinforcement
from longmem_jax.agents import playing
from longmem_jax.agents.build import Built
from longmem_jax.errors import UsageError
from longmem_jax.training.checkpoint import Checkpointer
from tests.agents.small import experiment, small_config
from tests.agents.toy import agent, key_door
from tests.toys import LENGTH

STEPS = 2 * LENGTH + 1  # the episode ends inside of a segment


def played(name, **changes):
    model, params = agent(name, layers=2, **changes)
    environment = key_door(shortest=STEPS, longest=STEPS)
    episode, rollout = playing.play(model, params, environment, jax.random.key(1), greedy=False)
    return model, params, episode, playing.held(model, params, rollout, len(episode))


@pytest.mark.slow
def test_a_memory_holds_steps_until_their_spans_are_over():
    model, params, episode, found = played('expire_span')
    assert len(episode) == STEPS and set(found.layers) == {0, 1}
    np.testing.assert_array_equal(episode.states.time, np.arange(STEPS))
    assert (episode.states.key == episode.states.key[0]).all()
    np.testing.assert_allclose(episode.observations[:, -1], np.arange(STEPS) / 10, rtol=1e-6)
    fields = model.config.expire_span
    for kept in found.layers.values():
        assert kept.shape == (STEPS, STEPS) and not np.triu(kept, 1).any()
        assert (np.diagonal(kept) == 1).all()
        # A column falls from 1 to 0 within the ramp, at the same rate for all steps.
        for step in range(STEPS):
            falls = -np.diff(kept[step:, step])
            assert (falls > -1e-6).all() and (falls < 1 / fields.ramp + 1e-5).all()
    # Spans begin at .4 x 12.
    span = fields.initial_share * fields.max_span
    age = np.arange(STEPS)[:, None] - np.arange(STEPS)
    wanted = np.clip((span - age) / fields.ramp + 1, 0, 1) * (age >= 0)
    np.testing.assert_allclose(found.layers[0], wanted, atol=1e-5)
    lines = playing.as_text(found).splitlines()
    assert len(lines) == 2 and lines[0].startswith('layer 0: holds ')


@pytest.mark.slow
def test_memories_of_other_kinds():
    _, _, _, window = played('transformer_xl')
    assert window.layers[1][-1].sum() == 6 + 1 and not window.per_head
    _, _, _, gated = played('infini')
    assert not gated.layers and set(gated.per_head) == {'gate/block_0', 'gate/block_1'}
    assert playing.as_text(gated).startswith('gate/block_0: 0.')


@pytest.mark.slow
def test_the_command_writes_an_episode(tmp_path, capsys):
    config = small_config('expire_span')
    config.model.expire_span.update(ramp=2, position_length=2)
    run = experiment(config, tmp_path)
    with pytest.raises(UsageError, match='train first'):
        reinforcement.play(run)
    built = Built(run.config, run.mesh)
    saver = Checkpointer(
        tmp_path / 'checkpoints', every=1, keep=1, identity=built.identity(), report=print
    )
    saver.maybe_save(0, built.first_state())
    saver.close()
    found = reinforcement.play(run, seed=1, greedy=False)
    folder = tmp_path / 'play'
    for name in ('episode.png', 'episode.gif'):
        assert (folder / name).stat().st_size > 500
    text = (folder / 'episode.txt').read_text()
    assert text.count('step ') >= found['steps'] and found['held'] in text
    held = json.loads((folder / 'held.json').read_text())
    assert np.asarray(held['layer 0']).shape == (found['steps'],) * 2
    assert f'an episode of {found["steps"]} steps' in capsys.readouterr().out
    assert reinforcement.play(run, seed=1, greedy=False) == found
