"""Drawing the next token: temperature, top-k, nucleus."""

import jax
import jax.numpy as jnp


def filter_logits(logits: jax.Array, top_k: int, top_p: float) -> jax.Array:
    """Sets logits outside the `top_k` largest, or outside the nucleus `top_p`, to -inf.

    Args:
      logits: [batch, vocab].
      top_k: 0 = all.
      top_p: 1.0 = all; keeps the smallest set of most likely tokens with at least this probability
        (Holtzman et al., 2020); the most likely token always stays.

    Returns:
      [batch, vocab].
    """
    if top_k:
        threshold = jax.lax.top_k(logits, min(top_k, logits.shape[-1]))[0][:, -1:]
        logits = jnp.where(logits < threshold, -jnp.inf, logits)
    if top_p < 1.0:
        sorted_logits = -jnp.sort(-logits, axis=-1)
        cumulative = jnp.cumsum(jax.nn.softmax(sorted_logits, axis=-1), axis=-1)
        inside = cumulative - jax.nn.softmax(sorted_logits, axis=-1) < top_p
        inside = inside.at[:, 0].set(True)
        threshold = jnp.min(jnp.where(inside, sorted_logits, jnp.inf), axis=-1, keepdims=True)
        logits = jnp.where(logits < threshold, -jnp.inf, logits)
    return logits


def sample(
    logits: jax.Array, keys: jax.Array, temperature: float, top_k: int, top_p: float
) -> jax.Array:
    """Draws tokens, int32 [batch], from logits [batch, vocab]; temperature 0 takes the most likely.

    Every row is drawn by its own of the random `keys` [batch], so that it does not depend on the others.
    """
    if temperature < 1e-30:  # else the logits divided by it may be infinite
        return jnp.argmax(logits, axis=-1).astype(jnp.int32)
    logits = filter_logits(logits / temperature, top_k, top_p)
    return jax.vmap(jax.random.categorical)(keys, logits).astype(jnp.int32)
