"""Craftax with symbols: a world to explore, craft and fight in. Needs the extra `[craftax]` and a GPU.

python -m longmem_jax.main --config=configs/craftax.py --workdir=DIR
`:memory=` is any memory that is an attention layer, `:memory_size=N` its length in steps. Published for
a billion steps, in per cent of the greatest reward: 18.3 for PPO with a gated Transformer-XL of 5 M
parameters, 15.3 for PPO with a GRU, 11.9 for PPO without a memory. `:tiny` is a look at it on one core.

Values are ours: PPO with the values of the suite's own agents (1,024 lanes, rollouts of 128 steps here,
8 minibatches, discount .999, trace .8), 4 layers of 256 without gates, a memory of 128 steps.
"""

from longmem_jax.agents import settings
from longmem_jax.config.base import size, stack
from longmem_jax.configs._agents import agent, ppo, rollouts, spans, with_memory


def get_config(arg=''):
    config = agent()
    size(config, layers=4, width=256, heads=8, feed_forward=1024)
    stack(config.model, 4, 'transformer_xl')
    config.model.scale_residual_init = True
    settings.use(config, 'craftax', actions=43, observation=8268)
    ppo(config)
    config.reinforcement.update(discount=0.999, trace=0.8, minibatches=8, starts=4)
    config.optimizer.learning_rate = 2e-4
    config.optimizer.clip_norm = 1.0
    rollouts(
        config, lanes=1024, segment=64, segments=2, updates=7630,  # a billion steps
        log_every=10, evaluate_every=1000,
    )  # fmt: skip
    sizes = dict(ramp=16, loss=1e-6, share=0.75, position_length=16)
    reach = dict(steps=128)

    def tiny(config):
        """A small agent in a few worlds."""
        size(config, layers=2, width=64, heads=4, feed_forward=256)
        rollouts(config, lanes=4, segment=8, segments=2, updates=4, log_every=1, evaluate_every=4)
        config.reinforcement.task.update(longest=64)
        config.reinforcement.update(minibatches=2, episodes=4, test_episodes=4)
        sizes.update(ramp=8, position_length=8, num_sizes=2)
        reach.update(steps=16)

    return with_memory(
        config, arg, memory='transformer_xl', memories=lambda steps: spans(steps, **sizes),
        steps=lambda: reach['steps'], tiny=tiny,
    )  # fmt: skip
