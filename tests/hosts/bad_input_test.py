"""Files that are broken, hostile, or of another model: one clear error each."""

import json
import pickle
import struct
import sys
import types

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from longmem_jax.errors import UsageError
from longmem_jax.hosts import hosts
from tests.hosts.hosts_test import copied, folder_of, load

INDEX = 'model.safetensors.index.json'


def refused(folder, message):
    """The one error that loading a folder gives, without a traceback of another kind."""
    before = {path: path.read_bytes() for path in folder.rglob('*') if path.is_file()}
    with pytest.raises(UsageError) as error:
        load(folder)
    assert message in str(error.value), error.value
    assert str(folder) in str(error.value) and len(str(error.value)) < 600
    assert before == {path: path.read_bytes() for path in folder.rglob('*') if path.is_file()}


def without(name):
    return lambda tensors: {key: value for key, value in tensors.items() if key != name}


@pytest.mark.parametrize(
    'changed, message',
    [
        (without('transformer.ln_f.bias'), 'missing are ln_f.bias'),
        (without('transformer.h.1.attn.c_attn.weight'), 'missing are h.1.attn.c_attn.weight'),
        (
            lambda tensors: tensors | {'score.weight': np.ones((2, 32), np.float32)},
            'not of this model are score.weight',
        ),
        (
            lambda tensors: tensors | {'longmem.block_0.gate': np.ones(2, np.float32)},
            'not of this model are longmem.block_0.gate',
        ),
        (
            lambda tensors: tensors | {'transformer.ln_f.bias': np.ones(31, np.float32)},
            'transformer.ln_f.bias is (31,), by config.json (32,)',
        ),
        (
            lambda tensors: tensors | {'transformer.ln_f.bias': np.ones(32, np.int8)},
            'transformer.ln_f.bias is of type I8',
        ),
    ],
)
def test_tensors_of_another_model(changed, message, tmp_path):
    refused(copied('gpt2', tmp_path, changed), message)


@pytest.mark.parametrize(
    'changes, message',
    [
        (dict(vocab_size=70), 'transformer.wte.weight is (61, 32), by config.json (70, 32)'),
        (dict(vocab_size=10**9), 'by config.json (1000000000, 32)'),
        (dict(n_inner=2**30), 'by config.json (32, 1073741824)'),
        (dict(vocab_size=10**15), 'vocab_size = 1000000000000000: at most 1073741824'),
        (dict(n_layer=3), 'missing are h.2.attn.c_attn.bias'),
        (dict(n_layer=1), 'not of this model are transformer.h.1.'),
        (dict(n_layer=10**9), 'at most 4096 are supported'),
        (dict(n_positions=16), 'transformer.wpe.weight is (32, 32)'),
        (dict(longmem=3), 'longmem must have model'),
        (dict(longmem=dict(model=dict(num_layers=2, secret=1))), 'secret: not fields'),
        (dict(longmem=dict(model=dict(num_layers='x'))), 'longmem.model cannot be read'),
        (dict(longmem=dict(model=dict(attention=['none'] * 2))), 'longmem.model has problems'),
    ],
)
def test_a_config_of_another_model(changes, message, tmp_path):
    refused(copied('gpt2', tmp_path, **changes), message)


def header(content):
    encoded = json.dumps(content).encode()
    return struct.pack('<Q', len(encoded)) + encoded


def tensor(start, stop, shape=(4,), dtype='F32'):
    return dict(dtype=dtype, shape=shape, data_offsets=[start, stop])


@pytest.mark.parametrize(
    'content',
    [
        b'',
        b'\x00' * 7,
        struct.pack('<Q', 2**63),
        struct.pack('<Q', 10) + b'{}',
        struct.pack('<Q', 2) + b'[]',
        struct.pack('<Q', 3) + b'{x}',
        header({'a': tensor(0, 16)}) + b'\x00' * 15,
        header({'a': tensor(0, 16)}) + b'\x00' * 17,
        header({'a': tensor(0, 2**62, (2**60,))}) + b'\x00' * 16,
        header({'a': tensor(16, 0)}) + b'\x00' * 16,
        header({'a': tensor(0, 16), 'b': tensor(8, 24)}) + b'\x00' * 24,
        header({'a': tensor(0, 16, (5,))}) + b'\x00' * 16,
        header({'a': tensor(0, 16, (2**62, 2**62))}) + b'\x00' * 16,
        header({'a': tensor(0, 16, dtype='PY')}) + b'\x00' * 16,
    ],
)
def test_broken_and_hostile_files(content, tmp_path):
    folder = copied('gpt2', tmp_path)
    (folder / 'model.safetensors').write_bytes(content)
    refused(folder, 'not a whole safetensors file')


