"""SPALM: it gains by the right neighbours, keeps its lists, resumes bit for bit, refuses strangers."""

import itertools
import json
import shutil
import signal
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from configs import spalm_wikitext103
from longmem_jax.config import saved
from longmem_jax.errors import UsageError
from longmem_jax.files import checksum
from longmem_jax.reporting.writers import read_metrics
from longmem_jax.retrieval import evaluate, reading, spalm, spalm_lists, subject
from longmem_jax.retrieval.spalm_keys import open_keys
from longmem_jax.retrieval.spalm_lists import Lists, firsts_of, look_up
from longmem_jax.retrieval.spalm_task import SpalmTask
from tests.commands.train_test import texts  # noqa: F401  (a fixture)
from tests.retrieval.retrieval_test import opened, trained  # noqa: F401  (a fixture)

NUM_STEPS = 13


def own_rows(experiment, lists, split):
    """Document of every row of the lists, and of its neighbours; -1 = none."""
    lengths = experiment.corpus(split).lengths()
    documents = np.repeat(np.arange(len(lengths)), lengths)
    store = open_keys(experiment).store
    numbers = np.asarray(lists.numbers)
    found = np.where(numbers >= 0, store.rows('documents', np.maximum(numbers, 0)), -1)
    return documents, found


@pytest.mark.slow
def test_lists_go_on_where_they_stopped_and_never_have_the_own_document(
    trained,  # noqa: F811
    tmp_path,
    monkeypatch,
):
    config, workdir = trained
    faiss = dict(index='faiss', centroids=4, code_size=4, probe=1, train_keys=1500)
    experiment = opened(config, workdir, **faiss)
    pytest.importorskip('faiss')
    keys = open_keys(experiment)
    whole = look_up(tmp_path / 'whole', keys, 'train', 4, print)
    monkeypatch.setattr(spalm_lists, 'SAVED_EVERY', 2)
    search, calls = keys.index.search, []

    def stop(*args):
        calls.append(args)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return search(*args)

    monkeypatch.setattr(keys.index, 'search', stop)
    with pytest.raises(KeyboardInterrupt):
        look_up(tmp_path / 'cut', keys, 'train', 4, print)
    again = look_up(tmp_path / 'cut', keys, 'train', 4, print)
    np.testing.assert_array_equal(again.numbers, whole.numbers)
    number = len(calls)
    look_up(tmp_path / 'cut', keys, 'train', 4, print)
    assert len(calls) == number  # all are kept
    documents, found = own_rows(experiment, whole, 'train')
    assert (found >= 0).all() and not (found == documents[:, None]).any()
    content = bytearray((whole.folder / 'numbers.bin').read_bytes())
    size, content[40] = len(content), content[40] ^ 1
    (whole.folder / 'numbers.bin').write_bytes(content)
    with pytest.raises(UsageError, match='its bytes were changed'):
        look_up(tmp_path / 'whole', keys, 'train', 4, print)
    (whole.folder / 'numbers.bin').write_bytes(bytes(size - 8))
    with pytest.raises(UsageError, match=f'{size:,} are needed. Delete'):
        look_up(tmp_path / 'whole', keys, 'train', 4, print)


@pytest.mark.slow
def test_other_lanes_leave_out_the_same_documents(trained, tmp_path):  # noqa: F811
    config, workdir = trained
    experiment = opened(config, workdir)
    experiment.config.evaluate.num_lanes = 3
    lists = look_up(tmp_path, open_keys(experiment), 'train', 3, print)
    documents, found = own_rows(experiment, lists, 'train')
    assert (found >= 0).all() and not (found == documents[:, None]).any()
    test = look_up(tmp_path, open_keys(experiment), 'test', 3, print)
    assert (test.numbers >= 0).all()
    # kNN-LM on the text of the datastore leaves out the own document, too.
    part = next(iter(reading.Reader(experiment, open_keys(experiment).params, 'train').parts()))
    keys = open_keys(experiment)
    lookup = evaluate.Lookup(keys.index, keys.store, 4, None, own_text=True)
    lookup.read(part)
    own = np.broadcast_to(part.documents[:, :, None], part.counted.shape)[part.counted]
    assert not (keys.store.rows('documents', lookup.numbers) == own[:, None]).any()


