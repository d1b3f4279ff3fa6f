"""What the configs of agents share: sizes, the choice of the memory and of its length."""

from longmem_jax.config.base import base, size, stack
from longmem_jax.config.recipes import given
from longmem_jax.config.variants import variant, whole_number


def agent():
    """2 layers of 64, as in the paper's agents (A.3.1); heads and the feed-forward width are ours."""
    config = base()
    size(config, layers=2, width=64, heads=4, feed_forward=256)
    stack(config.model, 2, 'transformer_xl')
    config.optimizer.schedule = 'constant'
    config.optimizer.clip_norm = 0.0
    config.reinforcement.entropy_cost = 5e-4
    config.generate.sample_length = 0
    return config


def lengths(steps):
    """Sizes that recipes derive a memory's fields from, for a memory of `steps` steps."""
    basis = max(steps // 4, 2) * 2
    narrowest = 1.28 / (2 * min(steps, basis * 4))
    return dict(
        reach=steps,
        memories=steps,
        basis=basis,
        samples=basis * 4,
        widths=(max(0.02, narrowest), max(0.05, 2 * narrowest)),
        slots=max(steps // 4, 4),
        tokens=8,
        keys=32,
    )


def with_memory(config, arg, *, default, size_of, changes, **variants):
    """Applies the variants that `arg` names, and `memory=` and `memory_size=`.

    Args:
      config: the configuration; changed in place.
      arg: the argument of the config file.
      default: the memory.
      size_of: a dictionary with 'steps', the length of memories, which variants may change.
      changes: `(steps) -> memories` of `config.variants.variant`.
    """
    typed, scale, memories = [], {}, {}

    def memory_size(config, value):
        """Steps that a memory reaches back; of memories with slots or keys, what that stands for."""
        typed.append(whole_number('memory_size', value))

    def sized(config, name, change, **sizes):
        from longmem_jax.config.recipes import use

        steps = typed[0] if typed else size_of['steps']
        use(config, name, changes(config, steps).get(name, change), **lengths(steps) | sizes)

    return variant(
        config,
        arg,
        memory=default,
        memories=memories,
        scale=scale,
        put=sized,
        memory_size=memory_size,
        **variants,
    )


def fixed_and_learned(*, span, ramp, loss, initial_share, position_length):
    """The paper's two memories: a fixed span that every query has, and learned ones.

    Args:
      span: L, the longest learned span; 0 = that of `memory_size`.
      ramp, loss: R and alpha.
      initial_share: first spans, as a share of L.
      position_length: distances with a position term in Expire-Span, and what is always kept.
    """
    return lambda config, steps: {
        'transformer_xl': given(memory_length=steps, same_length=True),
        'expire_span': given(
            max_span=span or steps,
            ramp=ramp,
            position_length=position_length,
            initial_share=initial_share,
            loss_weights={'expire_span': loss},
        ),
    }