def test_a_truncated_file(tmp_path):
    folder = copied('gpt2', tmp_path)
    path = folder / 'model.safetensors'
    path.write_bytes(path.read_bytes()[:-1])
    refused(folder, 'not a whole safetensors file')


class Trap:
    def __reduce__(self):
        return pytest.fail, ('a pickle was loaded',)


@pytest.mark.parametrize('protocol', [2, 4, 5])
def test_pickles_are_never_loaded(protocol, tmp_path):
    content = pickle.dumps(Trap(), protocol)
    folder = copied('gpt2', tmp_path)
    (folder / 'model.safetensors').write_bytes(content)
    refused(folder, 'a pickle, which can run any program')
    (folder / 'model.safetensors').write_bytes(b'PK\x03\x04' + content)
    refused(folder, 'a pickle, which can run any program')
    (folder / 'model.safetensors').unlink()
    (folder / 'pytorch_model.bin').write_bytes(content)
    refused(folder, 'pytorch_model.bin: a pickle, which can run any program')
    (folder / 'pytorch_model.bin').unlink()
    refused(folder, 'has neither model.safetensors nor')


@pytest.mark.parametrize(
    'content, message',
    [
        (b'{', 'not JSON'),
        (b'\xff\xfe{}', 'not JSON'),
        (b'[' * 100_000, 'not JSON'),
        (b'[1]', 'must be an object'),
        (b'{"model_type": ["gpt2"]}', 'model_type'),
        (b'{"model_type": "gpt2", "vocab_size": NaN}', 'vocab_size'),
        (b'{"model": {}, "train": {}}', 'the workdir of a run; give the folder that --mode=export'),
        (None, 'has no config.json'),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_a_config_that_cannot_be_read(content, message, tmp_path):
    folder = copied('gpt2', tmp_path)
    if content is None:
        (folder / 'config.json').unlink()
    else:
        (folder / 'config.json').write_bytes(content)
    refused(folder, message)


@pytest.mark.parametrize(
    'changed, message',
    [
        (lambda given: [], 'not an index of safetensors'),
        (lambda given: {'weight_map': []}, 'not an index of safetensors'),
        (lambda given: {'weight_map': {}}, 'names no tensors'),
        (lambda given: {'weight_map': {'a': 3}}, 'not an index of safetensors'),
        (
            lambda given: {'weight_map': {'a': '../secret.safetensors'}},
            'is not a safetensors file here',
        ),
        (lambda given: {'weight_map': {'a': '/etc/passwd'}}, 'is not a safetensors file here'),
        (lambda given: {'weight_map': {'a': 'config.json'}}, 'is not a safetensors file here'),
        (
            lambda given: given['weight_map'].pop('model.norm.weight') and given,
            "has 'model.norm.weight', which",
        ),
        (
            lambda given: given['weight_map'].update(x='model-00001-of-00002.safetensors') or given,
            'names tensors that no file has: x',
        ),
    ],
)
def test_an_index_that_is_wrong(changed, message, tmp_path):
    folder = copied('qwen2', tmp_path)
    given = json.loads((folder / INDEX).read_text())
    (folder / INDEX).write_text(json.dumps(changed(given)))
    refused(folder, message)


def test_a_part_is_missing(tmp_path):
    folder = copied('qwen2', tmp_path)
    (folder / 'model-00002-of-00002.safetensors').unlink()
    refused(folder, "'model-00002-of-00002.safetensors', which is not a safetensors file here")


@pytest.mark.parametrize('name', ['../gpt2', '/nowhere', 'a/b/c', '~nobody/x', 'a b', ''])
def test_what_is_no_name(name):
    with pytest.raises(UsageError):
        hosts.find(name)


def test_names_without_the_library_or_network(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, 'huggingface_hub', None)
    with pytest.raises(UsageError, match=r"pip install 'longmem_jax\[hosts\]'"):
        hosts.find('org/name')

    def fails(name, **_):
        raise ConnectionError('no route\nto the host')

    library = types.SimpleNamespace(snapshot_download=fails)
    monkeypatch.setitem(sys.modules, 'huggingface_hub', library)
    with pytest.raises(
        UsageError, match=r'ConnectionError: no route\). Without network, give a fo'
    ):
        hosts.find('org/name')
    library.snapshot_download = lambda name, **_: folder_of('gpt2')
    assert hosts.find('org/name').model.num_layers == 2


def test_weights_in_several_dtypes_load(tmp_path):
    """What is not broken is not refused: a norm in float32 among weights in half precision."""
    folder = copied('llama', tmp_path)
    tensors = load_file(folder / 'model.safetensors')
    half = {name: value.astype(np.float16) for name, value in tensors.items() if 'norm' not in name}
    save_file(tensors | half, folder / 'model.safetensors')
    host, _, _ = load(folder)
    assert {*host.files.dtypes.values()} == {'F16', 'F32'}
