"""The fields of `config.reinforcement`, with neutral values."""

from typing import Any

from ml_collections import config_dict

from longmem_jax.devices.generators import prng_problems


def section(config: Any) -> None:
    """Sets `config.reinforcement`."""
    config.reinforcement = config_dict.create(
        environment='none',  # or one of `agents.environments`; a rollout is a training step
        task=config_dict.create(),  # fields of the environment
        algorithm='a2c',  # or 'ppo'
        discount=0.99,  # factor of a reward for every step that it comes later
        trace=1.0,  # lambda of advantages: 1 = returns as far as the rollout reaches
        entropy_cost=0.0,  # weight of the policy's entropy, which is maximised
        value_cost=0.5,  # weight of the critic's loss
        normalize=False,  # normalise advantages over each update's data
        epochs=1,  # 'ppo': passes over every rollout
        minibatches=1,  # 'ppo': parts of a rollout in an epoch, by lanes
        clip=0.2,  # 'ppo': limit of the ratio of policies and of changes of the critic
        # Episodes that may start inside of a lane's segments in a rollout; each takes space in
        # learning, and steps of further ones are not learned from. 0 = as many as there can be.
        starts=0,
        episodes=64,  # new episodes of an evaluation in training
        test_episodes=256,  # new episodes of the final test; drawn actions, then most likely ones
    )


def check(config: Any) -> list[str]:
    """Problems of an agent's model; the rest is checked where its environment is built."""
    environment = config.reinforcement.environment if 'reinforcement' in config else 'none'
    if (environment != 'none') == (config.model.kind == 'agent'):
        return prng_problems(config, 'agents') if environment != 'none' else []
    return [
        f'config.reinforcement.environment = {environment!r}, config.model.kind = '
        f"{config.model.kind!r}: an environment and 'agent' belong together; begin with "
        'configs/corridor.py'
    ]
