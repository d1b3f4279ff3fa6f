"""How well a model predicts given tokens: the record that losses and metrics are computed from."""

import flax.struct
import jax
import jax.numpy as jnp


class Scores(flax.struct.PyTreeNode):
    """One value per token; every leaf [batch, n].

    Attributes:
      nll: negative log-likelihood in nats, at least float32.
      log_z: log of the normaliser of the logits, for the z-loss; at least float32.
      right: bool, whether the token was the likeliest.
    """

    nll: jax.Array
    log_z: jax.Array
    right: jax.Array

    def where(self, valid: jax.Array) -> 'Scores':
        """The scores of valid tokens (bool [batch, n]); zero and False elsewhere."""
        return jax.tree.map(lambda leaf: jnp.where(valid, leaf, jnp.zeros_like(leaf)), self)

    def padded(self, before: int, after: int) -> 'Scores':
        """With this number of zeros before the first token and after the last."""
        return jax.tree.map(lambda leaf: jnp.pad(leaf, [(0, 0), (before, after)]), self)


def of_logits(logits: jax.Array, targets: jax.Array) -> Scores:
    """Scores of `targets` (int32 [batch, n]) by logits over all classes, [batch, n, classes]."""
    log_z = jax.nn.logsumexp(logits, axis=-1)
    nll = log_z - jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return Scores(nll, log_z, jnp.argmax(logits, axis=-1).astype(targets.dtype) == targets)
