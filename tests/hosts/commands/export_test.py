"""A run that begins with a host, and is written as one: `--mode=export`."""

import inspect
import json
import sys
import types

import jax
import numpy as np
import pytest
from huggingface_hub import HfApi

from longmem_jax.commands.train import train
from longmem_jax.config import checks
from longmem_jax.config.recipes import section
from longmem_jax.errors import UsageError
from longmem_jax.hosts import export as writing
from longmem_jax.hosts import hosts, model_fields
from longmem_jax.hosts.commands.export import _dataset, _metadata, export
from longmem_jax.models.parameters import initial_parameters, unbox
from tests.commands.train_test import experiment, small_config, texts  # noqa: F401  (a fixture)

GIVEN = dict(
    model_type='gpt2', vocab_size=264, n_layer=2, n_embd=32, n_head=2, n_positions=32,
    activation_function='gelu_new',
)  # fmt: skip


@pytest.fixture(scope='module')
def host(tmp_path_factory):
    """The folder of a host with initial parameters."""
    folder = tmp_path_factory.mktemp('hosts') / 'host'
    model = model_fields.model_of(GIVEN, 'config.json')
    module = hosts.make(model, 8)
    params = unbox(jax.jit(lambda: initial_parameters(module, jax.random.key(0)))())
    writing.save(folder, model, params)
    (folder / 'tokenizer_config.json').write_text('{"chat_template": ""}')
    return str(folder)


def config_of(texts, host, *, start_from):  # noqa: F811
    config = small_config(texts)
    config.model = hosts.find(host, context=16).model
    config.train.start_from = start_from
    config.train.num_steps, config.checkpoint.every = 2, 2
    config.optimizer.learning_rate = 1e-2
    return config


