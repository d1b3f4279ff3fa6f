"""Folders that hold no datastore, or one that must not be trusted."""

import contextlib
import json
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from longmem_jax.config.base import base
from longmem_jax.errors import UsageError, disk_errors
from longmem_jax.retrieval import build_datastore, settings, verified
from longmem_jax.retrieval.datastore import CONTEXT, Datastore, read_manifest
from longmem_jax.retrieval.own_document import _place
from longmem_jax.retrieval.spalm_lists import Lists
from longmem_jax.workdir import Hold
from tests.retrieval.stores import write_store


@pytest.fixture
def folder(tmp_path):
    """A datastore of 6 keys of width 4."""
    folder = tmp_path / 'store'
    write_store(folder, np.ones((6, 4), np.float32), np.zeros((6,)))
    (folder / verified.NAME).unlink()
    return folder


def changed(folder, **changes):
    manifest = json.loads((folder / 'manifest.json').read_text())
    (folder / 'manifest.json').write_text(json.dumps(manifest | changes))


def test_a_folder_without_a_datastore_is_named_as_it_was_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"datastore = '': a folder is needed; make one with"):
        read_manifest(Path(''))
    with pytest.raises(UsageError, match=r'datastore = store \(.*\): no datastore there; make one'):
        read_manifest(Path('store'))


@pytest.mark.parametrize(
    'place, message',
    [('store', "= '.*store': is in config.data.path"), ('file', 'is a file; give the folder')],
)
def test_a_folder_that_cannot_be_written_or_is_read_as_texts_is_refused(tmp_path, place, message):
    texts = tmp_path / 'texts'
    texts.mkdir()
    (tmp_path / 'file').touch()
    config = base('retrieval')
    config.data.source, config.data.path = 'text', str(texts)
    config.retrieval.datastore = str(tmp_path / place if place == 'file' else texts / place)
    with pytest.raises(UsageError, match=message):
        build_datastore.build(SimpleNamespace(config=config))
    assert not any(texts.iterdir())


def test_a_datastore_that_was_made_otherwise_is_refused_with_what_differs(folder):
    made = {'dtype': 'float32', 'source': {'split': 'train', 'context': 32, 'path': 'texts'}}
    changed(folder, **made)
    manifest = read_manifest(folder)
    build_datastore._require_alike(folder, manifest, made)
    other = made | {'dtype': 'float16', 'source': made['source'] | {'split': 'test'}}
    message = r'\(dtype: float32 there, float16 here; split: train there, test here\); use another'
    with pytest.raises(UsageError, match=message):
        build_datastore._require_alike(folder, manifest, other)


@pytest.mark.parametrize('name', ['tune_tokens', 'report_tokens'])
def test_negative_numbers_of_tokens_are_refused(name):
    config = base('retrieval')
    assert not settings.check(config)
    config.retrieval[name] = -1
    assert settings.check(config) == [f'config.retrieval.{name} = -1: must be at least 0']


def test_a_full_disk_is_named(folder):
    builder = build_datastore._Builder(folder, read_manifest(folder))
    with open('/dev/full', 'wb', buffering=0) as full:
        builder._files = dict.fromkeys(builder._arrays, full)
        one = np.ones((1, 1, 1), np.int32)
        part = SimpleNamespace(
            counted=one.astype(bool),
            keys=np.ones((1, 1, 1, 4), np.float16),
            targets=one,
            documents=one[0],
        )
        with pytest.raises(UsageError, match='keys.00.*No space left on device'), disk_errors():
            builder.add(part, np.ones((1, 1, 1, CONTEXT), np.int32))


SHARD = dict(count=6, sha256=dict.fromkeys(('keys', 'values', 'documents', 'contexts'), 'a' * 64))


@pytest.mark.parametrize(
    'changes, message',
    [
        (dict(dtype='O'), "dtype = 'O': must be 'float16' or 'float32'"),
        (dict(dtype='float64'), "dtype = 'float64'"),
        (dict(dtype=['O']), 'dtype = '),
        (dict(identity=dict(width=-4)), 'identity.width = -4'),
        (dict(identity=dict(width=4.0)), 'identity.width = 4.0'),
        (dict(identity=[]), r'identity = \[\]: must be an object'),
        (dict(shards=3), 'shards = 3: must be a list'),
        (dict(shards=[SHARD | dict(count=-1)]), r'shards\[0\].count = -1'),
        (dict(shards=[SHARD | dict(count=True)]), r'shards\[0\].count = True'),
        (dict(shards=[SHARD | dict(count=10**30)]), r'shards\[0\].count = 1000'),
        (dict(shards=[dict(count=6)]), r'shards\[0\].sha256 is missing'),
        (dict(shards=[SHARD | dict(sha256=dict(keys=1))]), r'shards\[0\].sha256.values is missing'),
        (dict(shards=[]), 'has no keys'),
        (dict(complete='yes'), "complete = 'yes': must be true or false"),
        (dict(format='other'), "format = 'other'"),
        (dict(source=3), 'source = 3: must be an object'),
        (dict(source=dict(path=3)), 'source.path = 3'),
        (dict(complete=False, progress='../victim.safetensors'), 'progress = '),
        (dict(complete=False, progress='/etc/victim.safetensors'), 'progress = '),
        (dict(complete=False, progress='progress-00001.safetensors/..'), 'progress = '),
        (dict(complete=False, progress=1), 'progress = 1'),
    ],
)
def test_a_manifest_is_not_trusted(folder, changes, message):
    """A dtype 'O' made numpy follow pointers of the file; `progress` deleted files elsewhere."""
    changed(folder, **changes)
    with pytest.raises(UsageError, match=message):
        Datastore(folder, None, False)


