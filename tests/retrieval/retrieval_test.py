"""Datastores, neighbours, kNN-LM, cache and SPALM on a small trained run."""

import json
import math
import shutil
import types

import jax
import numpy as np
import pytest

from configs import wikitext103
from longmem_jax.commands.train import train
from longmem_jax.config import checks
from longmem_jax.config.sections import add
from longmem_jax.data.lanes import Batch
from longmem_jax.data.tokenizers import Bytes
from longmem_jax.devices import sharding
from longmem_jax.errors import UsageError
from longmem_jax.evaluation.evaluator import Evaluator
from longmem_jax.experiment import Experiment
from longmem_jax.generation.reader import fresh_state
from longmem_jax.layers.norms import Norm
from longmem_jax.retrieval import (
    build_datastore,
    cache,
    datastore,
    evaluate,
    knn_lm,
    reading,
    report,
    search,
)
from longmem_jax.retrieval.index import make_index
from longmem_jax.retrieval.settings import KEYS
from tests.commands.train_test import small_config, texts  # noqa: F401  (a fixture)
from tests.parity_systems.knn_lm import Store, distribution


@pytest.fixture(scope='module')
def trained(texts, tmp_path_factory):  # noqa: F811
    """(config, workdir) of a run of 12 steps, and a finished datastore of its training text."""
    config = small_config(texts)
    add(config, 'retrieval')
    config.retrieval.update(
        datastore=str(tmp_path_factory.mktemp('store')), k=6, tune_tokens=200, shard_tokens=1500,
        dtype='float32', block_size=1000, report_tokens=3,
    )  # fmt: skip
    config.retrieval.spalm.update(k=3, num_steps=6, frozen=True)
    workdir = tmp_path_factory.mktemp('run')
    train(make(config, workdir))
    build_datastore.build(make(config, workdir), 'train')
    return config, workdir


def make(config, workdir):
    return Experiment(config, workdir, sharding.make_mesh(config.mesh.to_dict(), jax.devices()[:1]))


def opened(config, workdir, **changes):
    config = config.copy_and_resolve_references()
    config.retrieval.update(changes)
    return make(config, workdir)


@pytest.mark.slow
def test_a_datastore_holds_every_token_and_its_key(trained):
    config, workdir = trained
    experiment = make(config, workdir)
    params, _ = experiment.restore_parameters()
    store = datastore.Datastore(
        datastore.Path(config.retrieval.datastore), datastore.identity(experiment, params), True
    )
    corpus = experiment.corpus('train')
    tokens = np.concatenate([corpus[i].tokens for i in range(len(corpus))])
    assert len(store) == len(tokens) and len(store.shards) > 1
    whole = store.rows('values', np.arange(len(store)))
    assert np.array_equal(np.bincount(whole), np.bincount(tokens))
    contexts = store.rows('contexts', np.arange(len(store)))
    documents = store.rows('documents', np.arange(len(store)))
    for document in range(len(corpus)):
        own = documents == document
        text = corpus[document].tokens
        assert np.array_equal(whole[own], text)
        read = np.concatenate([[corpus.tokenizer.begin], text[:-1]])
        assert np.array_equal(contexts[own][:, -1], read)
        assert np.array_equal(contexts[own][5, -6:], read[:6])
    # A key is the model's hidden vector, whichever part it was read in.
    part = next(iter(reading.Reader(experiment, params, 'train').parts()))
    first = part.keys[0, 0]
    at = np.flatnonzero(documents == 0)[: len(first)]
    np.testing.assert_allclose(store.rows('keys', at), first, atol=1e-6)


@pytest.mark.slow
def test_the_pass_scores_what_evaluation_scores(trained):
    config, workdir = trained
    experiment = make(config, workdir)
    params, _ = experiment.restore_parameters()
    parts = list(reading.Reader(experiment, params, 'test').parts())
    nll = sum(float(part.nll[part.counted].sum()) for part in parts)
    result, _ = Evaluator(experiment.evaluation_model, experiment.mesh, config).evaluate(
        params, experiment.corpus('test'), 'test'
    )
    assert nll == pytest.approx(result.nll, rel=1e-5)
    assert sum(int(part.counted.sum()) for part in parts) == result.tokens


