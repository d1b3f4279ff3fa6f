"""A checkpoint of the authors is imported, evaluated and trained further."""

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
from longmem_jax.released import transformer_sequential, transformer_xl

pytestmark = pytest.mark.slow  # whole runs of the command

GOLDENS = Path(__file__).parent.parent / 'goldens'
GOLDEN = GOLDENS / 'transformer_xl' / 'caseA_adaptive.npz'


def config_of(model, folder, length):
    """A configuration of that model, on a few words in a folder."""
    config = base()
    config.model = model
    for split in ('train', 'validation', 'test'):
        (folder / f'{split}.txt').write_text('abc def ghi\n' * 9)
    config.data.path = str(folder)
    config.data.tokenizer.kind = 'characters'
    config.train.segment_length = config.evaluate.segment_length = length
    config.train.num_lanes = config.evaluate.num_lanes = 2
    return config


def make_experiment(model, tmp_path, length):
    """An experiment with that model, on a few words."""
    config = config_of(model, tmp_path, length)
    workdir = tmp_path / 'run'
    workdir.mkdir()
    mesh = sharding.make_mesh(dict(data=1), jax.devices()[:1])
    return Experiment(config, workdir, mesh)


def write_golden(folder):
    """Writes `weights` and `settings` of the golden model; returns its arrays and its configuration."""
    with np.load(GOLDEN) as file:
        arrays = {name: file[name] for name in file.files}
    settings = json.loads(str(arrays['config_json']))
    theirs = {n[6:]: v for n, v in arrays.items() if n.startswith('param/')}
    # A state_dict also contains a buffer and the tied copies.
    theirs['pos_emb.inv_freq'] = np.ones((12,), np.float32)
    theirs['crit.out_layers.0.weight'] = theirs['word_emb.emb_layers.0.weight']
    save_file(theirs, folder / 'weights')
    (folder / 'settings').write_text(json.dumps(settings))
    model = transformer_xl.model_config(settings)
    model.transformer_xl.memory_length = 14  # free to choose
    return arrays, model


@pytest.fixture
def imported(tmp_path):
    """(experiment, weights file, settings file, arrays) of the golden model."""
    arrays, model = write_golden(tmp_path)
    experiment = make_experiment(model, tmp_path, 6)
    return experiment, tmp_path / 'weights', tmp_path / 'settings', arrays


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
    with pytest.raises(UsageError, match='already has checkpoints'):
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
    with pytest.raises(UsageError, match='not JSON'):
        import_checkpoint(experiment, weights, settings)


def test_missing_and_unknown_names_are_listed(imported):
    with np.load(GOLDEN) as file:
        theirs = {n[6:]: file[n] for n in file.files if n.startswith('param/')}
    model = imported[0].config.model
    theirs['other'] = theirs.pop('r_w_bias')
    with pytest.raises(UsageError, match=r"missing \['r_w_bias'\], unknown \['other'\]"):
        transformer_xl.import_parameters(theirs, model)


@pytest.mark.parametrize('system', ['expire_span', 'adaptive_span', 'compressive_mean'])
def test_models_of_transformer_sequential_are_imported(system, tmp_path):
    with np.load(GOLDENS / system / 'caseA.npz') as file:
        arrays = {name: file[name] for name in file.files}
    arguments = json.loads(str(arrays['config_json']))
    theirs = {n[6:]: v for n, v in arrays.items() if n.startswith('param/')}
    weights, settings = tmp_path / 'weights', tmp_path / 'settings'
    save_file({f'module.{name}': value for name, value in theirs.items()}, weights)
    settings.write_text(json.dumps(arguments))
    model = transformer_sequential.model_config(arguments, system.removesuffix('_mean'))
    model.dropout = 0.1  # free to choose
    experiment = make_experiment(model, tmp_path, arguments['mem_sz'])
    import_checkpoint(experiment, weights, settings)
    params, step = experiment.restore_parameters()
    assert step == 0
    np.testing.assert_array_equal(
        params['block_1']['feed_forward']['up']['kernel'].T, theirs['layers.1.ff.fc1.weight']
    )
    settings.write_text(json.dumps(arguments | {'inner_hid_sz': 48}))
    with pytest.raises(UsageError, match='d_feed_forward: 48'):
        import_checkpoint(experiment, weights, settings)
    settings.write_text(json.dumps({n: v for n, v in arguments.items() if n != 'hid_sz'}))
    with pytest.raises(UsageError, match="the argument 'hid_sz' is missing"):
        import_checkpoint(experiment, weights, settings)
    settings.write_text(json.dumps(arguments))
    save_file({n: v for n, v in theirs.items() if n != 'layers.1.ff.fc1.weight'}, weights)
    with pytest.raises(
        UsageError, match=r'feed_forward/up/kernel: nothing in the file, \(24, 40\)'
    ):
        import_checkpoint(experiment, weights, settings)


def test_layers_without_a_known_format_are_refused(imported):
    experiment, weights, settings, _ = imported
    experiment.config.model.attention = ('local', 'local')
    with pytest.raises(UsageError, match='transformer_xl, adaptive_span, compressive, expire_span'):
        import_checkpoint(experiment, weights, settings)