def test_checksums_are_compared_once_and_after_every_change(folder, monkeypatch):
    compared = []
    checksum = verified.checksum
    monkeypatch.setattr(verified, 'checksum', lambda p: compared.append(p.name) or checksum(p))
    Datastore(folder, None, False)
    assert len(compared) == 4, 'all files of a new datastore must be compared'
    Datastore(folder, None, False)
    assert len(compared) == 4, 'nothing has changed: nothing must be compared again'
    Datastore(folder, None, True)
    assert len(compared) == 8, 'config.retrieval.verify compares in any case'
    path = folder / 'contexts.00000.bin'
    content = bytearray(path.read_bytes())
    content[5] ^= 1
    path.write_bytes(content)
    with pytest.raises(UsageError, match='contexts.00000.bin: its bytes were changed'):
        Datastore(folder, None, False)
    assert compared[8:] == [path.name], 'only what has changed must be compared again'
    (folder / verified.NAME).write_text('[[[')
    with pytest.raises(UsageError, match='contexts.00000.bin: its bytes were changed'):
        Datastore(folder, None, False)


def test_other_sums_in_the_manifest_are_compared(folder):
    Datastore(folder, None, False)
    changed(folder, shards=[SHARD])
    with pytest.raises(UsageError, match='its bytes were changed'):
        Datastore(folder, None, False)


def test_numbers_out_of_range_are_refused(tmp_path):
    keys, documents = np.ones((6, 4), np.float32), np.zeros((6,))
    for values, vocab_size in (([0, 1, 2, 3, 4, 10**6], 257), ([0, 1, 2, 3, 4, -1], 257)):
        write_store(tmp_path / 'a', keys, documents, np.zeros(6))
        with pytest.raises(UsageError, match='the vocabulary has'):
            write_store(tmp_path / 'a', keys, documents, np.asarray(values))
            Datastore(tmp_path / 'a', None, False, vocab_size=vocab_size)
    with pytest.raises(UsageError, match='documents of number -1'):
        write_store(tmp_path / 'b', keys, documents - 1)
    for wrong in (np.nan, np.inf):
        with pytest.raises(UsageError, match='keys that are not finite'):
            write_store(tmp_path / 'c', np.where(np.arange(4) == 2, wrong, keys), documents)


def test_keys_that_are_not_there_cannot_be_asked_for(folder):
    """An index or a list of another datastore: numpy would count from the end, or stop with its own."""
    store = Datastore(folder, None, False)
    for name in ('keys', 'values', 'contexts'):
        for numbers in ([0, 6], [[-1]]):
            with pytest.raises(UsageError, match='has 6 keys; keys .* were requested'):
                store.rows(name, np.asarray(numbers))
    lists = Lists(folder, np.asarray([[2, 10**9]]), np.zeros((1,), np.int64), store)
    with pytest.raises(UsageError, match='has 6 keys; keys .* were requested'):
        lists.tokens(np.zeros((1,), np.int64))


def test_files_of_the_wrong_size_are_written_again(folder):
    """Who is told to build a damaged datastore again must not get the damaged one."""
    manifest = read_manifest(folder)
    assert not build_datastore._problem(folder, manifest)
    assert 'no progress' in build_datastore._problem(folder, manifest | dict(complete=False))
    keys = folder / 'keys.00000.bin'
    keys.write_bytes(keys.read_bytes()[:-4])
    assert 'keys.00000.bin: 92 bytes, 96 bytes' in build_datastore._problem(folder, manifest)
    keys.unlink()
    os.mkfifo(keys)
    assert 'keys.00000.bin: missing' in build_datastore._problem(folder, manifest)
    for name in ('index.a.b.faiss', 'index.c.safetensors', 'progress-00001.safetensors'):
        (folder / name).write_text('old')
    kept = {'index.html', 'index.faiss'}  # not ours: any folder may be given
    for name in kept:
        (folder / name).write_text('precious')
    build_datastore._clear(folder)
    left = {path.name.split('.')[0] for path in folder.iterdir() if path.name not in kept}
    assert left == {'keys', 'values', 'documents', 'contexts', 'manifest'}
    assert all((folder / name).exists() for name in kept)


def test_nothing_is_written_through_a_link(folder, tmp_path):
    """The folder of an unfinished datastore may lead elsewhere."""
    victim = tmp_path / 'victim'
    victim.write_text('precious')
    (folder / 'keys.00001.bin').symlink_to(victim)
    builder = build_datastore._Builder(folder, read_manifest(folder))
    with builder._new('keys') as file:
        file.write(b'x')
    assert victim.read_text() == 'precious'
    assert (folder / 'keys.00001.bin').read_bytes() == b'x'


def test_a_path_of_another_machine_is_no_error():
    for path in ('a\0b', '~nobody/x', 'x' * 100_000):
        _place(dict(path=path))


def test_a_folder_that_another_process_writes_to_is_refused(tmp_path):
    config = base('retrieval')
    config.data.source, config.retrieval.datastore = 'stdlib', str(tmp_path)
    run = SimpleNamespace(config=config, restore_parameters=pytest.fail)
    with contextlib.closing(Hold(tmp_path, print)):
        with pytest.raises(
            UsageError, match=r'^config.retrieval.datastore=.* is writing there\. Wait'
        ):
            build_datastore.build(run)
