"""Documents assigned to lanes, segment after segment, in a deterministic order that can be resumed.

The documents of all epochs, each in its own seeded order, form one sequence. Its k-th document belongs
to lane `k % num_lanes`, and a lane reads its documents one after another. So no lengths need to be
known in advance, every process reads only its own lanes, and one `Cursor` is the position, for any
number of processes. Lanes drift apart as documents differ in length; no token is lost or repeated.

Where a document ends, the rest of its segment is padding, or, `packed`, the begin of the next one.

In training, fewer documents than lanes are a circle that every lane reads round and round, document
after document. The lanes begin at equal distances, most of them inside of a document, with a fresh
memory. So no two of them read the same, and an epoch is the part from one lane's begin to the next.
"""

import dataclasses
import functools
import itertools
import queue
import threading
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import flax.struct
import numpy as np

from longmem_jax.data import order
from longmem_jax.data.corpus import AnyCorpus, TokenizedDocument
from longmem_jax.errors import UsageError
from longmem_jax.segment import Leaf

PREFETCHED_BATCHES = 4
T = TypeVar('T')


class Cursor(flax.struct.PyTreeNode):
    """Position of every lane in the data, as numbers of 32 bits; see `to_bits` and `from_bits`.

    JAX has no unsigned or longer numbers that checkpoints of any age could be read into, so numbers
    beyond 2^31 - 1 are stored as negative ones.

    Attributes:
      document: int32 [lanes], index of the document in the lane's own sequence.
      offset: int32 [lanes], tokens of it that were already read, from where the lane began it.
    """

    document: Leaf
    offset: Leaf


def to_bits(numbers: Sequence[int]) -> np.ndarray:
    """Numbers below 2^32 for a `Cursor`, int32 [n].

    Raises:
      UsageError: a larger one.
    """
    if max(numbers, default=0) >> 32:
        raise UsageError(
            f'config.data: a lane has read {max(numbers):,} documents; at most 2^32 - 1 are counted. '
            'Use more lanes (config.train.num_lanes), or start another run from this one '
            '(config.train.start_from).'
        )
    return np.asarray(numbers, np.int64).astype(np.uint32).view(np.int32)


def from_bits(bits: Sequence[int]) -> list[int]:
    """The numbers, below 2^32, of a field of a `Cursor`."""
    return (np.asarray(bits, np.int64) & 0xFFFFFFFF).tolist()


class Batch(flax.struct.PyTreeNode):
    """Segments of all lanes, in order; leading axis `segments`.

    For a document t0 .. tn-1 the inputs are begin, t0 .. tn-2 and the targets t0 .. tn-1, so every
    token is scored once. A lane that begins inside of a document reads its rest so.

    Attributes:
      tokens, targets: int32 [segments, lanes, length].
      valid: bool [segments, lanes, length]; False after the end of a document.
      scored: uint8 [segments, lanes, length]; 0 = not scored (padding too), 1 = scored, 2 = scored
        and the last token of an answer.
      start: bool [segments, lanes]; True where a document begins, or a lane inside of one. Packed, of
        every token: bool [segments, lanes, length].
      num_bytes: float32 [segments, lanes], source bytes of the valid tokens.
    """

    tokens: Leaf
    targets: Leaf
    valid: Leaf
    scored: Leaf
    start: Leaf
    num_bytes: Leaf


