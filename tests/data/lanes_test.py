"""No token lost or repeated, padding only after documents, and exact resumption from any cursor."""

import itertools
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs import quickstart
from longmem_jax.data import order
from longmem_jax.data.corpus import Corpus
from longmem_jax.data.documents import Document
from longmem_jax.data.lanes import Cursor, LaneDataset, ahead, batches
from longmem_jax.data.load import load
from longmem_jax.data.tokenizers import Bytes
from longmem_jax.errors import UsageError


class Listed:
    """Documents from a list of lengths; byte j of document i encodes i and j."""

    def __init__(self, lengths):
        self._lengths = lengths

    def __len__(self):
        return len(self._lengths)

    def __getitem__(self, index):
        content = bytes((7 * index + j) % 256 for j in range(self._lengths[index]))
        return Document(str(index), content)


def corpus(lengths):
    return Corpus(Listed(lengths), Bytes())


def read_with_cursors(
    lengths, lanes, num_lanes, *, length=4, segments=2, epochs=1, cursor=None, shuffle=True,
    packed=False,
):  # fmt: skip
    dataset = LaneDataset(
        corpus(lengths), lanes, num_lanes, length, segments, 3, shuffle, epochs, cursor, packed
    )
    return list(dataset)


def read(*arguments, **settings):
    """The batches alone."""
    return [batch for batch, _ in read_with_cursors(*arguments, **settings)]


def lane_documents(found, row):
    """The documents of a lane, restored from its flags; checks every segment."""
    documents, current = [], None
    for batch in found:
        for segment in range(batch.tokens.shape[0]):
            valid = batch.valid[segment, row]
            count = valid.sum()
            assert valid[:count].all()  # padding only after tokens
            if not count:
                assert not batch.start[segment, row]
                continue
            if batch.start[segment, row]:
                assert batch.tokens[segment, row, 0] == Bytes.begin
                current = []
                documents.append(current)
            else:
                assert batch.tokens[segment, row, 0] == current[-1]
            targets = batch.targets[segment, row, :count]
            np.testing.assert_array_equal(batch.tokens[segment, row, 1:count], targets[:-1])
            # A segment is short only where its document ends.
            assert len(current) % batch.tokens.shape[2] == 0
            current.extend(int(t) for t in targets)
    return documents


LENGTHS = st.lists(st.integers(0, 13), min_size=1, max_size=7).filter(any)


@given(LENGTHS, st.integers(1, 5), st.integers(1, 6), st.integers(1, 3), st.booleans())
def test_an_epoch_holds_every_document_once(lengths, num_lanes, length, segments, shuffle):
    found = read(
        lengths, range(num_lanes), num_lanes, length=length, segments=segments, shuffle=shuffle
    )
    given_out = sorted(
        tuple(document) for row in range(num_lanes) for document in lane_documents(found, row)
    )
    source = Listed(lengths)
    wanted = sorted(tuple(source[i].text) for i in range(len(source)) if lengths[i])
    assert given_out == wanted
    total = sum(batch.num_bytes.sum() for batch in found)
    np.testing.assert_allclose(total, sum(lengths), rtol=1e-5)


@given(LENGTHS, st.integers(1, 4), st.integers(1, 6), st.integers(1, 3))
def test_packed_lanes_read_the_same_documents_without_padding_between_them(
    lengths, num_lanes, length, segments
):
    how = dict(length=length, segments=segments)
    apart = read(lengths, range(num_lanes), num_lanes, **how)
    packed = read(lengths, range(num_lanes), num_lanes, packed=True, **how)
    assert sum(b.num_bytes.sum() for b in packed) == pytest.approx(sum(lengths))
    for row in range(num_lanes):
        tokens, targets, valid, start = (
            np.concatenate([getattr(batch, name)[:, row].reshape(-1) for batch in packed])
            for name in ('tokens', 'targets', 'valid', 'start')
        )
        count = valid.sum()
        assert valid[:count].all() and not start[count:].any()
        before = np.where(start, Bytes.begin, np.roll(targets, 1))
        np.testing.assert_array_equal(tokens[:count], before[:count])
        documents = np.split(targets[:count], np.flatnonzero(start))[1:]
        assert [list(document) for document in documents] == lane_documents(apart, row)


@given(LENGTHS, st.integers(1, 4), st.integers(0, 5), st.booleans())
def test_any_cursor_goes_on_exactly(lengths, num_lanes, steps, packed):
    how = dict(epochs=3, packed=packed)
    pairs = read_with_cursors(lengths, range(num_lanes), num_lanes, **how)
    whole = [batch for batch, _ in pairs]
    steps = min(steps, len(whole) - 1)
    cursor = pairs[steps][1]
    rest = read(lengths, range(num_lanes), num_lanes, cursor=cursor, **how)
    assert len(rest) == len(whole) - steps - 1
    for a, b in zip(whole[steps + 1 :], rest, strict=True):
        for name in ('tokens', 'targets', 'valid', 'start', 'num_bytes'):
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name))


