"""The index of a datastore, which finds nearest keys: exact search or FAISS, by config."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from jax.sharding import Mesh

from longmem_jax.errors import say
from longmem_jax.experiment import Experiment
from longmem_jax.retrieval.datastore import Datastore
from longmem_jax.retrieval.faiss_index import Faiss
from longmem_jax.retrieval.search import Exact, Neighbours, require_k


class Index(Protocol):
    """Finds neighbours."""

    def search(self, queries: np.ndarray, k: int, exclude: np.ndarray | None = None) -> Neighbours:
        """The k nearest keys.

        Args:
          queries: float32 [n, width].
          k: at most the number of keys.
          exclude: int32 [n], for each query a document whose keys are left out, -1 = none; None =
            none of any.

        Returns:
          Of every query the nearest keys outside of its excluded document. Where there are fewer than
          k, `found` says which are real.
        """


def make_index(settings: Any, store: Datastore, mesh: Mesh) -> Index:
    """The index that `config.retrieval.index` names: 'exact' or 'faiss'.

    Raises:
      UsageError: FAISS is not installed, or its sizes do not fit.
    """
    if settings.index == 'exact':
        return Exact(store, settings.block_size, mesh, settings.resident_gib)
    return Faiss(store, settings)


def open_datastore(
    experiment: Experiment,
    made_by: dict[str, Any],
    k: int,
    report: Callable[[str], None] = say,
) -> tuple[Index, Datastore]:
    """The datastore of `config.retrieval`, which `made_by`, an `identity`, must have made.

    Raises:
      UsageError: as in `Datastore` and `make_index`; or it has fewer than `k` keys.
    """
    settings, vocab_size = experiment.config.retrieval, experiment.tokenizer.vocab_size
    folder = Path(settings.datastore).expanduser()
    store = Datastore(folder, made_by, settings.verify, vocab_size=vocab_size, report=report)
    require_k(k, store)
    return make_index(settings, store, experiment.mesh), store