@pytest.mark.slow
@pytest.mark.parametrize('frozen', [True, False])
def test_spalm_is_trained_and_evaluated(trained, tmp_path, frozen):  # noqa: F811
    """Frozen, on its own keys; and from fresh parameters, read otherwise than its keys were."""
    config, workdir = trained
    folder = tmp_path / 'run'
    if frozen:
        shutil.copytree(workdir, folder)
    else:
        folder.mkdir()
    experiment = opened(config, folder, kind='spalm')
    config = experiment.config
    config.retrieval.spalm.update(num_steps=9, frozen=frozen)
    if not frozen:
        config.train.num_lanes, config.train.segment_length = 3, 11
        config.evaluate.num_lanes, config.evaluate.segment_length = 2, 13
        config.retrieval.spalm.update(start='fresh', keys_from=str(workdir), learned_scale=False)
    with pytest.raises(UsageError, match='make one with --mode=train_spalm'):
        evaluate.evaluate(experiment, 'test')
    spalm.train(experiment)
    lines = [line for line in read_metrics(folder / 'spalm' / 'metrics.jsonl') if 'loss' in line]
    assert len(lines) == 9 and lines[0]['gate'] == 0.5 and lines[-1]['gate'] != 0.5
    assert lines[-1]['neighbours'] == 3 and ('scale' in lines[-1]) == frozen
    results = evaluate.evaluate(experiment, 'test')
    base = 'test' if frozen else 'test, model of the keys'
    assert set(results) == {base, 'test, SPALM', 'test, SPALM without neighbours'}
    assert len({result.tokens for result in results.values()}) == 1
    plain = results['test, SPALM without neighbours']
    assert results['test, SPALM'].nll != plain.nll
    if frozen:
        assert plain.nll == pytest.approx(results['test'].nll, rel=1e-5)
    config.retrieval.kind = 'spalm_knn_lm'
    mixed = evaluate.evaluate(experiment, 'test')
    assert set(mixed) == {'test, SPALM', 'test, SPALM and kNN-LM'}
    assert mixed['test, SPALM'].nll == pytest.approx(results['test, SPALM'].nll, rel=1e-5)
    assert mixed['test, SPALM and kNN-LM'].loss < mixed['test, SPALM'].loss - 0.1
    config.retrieval.kind = 'spalm'
    numbers = json.loads((folder / 'spalm.json').read_text())
    assert sum(numbers['gate']['tokens']) == plain.tokens
    assert numbers['test, SPALM']['bits_per_byte'] == results['test, SPALM'].bits_per_byte
    report = (folder / 'spalm.txt').read_text()
    assert report.count('  p 0.') >= 3 and report.count('  document ') >= 9
    assert (folder / 'spalm.png').stat().st_size > 5000
    config.retrieval.spalm.k = 2
    with pytest.raises(UsageError, match='was trained with other settings:\n  k: 3 .* 2 given'):
        evaluate.evaluate(experiment, 'test')
    config.retrieval.spalm.k, file = 3, folder / 'spalm' / 'parameters.safetensors'
    save_file({name: leaf for name, leaf in load_file(file).items() if name != 'gate'}, file)
    with pytest.raises(
        UsageError, match=r'gate is missing; float32 \[\d+\] is needed: delete .*/spa'
    ):
        evaluate.evaluate(experiment, 'test')


def test_a_fresh_spalm_needs_no_run_of_its_own_and_others_are_refused_at_once(monkeypatch):
    """Before the neighbours of a whole corpus are looked up."""
    (mode,) = (mode for mode in subject.SUBJECT.modes if mode.name == 'train_spalm')
    assert mode.writes and not mode.trained  # so that its folder is made

    def refused():
        raise UsageError('no checkpoint there; train first')

    config = spalm_wikitext103.get_config('tiny')
    config.retrieval.spalm.start = 'trained'
    monkeypatch.setattr(spalm, 'open_keys', pytest.fail)
    with pytest.raises(UsageError, match='no checkpoint there; train first'):
        spalm.train(SimpleNamespace(config=config, restore_parameters=refused))
    config.model.cutoffs = (9,)
    with pytest.raises(UsageError, match=r'model.cutoffs = \(9,\), .*: SPALM needs one table'):
        spalm.train(SimpleNamespace(config=config))


def test_a_fresh_spalm_leaves_its_config_for_later_commands(tmp_path):
    config = spalm_wikitext103.get_config('tiny')
    run = SimpleNamespace(config=config, workdir=tmp_path)
    spalm._keep_config(run)
    assert saved.saved_config(tmp_path).to_dict() == config.to_dict()
    config.data.seed = 7  # the config of a trained model stays
    spalm._keep_config(run)
    assert saved.saved_config(tmp_path).data.seed != 7


class Told:
    """A store in which the value of key i is token i of a text."""

    digest = 'told'

    def __init__(self, corpus):
        self._tokens = np.concatenate([corpus[i].tokens for i in range(len(corpus))])

    def rows(self, name, numbers):
        assert name == 'values'
        return self._tokens[numbers]


