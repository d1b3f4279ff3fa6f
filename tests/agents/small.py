"""A small configuration of an agent in short corridors."""

import jax

from configs import corridor
from longmem_jax.config.recipes import use
from longmem_jax.devices import sharding
from longmem_jax.experiment import Experiment


def small_config(memory='transformer_xl', **reinforcement):
    """One layer of 16, rollouts of two segments of 5 steps in 8 lanes, four steps of training."""
    config = corridor.get_config('tiny')
    model, train = config.model, config.train
    model.num_layers, model.d_model, model.d_embed = 1, 16, 16
    model.num_heads, model.head_dim, model.d_feed_forward = 2, 8, 16
    train.segment_length, train.segments_per_step, train.num_lanes = 5, 2, 8
    train.num_steps, train.log_every, train.evaluate_every = 4, 1, 2
    use(config, memory, reach=6, memories=6)
    config.evaluate.num_lanes = 8
    config.reinforcement.task.update(longest=4, steps_per_cell=2, extra_steps=2)
    config.reinforcement.update(episodes=8, test_episodes=8, **reinforcement)
    return config


def experiment(config, workdir, devices=1):
    workdir.mkdir(parents=True, exist_ok=True)
    mesh = sharding.make_mesh(config.mesh.to_dict(), jax.devices()[:devices])
    return Experiment(config, workdir, mesh)
