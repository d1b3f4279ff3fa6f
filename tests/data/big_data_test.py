"""Long lines, many lines, many documents, long documents: how much work is done and how much is held."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longmem_jax.data import corpus as corpora
from longmem_jax.data import line_borders as borders
from longmem_jax.data import order, stored_files
from longmem_jax.data.corpus import Corpus, TokenizedDocument
from longmem_jax.data.documents import Document
from longmem_jax.data.lanes import Cursor, LaneDataset, from_bits, to_bits
from longmem_jax.data.line_borders import line_borders
from longmem_jax.data.stored_files import StoredFiles
from longmem_jax.data.text_files import TextFiles
from longmem_jax.data.tokenizers import Bytes
from longmem_jax.errors import UsageError

EDGE = 1 << 31


class Same:
    """Documents of one text; counts how often one is read."""

    def __init__(self, number, text):
        self._number, self._text, self.reads = number, text, 0

    def __len__(self):
        return self._number

    def __getitem__(self, index):
        self.reads += 1
        return Document(str(index), self._text)


def test_a_long_line_is_passed_over_once(tmp_path, monkeypatch):
    """Collect the parts of a line and join them at its end, not with every chunk."""
    (tmp_path / 'a').write_bytes(b'ab\n' + b'x' * 1000 + b'\n\ncd')
    monkeypatch.setattr(stored_files, 'CHUNK', 4)
    work = []

    class Chunk(bytes):
        def __radd__(self, before):
            return Chunk(bytes(before) + bytes(self))

        def split(self, separator):
            work.append(len(self))
            return super().split(separator)

    files, read = StoredFiles(), StoredFiles.read
    monkeypatch.setattr(StoredFiles, 'read', lambda *part: Chunk(read(*part)))
    found = list(files.lines(tmp_path / 'a'))
    assert found == [(0, b'ab'), (3, b'x' * 1000), (1004, b''), (1005, b'cd')]
    assert sum(work) < 1100, 'bytes of the open line were looked through again'


LINES = st.lists(st.sampled_from([b'', b' ', b'\r', b'a', b' b\t', b'\xff' * 9, b' ' * 7]))


@given(LINES, st.booleans(), st.integers(1, 9), st.sampled_from([0, 3, 100]))
def test_borders_of_lines(tmp_path_factory, lines, ended, chunk, most):
    path = tmp_path_factory.mktemp('lines') / 'a'
    path.write_bytes(b'\n'.join(lines) + b'\n' * ended)
    text = path.read_bytes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored_files, 'CHUNK', chunk)
        patch.setattr(borders, 'IN_MEMORY', most)
        found = line_borders(StoredFiles(), path)
    ends = list(itertools.accumulate(len(line) + 1 for line in lines))
    wanted = [
        (end - len(line) - 1, min(end, len(text)))
        for end, line in zip(ends, lines, strict=True)
        if line.strip()
    ]
    assert [tuple(row) for row in found.tolist()] == wanted


def test_borders_of_many_lines_are_not_in_memory(tmp_path, monkeypatch):
    """Borders go to a temporary file beyond `IN_MEMORY` lines, and no line becomes an object."""
    (tmp_path / 'train.txt').write_bytes(b''.join(b'line %d\n' % i for i in range(500)))
    monkeypatch.setattr(borders, 'IN_MEMORY', 100)
    monkeypatch.setattr(StoredFiles, 'lines', None)
    source = TextFiles(str(tmp_path), 'train', 'line', (0.9, 0.05, 0.05))
    ((_, kept),) = source._parts
    assert isinstance(kept, np.memmap) and len(source) == len(kept) == 500
    assert [source[i].text for i in (0, 123, 499)] == [b'line 0\n', b'line 123\n', b'line 499\n']


def test_a_file_that_has_become_shorter_is_named(tmp_path):
    path = tmp_path / 'train.txt'
    path.write_bytes(b'a line\n' * 10)
    source = TextFiles(str(tmp_path), 'train', 'line', (0.9, 0.05, 0.05))
    path.write_bytes(b'a line\n' * 5 + b'a')
    assert source[4].text == b'a line\n'
    with pytest.raises(UsageError, match=r'train\.txt: .*become shorter: 6 bytes before 42'):
        source[5]


def test_documents_without_tokens_fill_the_cache_too(monkeypatch):
    """The cache counts what an object takes: else it never gives back empty documents."""
    monkeypatch.setattr(corpora, 'CACHED_BYTES', 10 * corpora.DOCUMENT_BYTES)
    corpus = Corpus(Same(100, b''), Bytes())
    for index in range(100):
        corpus[index]
    assert len(corpus._cache) == 10 and len(corpus._in_use) == 10


def test_a_long_document_is_held_once_for_all_lanes(monkeypatch):
    """A document beyond the cache is shared while it is in use, and given back after."""
    monkeypatch.setattr(corpora, 'CACHED_BYTES', 0)
    source = Same(1, bytes(range(100)))
    corpus = Corpus(source, Bytes())
    dataset = LaneDataset(corpus, range(3), 3, 60, 1, 0, True, 3, None)
    lanes = dataset._at_cursor()
    batches = dataset._batches(lanes, dataset.num_batches())
    next(batches)
    one, two, three = (lane._current.tokens for lane in lanes)
    assert source.reads == 1 and one is two is three and one.dtype == np.uint16
    del one, two, three
    rest = list(batches)
    assert source.reads == 1 and len(rest) == 1 and not corpus._in_use
    np.testing.assert_array_equal(rest[0][0].targets[0, :, :40], [range(60, 100)] * 3)


def test_large_vocabularies_keep_their_numbers():
    class Wide(Bytes):
        vocab_size = 100_000

        def encode(self, text):
            return super().encode(text) + 99_000

    assert Corpus(Same(1, b'a'), Wide())[0].tokens.tolist() == [99_000 + ord('a')]


class Endless:
    """An array of any length whose element i is i % 251."""

    def __init__(self, length):
        self._length = length

    def __len__(self):
        return self._length

    def __getitem__(self, part):
        if isinstance(part, slice):
            return np.arange(part.start, min(part.stop, self._length)) % 251
        return part % 251


class OfLength:
    """A corpus of three documents of one length."""

    tokenizer = Bytes()

    def __init__(self, length):
        self._document = TokenizedDocument(Endless(length), length)

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return self._document


def read(length, cursor, number):
    """Some batches of 2 lanes and 4 segments of 8 tokens, and the cursors after them."""
    dataset = LaneDataset(OfLength(length), range(2), 2, 8, 4, 0, True, None, cursor)
    return list(itertools.islice(dataset, number))


@pytest.mark.parametrize(
    ('length', 'document', 'offset'),
    [(EDGE + 40, 0, EDGE - 20), (2 * EDGE - 1, 0, 2 * EDGE - 45), (3, EDGE - 2, 0)],
)
def test_a_cursor_counts_beyond_31_bits(length, document, offset):
    """Store positions as unsigned numbers: int32 ones end at token 2^31 of a document."""
    cursor = Cursor(to_bits([document] * 2), to_bits([offset] * 2))
    whole = read(length, cursor, 4)
    first = whole[0][0].targets[:, 0][whole[0][0].valid[:, 0]]
    np.testing.assert_array_equal(first[:3], (offset + np.arange(3)) % 251)
    for position in (cursor, *(after for _, after in whole)):
        assert position.document.dtype == position.offset.dtype == np.int32
    reached = [
        from_bits(after.document)[0] * length + from_bits(after.offset)[0] for _, after in whole
    ]
    begun = document * length + offset
    assert reached == [
        begun + sum(b.valid[:, 0].sum() for b, _ in whole[: n + 1]) for n in range(4)
    ]
    for after in (1, 2, 3):
        again = read(length, whole[after - 1][1], 4 - after)
        for (found, _), (wanted, _) in zip(again, whole[after:], strict=True):
            np.testing.assert_array_equal(found.targets, wanted.targets)
            np.testing.assert_array_equal(found.start, wanted.start)


def test_what_cannot_be_counted_is_refused_before_it_is_read():
    with pytest.raises(UsageError, match=r'document \d has 4,294,967,296 tokens.*data.pieces'):
        read(2 * EDGE, None, 1)
    with pytest.raises(UsageError, match='4,294,967,296 documents'):
        to_bits([0, 2 * EDGE])


def test_an_order_takes_no_room_and_no_time():
    """Compute the place of a document; ten million places in memory take 80 MB."""
    places = [order.permuted(place, 10**12, 3) for place in range(1000)]
    assert len(set(places)) == 1000 and 0 <= min(places) < 10**11 < max(places) < 10**12
