"""Documents tokenized once are those that direct reading gives, or there is an error that says why."""

import concurrent.futures
import json
import shutil
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longmem_jax.commands import tokenize_documents
from longmem_jax.config import checks
from longmem_jax.config.base import base
from longmem_jax.data import content, hubs, lanes, load, tokenized
from longmem_jax.data.corpus import Corpus
from longmem_jax.data.documents import Document
from longmem_jax.data.tokenizers import Bytes, Characters
from longmem_jax.errors import UsageError
from longmem_jax.untrusted import tensor_file


class Texts:
    def __init__(self, texts):
        self._texts = texts

    def __len__(self):
        return len(self._texts)

    def __getitem__(self, index):
        return Document(str(index), self._texts[index])


@pytest.fixture
def data(tmp_path):
    """`config.data` of 9 files per split, the fifth of them empty, and a folder for their tokens."""
    for split in ('train', 'validation', 'test'):
        (tmp_path / 'texts' / split).mkdir(parents=True)
        for i in range(9):
            text = f'{split} {i} ' * (7 * i % 5)
            (tmp_path / 'texts' / split / f'{i}.txt').write_text(text)
    settings = base().data
    settings.path, settings.tokenized = str(tmp_path / 'texts'), str(tmp_path / 'tokens')
    return settings


def written(data, split='', workers=1, tokenizer=None):
    experiment = SimpleNamespace(
        config=SimpleNamespace(data=data), tokenizer=tokenizer or Bytes(), workdir=None
    )
    tokenize_documents.tokenize(experiment, split, workers=workers)
    return Path(data.tokenized)


def direct(data, split):
    return Corpus(load.load_source(data, split), Bytes())


def same(found, wanted):
    assert len(found) == len(wanted)
    np.testing.assert_array_equal(found.lengths(), wanted.lengths())
    for index in range(len(wanted)):
        np.testing.assert_array_equal(found[index].tokens, wanted[index].tokens)
        assert found[index].tokens.dtype == wanted[index].tokens.dtype
        assert found[index].num_bytes == wanted[index].num_bytes


def test_no_link_is_followed_in_the_place_of_a_split(data, tmp_path):
    victim, tokens = tmp_path / 'victim', tmp_path / 'tokens'
    victim.mkdir()
    tokens.mkdir()
    (tokens / 'train').symlink_to(victim)
    with pytest.raises(UsageError, match='train: is a symbolic link'):
        written(data)
    assert not list(victim.iterdir())


@given(texts=st.lists(st.binary(max_size=40), min_size=1, max_size=20), most=st.integers(1, 8))
def test_any_documents_are_those_of_direct_reading(tmp_path_factory, texts, most):
    folder = tmp_path_factory.mktemp('tokens')
    settings = base().data
    settings.tokenized = str(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenized, 'MOST_SHARDS', most)
        (folder / 'train').mkdir()
        corpus = Corpus(Texts(texts), Bytes())
        about = tokenized.about(settings, 'train', Bytes())
        shards = tokenized.Shards(folder / 'train', about, len(corpus))
        shards.finish([shards.write(n, corpus) for n in range(len(shards.borders) - 1)])
        same(tokenized.StoredCorpus(settings, 'train', Bytes()), corpus)


@pytest.mark.parametrize('workers', [1, pytest.param(2, marks=pytest.mark.slow)])
def test_batches_and_what_a_checkpoint_keeps_are_the_same(data, workers):
    written(data, workers=workers)
    found, wanted = load.load(data, 'train', Bytes()), direct(data, 'train')
    same(found, wanted)
    same(load.load(data, 'test', Bytes()), direct(data, 'test'))
    pairs = zip(*(lanes.in_order(corpus, 2, 5) for corpus in (found, wanted)), strict=True)
    for (batch, cursor), (other, other_cursor) in pairs:
        for name in ('tokens', 'targets', 'valid', 'scored', 'start', 'num_bytes'):
            np.testing.assert_array_equal(getattr(batch, name), getattr(other, name))
        np.testing.assert_array_equal(cursor.offset, other_cursor.offset)
    there = content.describe(data, found)
    shutil.rmtree(data.path)
    gone = load.load(data, 'train', Bytes())
    assert content.describe(data, gone) == there, 'the texts are not needed any more'
    data.tokenized = ''
    with pytest.raises(UsageError, match='does not exist'):
        load.load(data, 'train', Bytes())


