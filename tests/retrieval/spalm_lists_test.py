"""SPALM's text: every token gets its own row of the lists, in any order of reading."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from longmem_jax.data.corpus import Corpus
from longmem_jax.data.documents import Document
from longmem_jax.data.lanes import Cursor
from longmem_jax.data.tokenizers import Bytes
from longmem_jax.errors import UsageError
from longmem_jax.retrieval.spalm_lists import Lists, _require_others, firsts_of
from longmem_jax.retrieval.spalm_text import Text

LENGTHS = (5, 0, 17, 8, 0, 0, 3, 30, 1)


class Values:
    """A store in which the value of key i is i."""

    def rows(self, name, numbers):
        assert name == 'values'
        return numbers


@pytest.fixture(scope='module')
def corpus():
    random = np.random.default_rng(0)
    documents = [
        Document(str(i), random.integers(0, 256, size).astype(np.uint8).tobytes())
        for i, size in enumerate(LENGTHS)
    ]
    return Corpus(documents, Bytes())


def read(corpus, count=None, cursor=None, **reading):
    """(inputs, rows, cursor) of segments of a text whose token in row r has the neighbour r."""
    total = sum(LENGTHS)
    numbers = np.arange(total)[:, None]
    lists = Lists('', numbers, firsts_of(corpus.lengths()), Values())
    text = Text(corpus, lists, **reading)
    zeros = np.zeros((reading['num_lanes'],), np.int32)
    return list(itertools.islice(text.segments(cursor or Cursor(zeros, zeros)), count))


@pytest.mark.parametrize('num_lanes', [1, 3, 8])
@pytest.mark.parametrize('context', [0, 3])
def test_a_pass_reads_every_row_once(corpus, num_lanes, context):
    tokens = np.concatenate([corpus[i].tokens for i in range(len(corpus))])
    counts = np.zeros(len(tokens), int)
    for inputs, rows, _ in read(corpus, num_lanes=num_lanes, length=7, context=context):
        valid = inputs.valid
        np.testing.assert_array_equal(rows >= 0, valid)
        np.testing.assert_array_equal(tokens[rows[valid]], inputs.targets[valid])
        np.testing.assert_array_equal(inputs.neighbours[..., 0], rows)
        np.add.at(counts, rows[inputs.counted > 0], 1)
    np.testing.assert_array_equal(counts, 1)


def test_lanes_that_begin_inside_of_documents_have_the_rows_of_their_tokens(corpus):
    tokens = np.concatenate([corpus[i].tokens for i in range(len(corpus))])
    segments = read(corpus, 30, num_lanes=2 * len(corpus), length=2, seed=4)
    rows = np.concatenate([rows[inputs.valid] for inputs, rows, _ in segments])
    for inputs, found, _ in segments:
        np.testing.assert_array_equal(tokens[found[inputs.valid]], inputs.targets[inputs.valid])
    assert len(np.unique(rows)) == len(tokens)
    again = read(corpus, 10, segments[4][2], num_lanes=2 * len(corpus), length=2, seed=4)
    for (_, found, _), (_, wanted, _) in zip(again, segments[5:], strict=False):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize('num_lanes', [1, 3])
def test_training_goes_on_after_a_pass_and_from_any_place(corpus, num_lanes):
    tokens = np.concatenate([corpus[i].tokens for i in range(len(corpus))])
    reading = dict(num_lanes=num_lanes, length=7, seed=4)
    segments = read(corpus, 60, **reading)  # several epochs
    counts = np.zeros(len(tokens), int)
    for inputs, rows, _ in segments:
        np.testing.assert_array_equal(tokens[rows[inputs.valid]], inputs.targets[inputs.valid])
        np.add.at(counts, rows[inputs.valid], 1)
    assert counts.min() > 1
    starts = [rows[0, 0] for inputs, rows, _ in segments if inputs.start[0]]
    assert len({tuple(starts[i : i + 3]) for i in range(0, 9, 3)}) > 1  # another order each time
    again = read(corpus, 20, segments[39][2], **reading)
    for (_, rows, _), (_, wanted, _) in zip(again, segments[40:], strict=True):
        np.testing.assert_array_equal(rows, wanted)


def test_a_datastore_of_one_document_has_no_neighbours_for_its_own_text():
    store = SimpleNamespace(folder='store', documents=np.zeros((9,), np.int32))
    with pytest.raises(
        UsageError, match='store: holds train as a single document.*Divide the text'
    ):
        _require_others(store, 'train')
    store.documents[8] = 1
    _require_others(store, 'train')
