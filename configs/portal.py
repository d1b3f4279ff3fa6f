"""Multi-Room Portal: which of two doors led on in 50 rooms (Sukhbaatar et al., 2021, 5.2, A.3.1).

python -m longmem_jax.main --config=configs/portal.py --workdir=DIR
The default is Expire-Span with spans up to 100; `:memory=transformer_xl,memory_size=N` is the paper's
baseline, whose queries see the last N steps. `:memory=` is any other memory that is an attention layer,
`:memory_size=N` its length in steps. `:ppo` learns with PPO. Published: Fig. 4 (middle). `:tiny` has
three rooms of 3x3 cells and one to reach, which all episodes do after some minutes on one core.

Not the paper's: `num_heads`, `d_feed_forward`: not given. `num_steps`: not given for this task; a
billion steps of the environment. `value_cost`: not given, as is usual. `initial_share`: not given; spans
begin longer than a segment, or they would not grow. `position_length`: not given; as the ramp.
`segments_per_step`, `segment_length`: the 100 steps of back-propagation are two segments of 50, because
spans of 100 that begin at a segment of 100 would have no room to grow. The rules of the environment that
the paper leaves open are in `agents/environments/portal.py`.
"""

from longmem_jax.agents import settings
from longmem_jax.configs._agents import agent, ppo, rollouts, spans, with_memory


def get_config(arg=''):
    config = agent()
    settings.use(config, 'portal', actions=4, observation=9 * 55)
    config.reinforcement.discount = 0.98
    config.optimizer.name, config.optimizer.learning_rate = 'adam', 5e-4
    config.optimizer.clip_norm = 0.1
    rollouts(
        config, lanes=1024, segment=50, segments=2, updates=10_000,
        log_every=50, evaluate_every=1000,
    )  # fmt: skip
    sizes = dict(ramp=16, loss=1e-6, share=0.5, position_length=16)
    reach = dict(steps=100)

    def tiny(config):
        """Three rooms of 3x3 cells, minutes on one core."""
        config.reinforcement.task.update(rooms=4, size=3, steps=100)
        config.model.agent.observation = 9 * 9
        config.reinforcement.update(discount=0.95, entropy_cost=0.01)
        of_ppo = config.reinforcement.algorithm == 'ppo'
        config.optimizer.learning_rate = 1e-3 if of_ppo else 2e-3
        config.optimizer.clip_norm = 0.5
        rollouts(
            config, lanes=64, segment=16, segments=2, updates=1000, log_every=50, evaluate_every=500
        )
        sizes.update(ramp=8, position_length=4, num_sizes=2)
        reach.update(steps=40)

    return with_memory(
        config, arg, memory='expire_span', memories=lambda steps: spans(steps, **sizes),
        steps=lambda: reach['steps'], ppo=ppo, tiny=tiny,
    )  # fmt: skip
