"""Corridor: one bit remembered over a walk of 3 to 200 cells (Sukhbaatar et al., 2021, 5.2, A.3.1).

python -m longmem_jax.main --config=configs/corridor.py --workdir=DIR
"""

from configs._agents import agent, fixed_and_learned, with_memory
from longmem_jax.reinforcement import settings


def get_config(arg=''):
    config = agent()
    settings.use(config, 'corridor', actions=4, observation=54)
    config.optimizer.name = 'rmsprop'
    config.optimizer.learning_rate = 1e-4
    config.optimizer.b2 = 0.99
    config.train.num_lanes = 64
    config.train.segment_length = 100
    config.train.segments_per_step = 1
    config.train.num_steps = 15_625  # 100M steps of the environment
    config.train.log_every = 100
    config.train.evaluate_every = 1000
    config.evaluate.num_lanes = 64
    memory = dict(span=200, ramp=16, loss=5e-6, initial_share=0.5, position_length=16)
    reach = dict(steps=200)

    def tiny(config):
        """Corridors of 3 to 20 cells, minutes on one core."""
        config.reinforcement.task.update(shortest=3, longest=20, steps_per_cell=4, extra_steps=20)
        config.train.num_steps = 600
        config.train.segment_length = 16
        config.train.segments_per_step = 2
        config.train.log_every = 20
        config.train.evaluate_every = 200
        config.optimizer.name, config.optimizer.learning_rate = 'adam', 2e-3
        config.optimizer.clip_norm = 0.5
        config.reinforcement.entropy_cost = 0.01
        config.reinforcement.discount = 0.95
        memory.update(span=64, ramp=8, position_length=4)
        reach.update(steps=64)

    return with_memory(
        config,
        arg,
        default='expire_span',
        size_of=reach,
        changes=lambda config, steps: fixed_and_learned(**memory)(config, steps),
        tiny=tiny,
    )