class _Lane:
    """Position of one lane in its documents."""

    def __init__(self, dataset: 'LaneDataset', lane: int, document: int, offset: int):
        self._dataset, self._lane = dataset, lane
        self.document, self.offset = document, offset
        self._current: TokenizedDocument | None = None
        self._begin = 0  # the first of its tokens that is read
        self._empty = 0  # empty documents in a row

    def _open(self) -> TokenizedDocument | None:
        """Loads the current document, skipping empty ones; None at the end of the sequence."""
        while self._current is None:
            index = self._dataset.index(self._lane, self.document)
            if index is None:
                return None
            document = self._dataset.corpus[index]
            if len(document.tokens) >> 32:
                raise UsageError(
                    f'config.data: document {index} has {len(document.tokens):,} tokens; at most '
                    '2^32 - 1 are counted. Cut it with config.data.pieces.'
                )
            if len(document.tokens):
                self._current, self._empty = document, 0
                self._begin = self._dataset.begin(self._lane, self.document, len(document.tokens))
                return document
            self.document += 1
            self._empty += 1
            if self._empty > len(self._dataset.corpus):
                raise UsageError(
                    f'config.data: lane {self._lane} was given {self._empty:,} empty documents in a '
                    f'row ({len(self._dataset.corpus):,} documents, {self._dataset.num_lanes} lanes); '
                    'leave out those without text, or use another number of lanes'
                )
        return self._current

    def fill(self, batch: Batch, segment: int, row: int, begin: int) -> bool:
        """Writes the next segment of this lane into a batch, in place; False if there is none.

        `begin` is the tokenizer's begin token.
        """
        length = batch.tokens.shape[2]
        filled = written = self._write(batch, (segment, row), 0, begin)
        while self._dataset.packed and written and filled < length:
            written = self._write(batch, (segment, row), filled, begin)
            filled += written
        return filled > 0

    def _write(self, batch: Batch, where: tuple[int, int], first: int, begin: int) -> int:
        """Writes tokens of one document from position `first` of a segment on; how many."""
        document = self._open()
        if document is None:
            return 0
        at = self._begin + self.offset
        tokens = document.tokens
        if at >= len(tokens):
            raise UsageError(
                f'config.data: document {self.document} of lane {self._lane} has {len(tokens):,} '
                f'tokens, and the run has read {at:,} of it: the data has changed. Restore it, '
                'or use another --workdir; config.train.start_from keeps what this run has learned.'
            )
        targets = tokens[at : at + batch.tokens.shape[2] - first]
        size = len(targets)
        here = slice(first, first + size)
        batch.targets[where][here] = targets
        if document.inputs is not None:
            batch.tokens[where][here] = document.inputs[at : at + size]
        else:
            batch.tokens[where][first + 1 : first + size] = targets[:-1]
            batch.tokens[where][first] = tokens[at - 1] if self.offset else begin
        scored = 1 if document.scored is None else document.scored[at : at + size]
        batch.scored[where][here] = scored
        batch.valid[where][here] = True
        batch.start[(*where, first) if self._dataset.packed else where] = self.offset == 0
        batch.num_bytes[where] += document.num_bytes * size / len(tokens)
        self.offset += size
        if at + size == len(tokens):
            self.document, self.offset, self._current = self.document + 1, 0, None
        return size