@pytest.mark.slow
def test_building_goes_on_where_it_stopped(trained, tmp_path, monkeypatch):
    config, workdir = trained
    experiment = opened(config, workdir, datastore=str(tmp_path))
    write, calls = build_datastore._Builder.write, []

    def stop(self, reader, contexts, complete):
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(complete)
        write(self, reader, contexts, complete)

    monkeypatch.setattr(build_datastore._Builder, 'write', stop)
    with pytest.raises(KeyboardInterrupt):
        build_datastore.build(experiment, 'train')
    assert not json.loads((tmp_path / 'manifest.json').read_text())['complete']
    with pytest.raises(UsageError, match='not finished .2 shards'):
        datastore.Datastore(tmp_path, None, False)
    monkeypatch.setattr(build_datastore._Builder, 'write', write)
    # Of an earlier call, to which a disk said of a manifest that it was not written.
    (tmp_path / 'progress-00000.safetensors').touch()
    store = build_datastore.build(experiment, 'train')
    # As a disk leaves it that says of the last manifest that it was not written.
    (tmp_path / 'progress-00000.safetensors').touch()
    build_datastore.build(experiment, 'train')
    assert not list(tmp_path.glob('progress-*'))
    whole = datastore.Datastore(datastore.Path(config.retrieval.datastore), None, True)
    for name in ('keys', 'values', 'documents', 'contexts'):
        number = np.arange(len(whole))
        np.testing.assert_array_equal(store.rows(name, number), whole.rows(name, number))
    assert not list(tmp_path.glob('progress*'))


@pytest.mark.slow
def test_damage_and_strangers_are_said(trained, tmp_path):
    config, workdir = trained
    copy = tmp_path / 'copy'
    shutil.copytree(config.retrieval.datastore, copy)
    keys = copy / 'keys.00001.bin'
    data = keys.read_bytes()
    keys.write_bytes(data[:-4])
    with pytest.raises(UsageError, match=r'keys.00001.bin: .* bytes were written'):
        datastore.Datastore(copy, None, False)
    keys.write_bytes(data[:-4] + b'\0\0\0\1')
    with pytest.raises(UsageError, match='keys.00001.bin: its bytes were changed'):
        datastore.Datastore(copy, None, False)
    with pytest.raises(UsageError, match=r'another model \(width: 32 there, 48 here\)'):
        datastore.require_same(copy, datastore.read_manifest(copy), dict(width=48))
    (copy / 'manifest.json').write_text('{')
    with pytest.raises(UsageError, match='not a manifest'):
        datastore.read_manifest(copy)
    with pytest.raises(UsageError, match='make one with --mode=build_datastore'):
        evaluate.evaluate(opened(config, workdir, kind='knn_lm', datastore=str(tmp_path)), 'test')
    with pytest.raises(UsageError, match='config.retrieval.k = 1000000: the datastore'):
        evaluate.evaluate(opened(config, workdir, kind='knn_lm', k=10**6), 'test')
    for changes, message in (
        (dict(share=1.5), 'share = 1.5: must lie between 0 and 1'),
        (dict(kind='knn'), "did you mean 'knn_lm'"),
        (dict(index='tree'), 'config.retrieval.index'),
        (dict(dtype='float8'), 'config.retrieval.dtype'),
        (dict(shard_tokens=0), 'shard_tokens = 0: must be above 0'),
        (dict(cache_length=0), 'cache_length = 0: must be above 0'),
        (dict(cache_flatness=-1.0), 'cache_flatness = -1.0: must be at least 0'),
        (
            dict(kind='knn_lm_cache', share=0.6, cache_share=0.6),
            'share + cache_share = 1.2: must be',
        ),
    ):
        problems = checks.find_problems(opened(config, workdir, **changes).config, 1)
        assert len(problems) == 1 and message in problems[0], problems
    with pytest.raises(UsageError, match='split: train there, test here'):
        build_datastore.build(make(config, workdir), 'test')


@pytest.mark.slow
def test_a_datastore_with_a_damaged_file_is_written_again(trained, tmp_path, capsys):
    config, workdir = trained
    copy = tmp_path / 'copy'
    shutil.copytree(config.retrieval.datastore, copy)
    wanted = (copy / 'keys.00001.bin').read_bytes()
    (copy / 'keys.00001.bin').write_bytes(wanted[:-4])
    (copy / 'index.old.safetensors').write_text('')
    build_datastore.build(opened(config, workdir, datastore=str(copy)), 'train')
    assert (copy / 'keys.00001.bin').read_bytes() == wanted
    assert not (copy / 'index.old.safetensors').exists()
    assert 'all shards are written again' in capsys.readouterr().out


