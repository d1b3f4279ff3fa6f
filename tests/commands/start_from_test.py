"""A run that starts from another run's parameters, with a new memory or another memory size."""

import json
import shutil

import jax
import numpy as np
import pytest

from longmem_jax.commands.train import train
from longmem_jax.config.recipes import given, use
from longmem_jax.errors import UsageError
from longmem_jax.training.checkpoint import FORMAT
from tests.commands.train_test import experiment, small_config, texts  # noqa: F401  (a fixture)

pytestmark = pytest.mark.slow  # whole runs of the command


def config_of(texts, size, **changes):  # noqa: F811
    config = small_config(texts)
    local = dict(memory_length=16, scale_init=1.0)
    if size:
        memory = given(
            attention=('memorizing',), memory_size=size, block_size=8192, top_k=4, **local
        )
        use(config, 'memorizing', memory)
    else:
        use(config, 'normalized_xl', given(**local))
    config.train.num_steps, config.checkpoint.every = 2, 2
    config.train.update(changes)
    return config


@pytest.fixture(scope='module')
def start(texts, tmp_path_factory):  # noqa: F811
    """The folder of a run without a memory."""
    folder = tmp_path_factory.mktemp('none')
    train(experiment(config_of(texts, 0), folder))
    return str(folder)


def test_a_memory_is_added_and_grows(texts, tmp_path, capsys, start):  # noqa: F811
    capsys.readouterr()
    added = experiment(config_of(texts, 32, start_from=start), tmp_path / 'added')
    train(added)
    said = ' '.join(capsys.readouterr().out.split())
    assert f'Began with the parameters of {start}; new: block_0/attention/gate.' in said
    grown = experiment(
        config_of(texts, 96, start_from=str(tmp_path / 'added'), num_steps=4), tmp_path / 'grown'
    )
    before, _ = added.restore_parameters()
    grown.config.optimizer.learning_rate = 0.0
    train(grown)
    assert '; new:' not in capsys.readouterr().out
    after, _ = grown.restore_parameters()
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        np.testing.assert_array_equal(old, new)


def test_another_start_of_a_run_that_goes_on_is_said(texts, tmp_path, capsys, start):  # noqa: F811
    """Nothing is read there: its parameters come from the checkpoint."""
    train(experiment(config_of(texts, 0, start_from=start), tmp_path / 'run'))
    capsys.readouterr()
    train(experiment(config_of(texts, 0, start_from='other', num_steps=3), tmp_path / 'run'))
    said = ' '.join(capsys.readouterr().out.split())
    assert f"config.train.start_from: '{start}' in the checkpoint, 'other' given" in said


def test_what_does_not_fit_is_said(texts, tmp_path, start):  # noqa: F811
    with pytest.raises(UsageError, match='there is no config.json'):
        train(experiment(config_of(texts, 0, start_from=str(tmp_path)), tmp_path / 'a'))
    wider = config_of(texts, 0, start_from=start)
    wider.model.d_feed_forward = 64
    with pytest.raises(UsageError, match=r"shape \(48, 32\), this model's has \(64, 32\)"):
        train(experiment(wider, tmp_path / 'b'))
    words = config_of(texts, 0, start_from=start)
    words.data.tokenizer.update(kind='words', size=20)
    with pytest.raises(UsageError, match='another vocabulary'):
        train(experiment(words, tmp_path / 'c'))


def test_a_run_of_an_earlier_version_is_refused_in_one_line(texts, tmp_path, start):  # noqa: F811
    """An old config lacks fields and an old checkpoint has no format; neither gives a traceback."""
    old = shutil.copytree(start, tmp_path / 'old')
    config = json.loads((old / 'config.json').read_text())
    del config['model']['num_kv_heads']
    (old / 'config.json').write_text(json.dumps(config))
    saved = list((old / 'checkpoints').glob('*/identity/metadata'))
    assert saved, 'Orbax keeps the identity of a checkpoint elsewhere now'
    for path in saved:
        identity = json.loads(path.read_text())
        assert identity.pop('format') == FORMAT
        path.write_text(json.dumps(identity))
    with pytest.raises(UsageError, match='made by an earlier version') as caught:
        train(experiment(config_of(texts, 0, start_from=str(old)), tmp_path / 'new'))
    assert '\n' not in str(caught.value)
