"""Documents laid along lanes, segment after segment: which token stands where, for ever exactly.

The documents of epoch after epoch, each in its own seeded order, form one sequence; its k-th
document belongs to lane `k % num_lanes`, and a lane reads its documents one after another. So no
length needs to be known, a process reads its own lanes only, and the position is one `Cursor`, for
any number of processes. Lanes drift apart as documents differ in length; no token is lost or
repeated.
"""

from collections.abc import Iterator
from typing import Any

import flax.struct
import grain
import jax
import numpy as np

from longmem_jax.data.corpus import Corpus
from longmem_jax.errors import UsageError

PREFETCHED = 4
KEPT_ORDERS = 3


@flax.struct.dataclass
class Cursor:
    """Where every lane stands.

    Attributes:
      document: int32 [lanes], ordinal of the document in the lane's own sequence.
      offset: int32 [lanes], tokens of it that were given out.
    """

    document: jax.Array
    offset: jax.Array


@flax.struct.dataclass
class Batch:
    """Segments of all lanes, in order; leading axis `segments`.

    A document t0 .. tn-1 is read as begin, t0 .. tn-2 and scored on t0 .. tn-1: every token once.

    Attributes:
      tokens, targets: int32 [segments, lanes, length].
      valid: bool [segments, lanes, length]; False after the end of a document.
      scored: uint8 [segments, lanes, length]; 0 = not scored (padding too), 1 = scored, 2 = scored
        and the last token of an answer.
      start: bool [segments, lanes]; a document begins.
      num_bytes: float32 [segments, lanes], source bytes that the valid tokens stand for.
    """

    tokens: jax.Array
    targets: jax.Array
    valid: jax.Array
    scored: jax.Array
    start: jax.Array
    num_bytes: jax.Array


class _Lane:
    """One lane's walk through its documents."""

    def __init__(self, dataset, lane, document, offset):
        self._dataset, self._lane = dataset, lane
        self.document, self.offset = document, offset
        self._found, self._empty = None, 0

    def _open(self) -> bool:
        """Brings a document with tokens left into `_found`; False at the end of the sequence."""
        while self._found is None:
            index = self._dataset.index(self._lane, self.document)
            if index is None:
                return False
            found = self._dataset.corpus[index]
            if len(found.tokens):
                self._found, self._empty = found, 0
                return True
            self.document += 1
            self._empty += 1
            if self._empty > len(self._dataset.corpus):
                raise UsageError('config.data: all documents are empty.')
        return True

    def fill(self, batch: Batch, segment: int, row: int, begin: int) -> bool:
        """Writes the next segment of this lane into the arrays; False where there is none."""
        if not self._open():
            return False
        length, at, found = batch.tokens.shape[2], self.offset, self._found
        tokens = found.tokens
        targets = tokens[at : at + length]
        size = len(targets)
        batch.targets[segment, row, :size] = targets
        if found.inputs is not None:
            batch.tokens[segment, row, :size] = found.inputs[at : at + size]
        else:
            batch.tokens[segment, row, 1:size] = targets[:-1]
            batch.tokens[segment, row, 0] = tokens[at - 1] if at else begin
        scored = 1 if found.scored is None else found.scored[at : at + size]
        batch.scored[segment, row, :size] = scored
        batch.valid[segment, row, :size] = True
        batch.start[segment, row] = at == 0
        batch.num_bytes[segment, row] = found.num_bytes * size / len(tokens)
        self.offset = at + size
        if self.offset == len(tokens):
            self.document, self.offset, self._found = self.document + 1, 0, None
        return True


