"""A language model with a gate on retrieved tokens: the equations of SPALM, and its inputs.

With neighbours' tokens `y_k` embedded by the tied output table: `m = sum_k softmax_k(y_k . h) y_k`,
`g = sigmoid(w_g . h)`, `z = (1 - g) m + g h`, and logits from `z` (Yogatama et al., 2021).
"""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from longmem_jax.retrieval.reading import Part, nll_of
from longmem_jax.segment import Segment


def combine(hidden: jax.Array, embedded: jax.Array, found: jax.Array, gate: jax.Array) -> jax.Array:
    """`z` of every token; `h` itself where there is no neighbour.

    Args:
      hidden: [..., d_model], the last hidden vectors.
      embedded: [..., K, d_model], output vectors of the retrieved tokens; duplicates count
        separately.
      found: bool [..., K], which of them are real.
      gate: [d_model], w_g.

    Returns:
      Like `hidden`.
    """
    scores = jnp.einsum('...kd,...d->...k', embedded, hidden)
    weights = jax.nn.softmax(scores, axis=-1, where=found)
    retrieved_vector = jnp.einsum('...k,...kd->...d', weights, embedded)
    share = jnp.where(found.any(axis=-1), jax.nn.sigmoid(hidden @ gate), 1.0)[..., None]
    return (1 - share) * retrieved_vector + share * hidden


def output_table(params: Any) -> jax.Array:
    """The output vectors of all tokens, [vocab, d_model]."""
    embedding = params['embedding']
    return embedding.get('out_table_0', embedding['table_0'])


def retrieved(part: Part, store: Any, index: Any, k: int, other_documents: bool) -> np.ndarray:
    """Tokens of the neighbours of every position, int32 [segments, lanes, length, k]; -1 = none.

    Args:
      part: what was read.
      store, index: the datastore and its index.
      k: number of neighbours.
      other_documents: leave out neighbours from the same document, for text of the datastore.
    """
    counted = part.counted
    documents = np.broadcast_to(part.documents[:, :, None], counted.shape)[counted]
    _, numbers, found = index.search(part.keys[counted], k, documents if other_documents else None)
    tokens = np.full((*counted.shape, k), -1, np.int32)
    tokens[counted] = np.where(found, store.rows('values', numbers), -1)
    return tokens


@flax.struct.dataclass
class Inputs:
    """One segment of every lane, with what was retrieved for it.

    Attributes:
      tokens, targets: int32 [lanes, length].
      valid: bool [lanes, length].
      start: bool [lanes], a document begins.
      counted: float32 [lanes, length], 1 if the target is scored.
      neighbours: int32 [lanes, length, k], the tokens retrieved; -1 = none.
    """

    tokens: jax.Array
    targets: jax.Array
    valid: jax.Array
    start: jax.Array
    counted: jax.Array
    neighbours: jax.Array


def inputs_of(part: Part, neighbours: np.ndarray, index: int) -> Inputs:
    """Segment `index` of a part; `neighbours` is the result of `retrieved` for the whole part."""
    return Inputs(
        tokens=jnp.asarray(part.tokens[index]),
        targets=jnp.asarray(part.targets[index]),
        valid=jnp.asarray(part.valid[index]),
        start=jnp.asarray(part.start[index]),
        counted=jnp.asarray(part.counted[index], jnp.float32),
        neighbours=jnp.asarray(neighbours[index]),
    )


def losses(
    model: Any, params: Any, gate: jax.Array, memory: Any, inputs: Inputs
) -> tuple[jax.Array, jax.Array, Any]:
    """Scores one segment of every lane with the gate and without.

    Args:
      model, params: the language model.
      gate: [d_model], w_g.
      memory: memories before the segment.
      inputs: the segment.

    Returns:
      Nats of the counted targets, summed, by the gated model and by the model alone; and the
      memories after the segment, with stopped gradients.
    """
    segment = Segment(inputs.tokens, inputs.valid, inputs.start)
    hidden, memory, _ = model.apply(
        {'params': params}, segment, memory, train=False, method='hidden'
    )
    hidden = hidden.astype(jnp.float32)
    embedded = output_table(params).astype(jnp.float32)[jnp.maximum(inputs.neighbours, 0)]
    mixed = combine(hidden, embedded, inputs.neighbours >= 0, gate)
    gated, alone = (
        (model.apply({'params': params}, h, inputs.targets, method=nll_of) * inputs.counted).sum()
        for h in (mixed, hidden)
    )
    return gated, alone, jax.lax.stop_gradient(memory)
