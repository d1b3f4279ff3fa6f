"""Compiled programs are kept in a folder of the user, or where they are told to be."""

import os

import jax
import pytest

from longmem_jax.devices import programs
from longmem_jax.errors import UsageError

OPTIONS = (
    'jax_compilation_cache_dir',
    'jax_compilation_cache_max_size',
    'jax_persistent_cache_min_compile_time_secs',
)


@pytest.fixture(autouse=True)
def unset(monkeypatch, tmp_path):
    """JAX without a cache, and a user without a home; afterwards as before."""
    before = {name: getattr(jax.config, name) for name in OPTIONS}
    jax.config.update('jax_compilation_cache_dir', None)
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'caches'))
    monkeypatch.setenv('HOME', str(tmp_path / 'home'))
    monkeypatch.delenv(programs.VARIABLE, raising=False)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


def test_programs_are_kept_apart_by_versions(tmp_path, monkeypatch):
    folder = programs.keep_programs()
    assert folder.is_dir() and tmp_path in folder.parents and 'longmem_jax' in folder.parts
    assert jax.config.jax_compilation_cache_dir == str(folder)
    assert jax.config.jax_compilation_cache_max_size == programs.LARGEST, (
        'without it JAX locks nothing'
    )
    assert f'jax-{jax.__version__}-' in folder.name
    with monkeypatch.context() as patch:
        patch.setattr(programs.jaxlib, '__version__', '9.9.9')
        assert programs.environment() != folder.name
    monkeypatch.setattr(programs, '_processor_flags', lambda: 'other')
    assert programs.environment() != folder.name


def test_a_variable_names_the_folder_or_turns_it_off(tmp_path, monkeypatch):
    monkeypatch.setenv(programs.VARIABLE, str(tmp_path / 'mine'))
    assert programs.keep_programs().parent == tmp_path / 'mine'
    jax.config.update('jax_compilation_cache_dir', None)
    monkeypatch.setenv(programs.VARIABLE, 'off')
    assert programs.keep_programs() is None
    assert jax.config.jax_compilation_cache_dir is None
    (tmp_path / 'file').write_text('')
    monkeypatch.setenv(programs.VARIABLE, str(tmp_path / 'file'))
    with pytest.raises(UsageError, match='LONGMEM_JAX_CACHE=.*cannot be used'):
        programs.keep_programs()


def test_programs_of_others_are_not_run(tmp_path, monkeypatch):
    monkeypatch.setenv(programs.VARIABLE, str(tmp_path))
    folder = tmp_path / programs.environment()
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(UsageError, match='everybody may write to'):
        programs.keep_programs()
    folder.chmod(0o755)
    tmp_path.chmod(0o777)  # the folder in it could be replaced
    with pytest.raises(UsageError, match=f'everybody may write to {tmp_path},'):
        programs.keep_programs()
    tmp_path.chmod(0o1777)
    assert programs.keep_programs() == folder
    jax.config.update('jax_compilation_cache_dir', None)
    own = os.getuid()
    if own:
        monkeypatch.setattr(programs.os, 'getuid', lambda: own + 1)
    else:  # what root made is trusted
        os.chown(folder, 12345, -1)
    with pytest.raises(UsageError, match='belongs to another user'):
        programs.keep_programs()


def test_a_cache_that_jax_was_given_stays():
    jax.config.update('jax_compilation_cache_dir', '/somewhere')
    assert programs.keep_programs() is None
    assert jax.config.jax_compilation_cache_dir == '/somewhere'


def test_without_a_home_nothing_is_kept(tmp_path, monkeypatch):
    (tmp_path / 'file').write_text('')
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'file'))
    assert programs.keep_programs() is None


def test_a_program_that_was_not_written_to_its_end_is_removed():
    folder = programs.keep_programs()
    jax.config.update('jax_compilation_cache_dir', None)
    for name in ('a-cache', 'a-atime', 'b-cache'):
        (folder / name).write_bytes(b'1')
    assert programs.keep_programs() == folder
    assert {path.name for path in folder.glob('?-*')} == {'a-cache', 'a-atime'}