@dataclasses.dataclass(eq=False)
class LaneDataset:
    """Batches of some lanes, from a position on; attributes as the arguments of `batches`."""

    corpus: AnyCorpus
    lanes: range
    num_lanes: int
    segment_length: int
    segments_per_batch: int
    seed: int
    shuffle: bool
    num_epochs: int | None
    cursor: Cursor | None
    packed: bool = False

    @functools.cached_property
    def _begins(self) -> list[tuple[int, int, int]] | None:
        """Where the lanes begin in a circle of documents, see `order.spread`; None = it is none."""
        corpus: Any = self.corpus
        count = len(corpus)
        if not (self.shuffle and self.num_epochs is None and order.circles(corpus, self.num_lanes)):
            return None
        sizes = corpus.sizes()[[order.permuted(place, count, self.seed) for place in range(count)]]
        return order.spread(sizes, self.num_lanes)

    def index(self, lane: int, document: int) -> int | None:
        """Index in the corpus of a lane's document; None after the last epoch."""
        count, number = len(self.corpus), lane + document * self.num_lanes
        if self.num_epochs is not None and number >= self.num_epochs * count:
            return None
        if not self.shuffle:
            return number % count
        if self._begins is not None:
            number = self._begins[lane][0] + document
        return order.document(number, count, self.num_lanes, self.seed)

    def begin(self, lane: int, document: int, tokens: int) -> int:
        """The first token that a lane reads of its document, which has `tokens`."""
        if document or self._begins is None:
            return 0
        _, part, whole = self._begins[lane]
        return tokens * part // whole

    def num_batches(self) -> int | None:
        """Batches until all lanes of all processes have run out, which all processes must agree on.

        None if this process has all lanes or the sequence is endless: then there is nothing to agree
        on. This needs all lengths, so every process tokenizes the whole (evaluation) corpus once.

        Raises:
          ValueError: a cursor, which does not cover the lanes of the other processes.
        """
        if self.num_epochs is None or len(self.lanes) == self.num_lanes:
            return None
        if self.cursor is not None:
            raise ValueError('processes that share the lanes of a finite epoch begin at its start')
        segments, lengths = np.zeros((self.num_lanes,), np.int64), self.corpus.lengths()
        unit = 1 if self.packed else self.segment_length
        for lane in range(self.num_lanes):
            document = 0
            while (index := self.index(lane, document)) is not None:
                segments[lane] += -(-lengths[index] // unit)
                document += 1
        segments = -(-segments * unit // self.segment_length)
        return int(-(-segments.max() // self.segments_per_batch))

    def __iter__(self) -> Iterator[tuple[Batch, Cursor]]:
        """Batches, each with the position after it; errors as in `num_batches`."""
        return self._batches(self._at_cursor(), self.num_batches())

    def _at_cursor(self) -> list[_Lane]:
        """Every lane at its position; raises `ValueError` if that is one of other lanes."""
        count = len(self.lanes)
        cursor = Cursor([0] * count, [0] * count) if self.cursor is None else self.cursor
        document, offset = from_bits(cursor.document), from_bits(cursor.offset)
        if len(document) != count:
            raise ValueError(f'a cursor of {len(document)} lanes for {count} lanes')
        return [
            _Lane(self, lane, document[row], offset[row]) for row, lane in enumerate(self.lanes)
        ]

    def _batches(self, lanes: list[_Lane], left: int | None) -> Iterator[tuple[Batch, Cursor]]:
        """Batches as long as any lane has a segment, or `left` of them."""
        begin, shape = self.corpus.tokenizer.begin, (self.segments_per_batch, len(lanes))
        for number in itertools.count():
            tokens = np.zeros((*shape, self.segment_length), np.int32)
            batch = Batch(
                tokens=tokens,
                targets=np.zeros_like(tokens),
                valid=np.zeros(tokens.shape, bool),
                scored=np.zeros(tokens.shape, np.uint8),
                start=np.zeros(tokens.shape if self.packed else shape, bool),
                num_bytes=np.zeros(shape, np.float32),
            )
            filled = [
                lane.fill(batch, segment, row, begin)
                for segment in range(self.segments_per_batch)
                for row, lane in enumerate(lanes)
            ]
            if not any(filled) if left is None else number == left:
                return
            document = to_bits([lane.document for lane in lanes])
            yield batch, Cursor(document, to_bits([lane.offset for lane in lanes]))


def ahead(items: Iterator[T], number: int) -> Iterator[T]:
    """The same items, of which a thread makes up to `number` ahead; what it raises is raised here."""
    made: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
    room, closed = threading.Semaphore(number), threading.Event()

    def make() -> None:
        try:
            while room.acquire() and not closed.is_set():
                made.put((next(items), None))
        except BaseException as error:  # StopIteration too
            made.put((None, error))

    threading.Thread(target=make, name='batches', daemon=True).start()
    try:
        while True:
            item, error = made.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            room.release()
            yield item
    finally:  # also where the caller asks for no more
        closed.set()
        room.release()


def batches(
    corpus: AnyCorpus,
    *,
    lanes: range,
    num_lanes: int,
    segment_length: int,
    segments_per_batch: int,
    seed: int = 0,
    shuffle: bool = False,
    num_epochs: int | None = 1,
    cursor: Cursor | None = None,
    packed: bool = False,
) -> Iterator[tuple[Batch, Cursor]]:
    """Batches of segments, each with the position after it, prefetched in a thread.

    Args:
      lanes: the lanes of this process.
      seed: of the order of documents.
      shuffle: True = an order by the seed, see `order.document`; False = the order of the corpus.
      num_epochs: None = endless. Lanes that run out are padded until all have.
      cursor: where to resume, for these lanes; None = at the beginning.
      packed: documents begin inside of segments, where the one before ends.
    """
    dataset = LaneDataset(
        corpus, lanes, num_lanes, segment_length, segments_per_batch, seed, shuffle, num_epochs,
        cursor, packed,
    )  # fmt: skip
    return ahead(iter(dataset), PREFETCHED_BATCHES)


def in_order(
    corpus: AnyCorpus,
    num_lanes: int,
    segment_length: int,
    segments_per_batch: int = 1,
    *,
    lanes: range | None = None,
    cursor: Cursor | None = None,
) -> Iterator[tuple[Batch, Cursor]]:
    """Batches of a corpus read once, in its own order; arguments as in `batches`, `lanes` None = all."""
    return batches(
        corpus,
        lanes=range(num_lanes) if lanes is None else lanes,
        num_lanes=num_lanes,
        segment_length=segment_length,
        segments_per_batch=segments_per_batch,
        cursor=cursor,
    )