@pytest.fixture(scope='module')
def noise(tmp_path_factory):
    """A text that nothing predicts: random letters."""
    path = tmp_path_factory.mktemp('noise')
    random = np.random.default_rng(0)
    for split in ('train', 'validation', 'test'):
        (path / split).mkdir()
        for i in range(9):
            letters = random.integers(97, 123, 700).astype(np.uint8)
            (path / split / f'{i}.txt').write_bytes(letters.tobytes())
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    'steps, changes, gains',
    [
        (100, dict(frozen=True, learned_scale=True), True),
        # What the scale is for: vectors of length 1 cannot tell a token from others by more.
        (100, dict(frozen=True, learned_scale=False), False),
        (60, dict(frozen=False, learned_scale=True), True),
        (100, dict(frozen=False, learned_scale=False, start='fresh'), True),  # the paper's
    ],
    ids=['frozen', 'frozen, no scale', 'trained', 'fresh'],
)
def test_the_right_neighbours_help(trained, noise, tmp_path, steps, changes, gains):  # noqa: F811
    """Where every next token is retrieved, the loss falls by more than one nat."""
    config, workdir = trained
    experiment = opened(config, workdir)
    config = experiment.config
    config.data.path = str(noise)
    config.optimizer.learning_rate = 1e-2
    config.retrieval.spalm.update(k=2, num_steps=steps, keys_from=str(workdir), **changes)
    corpus, keys = experiment.corpus('train'), open_keys(experiment)
    numbers = np.repeat(np.arange(int(corpus.lengths().sum()))[:, None], 2, axis=1)
    lists = Lists(tmp_path, numbers, firsts_of(corpus.lengths()), Told(corpus))
    params = spalm._start(experiment)
    task = SpalmTask(experiment, params, keys, lists, 'train', tmp_path)
    state, call = task.first_state(), task.compile().call
    for inputs in itertools.islice(task.batches(state), steps):
        state, metrics = call(state, *inputs)
    # The model may be worse than even shares for all tokens, which takes no neighbours to mend.
    without = min(float(metrics['loss_alone']), np.log(config.model.vocab_size))
    gain = without - float(metrics['loss'])
    assert gain > 1 if gains else gain < 1, metrics


def test_the_small_size_scales_what_the_paper_does_not():
    scales = {
        size: spalm_wikitext103.get_config(size).retrieval.spalm.learned_scale
        for size in ('', 'tiny')
    }
    assert scales == {'': False, 'tiny': True}


@pytest.mark.slow
def test_killed_and_started_again_ends_bit_for_bit(trained, start, tmp_path):  # noqa: F811
    config, workdir = trained
    config = config.copy_and_resolve_references()
    config.retrieval.spalm.update(num_steps=NUM_STEPS, frozen=True)
    config.checkpoint.every = 2
    cut, whole = tmp_path / 'cut', tmp_path / 'whole'
    for folder in (cut, whole):
        shutil.copytree(workdir, folder)

    def run(*given):
        process = start([config.to_json(), *map(str, given)], 'tests.retrieval.spalm_program')
        out, _ = process.communicate()
        return process.returncode, out

    code, out = run(10, cut)
    assert code == -signal.SIGKILL, out
    assert not (cut / 'spalm' / 'parameters.safetensors').exists()
    code, out = run(-1, cut, whole)
    assert code == 0 and 'Resuming at step' in out, out
    assert out.count(f'SPALM after {NUM_STEPS} steps') == 2
    found, wanted = (
        load_file(folder / 'spalm' / 'parameters.safetensors') for folder in (cut, whole)
    )
    assert set(found) == set(wanted) and len(found) == 2
    assert np.abs(wanted['gate']).max() > 0
    for path in wanted:
        np.testing.assert_array_equal(found[path], wanted[path], err_msg=path)
    losses = [
        [
            line['loss']
            for line in read_metrics(folder / 'spalm' / 'metrics.jsonl')
            if 'loss' in line
        ]
        for folder in (cut, whole)
    ]
    assert losses[0] == losses[1] and len(losses[0]) == NUM_STEPS


@pytest.mark.slow
def test_a_gate_goes_on_with_its_own_model_and_datastore_only(trained, tmp_path):  # noqa: F811
    config, workdir = trained
    folder = tmp_path / 'run'
    shutil.copytree(workdir, folder)
    spalm.train(opened(config, folder))
    other = opened(config, folder)
    other.config.retrieval.spalm.k = 2
    with pytest.raises(UsageError) as caught:
        spalm.train(other)
    assert 'k: 3 in the checkpoint, 2 given' in str(caught.value)
    assert f'Delete {folder / "spalm"} to train a gate for this one' in str(caught.value)
    store = tmp_path / 'store'
    shutil.copytree(config.retrieval.datastore, store)
    manifest = json.loads((store / 'manifest.json').read_text())
    contexts = store / 'contexts.00000.bin'
    contexts.write_bytes(contexts.read_bytes()[:-4] + bytes(4))
    manifest['shards'][0]['sha256']['contexts'] = checksum(contexts)
    (store / 'manifest.json').write_text(json.dumps(manifest))
    with pytest.raises(UsageError, match='another run:\n  datastore: '):
        spalm.train(opened(config, folder, datastore=str(store)))
