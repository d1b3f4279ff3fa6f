"""The search for neighbours: exact and by FAISS, with documents left out, and FAISS's file."""

from pathlib import Path

import jax
import numpy as np
import pytest

from longmem_jax.config.base import base
from longmem_jax.devices import sharding
from longmem_jax.errors import UsageError
from longmem_jax.retrieval import search
from longmem_jax.retrieval.index import make_index
from longmem_jax.untrusted import tensor_file
from tests.retrieval.stores import write_store

SETTINGS = dict(index='faiss', centroids=16, code_size=4, probe=2, train_keys=1000)


def make(store, **changes):
    settings = base('retrieval').retrieval
    settings.update(**SETTINGS | changes)
    if settings.index == 'faiss':
        pytest.importorskip('faiss')
    return make_index(settings, store, sharding.make_mesh(dict(data=1), jax.devices()[:1]))


def of_documents(folder, counts, seed=0):
    """A store whose documents have `counts` keys each, far from those of the other documents."""
    random = np.random.default_rng(seed)
    documents = np.repeat(np.arange(len(counts)), counts)
    centers = 20 * random.normal(size=(len(counts), 8))
    keys = centers[documents] + random.normal(size=(len(documents), 8))
    order = random.permutation(len(documents))  # documents of several lanes are interleaved
    return write_store(folder, keys[order].astype(np.float32), documents[order])


@pytest.mark.parametrize('index', ['exact', 'faiss'])
@pytest.mark.parametrize(
    'counts, k',
    [
        pytest.param((300,) * 6, 4, marks=pytest.mark.slow),
        ((1500, 3, 2), 4),
        ((200,), 3),
    ],
)
def test_no_row_is_of_the_excluded_document(tmp_path, index, counts, k):
    """All nearest keys are of the query's document, and others lie in other cells."""
    store = of_documents(tmp_path, counts)
    numbers = np.arange(0, len(store), 7)
    own = store.documents[numbers]
    queries = store.rows('keys', numbers)
    found = make(store, index=index, rerank=4.0).search(queries, k, own)
    others = len(store) - np.asarray(counts)[own]
    np.testing.assert_array_equal(found.found.sum(axis=1), np.minimum(k, others))
    np.testing.assert_array_equal(np.isfinite(found.distances), found.found)
    documents = store.rows('documents', found.numbers)
    assert not (found.found & (documents == own[:, None])).any()
    for row, real in zip(found.numbers, found.found, strict=True):
        assert len(set(row[real])) == real.sum() and not row[~real].any()


@pytest.mark.parametrize('exclude', [False, True])
def test_faiss_looks_into_more_cells_only_where_it_must(tmp_path, exclude):
    """With few cells it finds less than the exact search, but never fewer than k keys."""
    store = of_documents(tmp_path, (100,) * 20)
    queries = store.rows('keys', np.arange(0, 2000, 19)) + 0.5
    documents = np.zeros((len(queries),), np.int32) if exclude else None
    exact = make(store, index='exact').search(queries, 8, documents)
    recall = {}
    for probe in (1, 16):
        found = make(store, probe=probe, rerank=2.0).search(queries, 8, documents)
        assert found.found.all()
        np.testing.assert_allclose(
            found.distances, search.distances(store, queries, found.numbers), rtol=1e-6
        )
        recall[probe] = np.mean(
            [
                len(np.intersect1d(a, b)) / 8
                for a, b in zip(found.numbers, exact.numbers, strict=True)
            ]
        )
    assert recall[1] < recall[16]
    whole = make(store, probe=16, rerank=250.0).search(queries, 8, documents)
    np.testing.assert_array_equal(whole.numbers, exact.numbers)  # every key was a candidate


def test_more_candidates_find_more(tmp_path):
    store = of_documents(tmp_path, (100,) * 20)
    queries = store.rows('keys', np.arange(0, 2000, 19)) + 0.5
    exact = make(store, index='exact').search(queries, 8).distances
    excess = [
        (make(store, probe=16, rerank=rerank).search(queries, 8).distances - exact).mean()
        for rerank in (1.0, 4.0, 16.0)
    ]
    assert excess[0] > excess[1] > excess[2] >= -1e-4


def test_the_distances_of_codes_can_be_trusted(tmp_path):
    store = of_documents(tmp_path, (100,) * 20)
    queries = store.rows('keys', np.arange(0, 2000, 19)) + 0.5
    coded = make(store, probe=16, rerank=0.0).search(queries, 8)
    true = search.distances(store, queries, coded.numbers)
    assert (np.diff(coded.distances, axis=1) >= 0).all() and not (np.diff(true, axis=1) >= 0).all()
    assert np.corrcoef(coded.distances.ravel(), true.ravel())[0, 1] > 0.7
    own = store.documents[np.arange(0, 2000, 19)]
    left = make(store, probe=1, rerank=0.0).search(queries, 8, own)
    assert left.found.all() and not (store.documents[left.numbers] == own[:, None]).any()


