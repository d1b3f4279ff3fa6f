"""What the configs of agents share: sizes, the choice of the memory and of its length."""

from longmem_jax.config.base import base, size, stack
from longmem_jax.config.recipes import changes_of, given, use
from longmem_jax.config.variants import variant, whole_number


def agent():
    """2 layers of 64, learning with an entropy cost of .0005, as the paper's agents (A.3.1)."""
    config = base('reinforcement')
    size(config, layers=2, width=64, heads=4, feed_forward=256)
    stack(config.model, 2, 'transformer_xl')
    config.optimizer.schedule = 'constant'
    config.optimizer.clip_norm = 0.0
    config.reinforcement.algorithm = 'a2c'
    config.reinforcement.entropy_cost = 5e-4
    config.generate.sample_length = 0
    return config


def ppo(config):
    """PPO with the values that users of the suites know: those of PureJaxRL and CleanRL."""
    config.reinforcement.update(
        algorithm='ppo', discount=0.99, trace=0.95, entropy_cost=0.01, value_cost=0.5, clip=0.2,
        normalize=True, epochs=4, minibatches=4,
    )  # fmt: skip
    config.optimizer.name, config.optimizer.learning_rate = 'adam', 2.5e-4
    config.optimizer.eps = 1e-5
    config.optimizer.schedule = 'linear'
    config.optimizer.clip_norm = 0.5


def rollouts(config, *, lanes, segment, segments, updates, log_every, evaluate_every):
    """Sizes of training; evaluation has as many lanes."""
    train = config.train
    train.num_lanes = config.evaluate.num_lanes = lanes
    train.segment_length, train.segments_per_step = segment, segments
    train.num_steps, train.log_every, train.evaluate_every = updates, log_every, evaluate_every


def lengths(steps):
    """Sizes that recipes derive a memory's fields from, for a memory of `steps` steps."""
    basis = max(steps // 4, 2) * 2
    samples = 4 * basis
    narrowest = 1.28 / (2 * samples)
    widths = (max(0.02, narrowest), max(0.05, 2 * narrowest))
    slots = max(steps // 4, 4)
    return dict(
        reach=steps, memories=steps, basis=basis, samples=samples, widths=widths, slots=slots
    )


def spans(steps, *, ramp, loss, share, position_length, num_sizes=6):
    """The paper's memories: the last `steps` steps for every query, and spans that are learned.

    Args:
      steps: the fixed span, and L, the longest of the learned ones.
      ramp, loss: R and alpha.
      share: first spans, as a share of L.
      position_length: steps that are always kept, and distances with a position term.
      num_sizes: sizes of the buffer of memories.
    """
    return {
        'transformer_xl': given(memory_length=steps, same_length=True),
        'expire_span': given(
            max_span=steps, ramp=ramp, initial_share=share,
            position_length=position_length, num_sizes=num_sizes,
            loss_weights={'expire_span': loss},
        ),
    }  # fmt: skip


def with_memory(config, arg, *, memory, memories, steps, **variants):
    """Applies the variants that `arg` names, then `memory=` with the length `memory_size=`.

    Args:
      config: the configuration; changed in place.
      arg: the argument of the config file.
      memory: the default.
      memories: `(steps) -> changes` to the recipes of memories, by name.
      steps: () to the length of the memory unless `memory_size=` is given; asked after the variants.
    """
    typed = []

    def memory_size(config, value):
        """Steps that the memory reaches back, if it has a length; a quarter of it are its slots."""
        typed.append(whole_number('memory_size', value))

    def put(config, name, changes):
        number = typed[0] if typed else steps()
        before = config.copy_and_resolve_references()
        set_memory(config, name, number)
        if typed:
            set_memory(before, name, 8 * number)  # would another length change anything?
            if before.model.to_dict() == config.model.to_dict():
                said = f'changes nothing: the size of {name} does not follow from it'
                config.notes = (*config.notes, f'memory_size={number} {said}')

    def set_memory(config, name, number):
        use(config, name, changes_of(memories(number), name), **lengths(number))

    return variant(config, arg, memory=memory, put=put, memory_size=memory_size, **variants)
