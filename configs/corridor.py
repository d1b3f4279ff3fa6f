"""Corridor: one colour remembered over a walk of 3 to 200 cells (Sukhbaatar et al., 2021, 5.2, A.3.1).

python -m longmem_jax.main --config=configs/corridor.py --workdir=DIR
The default is Expire-Span with spans up to 200; `:memory=transformer_xl,memory_size=N` is the paper's
baseline, whose queries see the last N steps. `:memory=` is any other memory that is an attention layer,
`:memory_size=N` its length in steps. `:ppo` learns with PPO. Published: Fig. 4 (left), reward near 1
with a mean memory of a few steps. `:tiny` has corridors of 3 to 20 cells and takes two minutes on one
core: reward 1.00 with Expire-Span, with a fixed span of 24 and with PPO; .48, which is chance, with a
fixed span of 4.

Not the paper's: `num_heads`, `d_feed_forward`: not given. `discount`: not given, .99, as a reward 200
steps away should count. `value_cost`, `b2` (the decay of RMSProp), `eps`: not given, as is usual.
`clip_norm`: none is given for this task. `initial_share`: not given; spans begin at half of the longest,
which is longer than a segment, or they would not grow. `position_length`: not given; as the ramp.
`segments_per_step`: all 100 steps of back-propagation are one segment. The rules of the environment that
the paper leaves open are in `agents/environments/corridor.py`.
"""

from longmem_jax.agents import settings
from longmem_jax.configs._agents import agent, ppo, rollouts, spans, with_memory


def get_config(arg=''):
    config = agent()
    settings.use(config, 'corridor', actions=4, observation=54)
    config.reinforcement.discount = 0.99
    config.optimizer.name, config.optimizer.learning_rate = 'rmsprop', 1e-4
    config.optimizer.b2 = 0.99
    rollouts(
        config, lanes=64, segment=100, segments=1, updates=15_625,  # 100M steps
        log_every=100, evaluate_every=1000,
    )  # fmt: skip
    sizes = dict(ramp=16, loss=5e-6, share=0.5, position_length=16)
    reach = dict(steps=200)

    def tiny(config):
        """Corridors of 3 to 20 cells, minutes on one core."""
        config.reinforcement.task.update(longest=20)
        config.reinforcement.update(discount=0.95, entropy_cost=0.01)
        of_ppo = config.reinforcement.algorithm == 'ppo'
        config.optimizer.name, config.optimizer.learning_rate = 'adam', 1e-3 if of_ppo else 2e-3
        config.optimizer.b2, config.optimizer.clip_norm = 0.999, 0.5
        rollouts(
            config, lanes=64, segment=16, segments=2, updates=400, log_every=20, evaluate_every=200
        )
        sizes.update(ramp=8, position_length=4, num_sizes=2)
        reach.update(steps=40)

    return with_memory(
        config, arg, memory='expire_span', memories=lambda steps: spans(steps, **sizes),
        steps=lambda: reach['steps'], ppo=ppo, tiny=tiny,
    )  # fmt: skip
