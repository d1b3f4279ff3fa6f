"""No token lost or repeated, padding only after documents, and exact resumption from any cursor."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longmem_jax.data.corpus import Corpus
from longmem_jax.data.documents import Document
from longmem_jax.data.lanes import Cursor, LaneDataset, batches
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
    lengths, lanes, num_lanes, *, length=4, segments=2, epochs=1, cursor=None, shuffle=True
):
    dataset = LaneDataset(
        corpus(lengths), lanes, num_lanes, length, segments, 3, shuffle, epochs, cursor
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


@given(LENGTHS, st.integers(1, 4), st.integers(0, 5))
def test_any_cursor_goes_on_exactly(lengths, num_lanes, steps):
    pairs = read_with_cursors(lengths, range(num_lanes), num_lanes, epochs=3)
    whole = [batch for batch, _ in pairs]
    steps = min(steps, len(whole) - 1)
    cursor = pairs[steps][1]
    rest = read(lengths, range(num_lanes), num_lanes, epochs=3, cursor=cursor)
    assert len(rest) == len(whole) - steps - 1
    for a, b in zip(whole[steps + 1 :], rest, strict=True):
        for name in ('tokens', 'targets', 'valid', 'start', 'num_bytes'):
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name))


@given(LENGTHS, st.sampled_from([1, 2, 4]))
def test_processes_read_their_lanes_of_the_same_whole(lengths, processes):
    whole = read(lengths, range(4), 4)
    size = 4 // processes
    parts = [read(lengths, range(p * size, (p + 1) * size), 4) for p in range(processes)]
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


def test_more_lanes_than_documents_never_idle_in_training():
    stream = batches(
        corpus([9, 5]), lanes=range(5), num_lanes=5, segment_length=4, segments_per_batch=2,
        seed=0, shuffle=True, num_epochs=None, cursor=None,
    )  # fmt: skip
    for _ in range(10):
        assert next(stream)[0].valid[:, :, 0].all()


def test_state_of_the_iterator_is_the_cursor():
    dataset = LaneDataset(corpus([9, 5, 0, 7]), range(2), 2, 4, 1, 0, True, None, None)
    iterator = iter(dataset)
    for _ in range(3):
        _, cursor = next(iterator)
    state = iterator.get_state()
    assert state['offset'] == cursor.offset.tolist()
    wanted, _ = next(iterator)
    iterator.set_state(state)
    np.testing.assert_array_equal(next(iterator)[0].tokens, wanted.tokens)


def test_faults():
    with pytest.raises(UsageError, match='all documents are empty'):
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
