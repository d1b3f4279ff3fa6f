"""Whether a datastore is known to be made from a text."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from longmem_jax.errors import UsageError
from longmem_jax.experiment import Experiment
from longmem_jax.retrieval.own_document import is_own_text, source_of, warnings
from tests.commands.train_test import small_config, texts  # noqa: F401  (a fixture)


def experiment(path, **data):
    config = small_config(path)
    config.data.update(data)
    return Experiment(config, None, None)


def test_a_text_is_known_by_its_documents(texts, tmp_path, monkeypatch):  # noqa: F811
    store = SimpleNamespace(folder='store', source=source_of(experiment(texts), 'train'))
    assert is_own_text(store, source_of(experiment(texts), 'train'))
    other_lanes = experiment(texts)
    other_lanes.config.evaluate.num_lanes = 3
    assert is_own_text(store, source_of(other_lanes, 'train'))
    assert not is_own_text(store, source_of(experiment(texts), 'test'))
    moved = tmp_path / 'moved'
    shutil.copytree(texts, moved)
    assert is_own_text(store, source_of(experiment(moved), 'train'))
    files = [moved / 'train' / f'{number}.txt' for number in (2, 3)]
    contents = [file.read_text() for file in files]
    for swapped in (contents[::-1], [contents[0], contents[1] + '!']):
        for file, content in zip(files, swapped, strict=True):
            file.write_text(content)
        assert not is_own_text(store, source_of(experiment(moved), 'train')), (
            'digest the middle too'
        )
    for file, content in zip(files, contents, strict=True):
        file.write_text(content)
    assert is_own_text(store, source_of(experiment(moved), 'train'))
    (moved / 'train' / '5.txt').write_text('other words')
    assert not is_own_text(store, source_of(experiment(moved), 'train'))


def test_a_datastore_of_what_it_is_used_on_is_said(texts):  # noqa: F811
    run = experiment(texts)
    store = SimpleNamespace(folder='store', source=source_of(run, 'validation'))
    uses = {'validation': 'tuned on', 'test': 'scored'}
    (said,) = warnings(store, run, uses)
    assert 'store holds validation, which is tuned on' in said
    assert not list(warnings(store, run, {'test': 'scored'}))
    assert not list(warnings(None, run, uses))


def test_the_same_text_in_other_documents_is_refused(texts, monkeypatch):  # noqa: F811
    store = SimpleNamespace(folder='store', source=source_of(experiment(texts), 'train'))
    monkeypatch.chdir(texts.parent)
    for path in (texts, Path(texts.name)):
        with pytest.raises(UsageError, match='documents have changed since'):
            is_own_text(store, source_of(experiment(path, pieces=2), 'train'))
    del store.source['documents']  # as in a datastore that does not say
    with pytest.raises(UsageError, match='documents have changed since'):
        is_own_text(store, source_of(experiment(texts), 'train'))
