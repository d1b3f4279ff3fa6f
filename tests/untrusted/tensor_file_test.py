"""Safetensors of others: headers that lie, and files that change while they are read."""

import json
import os

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from longmem_jax.errors import UsageError
from longmem_jax.untrusted import tensor_file

ARRAYS = {
    'a': np.arange(6, dtype=np.float32).reshape(2, 3),
    'b': np.asarray(jnp.ones((2,), jnp.bfloat16)),
    'c': np.asarray(3, np.int32),
    'd': np.zeros((0, 4), np.int64),
    'e': np.asarray([True, False]),
}


def written(path, header, data=bytes(16), length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    length = len(text) if length is None else length
    path.write_bytes(length.to_bytes(8, 'little') + text + data)
    return path


def entry(dtype='F32', shape=(4,), at=(0, 16)):
    return dict(dtype=dtype, shape=list(shape), data_offsets=list(at))


def test_what_is_written_is_read_and_by_the_library_too(tmp_path):
    tensor_file.write(tmp_path / 'f', ARRAYS | {'t': ARRAYS['a'].T}, {'x': 'y'})
    arrays, metadata = tensor_file.read(tmp_path / 'f')
    assert metadata['x'] == 'y' and len(metadata['sha256']) == 64
    for name, array in (ARRAYS | {'t': ARRAYS['a'].T}).items():
        assert arrays[name].dtype == array.dtype and arrays[name].shape == array.shape
        np.testing.assert_array_equal(arrays[name], array)
    np.testing.assert_array_equal(load_file(tmp_path / 'f')['a'], ARRAYS['a'])


@pytest.mark.parametrize(
    'header, message',
    [
        ({'a': entry(at=(0, 17))}, 'is at 0:17'),
        ({'a': entry(at=(1, 17))}, 'is at 1:17'),
        ({'a': entry(at=(16, 0))}, 'is at 16:0'),
        ({'a': entry(at=(0, 12), shape=(3,))}, 'by its header'),
        ({'a': entry(at=(0, 32), shape=(8,))}, 'by its header'),
        ({'a': entry(), 'b': entry()}, 'is at 0:16'),
        ({'a': entry(shape=(-4,))}, r'a.shape\[0\] = -4'),
        ({'a': entry(shape=(4.0,))}, r'a.shape\[0\] = 4.0'),
        ({'a': entry(shape=(2**40, 2**40, 0), at=(0, 0))}, 'has the shape'),
        ({'a': entry(shape=(1,) * 99)}, 'a list of 0 to 16 items'),
        ({'a': entry(shape=(2**62, 2**62))}, r'a.shape\[0\]'),
        ({'a': entry(dtype='O')}, "is of type 'O'"),
        ({'a': entry(dtype=3)}, 'a.dtype = 3'),
        ({'a': dict(dtype='F32', shape=[4])}, 'a.data_offsets is missing'),
        ({'a': entry() | dict(more=1)}, 'a.more is not a name here'),
        ({'a': 3}, 'a = 3: must be an object'),
        ({'__metadata__': {'x': 3}, 'a': entry()}, 'x = 3: must be text'),
        ({'__metadata__': 3, 'a': entry()}, 'it = 3: must be an object'),
        ([], 'must be an object'),
        (b'{', 'not JSON'),
        (b'[' * 9999, 'levels'),
        (b'{"a": {}, "a": {}}', 'twice'),
        ({}, 'by its header'),
    ],
)
def test_headers_that_lie(header, message, tmp_path):
    path = written(tmp_path / 'f', header)
    for read in (tensor_file.read, tensor_file.read_header):
        with pytest.raises(UsageError, match=f'f: not a whole safetensors file.*{message}'):
            read(path)


@pytest.mark.parametrize('length', [2**64 - 1, 2**62, 10**9, 200])
def test_a_header_longer_than_the_file(length, tmp_path):
    path = written(tmp_path / 'f', {'a': entry()}, length=length)
    with pytest.raises(UsageError, match='a header of'):
        tensor_file.read(path)


def test_truth_values_are_0_or_1(tmp_path):
    path = written(tmp_path / 'f', {'a': entry('BOOL', (2,), (0, 2))}, b'\1\2')
    with pytest.raises(UsageError, match='neither 0 nor 1'):
        tensor_file.read(path)


def test_every_flipped_bit_of_a_tensor_is_found(tmp_path):
    tensor_file.write(tmp_path / 'f', ARRAYS, {})
    whole = (tmp_path / 'f').read_bytes()
    first = 8 + int.from_bytes(whole[:8], 'little')
    for at in range(first, len(whole)):
        (tmp_path / 'f').write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(UsageError, match='not a whole safetensors file'):
            tensor_file.read(tmp_path / 'f')
    (tmp_path / 'f').write_bytes(whole[:-1])
    with pytest.raises(UsageError, match='by its header'):
        tensor_file.read(tmp_path / 'f')


def test_a_file_that_becomes_shorter_while_it_is_read(tmp_path, monkeypatch):
    """A memory map would end the process here."""
    tensor_file.write(tmp_path / 'f', ARRAYS, {})
    header = tensor_file._header

    def then_shorter(file, where):
        found = header(file, where)
        os.truncate(tmp_path / 'f', 20)
        return found

    monkeypatch.setattr(tensor_file, '_header', then_shorter)
    with pytest.raises(UsageError, match='it ends early'):
        tensor_file.read(tmp_path / 'f')


def test_what_is_no_file(tmp_path):
    os.mkfifo(tmp_path / 'pipe')
    for name in ('pipe', 'none', '.', 'a\0b'):
        with pytest.raises(UsageError, match='where: cannot be read'):
            tensor_file.read(tmp_path / name, 'where')


def test_numbers_that_are_not_finite(tmp_path):
    for array in (
        np.asarray([np.nan], np.float16),
        np.asarray(jnp.asarray([jnp.inf], jnp.bfloat16)),
    ):
        with pytest.raises(UsageError, match='F: a has numbers that are not finite'):
            tensor_file.require_finite({'a': array}, 'F')
    tensor_file.require_finite(ARRAYS, 'F')