@pytest.mark.slow
def test_neighbours_help_and_are_reported(trained, capsys):
    config, workdir = trained
    results = {}
    for kind in ('knn_lm', 'cache', 'knn_lm_cache'):
        results |= evaluate.evaluate(opened(config, workdir, kind=kind), 'test')
    assert set(results) == {'test', 'test, kNN-LM', 'test, cache', 'test, kNN-LM and cache'}
    # Twelve steps teach little, four words repeated tell much.
    base = results['test'].loss
    assert results['test, kNN-LM'].loss < base - 0.1
    assert results['test, cache'].loss < base
    assert results['test, kNN-LM and cache'].loss <= results['test, kNN-LM'].loss + 0.05
    numbers = json.loads((workdir / 'retrieval.json').read_text())
    assert numbers['kind'] == 'knn_lm_cache' and numbers['choice']['k'] in (4, 6)
    last = results['test, kNN-LM and cache']
    assert numbers['test, kNN-LM and cache']['bits_per_byte'] == last.bits_per_byte
    report = (workdir / 'retrieval.txt').read_text()
    assert report.count('gain ') == 3 and 'document ' in report
    assert '<table>' in (workdir / 'retrieval.html').read_text()


@pytest.mark.slow
def test_the_cache_is_as_long_and_as_flat_as_the_config_says(trained):
    config, workdir = trained

    def loss(length, flatness):
        fields = dict(cache_length=length, cache_flatness=flatness, cache_share=0.3, tune_tokens=0)
        return evaluate.evaluate(opened(config, workdir, kind='cache', **fields), 'test')[
            'test, cache'
        ].loss

    counted = loss(1, 0.0)
    np.testing.assert_allclose(loss(1, 1.0), counted, rtol=1e-6)  # the weight of one entry is 1
    assert abs(loss(100, 0.0) - counted) > 0.01
    assert abs(loss(100, 0.0) - loss(100, 1.0)) > 1e-4


@pytest.mark.slow
def test_numbers_are_written_before_the_report(trained, tmp_path, monkeypatch, capsys):
    config, workdir = trained
    own = tmp_path / 'run'
    shutil.copytree(workdir, own)

    def fail(*_):
        raise RuntimeError('no report')

    monkeypatch.setattr(report.Gains, 'write', fail)
    with pytest.raises(RuntimeError, match='no report'):
        evaluate.evaluate(opened(config, own, kind='knn_lm', tune_tokens=0), 'test')
    numbers = json.loads((own / 'retrieval.json').read_text())
    # Of a mixture only the probability of the target is computed, so there is no accuracy.
    assert numbers['test, kNN-LM']['tokens'] > 0 and 'accuracy' not in numbers['test, kNN-LM']
    assert 'test, kNN-LM' in capsys.readouterr().out


@pytest.mark.parametrize('k', [4, 12])
def test_the_report_shows_as_many_neighbours_as_were_chosen(k, tmp_path):
    """Tuning may choose fewer neighbours than were looked up, also fewer than are shown."""
    tokenizer, shape = Bytes(), (1, 1, 3)
    tokens = np.frombuffer(b'abc', np.uint8).astype(np.int32).reshape(shape)
    part = types.SimpleNamespace(tokens=tokens, counted=np.ones(shape, bool))
    distances = np.tile(np.arange(12, dtype=np.float32), (3, 1))
    targets = np.frombuffer(b'bcd', np.uint8).astype(np.int32)
    looked_up = evaluate.LookupResult(
        np.log([0.5, 0.25, 0.125]), targets, distances, np.full((3, 12), ord('d')), np.zeros((3, 0))
    )
    choice = evaluate.Choice(k, 1.0, 0.25, 1.0, 0.0)
    gains = report.Gains(2)
    gains.add(part, looked_up, np.tile(np.arange(12), (3, 1)), np.log([0.5, 0.5, 0.75]), choice)
    rows = dict(
        values=np.full((12,), ord('d')),
        documents=np.arange(12),
        contexts=np.full((12, 8), ord('x')),
    )
    store = types.SimpleNamespace(rows=lambda name, numbers: rows[name][numbers])
    gains.write(store, tokenizer, tmp_path)
    lines = (tmp_path / 'retrieval.txt').read_text().splitlines()
    shown = min(k, 8)
    assert len(lines) == 2 * (1 + shown)
    assert lines[0] == 'abc [d]  p 0.1250 -> 0.7500, gain 1.79 nats'
    weights = np.exp(-np.arange(k)) / np.exp(-np.arange(k)).sum()
    assert lines[1] == f'    {weights[0]:.3f}  document 0: xxxxxxxx [d]'
    assert lines[shown].startswith(f'    {weights[shown - 1]:.3f}  document {shown - 1}:')


