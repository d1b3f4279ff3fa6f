"""Texts that are damaged, or become so while they are read."""

import functools
import gzip
import lzma
import os
import shutil
import types

import pyarrow as pa
import pytest
from pyarrow import parquet

from longmem_jax.config.base import base
from longmem_jax.data import hubs, stored_files, tables
from longmem_jax.data.conventions import of_folder
from longmem_jax.data.json_lines import read_examples
from longmem_jax.data.load import load, load_source
from longmem_jax.data.stored_files import StoredFiles
from longmem_jax.data.text_files import TextFiles
from longmem_jax.data.tokenizers import Bytes
from longmem_jax.errors import UsageError
from longmem_jax.generation.text import named_file, read_prompt
from longmem_jax.hosts.chat import read_messages
from longmem_jax.hosts.data import cmu_dog
from longmem_jax.lifelong.data import qa

DEEP = '[' * 200_000


def text_files(path, **settings):
    return TextFiles(str(path), 'train', settings.get('documents', 'file'), (0.8, 0.1, 0.1))


def test_a_line_of_many_brackets(tmp_path):
    (tmp_path / 'train.jsonl').write_text(f'{{"text": "a"}}\n{DEEP}\n')
    source = text_files(tmp_path)
    assert source[0].text == b'a'
    with pytest.raises(UsageError, match='train.jsonl, line 2: not a JSON object'):
        source[1]
    with pytest.raises(UsageError, match='train.jsonl:2: not a line of JSON'):
        read_examples(tmp_path / 'train.jsonl', {'text': str})


def test_files_of_data_sets_with_many_brackets(tmp_path):
    (tmp_path / 'set.json').write_text(DEEP)
    for read in (cmu_dog._load, lambda path: qa._json(path, 'data')):
        with pytest.raises(UsageError, match='set.json: not JSON .more than 64 levels'):
            read(tmp_path / 'set.json')
    (tmp_path / 'generation_config.json').write_text(DEEP)
    with pytest.raises(UsageError, match='generation_config.json: not JSON .more than 64 levels'):
        of_folder(tmp_path, Bytes())
    assert read_messages(DEEP) == [dict(role='user', content=DEEP)]


def test_half_characters_become_question_marks(tmp_path):
    """Writing them anywhere, or making tokens of them, would fail much later."""
    (tmp_path / 'x.jsonl').write_text('{"text": "a\\ud800\\ud83d\\ude42"}\n')
    (found,) = read_examples(tmp_path / 'x.jsonl', {'text': str})
    assert found['text'] == 'a?\U0001f642'
    assert cmu_dog._load(tmp_path / 'x.jsonl') == found


@pytest.mark.parametrize('documents', ['file', 'line'])
def test_a_file_that_becomes_shorter(documents, tmp_path):
    path = tmp_path / 'text.txt'
    path.write_text('one line of text\n' * 100)
    source = text_files(path, documents=documents)
    last = len(source) - 1
    assert len(source[last].text) > 10
    os.truncate(path, 900)
    with pytest.raises(UsageError, match='text.txt: .*become shorter'):
        source[last]
    with pytest.raises(UsageError, match='become shorter'):
        StoredFiles().read(path, 890, 910)


@pytest.mark.parametrize('source', ['stdlib', 'text', 'recall', 'tfds', 'huggingface', 'parallel'])
def test_a_split_that_is_none(source):
    data = base().data
    data.source = source
    for split in ('nope', '', 'Train', '../train'):
        for call in (load_source, functools.partial(load, tokenizer=Bytes())):
            with pytest.raises(UsageError, match='^split = .*allowed are train, validation, test'):
                call(data, split)


def test_bytes_of_a_prompt_that_are_not_text():
    assert read_prompt(os.fsdecode(b'caf\xe9 \xff')) == b'caf\xe9 \xff'
    assert read_prompt('caf\u00e9') == b'caf\xc3\xa9'
    for flag in ('--prompt', '--text'):  # of modes and of `experiments.analysis`
        with pytest.raises(UsageError, match=f'{flag}=@nosuch: cannot be read'):
            read_prompt('@nosuch', flag)
    with pytest.raises(UsageError, match='cannot be read'):
        read_prompt('@a\0b')


@pytest.mark.parametrize('flag', ['--prompt', '--text'])
def test_a_prompt_that_is_the_name_of_a_file_is_said(tmp_path, capsys, flag):
    file = tmp_path / 'text.txt'
    file.write_text('text')
    given = (str(file), f'@{file}', 'text', b'text.txt', '', 'a\0b', 'x' * 10_000, f'{file}\n')
    assert [named_file(prompt) for prompt in given] == [True] + [False] * 7
    assert read_prompt(f'@{file}', flag) == b'text' and not capsys.readouterr().err
    assert read_prompt(str(file), flag) == str(file).encode()
    said = f'[{flag}={file} is the name of a file; {flag}=@FILE reads what is in it]'
    assert capsys.readouterr().err == f'{said}\n'


class Books:
    """A prepared data set of TFDS, with problems where it would read damaged files."""

    data_dir = 'books'

    def __init__(self, opened=None, read=None):
        self.opened, self.read = opened, read
        self.info = self
        self.splits = {'train': types.SimpleNamespace(filepaths=[], shard_lengths=[])}

    def as_data_source(self, split):
        if self.opened is not None:
            raise self.opened
        return self

    def __len__(self):
        return 3

    def __getitem__(self, index):
        if self.read is not None:
            raise self.read
        return {'text': b'a'}