@given(LENGTHS, st.sampled_from([1, 2, 4]), st.booleans())
def test_processes_read_their_lanes_of_the_same_whole(lengths, processes, packed):
    whole = read(lengths, range(4), 4, packed=packed)
    size = 4 // processes
    parts = [
        read(lengths, range(p * size, (p + 1) * size), 4, packed=packed) for p in range(processes)
    ]
    assert {len(part) for part in parts} == {len(whole)}
    for number, batch in enumerate(whole):
        joined = np.concatenate([part[number].tokens for part in parts], axis=1)
        np.testing.assert_array_equal(joined, batch.tokens)


def test_epochs_have_other_orders_and_seeds_too():
    lengths = [5] * 12
    first = read(lengths, range(1), 1, epochs=2)
    documents = lane_documents(first, 0)
    assert sorted(map(tuple, documents[:12])) == sorted(map(tuple, documents[12:]))
    assert documents[:12] != documents[12:]
    dataset = LaneDataset(corpus(lengths), range(1), 1, 4, 2, 4, True, 1, None)
    assert lane_documents([batch for batch, _ in dataset], 0) != documents[:12]


def training(lengths, num_lanes, length, *, lanes=None, cursor=None, seed=0, documents=None):
    """Endless batches of one segment, and cursors."""
    return batches(
        documents or corpus(lengths), lanes=lanes or range(num_lanes), num_lanes=num_lanes,
        segment_length=length, segments_per_batch=1, seed=seed, shuffle=True, num_epochs=None,
        cursor=cursor,
    )  # fmt: skip


