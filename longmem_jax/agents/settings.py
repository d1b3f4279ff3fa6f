"""`config.reinforcement`: its fields, the environment, and their rules."""

import math
from typing import Any

from longmem_jax.agents.actor_critic import A2C, ALGORITHMS
from longmem_jax.agents.environments import registry
from longmem_jax.agents.environments.interface import Environment
from longmem_jax.memory.registry import LAYERS, used
from longmem_jax.problems import above, at_least, between, one_of, require_none, under


def use(
    config: Any, environment: str, *, actions: int, observation: int, previous: bool = False
) -> None:
    """Makes the model of a configuration an agent in an environment.

    Args:
      actions: their number.
      observation: numbers in a flattened observation.
      previous: whether the agent reads the action and the reward before an observation.
    """
    config.model.kind = 'agent'
    config.model.agent = dict(actions=actions, observation=observation, previous=previous)
    config.reinforcement.environment = environment
    config.reinforcement.task = dict(registry.ENVIRONMENTS[environment].defaults)


def find_problems(config: Any, lane_devices: int) -> list[str]:
    """Problems of the environment and of how it is learned, on `lane_devices` devices that lanes are
    split over.
    """
    settings, train = config.reinforcement, config.train
    problems = one_of(settings, algorithm=ALGORITHMS) + between(settings, 0, 1, 'discount', 'trace')
    problems += at_least(settings, 0, 'entropy_cost', 'value_cost') + above(settings, 0, 'clip')
    problems += at_least(settings, 0, 'starts')
    whole = at_least(settings, 1, 'epochs', 'minibatches', 'episodes', 'test_episodes')
    problems += whole
    if settings.algorithm == A2C and (settings.epochs, settings.minibatches) != (1, 1):
        problems.append(
            f"algorithm = 'a2c', epochs = {settings.epochs}, minibatches = {settings.minibatches}: it "
            "learns once from all of a rollout; use 1 and 1, or 'ppo'"
        )
    parts = settings.minibatches * lane_devices
    if not whole and train.num_lanes % parts:
        devices = f' on each of {lane_devices} devices' if lane_devices > 1 else ''
        problems.append(
            f'minibatches = {settings.minibatches}: config.train.num_lanes = {train.num_lanes} must be '
            f'a multiple of {parts}, so that all have the same number of lanes{devices}'
        )
    return under('config.reinforcement', problems) + _weights(config)


def _weights(config: Any) -> list[str]:
    """Problems of settings of training that learning from rewards would ignore."""
    train, problems = config.train, []
    ignored = dict(gradient_segments=0, z_loss=0.0, start_from='')
    for name, neutral in ignored.items():
        if train[name] != neutral:
            problems.append(f'{name} = {train[name]!r}: agents do not have it; use {neutral!r}')
    problems = under('config.train', problems)
    if config.evaluate.segment_length != train.segment_length:
        problems.append(
            f'config.evaluate.segment_length = {config.evaluate.segment_length}: must be '
            f'config.train.segment_length = {train.segment_length}, with which the agent learned'
        )
    if config.optimizer.accumulate_steps != 1:
        problems.append(
            'config.optimizer.accumulate_steps: agents do not have it; set it to 1 and use more lanes'
        )
    return problems


def environment_problems(config: Any, environment: Environment) -> list[str]:
    """Problems of a model for its environment: sizes, and memories longer than any episode."""
    model, problems = config.model, []
    size = math.prod(environment.observation.shape)
    for name, needed in (('actions', environment.num_actions), ('observation', size)):
        if model.agent[name] != needed:
            problems.append(
                f'config.model.agent.{name} = {model.agent[name]}: {environment.name!r} needs {needed}'
            )
    longest = environment.longest
    for name in sorted(used(model)):
        reach = LAYERS[name].layer.reach
        length = reach(model[name], config.train.segment_length) if reach else 0
        if length is not None and length > longest:
            fields = ', '.join(f'{f} = {model[name][f]}' for f in LAYERS[name].view.lengths)
            problems.append(
                f'config.model.{name}: reads {length:,} steps back ({fields}), and no episode of '
                f'{environment.name!r} has more than {longest:,}; use a shorter memory, by memory_size= '
                'after the config file or by these fields'
            )
    return problems


def _of_environment(name: str, fields: dict[str, Any]) -> list[str]:
    """Problems of `config.reinforcement.environment` and of its fields, `config.reinforcement.task`."""
    where, entry = 'config.reinforcement', registry.ENVIRONMENTS.get(name)
    if entry is None:
        return under(where, registry.check(name, fields))
    if set(fields) == set(entry.fields):
        return under(f'{where}.task', registry.check(name, fields))
    return [
        f'{where}.environment = {name!r}: has the fields {", ".join(sorted(entry.fields))}, and '
        f'{where}.task of this config {", ".join(sorted(fields))}; take a config of this environment, '
        'or write one that calls longmem_jax.agents.settings.use, as configs/memory_chain.py does'
    ]


def make_environment(config: Any, lane_devices: int = 1) -> Environment:
    """The environment of a configuration, after all rules have been checked.

    Raises:
      UsageError: all problems in one message; or the environment's package is missing.
    """
    settings = config.reinforcement
    problems = find_problems(config, lane_devices)
    problems += _of_environment(settings.environment, settings.task.to_dict())
    require_none(problems)
    environment = registry.build(settings.environment, settings.task.to_dict())
    require_none(environment_problems(config, environment))
    return environment
