"""Memory files that were changed, made by others, or are to be written where they must not be."""

import os
import stat

import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

from longmem_jax.errors import UsageError
from longmem_jax.generation import memory_file
from longmem_jax.generation.reader import fresh_state
from longmem_jax.untrusted import tensor_file
from tests.toys import LENGTH, VOCAB, toy


@pytest.fixture(scope='module')
def saved(tmp_path_factory):
    """(bytes of a file, function that loads a file)."""
    model, params = toy('transformer_xl')
    fresh = fresh_state(model, params, 1)
    plain = model.config.to_dict() | {'segment_length': model.segment_length}
    path = tmp_path_factory.mktemp('state') / 'state'
    memory_file.save(path, fresh, np.asarray([[1, 2]]), plain, params)

    def load(given):
        return memory_file.load(given, fresh, plain, params)

    return path, load


def test_every_changed_bit_is_found(saved, tmp_path):
    path, load = saved
    whole = path.read_bytes()
    random = np.random.default_rng(0)
    header = int.from_bytes(whole[:8], 'little')
    # Everywhere, and with most tries where a flip would go into the memories.
    places = [*random.integers(0, 8 + header, 30), *random.integers(8 + header, len(whole), 30)]
    for place in places:
        bit = 1 << int(random.integers(8))
        changed = whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :]
        (tmp_path / 's').write_bytes(changed)
        try:
            state, pending = load(tmp_path / 's')
        except UsageError:
            continue
        # What may be loaded is only what is the same: names of fields in another order, white space.
        assert pending.tolist() == [[1, 2]], f'byte {place}'
        assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(state)), f'byte {place}'


def small(leaf):
    return leaf.astype(np.float16)


@pytest.mark.parametrize(
    'name, change, message',
    [
        ('pending', lambda leaf: -leaf, 'pending has -2; the least is 0'),
        ('pending', lambda leaf: leaf + VOCAB, f'the vocabulary has {VOCAB}'),
        ('pending', lambda leaf: leaf.astype(np.float32), 'pending is float32'),
        ('pending', lambda leaf: leaf[0], r'pending is int32 \[2\]'),
        ('pending', lambda leaf: np.repeat(leaf, 2, 0), r'pending is int32 \[2, 2\]'),
        ('pending', lambda leaf: np.zeros((1, LENGTH + 1), np.int32), 'pending is int32'),
        ('pending', lambda leaf: np.int32(3), r'pending is int32 \[\]'),
        ('pending', None, 'pending is missing'),
        ('count', lambda leaf: leaf - 5, 'count has -5; the least is 0'),
        ('count', None, 'count is missing'),
        ('hidden', lambda leaf: leaf * np.nan, 'hidden has numbers that are not finite'),
        ('hidden', lambda leaf: leaf + np.inf, 'hidden has numbers that are not finite'),
        (
            'hidden',
            small,
            r'hidden is float16 \[.*; float32 \[.* is needed by this model: write the',
        ),
        ('hidden', lambda leaf: leaf[:0], r'hidden is float32 \[0,'),
        ('hidden', lambda leaf: np.repeat(leaf, 3, 0), r'hidden is float32 \[3,'),
        ('other', lambda leaf: np.zeros(2), "has 'other', which this model does not have"),
    ],
)
def test_what_no_memory_has_is_refused(saved, tmp_path, name, change, message):
    """The file has the right checksum: it was made so."""
    path, load = saved
    arrays, metadata = tensor_file.read(path)
    del metadata[tensor_file.CHECKSUM]
    keys = [key for key in arrays if key.endswith(name)][:1] or [name]
    for key in keys:
        found = arrays.pop(key, None)
        arrays |= {key: change(found)} if change else {}
    tensor_file.write(tmp_path / 's', arrays, metadata)
    with pytest.raises(UsageError, match=message):
        load(tmp_path / 's')


@pytest.mark.parametrize(
    'changes, message',
    [
        (dict(model='{'), 'model: not JSON'),
        (dict(model='[1]'), 'must be an object'),
        (dict(model='[' * 9999), 'more than 64 levels'),
        (dict(model=None), 'model is missing'),
        (dict(parameters=None), 'parameters is missing'),
        (dict(format='longmem_jax state 3'), 'not a state written by'),
        (dict(sha256=None), 'sha256 is missing'),
        (dict(format='longmem_jax state 1', sha256=None), 'not a state written by'),
        (dict(sha256='0'), 'do not have the checksum'),
    ],
)
def test_metadata_are_not_trusted(saved, tmp_path, changes, message):
    path, load = saved
    arrays, metadata = tensor_file.read(path)
    given = {name: text for name, text in (metadata | changes).items() if text is not None}
    save_file(arrays, tmp_path / 's', given)
    with pytest.raises(UsageError, match=message):
        load(tmp_path / 's')


def test_a_memory_is_read_with_what_changes_no_number(tmp_path):
    """One written with fused kernels on a GPU, or by a run that kept less for its derivatives."""
    model, params = toy('transformer_xl')
    fresh, plain = fresh_state(model, params, 1), memory_file.described(model)
    other = plain | dict(kernels='fused', remat='nothing_saveable', loss_blocks=2)
    memory_file.save(tmp_path / 's', fresh, np.asarray([[1, 2]]), other, params)
    _, pending = memory_file.load(tmp_path / 's', fresh, plain, params)
    assert pending.tolist() == [[1, 2]]
    with pytest.raises(UsageError, match='d_model: .* there, 7 here'):
        memory_file.load(tmp_path / 's', fresh, plain | dict(d_model=7), params)


def test_only_regular_files_are_replaced_and_links_stay(tmp_path):
    model, params = toy('transformer_xl')
    fresh = fresh_state(model, params, 1)

    def save(path):
        return memory_file.save(path, fresh, np.zeros((1, 0)), model.config.to_dict(), params)

    os.mkfifo(tmp_path / 'pipe')
    (tmp_path / 'to_pipe').symlink_to(tmp_path / 'pipe')
    (tmp_path / 'circle').symlink_to(tmp_path / 'circle')
    (tmp_path / 'folder').mkdir()
    for name in ('pipe', 'to_pipe', 'folder', 'circle'):
        for check in (save, memory_file.require_writable):
            with pytest.raises(UsageError, match=f'--save_state=.*{name}'):
                check(tmp_path / name)
    assert stat.S_ISFIFO((tmp_path / 'pipe').stat().st_mode), 'the pipe was replaced'
    (tmp_path / 'folder' / 'file').write_text('old')
    for name, target in (('link', 'folder/file'), ('new_link', 'folder/new')):
        (tmp_path / name).symlink_to(tmp_path / target)
        assert save(tmp_path / name) == (tmp_path / target).stat().st_size > 3
        assert (tmp_path / name).is_symlink()
    assert sorted(path.name for path in (tmp_path / 'folder').iterdir()) == ['file', 'new']
