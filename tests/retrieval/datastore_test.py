"""Folders that hold no datastore."""

from pathlib import Path

import pytest

from longmem_jax.errors import UsageError
from longmem_jax.retrieval.datastore import read_manifest


def test_a_folder_without_a_datastore_is_named_as_it_was_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"datastore = '': a folder is needed; make one with"):
        read_manifest(Path(''))
    with pytest.raises(UsageError, match=r'datastore = store: no datastore there; make one with'):
        read_manifest(Path('store'))
