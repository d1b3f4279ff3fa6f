"""A language model with a gate on retrieved tokens: the equations of SPALM (Yogatama et al., 2021).

With neighbours' tokens `y_k` embedded by the tied output table: `m = sum_k softmax_k(y_k . h) y_k`,
`g = sigmoid(w_g . h)`, `z = (1 - g) m + g h`, and logits from `z`.

Not in the paper: `m` may have a learned scale, `z = (1 - g) s m + g h`. Where the model was trained
without neighbours, `h` is much longer than the `y_k` (18 times in a small model), so logits of `m` are
almost even and no gate can make it count; trained from the beginning, or long enough, a model makes its
own lengths fit, and `s` is not needed.
"""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from longmem_jax.models.language_model import LanguageModel
from longmem_jax.retrieval.reading import of_targets
from longmem_jax.retrieval.spalm_text import Inputs
from longmem_jax.segment import Aux, Leaf, Segment


class Gate(flax.struct.PyTreeNode):
    """What SPALM adds to a model.

    Attributes:
      weights: `w_g`, float32 [d_model].
      log_scale: log of `s`, float32 scalar; None = 1, the paper's.
    """

    weights: Leaf
    log_scale: Leaf | None


class Scores(flax.struct.PyTreeNode):
    """Of one segment of every lane, all [lanes, length].

    Attributes:
      nll: nats of the targets.
      log_z: log of the normaliser of their probabilities.
      alone: nats of the targets by `h` without neighbours; no gradient flows from them.
      open: `g`; 1 where there is no neighbour.
      weights: the weights of the neighbours in `m`, [lanes, length, K].
    """

    nll: jax.Array
    log_z: jax.Array
    alone: jax.Array
    open: jax.Array
    weights: jax.Array


def combine(
    hidden: jax.Array, embedded: jax.Array, found: jax.Array, gate: Gate
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """`z` of every token.

    Args:
      hidden: [..., d_model], the last hidden vectors.
      embedded: [..., K, d_model], output vectors of the retrieved tokens; duplicates count
        separately.
      found: bool [..., K], which of them are real.

    Returns:
      `z`, like `hidden`; `g` [...]; and the weights of the neighbours [..., K]. Without any neighbour
      `z` is `h` and `g` is 1.
    """
    scores = jnp.einsum('...kd,...d->...k', embedded, hidden)
    weights = jax.nn.softmax(scores, axis=-1, where=found)
    retrieved_vector = jnp.einsum('...k,...kd->...d', weights, embedded)
    if gate.log_scale is not None:
        retrieved_vector = jnp.exp(gate.log_scale) * retrieved_vector
    share = jnp.where(found.any(axis=-1), jax.nn.sigmoid(hidden @ gate.weights), 1.0)
    mixed = (1 - share[..., None]) * retrieved_vector + share[..., None] * hidden
    return mixed, share, weights


def output_table(params: Any) -> jax.Array:
    """The output vectors of all tokens, [vocab, d_model]."""
    embedding = params['embedding']
    return embedding.get('out_table_0', embedding['table_0'])


def read(
    model: LanguageModel,
    params: Any,
    gate: Gate,
    memory: Any,
    inputs: Inputs,
    key: jax.Array | None = None,
) -> tuple[Any, tuple[Scores, Aux]]:
    """Reads one segment of every lane and scores its targets.

    `key` is for dropout and memories that sample, in training; None = evaluation. Returns the
    memories after the segment; its scores; and the `Aux` of the model.
    """
    rngs = {}
    if key is not None:
        rngs = dict(zip(('dropout', 'memory'), jax.random.split(key), strict=True))
    segment = Segment(inputs.tokens, inputs.valid, inputs.start)
    hidden, memory, aux = model.apply(
        {'params': params}, segment, memory, train=key is not None, method='hidden', rngs=rngs
    )
    hidden = hidden.astype(jnp.float32)
    embedded = output_table(params).astype(jnp.float32)[jnp.maximum(inputs.neighbours, 0)]
    mixed, share, weights = combine(hidden, embedded, inputs.neighbours >= 0, gate)
    together, alone = (
        model.apply({'params': params}, vectors, inputs.targets, method=of_targets)
        for vectors in (mixed, jax.lax.stop_gradient(hidden))
    )
    scores = Scores(together.nll, together.log_z, jax.lax.stop_gradient(alone.nll), share, weights)
    return memory, (scores, aux)


def mean_lengths(model: LanguageModel, params: Any, memory: Any, inputs: Inputs) -> tuple[Any, Any]:
    """Mean lengths of the hidden vectors of one segment and of the output vectors; scalars."""
    segment = Segment(inputs.tokens, inputs.valid, inputs.start)
    hidden, _, _ = model.apply({'params': params}, segment, memory, train=False, method='hidden')
    lengths = jnp.linalg.norm(hidden.astype(jnp.float32), axis=-1)
    mean = jnp.sum(lengths, where=inputs.valid) / jnp.maximum(inputs.valid.sum(), 1)
    return mean, jnp.linalg.norm(output_table(params).astype(jnp.float32), axis=-1).mean()