def test_an_index_belongs_to_its_keys_and_settings(tmp_path):
    random = np.random.default_rng(0)
    documents = np.zeros((400,))
    first, second = random.normal(size=(2, 400, 8)).astype(np.float32)
    store = write_store(tmp_path, first, documents)
    nearest = make(store, probe=16).search(first, 1).numbers[:, 0]
    assert (nearest == np.arange(400)).mean() > 0.9
    made = {path.name for path in tmp_path.glob('index.*')}
    assert len(made) == 1
    for changes in (dict(seed=2), dict(train_keys=399), dict(centroids=8), dict(code_size=8)):
        make(store, **changes)
        now = {path.name for path in tmp_path.glob('index.*')}
        assert len(now - made) == 1 and made < now, changes
        made = now
    # The same folder and number of keys, other keys: the old indices are not used, and go.
    store = write_store(tmp_path, second, documents)
    (tmp_path / 'index.html').write_text('of something else')
    nearest = make(store, probe=16).search(second, 1).numbers[:, 0]
    assert (nearest == np.arange(400)).mean() > 0.9
    (tmp_path / 'index.html').unlink()  # is there still
    now = {path.name for path in tmp_path.glob('index.*')}
    assert len(now) == 1 and not now & made
    (path,) = tmp_path.glob('index.*')
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(
        UsageError, match='delete it; it will be rebuilt.*not a whole safetensors file'
    ):
        make(store)


def test_codes_are_learned_from_few_keys_and_too_few_are_refused(tmp_path):
    store = of_documents(tmp_path, (40,) * 10)
    queries = store.rows('keys', np.arange(0, 400, 19))
    found = make(store, train_keys=100, probe=16).search(queries, 1).numbers[:, 0]
    assert (found == np.arange(0, 400, 19)).mean() > 0.9
    with pytest.raises(
        UsageError, match='train_keys = 15: fewer than the .*centroids = 16 .*; raise'
    ):
        make(store, train_keys=15)


def changed_index(path, changes, **metadata):
    """Writes the index again with other arrays, and with the checksum that they have."""
    arrays, texts = tensor_file.read(path)
    del texts[tensor_file.CHECKSUM]
    tensor_file.write(path, arrays | changes, texts | metadata)


def test_an_index_from_its_file_finds_the_same(tmp_path):
    store = of_documents(tmp_path, (40,) * 10)
    queries = store.rows('keys', np.arange(0, 400, 19)) + 0.5
    made, read = (make(store, rerank=0.0).search(queries, 4) for _ in range(2))
    for one, other in zip(made, read, strict=True):
        np.testing.assert_array_equal(one, other)


def test_an_index_that_is_of_others_or_damaged_is_refused(tmp_path):
    """FAISS itself would look for keys that are not there."""
    store = of_documents(tmp_path, (40,) * 10)
    make(store)
    (path,) = tmp_path.glob('index.*')
    whole = path.read_bytes()
    arrays, _ = tensor_file.read(path)
    far = np.where(np.arange(400) == 7, 10**6, arrays['numbers'])
    twice = np.where(arrays['numbers'] == 7, 8, arrays['numbers'])
    for changes, metadata, message in (
        (dict(numbers=far), {}, 'numbers are not those of the 400 keys'),
        (dict(numbers=-1 - far), {}, 'numbers are not those of the 400 keys'),
        (dict(numbers=twice), {}, 'numbers are not those of the 400 keys'),
        (dict(sizes=arrays['sizes'] + 1), {}, 'sizes are not those of 400 keys'),
        (dict(sizes=arrays['sizes'][:3]), {}, r'sizes is int64 \[3\]'),
        (dict(codes=arrays['codes'].astype(np.int8)), {}, 'codes is int8'),
        (dict(centroids=arrays['centroids'] * np.inf), {}, 'centroids has numbers that are not'),
        ({}, dict(keys='0123'), 'an index of other keys'),
    ):
        changed_index(path, changes, **metadata)
        with pytest.raises(UsageError, match=message):
            make(store)
        path.write_bytes(whole)
    for at in (len(whole) // 3, len(whole) - 1):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(UsageError, match='checksum'):
            make(store)


class Late:
    """A store of more than 2**31 keys, of which only the last are there."""

    width, folder = 8, Path('late')

    def __init__(self, first, keys):
        self._first, self._keys = first, keys

    def __len__(self):
        return self._first + len(self._keys)

    def rows(self, name, numbers):
        places = np.maximum(np.asarray(numbers, np.int64) - self._first, 0)
        return self._keys[places] if name == 'keys' else np.zeros(places.shape, np.int32)


@pytest.mark.slow
def test_numbers_of_keys_have_64_bits(monkeypatch):
    block = 64
    first = 2**31 + block
    keys = np.random.default_rng(0).normal(size=(50, 8)).astype(np.float32)
    mesh = sharding.make_mesh(dict(data=1), jax.devices()[:1])
    index = search.Exact(Late(first, keys), block, mesh, 0.0)
    padded = np.concatenate([keys, np.zeros((block - 50, 8), np.float32)])[None]
    last = (padded, np.zeros((1, block), np.int32)), first // block, 50
    monkeypatch.setattr(index, '_blocks', lambda: iter([last]))  # not the 2**25 before
    found = index.search(keys, 2)
    np.testing.assert_array_equal(found.numbers[:, 0], first + np.arange(50))
    assert found.numbers.dtype == np.int64 and found.found.all()
