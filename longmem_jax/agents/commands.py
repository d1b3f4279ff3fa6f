"""Trains and tests agents, and shows what they do: configs with `config.reinforcement.environment`."""

import dataclasses
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from longmem_jax import files
from longmem_jax.agents import playing
from longmem_jax.agents.build import Built
from longmem_jax.agents.environments import drawing
from longmem_jax.agents.learning import AgentState
from longmem_jax.agents.task import AgentTask, finish, make_tester
from longmem_jax.devices import sharding
from longmem_jax.errors import UsageError
from longmem_jax.experiment import Experiment
from longmem_jax.reporting.progress import Progress
from longmem_jax.reporting.writers import Writer
from longmem_jax.training import runner
from longmem_jax.training.checkpoint import newest


def make(experiment: Experiment) -> Built:
    """The agent and its environment; raises `UsageError` with all problems."""
    sharding.require_one_process('reinforcement learning')
    built = Built(experiment.config, experiment.mesh)
    _ = built.environment
    return built


def train(experiment: Experiment, *, profile: bool = False) -> dict[str, Any] | None:
    """Trains up to `config.train.num_steps`, from the newest checkpoint of the workdir if any.

    Raises:
      UsageError: problems of the configuration, or the workdir belongs to another run.
    """
    built, workdir = make(experiment), experiment.workdir
    train = experiment.config.train
    writer = Writer(workdir, experiment.hooks)
    progress = Progress(train.num_steps, log_every=train.log_every)
    ended = runner.run(
        AgentTask(built, workdir, writer, progress),
        saver=experiment.other_checkpointer(
            built.identity(), progress.say, writes=True, reinforcement=built.learning()
        ),
        writer=writer,
        progress=progress,
        profile=workdir / 'profile' if profile else None,
    )
    return ended.result


def restored(experiment: Experiment, built: Built, progress: Progress) -> tuple[AgentState, int]:
    """The newest state of a run and its step.

    Raises:
      UsageError: no checkpoint, or one of another run.
    """
    return newest(
        experiment.other_checkpointer(built.identity(), progress.say), built.abstract_state
    )


def evaluate(experiment: Experiment, split: str = 'test') -> dict[str, Any]:
    """`--mode=evaluate`: acts in new episodes with the newest checkpoint.

    Raises:
      UsageError: another split than test, no checkpoint, or one of another run.
    """
    if split != 'test':
        raise UsageError(f'--split={split}: agents are tested in new episodes; use test.')
    built, progress = make(experiment), Progress(0, log_every=0)
    state, step = restored(experiment, built, progress)
    return finish(built, make_tester(built), state, step, experiment.workdir, progress)


def play_from_flags(experiment: Experiment, seed: int = 0, temperature: float = 0) -> None:
    """`--mode=play` with the options of the command line."""
    if temperature not in (0, 1):
        raise UsageError(
            f'--temperature={temperature:g}: an agent takes the most likely action (0), or draws '
            'from its policy as it has learned to (1).'
        )
    play(experiment, seed=seed, greedy=not temperature)


def play(experiment: Experiment, *, seed: int = 0, greedy: bool = True) -> dict[str, Any]:
    """`--mode=play`: draws an episode of the newest checkpoint, with what the memory held.

    Below every picture there is a cell for each step of the episode: how much of it the memory holds
    then, as a mean over the layers of which that can be said. Files in `WORKDIR/play`: episode.txt,
    episode.png, episode.gif, held.json.

    Args:
      greedy: always the most likely action, not one that is drawn.

    Returns:
      'reward' and 'steps' of the episode, and 'held', lines of text.

    Raises:
      UsageError: no checkpoint, or one of another run.
    """
    built, progress = make(experiment), Progress(0, log_every=0)
    state, step = restored(experiment, built, progress)
    key = jax.random.key(seed)
    params, environment = jax.device_get(state.params), built.environment
    episode, rollout = playing.play(built.model, params, environment, key, greedy=greedy)
    found = playing.held(built.model, params, rollout, len(episode))
    if found.layers:
        mean = np.mean(list(found.layers.values()), axis=0)
        episode = dataclasses.replace(episode, held=mean)
    folder = files.own_folder(experiment.workdir / 'play')
    lines = playing.as_text(found)
    reward = float(episode.rewards.sum())
    text = drawing.as_text(environment, episode)
    files.write(folder / 'episode.txt', text + '\n' + lines + '\n')
    drawing.write_png(folder / 'episode.png', environment, episode)
    drawing.write_gif(folder / 'episode.gif', environment, episode)
    layers = {f'layer {layer}': kept.round(4).tolist() for layer, kept in found.layers.items()}
    per_head = {name: values.tolist() for name, values in found.per_head.items()}
    files.write_json(folder / 'held.json', layers | per_head, indent=None)
    progress.say(f'step {step:,}: an episode of {len(episode)} steps, reward {reward:.3f}')
    progress.say(lines)
    progress.say(f'{folder}: episode.txt, episode.png, episode.gif, held.json')
    return {'reward': reward, 'steps': len(episode), 'held': lines}


def lower(config: Any, mesh: Mesh) -> jax.stages.Lowered:
    """The training step of a config for the devices of a mesh, which need not be attached."""
    with jax.set_mesh(mesh):
        return Built(config, mesh).lower_step()
