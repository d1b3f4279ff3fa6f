"""Checkpoints on disks that are full or fail, and problems in the words of libraries."""
# ruff: noqa: F811 (fixtures)

import contextlib
import errno
import logging
import os
import shutil
import subprocess
import sys
import threading
from types import SimpleNamespace

import orbax.checkpoint as ocp
import pytest

from longmem_jax.errors import UsageError
from longmem_jax.training import checksums, restoring, storage
from longmem_jax.training.identity import about
from longmem_jax.workdir import Hold
from tests.training.saving_test import (  # noqa: F401
    TRAINING,
    abstract,
    make_state,
    opened,
    require_restored,
    save,
)


def orbax_threads():
    return [thread.name for thread in threading.enumerate() if 'save' in thread.name]


@pytest.mark.parametrize(
    'number, says',
    [
        (errno.ENOSPC, 'is full'),
        (errno.EDQUOT, 'is full'),
        (errno.EROFS, 'cannot be'),
        (errno.EIO, r'cannot be read or written \(Input/output error\)'),
        (errno.ESTALE, r'cannot be read or written \(Stale file handle\)'),
    ],
)
def test_a_disk_that_takes_no_more_is_one_message(opened, monkeypatch, capfd, number, says):
    directory = save(opened, 2)
    saver, _ = opened()
    saver.restore(abstract())

    def full(folder):
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(checksums, 'seal', full)
        saver.maybe_save(4, make_state(4))
        with pytest.raises(UsageError, match=says) as caught:
            saver.wait()
        saver.close()
    assert 'step 2 is whole' in str(caught.value) and 'the same command' in str(caught.value)
    assert 'Traceback' not in capfd.readouterr().err and not orbax_threads()
    saver, _ = opened()
    require_restored(saver.restore(abstract()), 2)
    saver.maybe_save(4, make_state(4))
    saver.close()
    assert saver.steps() == [] and (directory / '4').is_dir()


def test_a_save_that_failed_is_noticed_at_the_next_step(opened, monkeypatch):
    saver, _ = opened()
    failed = threading.Event()

    def full(folder):
        failed.set()
        raise OSError(errno.ENOSPC, 'No space left on device')

    monkeypatch.setattr(checksums, 'seal', full)
    saver.maybe_save(2, make_state(2))
    assert failed.wait(60)
    for thread in threading.enumerate():
        if thread.name == 'save_finalize':
            threading.Thread.join(thread)  # Orbax's own would raise, and only once
    with pytest.raises(UsageError, match='is full; there is no checkpoint yet'):
        saver.maybe_save(3, make_state(3))


def test_a_disk_that_is_really_full(opened, tmp_path, capfd):
    """Orbax's arrays are written by C++, which raises other errors."""
    disk = tmp_path / 'run'
    disk.mkdir()
    mount = ['mount', '-t', 'tmpfs', '-o', 'size=256k', 'tmpfs', str(disk)]
    if os.geteuid() or not shutil.which('mount') or subprocess.run(mount).returncode:
        pytest.skip('no small disk can be made here')
    try:
        saver, _ = opened()
        with pytest.raises(UsageError, match='the disk of .* is full; step [0-9]+ is whole'):
            for step in range(2, 200, 2):
                saver.maybe_save(step, make_state(step))
                saver.wait()
        saver.close()
        newest = max(int(path.name) for path in saver.directory.iterdir() if path.name.isdecimal())
        assert 'Traceback' not in capfd.readouterr().err and not orbax_threads()
        with contextlib.suppress(OSError), (disk / 'rest').open('wb', buffering=0) as rest:
            while True:
                rest.write(bytes(4096))
        saver, reports = opened()
        require_restored(saver.restore(abstract()), newest)
        assert reports == []
        saver.close()
    finally:
        subprocess.run(
            ['umount', '-l', str(disk)], check=True
        )  # else a file left open hides the failure


@pytest.mark.parametrize('how', ['deleted', 'renamed', 'replaced'])
def test_a_folder_that_vanishes_is_noticed_at_the_next_step(opened, tmp_path, how, capfd):
    directory = save(opened, 2)
    saver, _ = opened()
    saver.restore(abstract())
    assert not saver.maybe_save(3, make_state(3))
    run = directory.parent
    shutil.rmtree(run) if how == 'deleted' else run.rename(tmp_path / 'elsewhere')
    if how == 'replaced':
        run.mkdir()
    for step in (3, 4):
        with pytest.raises(UsageError, match='deleted, renamed or replaced'):
            saver.maybe_save(step, make_state(step))
    saver.close()
    assert not (run / 'checkpoints').exists(), 'nothing is written to a folder that is not there'
    assert 'Traceback' not in capfd.readouterr().err and not orbax_threads()


def test_a_folder_that_vanishes_while_it_is_written_is_one_message(opened, monkeypatch, capfd):
    saver, _ = opened()

    def vanish(folder):
        shutil.rmtree(saver.directory.parent)
        raise FileNotFoundError(errno.ENOENT, 'No such file or directory', str(folder))

    monkeypatch.setattr(checksums, 'seal', vanish)
    saver.maybe_save(2, make_state(2))
    with pytest.raises(UsageError, match='deleted, renamed or replaced'):
        saver.wait()
    saver.close()
    assert 'Traceback' not in capfd.readouterr().err and not orbax_threads()


# Problems in the words of libraries.


