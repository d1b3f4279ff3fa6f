"""Segments of a split with the neighbours of their tokens: what SPALM reads."""

from collections.abc import Iterator
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from longmem_jax.data.corpus import AnyCorpus
from longmem_jax.data.lanes import Cursor, LaneDataset, batches
from longmem_jax.data.windows import Windows
from longmem_jax.retrieval.spalm_lists import Lists
from longmem_jax.segment import Leaf


class Inputs(flax.struct.PyTreeNode):
    """One segment of every lane, with what was retrieved for it.

    Attributes:
      tokens, targets: int32 [lanes, length].
      valid: bool [lanes, length].
      start: bool [lanes], a document begins.
      counted: float32 [lanes, length], 1 if the target is scored.
      neighbours: int32 [lanes, length, K], the tokens retrieved; -1 = none.
      num_bytes: float32 [lanes], source bytes of the scored targets.
    """

    tokens: jax.Array
    targets: jax.Array
    valid: jax.Array
    start: jax.Array
    counted: jax.Array
    neighbours: Leaf
    num_bytes: jax.Array


class Text:
    """Reads a split once in its own order, or endlessly, in that of a seed.

    `documents` counts them, or windows.
    """

    def __init__(
        self,
        corpus: AnyCorpus,
        lists: Lists,
        *,
        num_lanes: int,
        length: int,
        context: int = 0,
        seed: int | None = None,
    ):
        """Reads nothing yet.

        Args:
          context: tokens of a segment that are read again and not scored; 0 = no windows.
          seed: of the order of documents, read endlessly; None = read once, in order.
        """
        self._lists = lists
        self._sources = None
        if context:
            corpus = Windows(corpus, length, context)
            self._sources = corpus.sources
        self._reading: dict[str, Any] = dict(
            num_lanes=num_lanes,
            segment_length=length,
            segments_per_batch=1,
            seed=seed or 0,
            shuffle=seed is not None,
            num_epochs=1 if seed is None else None,
        )
        self._corpus, self._lanes = corpus, range(num_lanes)
        self.documents = len(corpus)
        self._order = LaneDataset(corpus, self._lanes, cursor=None, **self._reading)

    def segments(self, cursor: Cursor) -> Iterator[tuple[Inputs, np.ndarray, Cursor]]:
        """Segments from a position on.

        Yields:
          the segment; the row in the lists of every token, int64 [lanes, length], -1 at padding;
          and the position after it.
        """
        before = jax.tree.map(np.asarray, cursor)
        read = batches(self._corpus, lanes=self._lanes, cursor=before, **self._reading)
        for batch, after in read:
            batch = jax.tree.map(lambda leaf: np.asarray(leaf)[0], batch)
            rows = self._rows(batch.valid, batch.start, before, after)
            before = after
            yield self._inputs(batch, rows), rows, after

    def _rows(
        self, valid: np.ndarray, start: np.ndarray, before: Cursor, after: Cursor
    ) -> np.ndarray:
        """The rows of a segment's tokens, from the positions of the lanes before and after it."""
        rows = np.full(valid.shape, -1, np.int64)
        for lane in np.flatnonzero(valid.any(axis=1)).tolist():
            # A lane that has read its document to the end is at the next one.
            ordinal = int(after.document[lane]) - int(after.offset[lane] == 0)
            document = self._order.index(lane, ordinal)
            assert document is not None
            first = 0 if start[lane] else int(before.offset[lane])
            if ordinal == 0:
                first += self._order.begin(lane, 0, len(self._corpus[document].tokens))
            if self._sources is not None:
                document, first = map(int, self._sources[document] + (0, first))
            count = int(valid[lane].sum())
            rows[lane, :count] = self._lists.first(document) + first + np.arange(count)
        return rows

    def _inputs(self, batch: Any, rows: np.ndarray) -> Inputs:
        counted = batch.valid & (batch.scored > 0)
        return Inputs(
            tokens=batch.tokens,
            targets=batch.targets,
            valid=batch.valid,
            start=batch.start,
            counted=counted.astype(np.float32),
            neighbours=self._lists.tokens(rows),
            num_bytes=batch.num_bytes,
        )


def stacked(inputs: list[Inputs]) -> Inputs:
    """Several segments as one, every leaf [segments, lanes, ...]."""
    return jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *inputs)
