"""BLiMP as a user sees it: tables of a run, over its checkpoints."""

import json

import jax
import numpy as np
import pytest

from experiments.hosts.blimp import blimp
from longmem_jax.commands.train import train
from longmem_jax.errors import UsageError
from longmem_jax.evaluation.likelihood import Likelihood
from tests.commands.train_test import experiment, small_config, texts  # noqa: F401

pytestmark = pytest.mark.slow  # whole runs of the command


def paradigm(folder, name, field, good, bad):
    line = dict(UID=name, field=field, linguistics_term=name, sentence_good=good, sentence_bad=bad)
    (folder / f'{name}.jsonl').write_text((json.dumps(line) + '\n') * 3)


@pytest.fixture(scope='module')
def trained(texts, tmp_path_factory):  # noqa: F811
    config = small_config(texts)
    config.train.num_steps = config.train.evaluate_every = 60
    config.optimizer.learning_rate = 1e-2
    config.checkpoint.every, config.checkpoint.keep = 30, 5
    run = experiment(config, tmp_path_factory.mktemp('run'))
    train(run)
    return run


def test_all_checkpoints_of_a_run(trained, tmp_path, capsys, made_figures, monkeypatch):
    made = []

    def remember(*arguments):
        made.append(Likelihood(*arguments))
        return made[-1]

    monkeypatch.setattr('experiments.hosts.blimp.Likelihood', remember)
    paradigm(tmp_path, 'words', 'syntax', 'alpha beta', 'alpha zzzz')
    paradigm(tmp_path, 'reversed', 'semantics', 'gamma zzzz', 'gamma beta')
    rows = blimp(trained, str(tmp_path), checkpoints='all', num_pairs=2)
    out = capsys.readouterr().out
    assert [row['step'] for row in rows] == [30, 60]
    (likelihood,) = made  # so that nothing is compiled again for the next checkpoint
    last, _ = trained.restore_parameters(60)
    jax.tree.map(np.testing.assert_array_equal, likelihood.reader.params, last)
    # Words of the training text are likelier, whatever is called acceptable.
    assert rows[-1]['paradigm']['words']['accuracy'] == 1
    assert rows[-1]['field'] == {'semantics': 0, 'syntax': 1}
    assert rows[-1]['overall'] == {'paradigms': 0.5, 'phenomena': 0.5}
    assert 'Note: 2 of the 67 paradigms' in out and 'By field' in out
    found = json.loads((trained.workdir / 'blimp.json').read_text())
    assert found['checkpoints'] == rows
    assert (
        'empty before every sentence' in found['protocol'] and '4 pairs of 2' in found['protocol']
    )
    (axes,) = made_figures[-1].axes
    drawn = {line.get_label(): line.get_xydata().tolist() for line in axes.lines}
    assert drawn['syntax'] == [[30, 100 * rows[0]['field']['syntax']], [60, 100]]
    assert (trained.workdir / 'blimp.png').exists()


def test_the_newest_checkpoint_alone(trained, tmp_path):
    paradigm(tmp_path, 'words', 'syntax', 'alpha beta', 'alpha zzzz')
    (row,) = blimp(trained, str(tmp_path))
    assert row['step'] == 60 and row['paradigm']['words']['pairs'] == 3


def test_a_checkpoint_that_is_not_there(trained):
    with pytest.raises(UsageError, match='no checkpoint of step 7; there are 30, 60'):
        trained.restore_parameters(7)
