"""Returns and advantages of a rollout whose episodes end anywhere."""

import jax
import jax.numpy as jnp


def advantages(
    reward: jax.Array,
    value: jax.Array,
    terminated: jax.Array,
    truncated: jax.Array,
    last_value: jax.Array,
    *,
    discount: float,
    trace: float,
) -> jax.Array:
    """Generalised advantages (Schulman et al., 2016, Eq. 16): of every action, how much more it gave.

        delta_t = reward_t + discount * next_value_t - value_t
        advantage_t = delta_t + discount * trace * advantage_{t+1}

    `next_value_t` is `value_{t+1}` within an episode and 0 where it terminates. Where a limit cuts it
    off, its last observation has not been read, and `value_t`, of one step earlier, stands for its
    value. Nothing is handed over from one episode to another.

    Args:
      reward, value: float32 [steps, lanes]; `value` is what the critic said before the action.
      terminated, truncated: bool [steps, lanes].
      last_value: float32 [lanes], the critic's value of the observation after the last step.
      discount: of a reward one step later.
      trace: lambda; 1 = returns as far as the rollout reaches, 0 = of one step.

    Returns:
      float32 [steps, lanes]; returns are `advantages + value`.
    """
    following = jnp.concatenate([value[1:], last_value[None]])
    following = jnp.where(truncated, value, following)
    following = jnp.where(terminated, 0.0, following)
    delta = reward + discount * following - value
    handed = jnp.where(terminated | truncated, 0.0, discount * trace)

    def step(after: jax.Array, inputs: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        delta, handed = inputs
        advantage = delta + handed * after
        return advantage, advantage

    _, found = jax.lax.scan(step, jnp.zeros_like(last_value), (delta, handed), reverse=True)
    return found
