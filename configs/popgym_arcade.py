"""Tasks of popgym-arcade, seen wholly or partly: the difference is what a memory is worth.

python -m longmem_jax.main --config=configs/popgym_arcade.py:task=CountRecallEasy --workdir=DIR
Needs the extra `[popgym-arcade]`, which brings a package of gymnax's name: not in one environment with
`[rl]`. `:observed=fully` is the twin of the same task that shows all; the default is `partly`.
`:memory=` is any memory that is an attention layer, `:memory_size=N` its length in steps. `:tiny` is for
one core; a GPU is needed for scores.

Values are ours: PPO as in PureJaxRL and CleanRL, on pictures of 128x128 whose blocks of 8x8 are averaged
and read by a linear map. The suite's own agents read whole pictures with a convolutional network.
"""

from longmem_jax.agents import settings
from longmem_jax.configs._agents import agent, ppo, rollouts, spans, with_memory


def get_config(arg=''):
    config = agent()
    settings.use(config, 'popgym_arcade', actions=5, observation=16 * 16 * 3, previous=True)
    config.reinforcement.task.update(
        task='CountRecallEasy', observed='partly', pixels=128, shrink=8
    )
    ppo(config)
    config.reinforcement.starts = 8
    rollouts(
        config, lanes=256, segment=64, segments=2, updates=1000, log_every=10, evaluate_every=250
    )
    sizes = dict(ramp=16, loss=1e-6, share=0.75, position_length=16)
    reach = dict(steps=128)

    def task(config, name):
        """One of the suite's tasks, such as NavigatorMedium."""
        config.reinforcement.task.task = name

    def observed(config, name):
        """'fully' or 'partly'."""
        config.reinforcement.task.observed = name

    def tiny(config):
        """Few lanes, for a look at it."""
        rollouts(
            config, lanes=8, segment=16, segments=2, updates=100, log_every=10, evaluate_every=50
        )
        sizes.update(ramp=8, position_length=8, num_sizes=2)
        reach.update(steps=32)
        config.reinforcement.update(minibatches=2, episodes=8, test_episodes=8)

    return with_memory(
        config, arg, memory='transformer_xl', memories=lambda steps: spans(steps, **sizes),
        steps=lambda: reach['steps'], task=task, observed=observed, tiny=tiny,
    )  # fmt: skip