@pytest.mark.parametrize(('lengths', 'num_lanes'), [
    ([640], 16), ([300, 20, 330], 16), ([0, 700, 0, 40], 16), ([64] * 10, 16),
    ([64] * 10, 10), ([64] * 15, 10), ([64] * 20, 10), ([64] * 33, 10),
])  # fmt: skip
def test_lanes_never_read_the_same_at_the_same_time(lengths, num_lanes):
    """Spread the begins of lanes over documents that are too few, and halve the epochs of others."""
    length, random = 32, np.random.default_rng(0)
    texts = [Document(str(i), random.bytes(size)) for i, size in enumerate(lengths)]
    stream = training(None, num_lanes, length, documents=Corpus(texts, Bytes()))
    for _ in range(5 * sum(lengths) // (num_lanes * length)):
        batch, _ = next(stream)
        assert batch.valid[0, :, 0].all()
        rows = {(*batch.targets[0, lane], *batch.valid[0, lane]) for lane in range(num_lanes)}
        assert len(rows) == num_lanes


def test_the_lanes_of_the_quickstart_on_one_file_differ(tmp_path):
    """As training reads it: `--config=quickstart --config.data.source=text --config.data.path=FILE`."""
    config = quickstart.get_config()
    path = tmp_path / 'train.txt'
    path.write_bytes(np.random.default_rng(0).bytes(20_000))
    config.data.source, config.data.path = 'text', str(path)
    train = config.train
    stream = training(
        None, train.num_lanes, train.segment_length, documents=load(config.data, 'train', Bytes())
    )
    for _ in range(20):
        assert len({tuple(row) for row in next(stream)[0].targets[0]}) == train.num_lanes == 16


def test_lanes_of_one_document_begin_at_equal_distances_and_go_round():
    """Every token is read once before the first lane comes to where the next began."""
    source, num_lanes, length = Listed([250]).__getitem__(0).text, 5, 10
    stream = training([250], num_lanes, length)
    texts, starts = [[] for _ in range(num_lanes)], []
    for _ in range(30):
        batch, _ = next(stream)
        starts.append(batch.start[0].tolist())
        for lane in range(num_lanes):
            assert (batch.tokens[0, lane, 0] == Bytes.begin) == batch.start[0, lane]
            texts[lane] += batch.targets[0, lane][batch.valid[0, lane]].tolist()
    for lane, text in enumerate(texts):
        begin = 50 * lane
        wanted = source[begin:] + source * 2
        assert bytes(text) == wanted[: len(text)], 'in order, and on from the first token'
        # A fresh memory where the lane begins, and where the document does.
        found = [number for number, row in enumerate(starts) if row[lane]]
        first = (250 - begin) // length
        assert found == [0, *range(first, 30, 25)][: len(found)] and len(found) >= 2
    read = sum((text[:50] for text in texts), [])
    assert sorted(read) == sorted(source)


@pytest.mark.parametrize('lengths', [[333], [90, 7, 60]])
def test_a_circle_goes_on_exactly_and_belongs_to_all_processes(lengths):
    stream, found = training(lengths, 8, 4, seed=5), []
    found = [next(stream) for _ in range(60)]
    for after in (0, 7, 31):
        again = training(lengths, 8, 4, seed=5, cursor=found[after][1])
        for batch, _ in found[after + 1 :]:
            other, _ = next(again)
            for name in ('tokens', 'targets', 'valid', 'start', 'num_bytes'):
                np.testing.assert_array_equal(getattr(other, name), getattr(batch, name))
    parts = [training(lengths, 8, 4, seed=5, lanes=range(at, at + 2)) for at in (0, 2, 4, 6)]
    for batch, _ in found:
        joined = np.concatenate([next(part)[0].tokens for part in parts], axis=1)
        np.testing.assert_array_equal(joined, batch.tokens)


def test_documents_that_cannot_be_cut_begin_at_their_begin_and_are_warned_of():
    class Questions(Corpus):
        sizes = property(lambda self: (_ for _ in ()).throw(AttributeError('sizes')))

    questions = Questions(Listed([40, 40]), Bytes())
    batch, _ = next(training(None, 4, 8, documents=questions))
    assert batch.start.all() and len({tuple(row) for row in batch.targets[0]}) == 2
    (said,) = order.repeated(questions, 4, 8)
    assert '--config.train.num_lanes=2' in said and 'lanes read the same' in said
    (said,) = order.repeated(corpus([20, 11]), 4, 8)
    assert 'has 31 bytes, less than the 32 tokens' in said
    assert order.repeated(corpus([40, 40]), 4, 8) == order.repeated(corpus([9] * 4), 4, 8) == []


def test_the_order_of_documents_is_fixed():
    """Raise `order.VERSION` with another order: runs that go on would read it in silence."""
    assert order.VERSION == 2
    assert [order.document(number, 7, 2, 3) for number in range(14)] == [
        1, 2, 3, 5, 4, 6, 0, 1, 3, 2, 5, 6, 4, 0,
    ]  # fmt: skip
    assert [order.permuted(place, 1000, 7, 1) for place in range(4)] == [404, 199, 998, 715]
    for count in range(1, 40):
        assert sorted(order.permuted(place, count, 5) for place in range(count)) == [*range(count)]
        epochs = [order.document(number, count, 4, 1) for number in range(9 * count)]
        for at in range(0, 9 * count, count):
            assert sorted(epochs[at : at + count]) == [*range(count)]
        for at in range(8 * count if count >= 4 else 0):
            assert len(set(epochs[at : at + 4])) == 4, 'neighbours differ, also between epochs'


@pytest.mark.parametrize(('documents', 'multiple', 'lanes', 'most'), [
    (1, 1, 1, 24), (3, 1, 3, 8), (3, 2, 4, 8), (5, 4, 8, 5), (8, 1, 8, 3), (90, 1, 8, 3),
])  # fmt: skip
def test_lanes_with_documents_read_what_was_asked_of_all(documents, multiple, lanes, most):
    assert order.shared_out(documents, 8, 3, multiple) == (lanes, most)
    assert order.shared_out(documents, 8, 0, multiple) == (lanes, 0)


def test_a_thread_makes_a_few_batches_ahead_and_ends_with_its_reader():
    made = []

    def items():
        for number in range(9):
            made.append(number)
            yield number
        raise UsageError('no more')

    read = ahead(items(), 3)
    assert next(read) == 0
    (thread,) = [each for each in threading.enumerate() if each.name == 'batches']
    read.close()
    thread.join(60)
    assert not thread.is_alive() and len(made) <= 5
    read = ahead(items(), 3)
    assert list(itertools.islice(read, 9)) == list(range(9))
    with pytest.raises(UsageError, match='no more'):
        next(read)


def test_problems():
    with pytest.raises(UsageError, match='empty documents in a row'):
        next(iter(LaneDataset(corpus([0, 0]), range(1), 1, 4, 1, 0, True, None, None)))
    cursor = Cursor(np.zeros(3, np.int32), np.zeros(3, np.int32))
    with pytest.raises(ValueError, match='3 lanes for 2'):
        read([4], range(2), 2, cursor=cursor)


@pytest.mark.parametrize('offset', [4, 149])
def test_a_position_after_the_end_of_a_document_is_said(offset):
    """The document has become shorter since the position was saved."""
    cursor = Cursor(np.asarray([1], np.int32), np.asarray([offset], np.int32))
    with pytest.raises(UsageError, match=f'document 1 of lane 0 has 4 tokens.*has read {offset}'):
        read([4, 4], range(1), 1, cursor=cursor)