def test_a_run_may_change_to_tokens(data):
    """A checkpoint of direct reading is continued with the tokens."""
    written(data)
    stored = content.describe(data, load.load(data, 'train', Bytes()))
    data.tokenized = ''
    assert content.describe(data, load.load(data, 'train', Bytes())) == stored


def test_what_is_there_is_kept_and_what_is_torn_is_written_again(data, monkeypatch):
    folder = written(data, 'train') / 'train'
    files = sorted(folder.glob('*.safetensors'))
    before = {file: file.stat().st_mtime_ns for file in files}
    (folder / tokenized.INDEX).unlink()
    files[2].write_bytes(files[2].read_bytes()[:-3])
    with pytest.raises(UsageError, match=r'train are not finished; run --mode=tokenize'):
        load.load(data, 'train', Bytes())
    written(data, 'train')
    changed = [file for file in files if file.stat().st_mtime_ns != before[file]]
    assert changed == [files[2]]
    same(load.load(data, 'train', Bytes()), direct(data, 'train'))


def test_errors_say_what_is_other(data):
    with pytest.raises(UsageError, match='test are not there; run --mode=tokenize'):
        load.load(data, 'test', Bytes())
    folder = written(data)
    with pytest.raises(UsageError, match="tokenizer = 'bytes-.*here 'characters-"):
        load.load(data, 'train', Characters(['a']))
    with pytest.raises(UsageError, match="tokenizer = 'bytes-.*here 'characters-"):
        written(data, tokenizer=Characters(['a']))
    data.first = 3
    with pytest.raises(UsageError, match=r'config.data.first = 0, here 3\. .*another folder'):
        load.load(data, 'train', Bytes())
    data.first = 0
    (Path(data.path) / 'train' / '7.txt').write_text('others')
    with pytest.raises(UsageError, match='files = '):
        load.load(data, 'train', Bytes())
    shutil.copytree(folder / 'test', folder / 'train', dirs_exist_ok=True)
    with pytest.raises(UsageError, match="split = 'test', here 'train'"):
        load.load(data, 'train', Bytes())


def test_documents_of_folders_and_of_hubs_are_told_apart(data, monkeypatch):
    """What has no path of files is another text, too, under another path or name."""
    data.documents = 'folder'
    written(data, 'train')
    data.path = shutil.copytree(data.path, f'{data.path}2')
    same(load.load(data, 'train', Bytes()), direct(data, 'train'))  # the folder was only moved
    (Path(data.path) / 'train' / '7.txt').write_text('others')
    with pytest.raises(UsageError, match="folders = '.*another folder"):
        load.load(data, 'train', Bytes())
    shutil.rmtree(data.path)
    assert len(load.load(data, 'train', Bytes())) == 9, 'the texts are not needed any more'

    monkeypatch.setattr(hubs, 'huggingface_source', lambda name, split: Texts([name.encode()]))
    data.source, data.name, data.tokenized = 'huggingface', 'one', f'{data.tokenized}2'
    written(data)
    data.name = 'two'
    with pytest.raises(UsageError, match=r"config.data.name = 'one', here 'two'"):
        load.load(data, 'train', Bytes())
    data.name = 'one'
    monkeypatch.setattr(hubs, 'huggingface_source', lambda name, split: Texts([b'a', b'b']))
    monkeypatch.setattr(tokenized, 'MOST_SHARDS', 1)
    with pytest.raises(UsageError, match='documents = 1, here 2'):
        written(data)

    data.source = 'stdlib'
    digests = {content.digest_of_folders(data, split) for split in ('train', 'test')}
    assert len(digests) == 2 and None not in digests, 'another Python has other texts'


