"""Sources on small files of the real formats, and their errors for bad files."""

import gzip
import json
import lzma
import os
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longmem_jax.data.documents import SPLITS, Document, Pieces, cut, split_seeded
from longmem_jax.data.load import load, load_source
from longmem_jax.data.tokenizers import Bytes
from longmem_jax.data.warnings import division, warnings_of
from longmem_jax.errors import UsageError
from tests.data.reading import settings, texts


@pytest.fixture
def books(tmp_path):
    for split in ('train', 'validation', 'test'):
        (tmp_path / split).mkdir()
        (tmp_path / split / 'a.txt').write_text(f'{split} a\nend')
    (tmp_path / 'train' / 'b.txt.gz').write_bytes(gzip.compress(b'packed b'))
    (tmp_path / 'train' / 'c.xz').write_bytes(lzma.compress(b'packed c'))
    (tmp_path / 'train' / 'metadata.csv').write_text('1,2')
    (tmp_path / 'train' / '.hidden').write_text('no')
    lines = [json.dumps({'text': 'one'}), '', json.dumps({'text': 'zw\u00f6lf', 'id': 3})]
    (tmp_path / 'train' / 'd.jsonl').write_text('\n'.join(lines))
    return tmp_path


def test_only_the_first_training_documents(books):
    assert texts(settings(books, first=2)) == [b'train a\nend', b'packed b']
    assert texts(settings(books, first=1, pieces=2)) == [b'train ', b'a\nend']
    assert len(texts(settings(books, first=99))) == 5 and texts(settings(books, first=1), 'test')
    with pytest.raises(UsageError, match='config.data.first = -1: must be at least 0'):
        texts(settings(books, first=-1))


def test_folder_of_splits(books):
    wanted = [b'train a\nend', b'packed b', b'packed c', b'one', 'zw\u00f6lf'.encode()]
    assert texts(settings(books)) == wanted
    assert texts(settings(books), 'validation') == [b'validation a\nend']


def test_files_without_splits_are_divided_by_their_names(tmp_path):
    """A folder of `0.txt ... 19.txt` was refused."""
    names = [f'{i}.txt' for i in range(20)]
    for name in names:
        (tmp_path / name).write_text(name)
    (tmp_path / 'list.csv').write_text('1,2')  # of the texts
    (tmp_path / '.hidden').write_text('no')

    def parts(**fields):
        return [texts(settings(tmp_path, **fields), split) for split in SPLITS]

    assert [len(part) for part in parts()] == [18, 1, 1] and parts() == parts()
    assert sorted(sum(parts(), [])) == sorted(name.encode() for name in names)
    found = parts(fractions=(0.5, 0.3, 0.2))
    assert [len(part) for part in found] == [10, 6, 4] and parts()[2][0] in found[2]
    assert [len(part) for part in parts(fractions=(0.5, 0.1, 0.1))] == [10, 2, 2]
    with pytest.raises(UsageError, match='three positive numbers'):
        parts(fractions=(0.5, 0.5))
    (tmp_path / 'few').mkdir()
    for name in ('a.txt', 'b.txt'):
        (tmp_path / 'few' / name).write_text('text')
    with pytest.raises(UsageError, match=r'few: 2 texts, .* three or more texts, or one FILE\.\n'):
        texts(settings(tmp_path / 'few'), 'train')
    (tmp_path / 'valid.txt').write_text('a file of a split: the others are none')
    with pytest.raises(UsageError, match='no train split'):
        parts()


def test_a_run_says_which_texts_it_keeps_apart(tmp_path):
    for i in range(20):
        (tmp_path / f'{i}.txt').write_text('text')
    found = division(settings(tmp_path, fractions=(0.6, 0.1, 0.3)))
    first, last = (split_seeded([f'{i}.txt' for i in range(20)], split, (0.6, 0.1, 0.3))
                   for split in ('validation', 'test'))  # fmt: skip
    assert found == (
        f'{tmp_path} has no splits, so its texts are divided: 12 for training, {", ".join(first)} for '
        f'validation, {", ".join(last[:4])}, ... for the test.'
    )
    (tmp_path / 'train.txt').write_text('text')
    assert not division(settings(tmp_path)) and not division(settings('', source='stdlib'))