@pytest.mark.parametrize('share', [0.0, 1.0])
def test_a_mixture_may_be_one_part_alone(share):
    logs = [np.log([0.5, 0.25]), np.asarray([knn_lm.MISSING, np.log(0.5)])]
    mixed = knn_lm.mixture(logs, [1 - share, share])
    np.testing.assert_array_equal(mixed, logs[int(share)])


def test_probabilities_by_neighbours_are_probabilities():
    random = np.random.default_rng(0)
    scores, values = -random.random((7, 5)) * 9, random.integers(0, 11, (7, 5))
    whole = distribution(scores, values, 11)
    np.testing.assert_allclose(whole.sum(axis=-1), 1.0)
    for token in range(11):
        one = np.exp(knn_lm.log_probability(scores, values, np.full((7,), token)))
        np.testing.assert_allclose(one, whole[:, token], atol=1e-12)


@pytest.mark.parametrize(
    'sizes, block, resident_gib',
    [
        (dict(data=1), 64, 0.0),
        (dict(data=8), 40, 1.0),
        (dict(data=2, memory=4), 40, 4e-6),  # too large over the memory axis alone
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                (dict(data=1), 1000, 1.0),
                (dict(data=1), 64, 1.0),
                (dict(data=8), 40, 0.0),
                (dict(data=2, memory=4), 40, 1.0),
            )
        ),
    ],
)
def test_search_is_exact(sizes, block, resident_gib):
    random = np.random.default_rng(1)
    keys = random.normal(size=(333, 12)).astype(np.float32)
    queries = random.normal(size=(21, 12)).astype(np.float32)
    mesh = sharding.make_mesh(sizes, jax.devices()[: math.prod(sizes.values())])
    index = search.Exact(Store(keys, np.arange(333)), block, mesh, resident_gib)
    found, numbers, _ = index.search(queries, 9)
    distance = np.square(queries[:, None] - keys[None]).sum(-1)
    np.testing.assert_array_equal(numbers, np.argsort(distance, axis=1)[:, :9])
    np.testing.assert_allclose(found, np.sort(distance, axis=1)[:, :9], rtol=1e-5)


@pytest.mark.parametrize('resident_gib', [pytest.param(1.0, marks=pytest.mark.slow), 4e-6, 0.0])
def test_keys_stay_on_the_devices_where_they_fit(resident_gib, monkeypatch):
    random = np.random.default_rng(1)
    store = Store(random.normal(size=(333, 12)).astype(np.float32), np.arange(333))
    index = search.Exact(
        store, 40, sharding.make_mesh(dict(data=2, memory=4), jax.devices()[:8]), resident_gib
    )
    read, rows = [], store.rows
    monkeypatch.setattr(search, 'distances', lambda store, queries, numbers: numbers * 0.0)
    monkeypatch.setattr(search, 'QUERIES', 8)
    monkeypatch.setattr(
        store, 'rows', lambda name, numbers: read.append(numbers.size) or rows(name, numbers)
    )
    index.search(random.normal(size=(21, 12)), 3)  # in three goes
    first = sum(read)
    index.search(random.normal(size=(21, 12)), 3)
    stays = resident_gib > 0
    assert (sum(read) == first) == stays
    if stays:
        shards = {shard.data.shape for shard in index._resident[0].addressable_shards}
        assert shards == {(9, 10 if resident_gib == 1.0 else 5, 12)}


@pytest.mark.slow
def test_documents_can_be_left_out(trained):
    config, workdir = trained
    store = datastore.Datastore(datastore.Path(config.retrieval.datastore), None, False)
    numbers = np.arange(0, len(store), 97)
    queries = store.rows('keys', numbers).astype(np.float32)
    own = store.rows('documents', numbers)
    index = search.Exact(store, 256, make(config, workdir).mesh, 1.0)
    distances = index.search(queries, 1).distances
    assert distances.max() < 1e-4  # each finds itself, or one that is the same
    _, numbers, found = index.search(queries, 5, own)
    assert found.all() and not (store.rows('documents', numbers) == own[:, None]).any()