def test_where_tokens_cannot_be_is_said(data, tmp_path):
    data.tokenized = f'{data.path}/tokens'
    with pytest.raises(UsageError, match='could be read as texts; give another folder'):
        written(data)
    data.tokenized = str(tmp_path / 'tokens')
    (tmp_path / 'tokens' / 'train').mkdir(parents=True)
    (tmp_path / 'tokens' / 'train' / tokenized.INDEX).mkdir()
    (tmp_path / 'tokens' / 'test' / '000-of-009.safetensors').mkdir(parents=True)
    for split in ('train', 'test'):
        with pytest.raises(UsageError, match=r'config.data.tokenized: cannot be written \('):
            written(data, split)


def test_a_killed_worker_is_said(data, monkeypatch):
    class Pool:
        def __init__(self, *_):
            pass

        def map(self, *_):
            raise BrokenProcessPool('terminated abruptly')

        def shutdown(self, *, cancel_futures):
            assert cancel_futures

    monkeypatch.setattr(concurrent.futures, 'ProcessPoolExecutor', Pool)
    with pytest.raises(UsageError, match='one of its processes was killed.*run it again'):
        written(data, 'train', workers=2)


def test_a_file_of_others_is_not_replaced(data):
    file = Path(data.tokenized) / 'train' / '000-of-009.safetensors'
    file.parent.mkdir(parents=True)
    for about, problem in (('[1]', 'must be an object'), ('{}', 'tokens of other data')):
        tensor_file.write(file, {'x': np.zeros(3)}, {'about': about})
        with pytest.raises(UsageError, match=problem):
            written(data, 'train')


def test_changed_tokens_are_not_read(data):
    folder = written(data, 'test') / 'test'
    file = sorted(folder.glob('*.safetensors'))[3]
    place = file.read_bytes().index(np.asarray(Bytes().encode(b'test 3'), np.uint16).tobytes())
    with file.open('r+b') as opened:
        opened.seek(place)
        opened.write(b'T')
    corpus = load.load(data, 'test', Bytes())
    assert len(corpus[2].tokens) and len(corpus[4].tokens)
    with pytest.raises(UsageError, match='document 0 are not those that were written; delete it'):
        corpus[3]
    index = json.loads((folder / tokenized.INDEX).read_text())
    index['shards'][3] += 1
    (folder / tokenized.INDEX).write_text(json.dumps(index))
    with pytest.raises(UsageError, match=r'not what index.json says; delete it, and run --mode='):
        load.load(data, 'test', Bytes())[3]


@pytest.mark.parametrize('name', ['tokens', 'ends', 'num_bytes', 'digests'])
def test_no_bit_of_any_array_changes_in_silence(data, name):
    """Compare `num_bytes` too: bits per byte divide by it."""
    file = sorted((written(data, 'test') / 'test').glob('*.safetensors'))[3]
    tensor = tensor_file.read_header(file).tensors[name]
    whole = file.read_bytes()
    for place in range(tensor.start, tensor.end):
        changed = bytearray(whole)
        changed[place] ^= 1 << place % 8
        file.write_bytes(changed)
        corpus = load.load(data, 'test', Bytes())
        with pytest.raises(UsageError, match='not those that were written; delete it'):
            corpus[3]
    file.write_bytes(whole)
    same(load.load(data, 'test', Bytes()), direct(data, 'test'))


@pytest.mark.parametrize(('version', 'age'), [(1, 'an earlier'), (9, 'a later')])
def test_tokens_of_another_version_are_told_apart(data, monkeypatch, version, age):
    monkeypatch.setattr(tokenized, 'FORMAT', version)
    folder = written(data, 'train')
    monkeypatch.undo()
    said = (
        rf'tokens of {age} version .*\(format {version}, .*Delete {folder / "train"} and run --mode'
    )
    with pytest.raises(UsageError, match=said):
        load.load(data, 'train', Bytes())
    (folder / 'train' / tokenized.INDEX).unlink()
    with pytest.raises(UsageError, match=said):
        written(data, 'train')


def test_only_texts_can_be_tokenized():
    config = base()
    config.data.source, config.data.tokenized = 'recall', 'tokens'
    problems = [problem for problem in checks.find_problems(config, 1) if 'tokenized' in problem]
    assert problems and 'stdlib, text' in problems[0]