def test_what_is_no_text_and_what_is_not_there_is_said(tmp_path, monkeypatch):
    for name in ('a.pdf', 'b.pdf', 'c.pdf'):
        (tmp_path / name).write_bytes(b'%PDF')
    with pytest.raises(UsageError, match=r'None of these files is read as a text; \.txt, .* are\.'):
        texts(settings(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match='= MINE does not exist .it is looked for in .*Provide'):
        texts(settings('MINE'))


def test_one_file_per_split_and_lines(tmp_path):
    (tmp_path / 'train.txt').write_text('a\n\nb\n')
    (tmp_path / 'valid.txt').write_text('c')
    assert texts(settings(tmp_path, documents='line')) == [b'a\n', b'b\n']
    assert texts(settings(tmp_path), 'validation') == [b'c']
    with pytest.raises(UsageError, match='no test split'):
        texts(settings(tmp_path), 'test')


def test_a_text_named_like_a_split_is_named(tmp_path):
    for name in ('a.txt', 'b.txt', 'c.txt', 'training.txt'):
        (tmp_path / name).write_text('text')
    with pytest.raises(UsageError, match='training.txt is taken for the train split; rename it'):
        texts(settings(tmp_path), 'test')


def test_names_that_have_the_split_as_a_word(tmp_path):
    """WikiText and most data of the hub: were divided by a digest of the names."""
    wiki, hub, code = (tmp_path / name for name in ('wiki', 'hub', 'code'))
    for folder, names in (
        (wiki, [f'wiki.{split}.tokens' for split in ('train', 'valid', 'test')]),
        (hub, [f'{split}-0000{i}-of-00002.txt' for split in SPLITS for i in range(2)]),
        (code, ['units.py', 'test_units.py', 'model.py', 'test_model.py']),
    ):
        folder.mkdir()
        for name in names:
            (folder / name).write_text(name)
    assert [texts(settings(wiki), split) for split in SPLITS] == [
        [b'wiki.train.tokens'], [b'wiki.valid.tokens'], [b'wiki.test.tokens']
    ]  # fmt: skip
    for split in SPLITS:
        assert texts(settings(hub), split) == [
            b'%s-0000%d-of-00002.txt' % (split.encode(), i) for i in (0, 1)
        ]
    assert len(texts(settings(code))) == 2, 'names of one split alone say nothing'
    (hub / 'README.md').write_text('about')
    with pytest.raises(
        UsageError, match='train-00000.* named by their split, and README.md is not'
    ):
        texts(settings(hub))


def test_no_text_is_left_out_without_a_word(tmp_path):
    train, other = tmp_path / 'train', tmp_path / 'other'
    for folder in (train, other):
        folder.mkdir()
    (train / 'a.txt').write_text('a')
    (other / 'b.txt').write_text('b')
    (train / 'linked').symlink_to(other)
    (other / 'circle').symlink_to(train)
    assert texts(settings(tmp_path)) == [b'a', b'b']
    (train / 'gone.txt').symlink_to(tmp_path / 'nowhere')
    with pytest.raises(UsageError, match='gone.txt: is a link to nothing'):
        texts(settings(tmp_path))
    both = tmp_path / 'both'
    both.mkdir()
    (both / 'train.txt').write_text('text')
    (both / 'train.py').write_text('a script')
    assert texts(settings(both)) == [b'text']
    (both / 'train.jsonl').write_text('{"text": null}\n')
    with pytest.raises(UsageError, match='train.txt and train.jsonl.* are both the train split'):
        texts(settings(both))
    (both / 'train.txt').unlink()
    with pytest.raises(UsageError, match="in a field 'text' .*; it is null"):
        texts(settings(both))
    with pytest.raises(UsageError, match='is neither a file nor a folder'):
        texts(settings('/dev/null'))
    flat = tmp_path / 'flat'
    (flat / 'more').mkdir(parents=True)
    for name in 'abc':
        (flat / f'{name}.txt').write_text(name)
    (said,) = warnings_of(settings(flat))
    assert 'the folders in it are not read (more)' in said


def test_articles(tmp_path):
    text = ' \n = First = \n \n = = Part = = \n words \n = Second = \n more \n'
    (tmp_path / 'train.txt').write_text(text)
    found = texts(settings(tmp_path, documents='wiki'))
    assert [part.count(b'=') for part in found] == [6, 2]
    assert b''.join(found).strip() == text.encode().strip()


def test_one_file_is_cut_by_position(tmp_path):
    (tmp_path / 'enwik').write_bytes(bytes(range(200)))
    parts = [texts(settings(tmp_path / 'enwik'), s)[0] for s in ('train', 'validation', 'test')]
    assert [len(part) for part in parts] == [180, 10, 10]
    assert b''.join(parts) == bytes(range(200))
    for text in ('\u00e9' * 50, '\u2603' * 50, '\U0001f600' * 50, 'a\u00e9' * 33):
        (tmp_path / 'enwik').write_text(text)
        parts = [texts(settings(tmp_path / 'enwik'), split)[0] for split in SPLITS]
        assert ''.join(part.decode() for part in parts) == text, 'cut within a character'


def test_pieces_cut_training_only(tmp_path):
    (tmp_path / 'train.txt').write_text('\n'.join(f'line {i}' for i in range(40)))
    (tmp_path / 'test.txt').write_text('x\n' * 40)
    pieces = texts(settings(tmp_path, pieces=4))
    assert len(pieces) == 4 and all(part.startswith(b'line') for part in pieces)
    assert b''.join(pieces) == (tmp_path / 'train.txt').read_bytes()
    assert len(texts(settings(tmp_path, pieces=4), 'test')) == 1
    for number in (0, -1, 10**8):
        with pytest.raises(UsageError, match='pieces = .*: must lie between 1 and 65,536'):
            texts(settings(tmp_path, pieces=number))


@given(st.binary(max_size=60), st.integers(1, 9))
def test_cutting_loses_nothing(text, pieces):
    borders = cut(text, pieces)
    assert b''.join(text[a:b] for a, b in borders) == text and len(borders) <= pieces


def test_pieces_name_where_they_are_from():
    class One:
        def __len__(self):
            return 1

        def __getitem__(self, index):
            return Document('book', b'abcdef')

    assert [Pieces(One(), 2)[i].name for i in range(2)] == ['book[0:3]', 'book[3:6]']


@pytest.mark.parametrize(
    'make, message',
    [
        (lambda p: (p / 'train' / 'z.gz').write_bytes(b'not gzip'), 'z.gz: cannot be read'),
        (lambda p: (p / 'train' / 'z.xz').write_bytes(b'\xfd7zXZ'), 'z.xz: cannot be read'),
        (lambda p: (p / 'train' / 'z.jsonl').write_text('{"text": "a"}\n{"no": 1}'), 'line 2'),
        (lambda p: (p / 'train' / 'z.jsonl').write_text('{broken'), 'line 1'),
    ],
)
def test_broken_files_are_named(books, make, message):
    make(books)
    with pytest.raises(UsageError, match=message):
        texts(settings(books))


def test_missing_data_names_the_ways(tmp_path):
    for path in ('', tmp_path / 'nowhere'):
        with pytest.raises(UsageError, match=r'config.data.path(.|\n)*tfds(.|\n)*huggingface'):
            load_source(settings(path), 'train')
    (tmp_path / 'train').mkdir()
    with pytest.raises(UsageError, match='no files'):
        load_source(settings(tmp_path), 'train')
    (tmp_path / 'train').rmdir()
    with pytest.raises(UsageError, match="did you mean 'stdlib'"):
        load_source(settings('', source='stdlb'), 'train')
    with pytest.raises(UsageError, match='fractions'):
        (tmp_path / 'one').write_text('a' * 9)
        load_source(settings(tmp_path / 'one', fractions=(0.9, 0.2, 0.1)), 'train')
    with pytest.raises(UsageError, match='the test split is empty'):
        load_source(settings(tmp_path / 'one', fractions=(0.9, 0.05, 0.01)), 'test')
    for split in ('train', 'test'):  # else scores of nothing, NaN, at the end of a training
        (tmp_path / f'{split}.txt').write_text('')
        with pytest.raises(
            UsageError, match=f'the {split} split has 1 document and no text in them'
        ):
            load(settings(tmp_path), split, Bytes())


def test_standard_library_is_split_by_document():
    config = settings('', source='stdlib')
    sources = {split: load_source(config, split) for split in ('train', 'validation', 'test')}
    names = {s: {source[i].name for i in range(len(source))} for s, source in sources.items()}
    assert len(names['train']) > 50 and names['validation'] and names['test']
    assert not names['train'] & (names['validation'] | names['test'])
    assert 'json' in set.union(*names.values())
    for source in sources.values():
        assert (
            b'def ' in source[0].text or b'class ' in source[0].text or b'import' in source[0].text
        )


def test_seeded_split_is_fixed():
    names = [f'module_{i}' for i in range(40)]
    test = split_seeded(names, 'test')
    assert test == split_seeded(list(reversed(names)), 'test') and len(test) == 2


def test_tfds_reads_array_records_without_tensorflow(tmp_path, monkeypatch):
    import tensorflow_datasets as tfds

    class TinyBooks(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version('1.0.0')

        def _info(self):
            return self.dataset_info_from_configs(
                features=tfds.features.FeaturesDict({'book_text': tfds.features.Text()})
            )

        def _split_generators(self, manager):
            return {'train': self._generate_examples(3), 'test': self._generate_examples(1)}

        def _generate_examples(self, count):
            for i in range(count):
                yield i, {'book_text': f'book {i}'}

    monkeypatch.setenv('TFDS_DATA_DIR', str(tmp_path))
    builder = TinyBooks(data_dir=tmp_path, file_format='array_record')
    builder.download_and_prepare(file_format='array_record')
    monkeypatch.setattr(tfds, 'builder', lambda name, file_format: builder)
    found = texts(settings('', source='tfds', name='tiny_books'))
    assert sorted(found) == [b'book 0', b'book 1', b'book 2']
    with pytest.raises(UsageError, match="no split 'validation'|tfds"):
        load_source(settings('', source='tfds', name='tiny_books'), 'validation')
    with pytest.raises(UsageError, match='no field missing'):
        texts(settings('', source='tfds', name='tiny_books:missing'))


def test_data_sets_that_are_not_there(monkeypatch):
    monkeypatch.setitem(sys.modules, 'datasets', None)  # as where it is not installed
    with pytest.raises(UsageError, match='no such data set'):
        load_source(settings('', source='tfds', name='no_such_set'), 'train')
    with pytest.raises(UsageError, match=r'\[tfds\]'):
        load_source(settings('', source='tfds', name='pg19'), 'train')
    with pytest.raises(UsageError, match=r'\[hf\]'):
        load_source(settings('', source='huggingface', name='any'), 'train')


def test_a_folder_is_a_document(tmp_path):
    for name, files in {
        'train/one': {
            'b.py': 'b',
            'a.py': 'a',
            'sub/c.py': 'c',
            'read.me': 'no',
            '.git/x.py': 'no',
        },
        'train/two': {'d.py': 'd'},
        'train/three': {'read.me': 'no'},
        'test/four': {'e.py': 'e'},
    }.items():
        for file, text in files.items():
            path = tmp_path / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    (tmp_path / 'train' / 'z.py').write_text('alone')
    config = settings(tmp_path, documents='folder', endings=('.py',))
    assert texts(config) == [b'a\nb\nc', b'd', b'alone']
    assert texts(config, 'test') == [b'e']
    assert len(texts(settings(tmp_path, documents='folder'))) == 4  # all endings
    divided = settings(tmp_path / 'train', documents='folder', endings=('.py',))
    parts = [texts(divided, split) for split in ('train', 'validation', 'test')]
    assert sorted(sum(parts, [])) == [b'a\nb\nc', b'alone', b'd'] and all(parts)
    with pytest.raises(UsageError, match=r'no files .tex'):
        load_source(settings(tmp_path, documents='folder', endings=('.tex',)), 'train')
    with pytest.raises(UsageError, match='1 folders with files .py; at least 3'):
        load_source(settings(tmp_path / 'test', documents='folder', endings=('.py',)), 'train')
    with pytest.raises(UsageError, match="documents='folder' needs a folder"):
        load_source(settings(tmp_path / 'none', documents='folder'), 'train')


@pytest.mark.parametrize('documents', ['file', 'folder'])
def test_a_folder_that_cannot_be_listed_is_not_an_empty_one(tmp_path, monkeypatch, documents):
    """`Path.rglob` leaves it out: a part of the texts would be missing, and nobody would know."""
    for name in ('train/one/a.txt', 'train/one/inner/b.txt', 'test/two/c.txt'):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    listed = os.scandir

    def refuse(path):
        if str(path).endswith('inner'):
            raise PermissionError(13, 'Permission denied', str(path))
        return listed(path)

    assert len(b''.join(texts(settings(tmp_path, documents=documents))).split(b'txt')) == 3
    monkeypatch.setattr(os, 'scandir', refuse)
    with pytest.raises(PermissionError, match='inner'):
        texts(settings(tmp_path, documents=documents))