@pytest.mark.slow
def test_faiss_finds_nearly_the_same(trained):
    pytest.importorskip('faiss')
    config, workdir = trained
    settings = opened(
        config, workdir, centroids=8, code_size=16, probe=8, rerank=8.0, train_keys=2000
    ).config.retrieval
    store = datastore.Datastore(datastore.Path(settings.datastore), None, False)
    queries = store.rows('keys', np.arange(0, len(store), 31)).astype(np.float32)
    exact = search.Exact(store, 256, make(config, workdir).mesh, 1.0).search(queries, 5).distances
    settings.index = 'faiss'
    for _ in range(2):  # made, then read from its file
        found, numbers, _ = make_index(settings, store, None).search(queries, 5)
        np.testing.assert_allclose(found, search.distances(store, queries, numbers), rtol=1e-6)
        assert np.mean(found <= exact + 1e-6) > 0.9
    settings.centroids = 10**6
    with pytest.raises(UsageError, match='centroids = 1000000: more than'):
        make_index(settings, store, None)


@pytest.mark.parametrize('context', [0, 5])
@pytest.mark.slow
def test_the_cache_looks_back_in_its_document_only(trained, context):
    """Also with overlapping windows, which are in another order: against a loop over the text."""
    config, workdir = trained
    experiment = make(config, workdir)
    params, _ = experiment.restore_parameters()
    flatness = (0.0, 0.25)
    short, long = (cache.Cache(length, flatness) for length in (3, 10**6))
    reader = reading.Reader(experiment, params, 'test', context=context, wanted=('hidden',))
    found, hidden, targets = {}, {}, {}
    for part in reader.parts():
        logs = np.stack([short.read(part), long.read(part)], axis=-1)
        for segment, lane in np.ndindex(part.start.shape):
            counted, number = part.counted[segment, lane], part.documents[segment, lane]
            for name, array in ((found, logs), (hidden, part.hidden), (targets, part.targets)):
                name.setdefault(number, []).extend(array[segment, lane][counted])
    corpus = experiment.corpus('test')
    assert {number: len(text) for number, text in targets.items() if text} == {
        number: len(corpus[number].tokens) for number in range(len(corpus))
    }
    for number in range(len(corpus)):
        vectors, tokens = np.asarray(hidden[number]), np.asarray(targets[number])
        np.testing.assert_array_equal(tokens, corpus[number].tokens)
        assert (np.asarray(found[number][0]) == knn_lm.MISSING).all()
        for place in range(1, len(tokens), 7):
            for column, length in enumerate((3, 10**6)):
                seen = slice(max(place - length, 0), place)
                products = vectors[seen] @ vectors[place]
                wanted = [
                    knn_lm.log_probability(f * products, tokens[seen], tokens[place])
                    for f in flatness
                ]
                np.testing.assert_allclose(found[number][place][:, column], wanted, atol=2e-3)


