"""The objectives of actor-critic learners: advantage actor-critic (A2C) and PPO.

Both are means over steps of `policy + value_cost * critic - entropy_cost * entropy`. A2C takes one step
with all of a rollout. PPO takes several with parts of it, and holds the policy near to the one that
acted.
"""

import flax.struct
import jax
import jax.numpy as jnp

A2C, PPO = 'a2c', 'ppo'
ALGORITHMS = (A2C, PPO)


class Acted(flax.struct.PyTreeNode):
    """What is learned from; all of the same shape [...] but `logits`.

    Attributes:
      action: int32, what was done.
      logits: float32 [..., actions], the policy that it was drawn from.
      value: float32, what the critic said then.
      advantage: float32, how much more the action gave than the critic had said.
      returned: float32, what the critic should have said.
      counts: float32, 1 for steps that are learned from, else 0.
    """

    action: jax.Array
    logits: jax.Array
    value: jax.Array
    advantage: jax.Array
    returned: jax.Array
    counts: jax.Array

    def mean(self, values: jax.Array) -> jax.Array:
        """The mean over the steps that count; a scalar."""
        return (values * self.counts).sum() / jnp.maximum(self.counts.sum(), 1.0)


def log_probability(logits: jax.Array, action: jax.Array) -> jax.Array:
    """Log-probability of actions, int32 [...], by logits [..., actions]."""
    chosen = jnp.take_along_axis(logits, action[..., None], axis=-1)[..., 0]
    return chosen - jax.nn.logsumexp(logits, axis=-1)


def entropy(logits: jax.Array) -> jax.Array:
    """Entropy of policies in nats, from logits [..., actions]."""
    log_p = jax.nn.log_softmax(logits)
    return -(jnp.exp(log_p) * log_p).sum(-1)


def normalized(acted: Acted) -> jax.Array:
    """Advantages with mean 0 and standard deviation 1."""
    centred = acted.advantage - acted.mean(acted.advantage)
    return centred / (jnp.sqrt(acted.mean(jnp.square(centred))) + 1e-8)


def policy_gradient(logits: jax.Array, acted: Acted) -> jax.Array:
    """`-log pi(action) * advantage`, whose gradient is the policy's (Mnih et al., 2016, Sec. 4)."""
    return -log_probability(logits, acted.action) * jax.lax.stop_gradient(acted.advantage)


def clipped_policy(logits: jax.Array, acted: Acted, clip: float) -> jax.Array:
    """PPO's objective (Schulman et al., 2017, Eq. 7), negated: nothing is gained beyond 1 +- clip."""
    before = log_probability(acted.logits, acted.action)
    ratio = jnp.exp(log_probability(logits, acted.action) - before)
    limited = jnp.clip(ratio, 1 - clip, 1 + clip)
    return -jnp.minimum(ratio * acted.advantage, limited * acted.advantage)


def critic(value: jax.Array, acted: Acted) -> jax.Array:
    """Half of the squared error of the critic."""
    return 0.5 * jnp.square(value - acted.returned)


def clipped_critic(value: jax.Array, acted: Acted, clip: float) -> jax.Array:
    """The same where values that moved by more than `clip` gain nothing, as PPO's users expect."""
    limited = acted.value + jnp.clip(value - acted.value, -clip, clip)
    return jnp.maximum(critic(value, acted), critic(limited, acted))


def objective(
    logits: jax.Array,
    value: jax.Array,
    acted: Acted,
    *,
    algorithm: str,
    clip: float,
    value_cost: float,
    entropy_cost: float,
    normalize: bool,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """What is minimised, without the losses of memories.

    Args:
      logits, value: of the present parameters, [..., actions] and [...].
      acted: what was done.
      clip: of PPO; A2C has none.
      normalize: whether advantages are normalised over all that is learned from at a time.

    Returns:
      A scalar, and scalar metrics.
    """
    if normalize:
        acted = acted.replace(advantage=normalized(acted))
    if algorithm == PPO:
        of_policy = clipped_policy(logits, acted, clip)
        of_value = clipped_critic(value, acted, clip)
    else:
        of_policy, of_value = policy_gradient(logits, acted), critic(value, acted)
    policy_loss, value_loss = acted.mean(of_policy), acted.mean(of_value)
    spread = acted.mean(entropy(logits))
    total = policy_loss + value_cost * value_loss - entropy_cost * spread
    moved = log_probability(acted.logits, acted.action) - log_probability(logits, acted.action)
    return total, {
        'policy_loss': policy_loss,
        'value_loss': value_loss,
        'entropy': spread,
        # Of the policy that acted to the present one, as its actions show it.
        'kl': acted.mean(moved),
    }
