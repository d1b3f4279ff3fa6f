"""The classes that a classifier finds."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from longmem_jax import stopping
from longmem_jax.data.lanes import in_order
from longmem_jax.devices.sharding import from_processes, replicated
from longmem_jax.hosts.classifier import Classifier
from longmem_jax.hosts.data.classes import ClassCorpus
from longmem_jax.segment import Segment


def classify(
    model: Classifier, params: Any, mesh: Mesh, corpus: ClassCorpus, num_lanes: int
) -> np.ndarray:
    """The class with the largest score of every example, int64 [examples]; in one process.

    Every example of `corpus` is one segment of the model.
    """

    def read(params: Any, tokens: jax.Array, valid: jax.Array) -> jax.Array:
        segment = Segment(tokens, valid, jnp.ones(tokens.shape[:1], bool))
        logits, _, _ = model.apply({'params': params}, segment, (), train=False)
        return jnp.argmax(logits, axis=-1)

    compiled, found = jax.jit(read, out_shardings=replicated(mesh)), []
    for batch, _ in in_order(corpus, num_lanes, model.segment_length):
        placed = from_processes(mesh, batch, 1)
        found.append(np.asarray(compiled(params, placed.tokens[0], placed.valid[0])))
        stopping.poll()
    # Example k is in lane k % num_lanes, and each takes one segment.
    return np.concatenate(found).astype(np.int64)[: len(corpus)]
