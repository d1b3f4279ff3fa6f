"""A run that begins with a host, and is written as one: `--mode=export`."""

import jax
import numpy as np
import pytest

from longmem_jax.commands.train import train
from longmem_jax.config import checks
from longmem_jax.config.recipes import section
from longmem_jax.errors import UsageError
from longmem_jax.hosts import export as writing
from longmem_jax.hosts import hosts, model_fields
from longmem_jax.hosts.commands.export import export
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
    assert 'Trained for 2 steps' in card and 'bits_per_byte' in card and '`infini`' in card
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


@pytest.mark.slow
def test_a_model_that_did_not_begin_with_a_host(texts, tmp_path, host):  # noqa: F811
    config = config_of(texts, host, start_from='')
    config.model.full.window = 32
    run = experiment(config, tmp_path / 'run')
    saver = run.checkpointer(print, run.going_on())
    start = jax.jit(run.make_state, out_shardings=run.state_shardings)()
    saver.maybe_save(0, start, force=True)
    saver.close()
    export(run, str(tmp_path / 'out'))
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
    with pytest.raises(UsageError, match='no such folder'):
        train(experiment(config, tmp_path / 'b'))