@pytest.mark.slow
def test_windows_give_every_key_a_context(trained, tmp_path):
    """With a context a key depends on the tokens before its segment, and no entry is lost."""
    config, workdir = trained
    context, length = 5, config.evaluate.segment_length
    experiment = opened(config, workdir, datastore=str(tmp_path), context=context)
    params, _ = experiment.restore_parameters()
    store = build_datastore.build(experiment, 'train')
    assert len(store.shards) > 1
    other = datastore.Datastore(datastore.Path(config.retrieval.datastore), None, False)
    numbers = np.arange(len(store))
    text = {
        name: [one.rows(name, numbers) for one in (store, other)]
        for name in ('documents', 'values', 'contexts', 'keys')
    }
    orders = [np.argsort(documents, kind='stable') for documents in text['documents']]
    for name in ('documents', 'values', 'contexts'):
        windows, segments = (array[order] for array, order in zip(text[name], orders, strict=True))
        np.testing.assert_array_equal(windows, segments)
    # The key after the first window is that of a model that has read the last tokens only.
    own = orders[0][text['documents'][0][orders[0]] == 0]
    tokens = experiment.corpus('train')[0].tokens
    step = length - context
    model = experiment.evaluation_model
    look = jax.jit(
        lambda params, inputs: reading.look(model, params, fresh_state(model, params, 1), inputs)
    )
    for place in (0, length - 1, length, length + step - 1, length + 4 * step):
        window = max(-(-(place + 1 - length) // step), 0)  # the first window that has the token
        read = np.concatenate([[experiment.tokenizer.begin], tokens]).astype(np.int32)
        read = read[window * step :][:length]
        one = np.ones((1, length), bool)
        inputs = Batch(
            tokens=read[None], targets=read[None], valid=one, scored=one, start=one[:, 0],
            num_bytes=None,
        )  # fmt: skip
        _, (keys, _, _) = look(params, inputs)
        np.testing.assert_allclose(
            text['keys'][0][own[place]], keys[0, place - window * step], atol=1e-5
        )
    with pytest.raises(UsageError, match=r'context: \d+ there, 4 here'):
        build_datastore.build(opened(config, workdir, datastore=str(tmp_path), context=4), 'train')
    results = evaluate.evaluate(
        opened(config, workdir, kind='knn_lm', datastore=str(tmp_path)), 'test'
    )
    assert results['test, kNN-LM'].loss < results['test'].loss - 0.1


@pytest.mark.slow
def test_all_devices_build_the_same_datastore(trained, tmp_path):
    config, workdir = trained
    config = config.copy_and_resolve_references()
    config.retrieval.datastore, config.mesh = str(tmp_path), dict(data=4, memory=2)
    mesh = sharding.make_mesh(config.mesh.to_dict(), jax.devices()[:8])
    experiment = Experiment(config, workdir, mesh)
    params, _ = experiment.restore_parameters()
    reader = reading.Reader(experiment, params, 'train')
    part = next(iter(reader.parts()))
    assert part.hidden is None
    leaf = jax.tree.leaves(reader.memory)[0]
    assert {shard.data.shape[0] for shard in leaf.addressable_shards} == {8 // 4}
    store = build_datastore.build(experiment, 'train')
    one = datastore.Datastore(
        datastore.Path(trained[0].retrieval.datastore), datastore.identity(experiment, params), True
    )
    numbers = np.arange(len(one))
    for name in ('values', 'documents', 'contexts'):
        np.testing.assert_array_equal(store.rows(name, numbers), one.rows(name, numbers))
    np.testing.assert_allclose(store.rows('keys', numbers), one.rows('keys', numbers), atol=1e-5)


@pytest.mark.slow
def test_the_key_can_be_chosen(trained):
    """Raw vectors become the others by the norm that follows them."""
    config, workdir = trained
    found = {}
    for key in KEYS:
        experiment = opened(config, workdir, key=key)
        params, _ = experiment.restore_parameters()
        reader = reading.Reader(experiment, params, 'test', wanted=('keys', 'hidden'))
        part = next(iter(reader.parts()))
        found[key] = part.keys[part.counted]
        hidden = part.hidden[part.counted]
    np.testing.assert_array_equal(found['hidden'], hidden)
    norms = dict(feed_forward=params['block_0']['feed_forward_norm'], hidden=params['final_norm'])
    for key, norm in norms.items():
        raw = Norm('layernorm', 1e-5).apply({'params': norm}, found[f'{key}_raw'])
        np.testing.assert_allclose(raw, found[key], atol=1e-5)
    experiment = opened(config, workdir, key='hidden', kind='knn_lm')
    with pytest.raises(UsageError, match='key: feed_forward there, hidden here'):
        evaluate.evaluate(experiment, 'test')


@pytest.mark.slow
def test_keys_wait_for_no_shard(trained, tmp_path, monkeypatch):
    """Entries are in the files as soon as they are read, in the dtype of the datastore."""
    config, workdir = trained
    experiment = opened(config, workdir, datastore=str(tmp_path), dtype='float16')
    add, sizes = build_datastore._Builder.add, []

    def watched(self, part, contexts):
        assert part.keys.dtype == np.float16 and part.nll is None
        add(self, part, contexts)
        for file in self._files.values():
            file.flush()
        sizes.append((tmp_path / f'values.{len(self.manifest["shards"]):05}.bin').stat().st_size)
        assert sizes[-1] == 4 * self.waiting

    monkeypatch.setattr(build_datastore._Builder, 'add', watched)
    store = build_datastore.build(experiment, 'train')
    assert max(sizes) > 0 and len(sizes) > len(store.shards) > 1
    assert store.shards[0]['keys'].dtype == np.float16


def test_codes_must_divide_the_keys_before_anything_is_read():
    config = wikitext103.get_config()
    add(config, 'retrieval')
    config.retrieval.update(kind='knn_lm', index='faiss')
    problems = checks.find_problems(config, 1)
    assert problems == [
        'config.retrieval.code_size = 64: must divide config.model.d_model = 410, the width of keys; '
        'the nearest that do are 41 and 82'
    ]
    config.retrieval.code_size = 82
    assert not checks.find_problems(config, 1)