def test_a_path_that_orbax_did_not_see_is_a_problem_of_the_disk(opened, monkeypatch):
    """It asks whether a path is there, and takes every problem for a no."""
    directory = save(opened, 2)

    def unseen(folder):
        raise ValueError(f'Checkpoint directory does not exist: {folder}.')

    saver, _ = opened()
    saver.restore(abstract())
    with monkeypatch.context() as patched:
        patched.setattr(checksums, 'seal', unseen)
        saver.maybe_save(4, make_state(4))
        with pytest.raises(
            UsageError, match='cannot be read or written .*does not exist.*step 2 is'
        ):
            saver.wait()
    saver.close()

    def unopened(folder, **_):
        raise NotADirectoryError(f'Path is not a directory: {folder / "2"}')

    monkeypatch.setattr(ocp, 'CheckpointManager', unopened)
    for going_on in (TRAINING, None):
        with pytest.raises(UsageError, match='is not a directory.*step 2 is whole') as caught:
            opened(going_on=going_on)
        assert str(caught.value).startswith(str(directory.parent))


@pytest.mark.parametrize('going_on', [TRAINING, None], ids=['trains', 'reads'])
def test_a_problem_that_tensorstore_words_is_said_in_ours(opened, monkeypatch, going_on):
    save(opened, 2)
    saver, _ = opened(going_on=going_on)

    def fail(*_, **__):
        raise ValueError(
            'UNKNOWN: Error opening "zarr" driver: Error reading "b/.zarray" in OCDBT database at local '
            "file \"/run/2/state/\": Input/output error [os_error_code='5'] [source locations='...']"
        )

    monkeypatch.setattr(restoring, '_read', fail)
    with pytest.raises(
        UsageError, match=r'2 is intact, but cannot be restored \(Input/out'
    ) as caught:
        saver.restore(abstract())
    assert 'zarr' not in str(caught.value) and 'run the same command again' in str(caught.value)


@pytest.mark.parametrize('going_on', [TRAINING, None], ids=['trains', 'reads'])
def test_reports_to_an_event_loop_that_is_closed_are_hidden(opened, monkeypatch, going_on):
    """They come when they come, such as after the checkpoints were closed."""
    save(opened, 2)
    shown = []
    for name in ('excepthook', 'unraisablehook'):
        monkeypatch.setattr(sys, name, lambda *about: shown.append(about))
    saver, _ = opened(going_on=going_on)
    saver.close()
    for error in (RuntimeError('Event loop is closed'), RuntimeError('another')):
        sys.excepthook(RuntimeError, error, None)
        sys.unraisablehook(SimpleNamespace(exc_value=error))
    assert len(shown) == 2 and shown[0][1] is error and shown[1][0].exc_value is error


def test_tasks_that_orbax_has_left_behind_are_not_shown(opened, caplog):
    saver, _ = opened()
    said = 'future: <Task finished coro=<merge() done, defined at orbax/checkpoint/x.py:1>>'
    log = logging.getLogger('asyncio')
    log.error('Task exception was never retrieved, %s', said, exc_info=ValueError('EIO'))
    log.error('Task exception was never retrieved', exc_info=ValueError('another'))
    saver.close()
    assert [record.exc_info[1].args for record in caplog.records] == [('another',)]


def test_a_checkpoint_whose_parts_were_not_found_is_not_committed(opened, monkeypatch):
    """Orbax would commit it without its arrays, since `glob` finds none where it may not look."""
    directory, scandir = save(opened, 2), os.scandir

    def fail(path):
        if os.fspath(path).endswith('/4.orbax-checkpoint-tmp/state.orbax-checkpoint-tmp'):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return scandir(path)

    saver, _ = opened()
    with monkeypatch.context() as patched:
        patched.setattr(os, 'scandir', fail)
        saver.maybe_save(4, make_state(4))
        with pytest.raises(UsageError, match='its parts were not put together.*step 2 is whole'):
            saver.wait()
        saver.close()
    assert not (directory / '4').exists()
    require_restored(opened()[0].restore(abstract()), 2)


def test_what_cannot_be_listed_is_not_empty(opened, tmp_path, monkeypatch):
    """`glob` leaves out what it may not list: then checksums would, and no checkpoint would be whole."""
    directory = save(opened, 2)
    listed = checksums.of_files(directory / '2')

    def fail(*_):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    for name in ('scandir', 'listdir'):
        monkeypatch.setattr(os, name, fail)
    assert listed
    with pytest.raises(PermissionError):
        checksums.of_files(directory / '2')
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(UsageError, match='is full; the checkpoints cannot be listed'):
        storage.require_room(full, directory.parent, directory)
    with pytest.raises(UsageError, match='is full; there is no checkpoint yet'):
        monkeypatch.undo()
        storage.require_room(full, tmp_path, tmp_path / 'checkpoints')


@pytest.mark.parametrize('name', ['d', None])
def test_a_problem_in_a_folder_without_its_path_names_the_run(opened, monkeypatch, name):
    """`shutil.rmtree` gives the name in the folder that it has open; other calls give none."""
    directory = save(opened, 2)
    saver, _ = opened()

    def fail(_):
        raise OSError(errno.EIO, os.strerror(errno.EIO), name)

    with monkeypatch.context() as patched:
        patched.setattr(Hold, 'require_there', fail)
        with pytest.raises(UsageError, match=r'Input/output error\); step 2 is whole') as caught:
            saver.maybe_save(4, make_state(4))
    assert str(caught.value).startswith(f'{directory.parent}: cannot be read or written')


def test_a_run_that_cannot_be_read_is_not_an_unknown_one(opened):
    directory = save(opened, 2)
    path = directory / 'run.json'
    for content in ('', '[1]', '{', '[' * 100_000):
        path.write_text(content)
        assert about(directory) == {}
    path.unlink()
    assert about(directory) == {}
    path.symlink_to(path)  # a circle: neither there nor missing
    saver, _ = opened()
    with pytest.raises(UsageError, match='run.json: cannot be read .*not known of which run'):
        saver.restore(abstract())
    assert path.is_symlink()
