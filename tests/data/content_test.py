"""What the training data is: other data differs, and the same data in another place does not."""

import json
import shutil

import pytest

from longmem_jax.config.base import base
from longmem_jax.data import content, load
from longmem_jax.data.tokenizers import Bytes


@pytest.fixture
def folder(tmp_path):
    for split in ('train', 'validation', 'test'):
        (tmp_path / 'texts' / split).mkdir(parents=True)
        for i in range(5):
            (tmp_path / 'texts' / split / f'{i}.txt').write_text(f'{split} {i} ' * 9)
    return tmp_path / 'texts'


def described(folder, **fields):
    data = base().data
    data.path = str(folder)
    data.update(fields)
    found = content.describe(data, load.load(data, 'train', Bytes()))
    assert json.loads(json.dumps(found)) == found, 'it is stored as JSON'
    return found


def test_the_same_data_elsewhere_has_the_same_content(folder, tmp_path):
    first = described(folder)
    moved = described(shutil.copytree(folder, tmp_path / 'moved'), seed=7)
    assert moved['content'] == first['content'] and moved['place'] != first['place']


@pytest.mark.parametrize('documents', ['file', 'line'])
def test_other_data_differs(folder, documents):
    first = described(folder, documents=documents)['content']
    assert first['training documents'] == 5

    def changed(**fields):
        found = described(folder, documents=documents, **fields)['content']
        return sorted(name for name in found if found[name] != first[name])

    assert changed() == [] and 'config.data.pieces' in changed(pieces=2)
    assert changed(first=3)[:1] == ['config.data.first']
    (folder / 'train' / '3.txt').write_text('shorter')
    assert changed() == ['digest of training files']
    (folder / 'train' / '4.txt').write_text('TRAIN 4 ' * 9)
    assert 'digest of three training documents' in changed()
    (folder / 'train' / '0.txt').unlink()
    assert 'training documents' in changed()
    (folder / 'test' / '0.txt').write_text('the other splits do not count')
    (folder / 'train' / '0.txt').write_text('train 0 ' * 9)
    (folder / 'train' / '3.txt').write_text('train 3 ' * 9)
    (folder / 'train' / '4.txt').write_text('train 4 ' * 9)
    assert changed() == []


@pytest.mark.parametrize('whole, noticed', [(10**6, True), (10, False)])
def test_a_text_that_keeps_its_length_is_noticed_if_it_is_small(
    folder, whole, noticed, monkeypatch
):
    """Large ones are not read at every start: `docs/reliability.md` says so."""
    monkeypatch.setattr(content, 'WHOLE', whole)
    first = described(folder)
    (folder / 'train' / '1.txt').write_text('TRAIN 1 ' * 9)
    assert (described(folder) != first) is noticed


class Drawn(list):
    """Documents that are not looked at."""

    def __getitem__(self, index):
        pytest.fail('another seed draws other documents of the same task, and is said by itself')


@pytest.mark.parametrize('source', ['sorting', 'passkey'])
def test_data_that_is_drawn_is_its_fields(source):
    data = base().data
    data.source, data.task = source, dict(length=4)
    found = content.describe(data, Drawn(range(6)))['content']
    assert found['training documents'] == 6 and found['config.data.task'] == {'length': 4}
    assert not any('digest' in name or 'seed' in name for name in found)
