"""A checkpoint of the authors, as a file, becomes ours and is evaluated and trained on."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

from longmem_jax.commands.import_checkpoint import import_checkpoint
from longmem_jax.config.base import base
from longmem_jax.devices import sharding
from longmem_jax.errors import UsageError
from longmem_jax.experiment import Experiment
from longmem_jax.pretrained import transformer_xl

GOLDEN = Path(__file__).parent.parent / 'goldens' / 'transformer_xl' / 'caseA_adaptive.npz'


@pytest.fixture
def imported(tmp_path):
    """(experiment, weights file, settings file, arrays) of the golden model."""
    with np.load(GOLDEN) as file:
        arrays = {name: file[name] for name in file.files}
    settings = json.loads(str(arrays['config_json']))
    theirs = {n[6:]: v for n, v in arrays.items() if n.startswith('param/')}
    # What a state_dict holds besides: a buffer, and the tied copies.
    theirs['pos_emb.inv_freq'] = np.ones((12,), np.float32)
    theirs['crit.out_layers.0.weight'] = theirs['word_emb.emb_layers.0.weight']
    save_file(theirs, tmp_path / 'weights')
    (tmp_path / 'settings').write_text(json.dumps(settings))
    config = base()
    config.model = transformer_xl.model_config(settings)
    config.model.transformer_xl.memory_length = 14  # free to choose
    for split in ('train', 'validation', 'test'):
        (tmp_path / f'{split}.txt').write_text('abc def ghi\n' * 9)
    config.data.path = str(tmp_path)
    config.data.tokenizer.kind = 'characters'
    config.train.segment_length = config.evaluate.segment_length = 6
    config.train.num_lanes = config.evaluate.num_lanes = 2
    workdir = tmp_path / 'run'
    workdir.mkdir()
    mesh = sharding.make_mesh(dict(data=1), jax.devices()[:1])
    return Experiment(config, workdir, mesh), tmp_path / 'weights', tmp_path / 'settings', arrays


def test_imported_parameters_are_restored(imported):
    experiment, weights, settings, arrays = imported
    import_checkpoint(experiment, weights, settings)
    params, step = experiment.restore_parameters()
    assert step == 0
    np.testing.assert_array_equal(
        params['shared_transformer_xl']['content'], arrays['param/r_w_bias']
    )
    kernel = params['block_1']['feed_forward']['up']['kernel']
    np.testing.assert_array_equal(kernel.T, arrays['param/layers.1.pos_ff.CoreNet.0.weight'])
    with pytest.raises(UsageError, match='has checkpoints already'):
        import_checkpoint(experiment, weights, settings)


def test_another_model_is_refused(imported):
    experiment, weights, settings, _ = imported
    given = json.loads(settings.read_text())
    settings.write_text(json.dumps(given | {'d_inner': 48}))
    with pytest.raises(UsageError, match='d_feed_forward: 48'):
        import_checkpoint(experiment, weights, settings)
    settings.write_text(json.dumps(given | {'attn_type': 1}))
    with pytest.raises(UsageError, match='attn_type 0'):
        import_checkpoint(experiment, weights, settings)
    settings.write_text('{')
    with pytest.raises(UsageError, match='cannot be read'):
        import_checkpoint(experiment, weights, settings)


def test_missing_and_unknown_names_are_listed(imported):
    with np.load(GOLDEN) as file:
        theirs = {n[6:]: file[n] for n in file.files if n.startswith('param/')}
    model = imported[0].config.model
    theirs['other'] = theirs.pop('r_w_bias')
    with pytest.raises(UsageError, match=r"missing \['r_w_bias'\], unknown \['other'\]"):
        transformer_xl.import_parameters(theirs, model)