class LaneDataset(grain.IterDataset):
    """Batches of some lanes; grain's iterator protocol, with the cursor as its state."""

    def __init__(
        self, corpus, lanes, num_lanes, segment_length, segments_per_batch, seed, shuffle,
        num_epochs, cursor,
    ):  # fmt: skip
        """See `batches`."""
        super().__init__()
        self.corpus, self.lanes, self.num_lanes = corpus, lanes, num_lanes
        self.segment_length, self.segments_per_batch = segment_length, segments_per_batch
        self.seed, self.shuffle, self.num_epochs = seed, shuffle, num_epochs
        self.cursor = cursor
        self._orders: dict[int, np.ndarray] = {}

    def index(self, lane: int, document: int) -> int | None:
        """Index in the corpus of a lane's document; None behind the last epoch."""
        epoch, place = divmod(lane + document * self.num_lanes, len(self.corpus))
        if self.num_epochs is not None and epoch >= self.num_epochs:
            return None
        if not self.shuffle:
            return place
        if epoch not in self._orders:
            # Lanes cross the border of an epoch at different times, so a few orders are kept.
            while len(self._orders) >= KEPT_ORDERS:
                del self._orders[next(iter(self._orders))]
            random = np.random.default_rng([self.seed, epoch])
            self._orders[epoch] = random.permutation(len(self.corpus))
        return int(self._orders[epoch][place])

    def num_batches(self) -> int | None:
        """Batches until every lane of every process has run out, for processes that share lanes.

        All lengths are needed, so every process tokenises the whole (evaluation) corpus once. None
        where this process has all lanes, or the sequence is endless: no agreement is needed.

        Raises:
          ValueError: a cursor, which tells nothing of the other processes' lanes.
        """
        if self.num_epochs is None or len(self.lanes) == self.num_lanes:
            return None
        if self.cursor is not None:
            raise ValueError('processes that share the lanes of a finite epoch begin at its start')
        segments, lengths = np.zeros((self.num_lanes,), np.int64), self.corpus.lengths()
        for lane in range(self.num_lanes):
            document = 0
            while (index := self.index(lane, document)) is not None:
                segments[lane] += -(-lengths[index] // self.segment_length)
                document += 1
        return int(-(-segments.max() // self.segments_per_batch))

    def __iter__(self) -> 'LaneIterator':
        return LaneIterator(self)


class LaneIterator(grain.DatasetIterator):
    """Iterator of `LaneDataset`."""

    def __init__(self, dataset: LaneDataset):
        """Starts at the dataset's cursor."""
        super().__init__()
        self._dataset = dataset
        self._left = dataset.num_batches()
        cursor = dataset.cursor
        document, offset = (cursor.document, cursor.offset) if cursor is not None else (None, None)
        self._place(document, offset)

    def _place(self, document, offset):
        count = len(self._dataset.lanes)
        document = np.zeros((count,), np.int32) if document is None else np.asarray(document)
        offset = np.zeros((count,), np.int32) if offset is None else np.asarray(offset)
        if len(document) != count:
            raise ValueError(f'a cursor of {len(document)} lanes for {count} lanes')
        self._lanes = [
            _Lane(self._dataset, lane, int(document[row]), int(offset[row]))
            for row, lane in enumerate(self._dataset.lanes)
        ]

    def get_state(self) -> dict[str, Any]:
        """Position of every lane, as lists of integers."""
        return {
            'document': [lane.document for lane in self._lanes],
            'offset': [lane.offset for lane in self._lanes],
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes to a position that `get_state` gave; `ValueError` where `num_batches` counts."""
        if self._left is not None:
            raise ValueError('processes that share the lanes of a finite epoch begin at its start')
        self._place(state['document'], state['offset'])

    def __next__(self) -> tuple[Batch, Cursor]:
        """The next batch and the position after it."""
        dataset = self._dataset
        shape = (dataset.segments_per_batch, len(self._lanes))
        tokens = np.zeros((*shape, dataset.segment_length), np.int32)
        batch = Batch(
            tokens=tokens,
            targets=np.zeros_like(tokens),
            valid=np.zeros(tokens.shape, bool),
            scored=np.zeros(tokens.shape, np.uint8),
            start=np.zeros(shape, bool),
            num_bytes=np.zeros(shape, np.float32),
        )
        begin, any_left = dataset.corpus.tokenizer.begin, False
        for segment in range(dataset.segments_per_batch):
            for row, lane in enumerate(self._lanes):
                any_left |= lane.fill(batch, segment, row, begin)
        if self._left is not None:
            if self._left == 0:
                raise StopIteration
            self._left -= 1
        elif not any_left:
            raise StopIteration
        places = {name: np.asarray(value, np.int32) for name, value in self.get_state().items()}
        return batch, Cursor(**places)


def batches(
    corpus: Corpus,
    *,
    lanes: range,
    num_lanes: int,
    segment_length: int,
    segments_per_batch: int,
    seed: int,
    shuffle: bool,
    num_epochs: int | None,
    cursor: Cursor | None,
) -> Iterator[tuple[Batch, Cursor]]:
    """Batches of segments, each with the position after it, prepared ahead in a thread.

    Args:
      corpus: tokenised documents.
      lanes: the lanes of this process.
      num_lanes: lanes of all processes.
      segment_length, segments_per_batch: shape of a batch.
      seed: of the order of documents.
      shuffle: an order drawn anew for every epoch, or the corpus's own.
      num_epochs: None = endless. Lanes that have run out are padding until all have.
      cursor: where to go on, for these lanes; None = at the beginning.
    """
    dataset = LaneDataset(
        corpus, lanes, num_lanes, segment_length, segments_per_batch, seed, shuffle, num_epochs,
        cursor,
    )  # fmt: skip
    return iter(
        grain.experimental.ThreadPrefetchIterDataset(dataset, prefetch_buffer_size=PREFETCHED)
    )


def in_order(
    corpus: Corpus,
    num_lanes: int,
    segment_length: int,
    segments_per_batch: int = 1,
    *,
    lanes: range | None = None,
    cursor: Cursor | None = None,
) -> Iterator[tuple[Batch, Cursor]]:
    """Batches of a corpus read once in its own order, as `batches` has them; `lanes`: None = all."""
    return batches(
        corpus,
        lanes=range(num_lanes) if lanes is None else lanes,
        num_lanes=num_lanes,
        segment_length=segment_length,
        segments_per_batch=segments_per_batch,
        seed=0,
        shuffle=False,
        num_epochs=1,
        cursor=cursor,
    )
