"""MemoryChain of gymnax (bsuite): a bit at the start is asked for at the end. Needs the extra `[rl]`.

python -m longmem_jax.main --config=configs/memory_chain.py --workdir=DIR
`:length=N` are the steps between them; `:memory=` is any memory that is an attention layer, and
`:memory_size=N` its length in steps. The reward is 1 or -1, so 0 is chance. `:tiny` takes a minute on
one core: reward 1.00, and 0 with `:memory=local`.

Values are ours: PPO as in PureJaxRL and CleanRL, with a memory that is as long as an episode.
"""

from longmem_jax.agents import settings
from longmem_jax.config.variants import whole_number
from longmem_jax.configs._agents import agent, ppo, rollouts, spans, with_memory


def get_config(arg=''):
    config = agent()
    settings.use(config, 'memory_chain', actions=2, observation=3, previous=True)
    config.reinforcement.task.update(length=30)
    ppo(config)
    rollouts(
        config, lanes=64, segment=16, segments=8, updates=250, log_every=10, evaluate_every=100
    )
    sizes = dict(ramp=8, loss=1e-6, share=0.75, position_length=8, num_sizes=2)

    def length(config, value):
        """Steps between the bit and the question."""
        config.reinforcement.task.length = whole_number('length', value)

    def tiny(config):
        """Short chains, minutes on one core."""
        if 'length=' not in arg:
            config.reinforcement.task.length = 12
        config.optimizer.learning_rate = 1e-3
        rollouts(
            config, lanes=32, segment=8, segments=4, updates=150, log_every=10, evaluate_every=75
        )
        sizes.update(ramp=4, position_length=4)

    def longest():
        """Nearly an episode, with the ramp of spans."""
        return max(config.reinforcement.task.length + 1 - sizes['ramp'], 1)

    return with_memory(
        config, arg, memory='transformer_xl', memories=lambda steps: spans(steps, **sizes),
        steps=longest, length=length, tiny=tiny,
    )  # fmt: skip