@pytest.mark.parametrize(
    'builder, message',
    [
        (
            dict(opened=RuntimeError('Failed to read footer\nmore')),
            r'damaged \(Failed to read footer',
        ),
        (dict(opened=IndexError()), r'damaged \(IndexError'),
        (dict(read=RuntimeError('corrupt chunk')), 'corrupt chunk'),
        (dict(read=IndexError('out of range')), 'out of range'),
    ],
)
def test_damaged_files_of_tfds_are_one_error(builder, message, monkeypatch):
    import tensorflow_datasets as tfds

    monkeypatch.setattr(tfds, 'builder', lambda name, file_format: Books(**builder))
    with pytest.raises(UsageError, match=message):
        hubs.tfds_source('books', 'train')[0]


def test_a_cut_description_of_a_tfds_set_is_one_error(monkeypatch):
    import tensorflow_datasets as tfds

    class ParseError(Exception):
        """As that of protobuf."""

    def builder(name, file_format):
        raise ParseError('1:5 : unexpected end')

    monkeypatch.setattr(tfds, 'builder', builder)
    with pytest.raises(UsageError, match=r"name = 'books': its files are damaged \(1:5"):
        hubs.tfds_table('books', 'train')


@pytest.fixture(scope='module')
def prepared(tmp_path_factory):
    """(folder of a prepared data set, function that opens one in a folder)."""
    import tensorflow_datasets as tfds

    class DamagedBooks(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version('1.0.0')

        def _info(self):
            features = tfds.features.FeaturesDict({'book_text': tfds.features.Text()})
            return self.dataset_info_from_configs(features=features)

        def _split_generators(self, manager):
            return {'train': ((i, {'book_text': f'book {i}' * 99}) for i in range(3))}

        def _generate_examples(self):
            raise NotImplementedError

    def make(folder):
        return DamagedBooks(data_dir=folder, file_format='array_record')

    folder = tmp_path_factory.mktemp('books')
    make(folder).download_and_prepare(file_format='array_record')
    return folder, make


@pytest.mark.parametrize('problem', ['half', 'minus a byte', 'empty', 'deleted', 'description', ''])
def test_real_files_of_tfds_that_are_damaged(prepared, problem, tmp_path, monkeypatch):
    import tensorflow_datasets as tfds

    whole, make = prepared
    shutil.copytree(whole, tmp_path / 'copy')
    (path,) = tmp_path.rglob('*.array_record*')
    content = path.read_bytes()
    if problem == 'description':
        (path,) = tmp_path.rglob('dataset_info.json')
        path.write_text(path.read_text()[:-40])
    elif problem == 'deleted':
        path.unlink()
    else:
        size = {'half': len(content) // 2, 'empty': 0, '': len(content)}.get(
            problem, len(content) - 1
        )
        path.write_bytes(content[:size])
    monkeypatch.setattr(tfds, 'builder', lambda name, file_format: make(tmp_path / 'copy'))

    def read():
        source = hubs.tfds_source('damaged_books', 'train')
        return [source[index].text for index in range(3)]

    if not problem:
        assert len(set(read())) == 3
        return
    with pytest.raises(UsageError, match='damaged'):
        read()


@pytest.mark.parametrize('pack', [gzip.compress, lzma.compress])
@pytest.mark.parametrize('documents', ['file', 'line'])
def test_what_unpacks_to_far_more_than_a_text_is_refused(tmp_path, monkeypatch, pack, documents):
    """A file of some MB would fill the memory, or the temporary folder."""
    monkeypatch.setattr(stored_files, 'SMALL', 1 << 12)
    monkeypatch.setattr(stored_files, 'CHUNK', 1 << 10)
    path = tmp_path / f'train.txt.{"gz" if pack is gzip.compress else "xz"}'
    path.write_bytes(pack(bytes(1 << 20)))
    with pytest.raises(UsageError, match=r'unpacks to more than [\d,]+ bytes, 250 times its size'):
        source = text_files(tmp_path, documents=documents)
        source[0]
    path.write_bytes(pack(b'text\n' * 200))
    assert text_files(tmp_path, documents=documents)[0].text.startswith(b'text')


def test_what_has_no_room_is_refused_with_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(stored_files, 'memory', lambda: 99)
    (tmp_path / 'train.txt').write_text('line\n' * 20)
    with pytest.raises(UsageError, match='more than 99 bytes, half of the memory.*documents=line'):
        text_files(tmp_path)[0]
    assert text_files(tmp_path, documents='line')[3].text == b'line\n'
    (tmp_path / 'train.txt').rename(tmp_path / 'a')
    (tmp_path / 'train.txt.gz').write_bytes(gzip.compress((tmp_path / 'a').read_bytes()))
    usage = shutil.disk_usage(tmp_path)._replace(free=50)
    monkeypatch.setattr(stored_files.shutil, 'disk_usage', lambda folder: usage)
    with pytest.raises(
        UsageError, match='more than 45 bytes, which .* has no room for: set TMPDIR'
    ):
        text_files(tmp_path, documents='line')


def test_a_table_that_declares_what_its_bytes_cannot_hold(tmp_path, monkeypatch):
    path = tmp_path / 'train.parquet'
    parquet.write_table(pa.table({'text': pa.array(['a' * 40] * 5000).dictionary_encode()}), path)
    monkeypatch.setattr(tables, 'MOST_ROWS', 1)
    monkeypatch.setattr(tables, 'SMALL', 100)
    with pytest.raises(UsageError, match='declares 5,000 rows'):
        text_files(tmp_path)
    monkeypatch.setattr(tables, 'SMALL', 10_000)
    assert text_files(tmp_path)[4999].text == b'a' * 40
    monkeypatch.setattr(tables, 'memory', lambda: 30)
    with pytest.raises(UsageError, match='declares [0-9,]+ bytes of text in a group of rows'):
        text_files(tmp_path)
