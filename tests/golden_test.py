"""All goldens agree with the authors' code to 1e-4 of the largest value."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.parity import compare

FOLDER = Path(__file__).parent / 'goldens'
FILES = sorted(FOLDER.glob('*/*.npz'))


@pytest.mark.slow
@pytest.mark.parametrize('path', FILES, ids=lambda path: f'{path.parent.name}/{path.stem}')
def test_golden(path):
    checked = 0
    for name, error, tolerance in compare(path):
        assert error <= tolerance, name
        checked += 1
    assert checked


def test_a_wrong_number_fails(tmp_path, monkeypatch):
    """The comparison itself can fail."""
    from tests import parity

    def wrong(settings, arrays):
        for name, ours, reference in parity.transformer_xl.check(settings, arrays):
            yield name, ours * 1.001, reference

    monkeypatch.setitem(parity.SYSTEMS, 'transformer_xl', wrong)
    path = next(path for path in FILES if path.parent.name == 'transformer_xl')
    assert any(error > tolerance for _, error, tolerance in compare(path))


def host_copy(name, tmp_path, **attributes):
    """The folder `hf` of a golden beside a file to be written, with other attributes."""
    shutil.copytree(FOLDER / name / 'hf', tmp_path / 'hf')
    given = json.loads((tmp_path / 'hf' / 'config.json').read_text()) | attributes
    (tmp_path / 'hf' / 'config.json').write_text(json.dumps(given))
    with np.load(FOLDER / name / 'caseA.npz') as file:
        return dict(file)


@pytest.mark.parametrize('changed', ['inputs', 'labels'])
def test_a_wrong_sample_of_mqar_fails(changed, tmp_path):
    with np.load(FOLDER / 'mqar/case_64x4.npz') as file:
        arrays = dict(file)
    arrays[changed][99, -1] += 1
    np.savez(tmp_path / 'case.npz', **arrays)
    errors = {name: error for name, error, tolerance in compare(tmp_path / 'case.npz')}
    assert errors == {f'{n}, differing': float(n == changed) for n in ('inputs', 'labels')}


@pytest.mark.slow
def test_a_text_may_be_longer_than_a_host_was_trained_for(tmp_path):
    """Rotary positions have no end: the reference sees all of it."""
    arrays = host_copy('llama', tmp_path, max_position_embeddings=16)
    assert arrays['in/tokens'].shape[1] > 16
    np.savez(tmp_path / 'caseA.npz', **arrays)
    for name, error, tolerance in compare(tmp_path / 'caseA.npz'):
        assert error <= tolerance, name


@pytest.mark.slow
def test_an_encoder_without_a_pooled_vector(tmp_path):
    arrays = host_copy('bert', tmp_path)
    path = tmp_path / 'hf' / 'model.safetensors'
    save_file({k: v for k, v in load_file(path).items() if 'pooler' not in k}, path)
    del arrays['out/pooled']
    weights = np.random.default_rng(0).normal(size=arrays['out/hidden_2'].shape)
    arrays['in/loss_weight'] = weights * arrays['in/attention_mask'][..., None]
    # The bias of the last norm is added to every output.
    bias = 'grad/encoder.layer.1.output.LayerNorm.bias'
    arrays[bias] = arrays['in/loss_weight'].sum((0, 1))
    np.savez(tmp_path / 'caseA.npz', **arrays)
    found = {name: error <= tolerance for name, error, tolerance in compare(tmp_path / 'caseA.npz')}
    assert bias in found and 'out/hidden_2' in found and all(found.values())