@pytest.mark.slow
def test_a_host_is_trained_with_a_memory_and_exported(texts, tmp_path, host, capsys):  # noqa: F811
    config = config_of(texts, host, start_from=host)
    config.model.attention = ('full', 'infini')
    config.model.infini = section('infini', position='none')
    assert checks.find_problems(config, 1) == []
    run = experiment(config, tmp_path / 'run')
    train(run)
    said = ' '.join(capsys.readouterr().out.split())
    assert 'Loaded 28 tensors' in said and 'new: block_1/attention/gate' in said
    files = export(run, str(tmp_path / 'out'))
    assert {'README.md', 'config.json', 'model.safetensors', 'tokenizer_config.json'} == {*files}
    card = (tmp_path / 'out' / 'README.md').read_text()
    assert 'Trained for 2 steps' in card and '`infini`' in card
    assert '"type": "bits_per_byte"' in card and '| test, memory reset | ' in card
    found = hosts.find(tmp_path / 'out')
    params = hosts.load(found, hosts.make(found.model, 8))
    trained, _ = run.restore_parameters()
    for ours, theirs in zip(jax.tree.leaves(params), jax.tree.leaves(trained), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_several_processes_are_refused(texts, host, tmp_path, monkeypatch):  # noqa: F811
    """Each would write the same folder."""
    monkeypatch.setattr(jax, 'process_count', lambda: 2)
    run = experiment(config_of(texts, host, start_from=host), tmp_path / 'run')
    with pytest.raises(UsageError, match='--mode=export runs in one process, not in 2; leave out'):
        export(run, str(tmp_path / 'out'))
    assert not (tmp_path / 'out').exists()


def started(texts, host, folder):  # noqa: F811
    """A run with a checkpoint of its initial parameters, which did not begin with a host."""
    config = config_of(texts, host, start_from='')
    config.model.full.window = 32
    run = experiment(config, folder)
    saver = run.checkpointer(print, run.going_on())
    start = jax.jit(run.make_state, out_shardings=run.state_shardings)()
    saver.maybe_save(0, start, force=True)
    saver.close()
    return run


class Hub:
    """In place of `huggingface_hub.HfApi`: keeps what it is asked, and fails where it is told to."""

    def __init__(self, failing=''):
        self.failing, self.asked = failing, []

    def __getattr__(self, function):
        def answer(*given, **named):
            self.asked.append((function, given, named))
            if function == self.failing:
                raise ConnectionError('no route\nto the hub')
            return types.SimpleNamespace(commit_url='https://hub/commit/1')

        return answer


def use(monkeypatch, hub):
    monkeypatch.setitem(sys.modules, 'huggingface_hub', types.SimpleNamespace(HfApi=lambda: hub))
    return hub


@pytest.mark.slow
def test_a_folder_goes_to_the_hub(texts, tmp_path, host, monkeypatch, capsys):  # noqa: F811
    run = started(texts, host, tmp_path / 'run')
    results = {'step': 0, 'test': {'bits_per_byte': 1.25, 'protocol': 'segment 8'}}
    (tmp_path / 'run' / 'results.json').write_text(json.dumps(results))
    # A dry run asks nothing.
    monkeypatch.setitem(sys.modules, 'huggingface_hub', None)
    out = tmp_path / 'a b'
    export(run, str(out), push='org/name@v1', dry_run=True, license='mit')
    said = capsys.readouterr().out
    total = sum(path.stat().st_size for path in out.iterdir())
    assert 'To upload to org/name of the Hugging Face hub, branch v1:' in said
    assert f' {(out / "model.safetensors").stat().st_size:,} bytes\n' in said
    assert f'3 files {total:>40,} bytes\nNothing was uploaded.' in said
    assert f"hf upload org/name '{out}' . --private --revision v1\n" in said
    text = (out / 'README.md').read_text()
    assert 'license: "mit"' in text and '- name: "name"\n' in text and str(tmp_path) not in text
    assert f'"dataset": {{"type": "text", "name": "{texts.name}", "split": "test"' in text
    hub = use(monkeypatch, Hub())
    export(run, str(tmp_path / 'out'), push='org/name')
    said = capsys.readouterr().out
    assert 'names no licence' in said and 'Uploaded: https://hub/commit/1.' in said
    assert [function for function, *_ in hub.asked] == ['whoami', 'create_repo', 'upload_folder']
    assert hub.asked[1][1:] == (('org/name',), {'private': True, 'exist_ok': True})
    sent = hub.asked[2][2]
    assert (sent['repo_id'], sent['folder_path']) == ('org/name', tmp_path / 'out')
    assert sent['revision'] is None and sent['commit_message'].startswith('Step 0')
    # The library itself takes what it is given.
    for function, given, named in hub.asked:
        inspect.signature(getattr(HfApi, function)).bind(None, *given, **named)
    # What is refused in the end leaves a folder and the command for it.
    use(monkeypatch, Hub('upload_folder'))
    results['step'] = 2
    (tmp_path / 'run' / 'results.json').write_text(json.dumps(results))
    with pytest.raises(UsageError, match=r'no route\); the folder is whole, .* hf upload org/name'):
        export(run, str(tmp_path / 'third'), push='org/name@v1')
    assert 'is of step 2: the card has no results of step 0.' in capsys.readouterr().out
    assert 'model-index' not in (tmp_path / 'third' / 'README.md').read_text()


def test_a_push_is_refused_before_a_folder_is_written(texts, host, tmp_path, monkeypatch):  # noqa: F811
    run = experiment(config_of(texts, host, start_from=host), tmp_path / 'run')
    out = str(tmp_path / 'out')
    for options, problem in (
        (dict(push='name'), '--push=name: a repository is ORG/NAME'),
        (dict(push='org/name', license='Apache 2.0'), '--license=Apache 2.0: give a name of the'),
        (dict(dry_run=True), '--dry_run, .* go with --push='),
    ):
        with pytest.raises(UsageError, match=problem):
            export(run, out, **options)
    with pytest.raises(UsageError, match='--license of a graft, go with --push='):
        export(run, graft=out, license='mit')
    monkeypatch.setitem(sys.modules, 'huggingface_hub', None)
    with pytest.raises(UsageError, match=r"--push=org/name needs .*'longmem_jax\[hosts\]'"):
        export(run, out, push='org/name')
    use(monkeypatch, Hub('whoami'))
    with pytest.raises(UsageError, match=r'whoami failed \(ConnectionError: no route\); log in'):
        export(run, out, push='org/name')
    assert not (tmp_path / 'out').exists()


@pytest.mark.parametrize(
    'data, expected',
    [
        (dict(source='huggingface', name='org/set,config:text'), ('org/set', 'org/set')),
        (dict(source='tfds', name='wmt14_translate/de-en'), ('wmt14_translate/de-en',) * 2),
        (dict(source='text', path='/home/me/My books'), ('text', 'My books')),
        (dict(source='copy'), ('copy', 'copy')),
    ],
)
def test_the_data_in_a_card_have_no_path(data, expected):
    found = _dataset(types.SimpleNamespace(**{'name': '', 'path': '', **data}))
    assert (found['type'], found['name']) == expected


def test_the_host_of_a_card_is_one_of_the_hub(host):
    assert _metadata('mit', host) == {'license': 'mit'}
    assert _metadata('', 'org/name@v1 + a.safetensors') == {'base_model': 'org/name'}


@pytest.mark.slow
def test_a_model_that_did_not_begin_with_a_host(texts, tmp_path, host):  # noqa: F811
    export(started(texts, host, tmp_path / 'run'), str(tmp_path / 'out'))
    found = hosts.find(tmp_path / 'out')
    assert 'longmem' not in found.attributes and found.attributes['model_type'] == 'gpt2'


def test_what_does_not_fit_is_said(texts, tmp_path, host):  # noqa: F811
    config = config_of(texts, host, start_from=host)
    with pytest.raises(UsageError, match='--folder= is missing'):
        export(experiment(config, tmp_path / 'a'), '')
    with pytest.raises(UsageError, match='no checkpoint there'):
        export(experiment(config, tmp_path / 'a'), str(tmp_path / 'out'))
    assert not (tmp_path / 'out').exists()


@pytest.mark.slow
def test_another_model_is_refused_before_training(texts, tmp_path, host):  # noqa: F811
    config = config_of(texts, host, start_from=host)
    config.model.dense.activation = 'relu'
    with pytest.raises(UsageError, match='config.model is another model:\n  dense = '):
        train(experiment(config, tmp_path / 'a'))
    config = config_of(texts, host, start_from=str(tmp_path / 'nowhere'))
    with pytest.raises(UsageError, match='no such file or folder'):
        train(experiment(config, tmp_path / 'b'))
