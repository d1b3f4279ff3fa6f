"""Hosts as Hugging Face folders: weights, `config.json`, tokenizer files and a model card."""

from collections.abc import Iterator
from typing import Any

import flax.traverse_util
import numpy as np

from longmem_jax.pretrained.families import Family
from longmem_jax.pretrained.hosts import rows_of
from longmem_jax.pretrained.patterns import pattern


def their_tensors(family: Family, num_layers: int, params: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Their tensors, from parameters of ours or anything like them, such as gradients.

    Args:
      family: of the host.
      num_layers: of the model.
      params: a nested dictionary; parameters that no row names are left out.

    Yields:
      name, with the family's prefix, and tensor, of the dtype of the parameters.
    """
    flat = flax.traverse_util.flatten_dict(params, sep='/')
    for row in rows_of(family, num_layers):
        if all(path in flat for path in row.ours):
            ours = [np.asarray(flat[path]) for path in row.ours]
            whole = np.stack(ours) if len(ours) > 1 else ours[0]
            yield family.prefixed(row.theirs), pattern(row.layout).put(whole)
