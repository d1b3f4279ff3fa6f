"""Checkpoints: saved states are restored on any mesh; broken ones are set aside and reported."""

import dataclasses
import errno
import os
import re
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from longmem_jax.config.base import base
from longmem_jax.devices import sharding
from longmem_jax.errors import UsageError
from longmem_jax.training import checksums, restoring
from longmem_jax.training.checkpoint import Checkpointer
from longmem_jax.training.identity import (
    GoingOn,
    differing_fields,
    other_data,
    other_settings,
    plain,
)

IDENTITY = {'config.model': {'num_layers': 2, 'attention': ['local', 'local']}, 'tokenizer': 'a1'}

# When one array of several cannot be read, orbax closes its event loop while the others still
# report to it. The failure itself is raised and tested; the late reports are noise.
pytestmark = pytest.mark.filterwarnings(
    'ignore:(?s)Exception ignored in.*Event loop is closed:pytest.PytestUnraisableExceptionWarning'
)


def make_state(step, mesh, axis):
    """A small train state: sharded weights, counters, a typed key."""
    values = jnp.arange(64, dtype=jnp.float32).reshape(8, 8) + step
    return {
        'params': {'kernel': jax.device_put(values, NamedSharding(mesh, P(axis)))},
        'memory': jax.device_put(jnp.ones((4, 2), jnp.bfloat16), NamedSharding(mesh, P())),
        'step': jax.device_put(jnp.int32(step), NamedSharding(mesh, P())),
        'key': jax.device_put(jax.random.key(step), NamedSharding(mesh, P())),
    }


def abstract(state):
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), state
    )


@pytest.fixture
def mesh():
    return sharding.make_mesh({'data': 8})


@pytest.fixture
def open_run(tmp_path):
    """Opens the checkpoints of one run, and closes what was open; the second value has the reports."""
    opened = []

    def run(identity=IDENTITY, **options):
        for saver in opened:
            saver.close()
        reports = []
        options = {'every': 2, 'keep': 3, **options}
        saver = Checkpointer(
            tmp_path / 'checkpoints', identity=identity, report=reports.append, **options
        )
        opened.append(saver)
        return saver, reports

    yield run
    for saver in opened:
        saver.close()


def save(open_run, mesh, steps=(2, 4), identity=IDENTITY):
    saver, _ = open_run(identity)
    for step in steps:
        assert saver.maybe_save(step, make_state(step, mesh, 'data'))
    saver.close()


def require_restored(found, step, mesh):
    assert found is not None and found[1] == step
    state, wanted = found[0], make_state(step, mesh, 'data')
    np.testing.assert_array_equal(state['params']['kernel'], wanted['params']['kernel'])
    assert int(state['step']) == step


def data_file(folder):
    """The largest file of array data."""
    return max(folder.glob('state/**/d/*'), key=lambda path: path.stat().st_size)


def flip(folder):
    path = data_file(folder)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 255
    path.write_bytes(data)


def truncate(folder):
    # All of them: Orbax may leave files that no array refers to, and which one is largest varies.
    for path in folder.glob('state/**/d/*'):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(folder):
    data_file(folder).write_bytes(b'')


def delete(folder):
    data_file(folder).unlink()


def delete_arrays(folder):
    shutil.rmtree(folder / 'state')


def cut_identity(folder):
    for path in (folder / 'identity').iterdir():
        path.write_bytes(path.read_bytes()[:3])


DAMAGES = (flip, truncate, empty, delete, delete_arrays, cut_identity)


def test_saves_when_due_or_forced_and_keeps_the_newest(open_run, mesh):
    saver, reports = open_run(keep=2)
    states = {step: make_state(step, mesh, 'data') for step in range(1, 10)}
    done = [step for step in states if saver.maybe_save(step, states[step], force=step == 9)]
    assert done == [2, 4, 6, 8, 9]
    assert not saver.maybe_save(9, states[9], force=True)
    saver.wait()
    assert saver.steps() == [8, 9]
    names = sorted(path.name for path in saver.directory.iterdir())
    assert names == ['8', '9', 'run.json']
    assert (saver.directory / '9' / 'checksums.json').is_file()
    assert reports == []


def test_no_checkpoint_is_none(open_run, mesh):
    assert open_run()[0].restore(abstract(make_state(0, mesh, 'data'))) is None


@pytest.mark.parametrize('sizes, axis', [({'data': 2, 'fsdp': 4}, 'fsdp'), ({'tensor': 8}, None)])
def test_everything_comes_back_on_another_mesh(open_run, mesh, sizes, axis):
    save(open_run, mesh)
    wanted = make_state(4, sharding.make_mesh(sizes), axis)
    saver, reports = open_run()
    state, step = saver.restore(abstract(wanted))
    assert step == 4 and reports == []
    assert jax.tree.structure(state) == jax.tree.structure(wanted)
    for found, leaf in zip(jax.tree.leaves(state), jax.tree.leaves(wanted), strict=True):
        assert (found.dtype, found.shape, found.sharding) == (leaf.dtype, leaf.shape, leaf.sharding)
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            found, leaf = jax.random.key_data(found), jax.random.key_data(leaf)
        np.testing.assert_array_equal(found, leaf)


def test_a_folder_without_its_whole_path(open_run, mesh, tmp_path, monkeypatch):
    save(open_run, mesh)
    monkeypatch.chdir(tmp_path)
    reports = []
    saver = Checkpointer(
        Path('checkpoints'), identity=IDENTITY, every=2, keep=3, report=reports.append
    )
    require_restored(saver.restore(abstract(make_state(0, mesh, 'data'))), 4, mesh)
    saver.close()
    assert reports == []


@pytest.mark.parametrize('damage', DAMAGES)
def test_a_broken_newest_one_is_told_and_put_aside(open_run, mesh, damage):
    save(open_run, mesh)
    saver, reports = open_run()
    damage(saver.directory / '4')
    require_restored(saver.restore(abstract(make_state(0, mesh, 'data'))), 2, mesh)
    (line,) = reports
    assert 'Checkpoint 4 is broken' in line and '\n' not in line
    assert (saver.directory.parent / 'checkpoints-broken' / '4').is_dir()
    assert saver.steps() == [2]
    assert saver.maybe_save(4, make_state(4, mesh, 'data'))  # the step can be saved again
    saver.close()
    saver, reports = open_run()
    require_restored(saver.restore(abstract(make_state(0, mesh, 'data'))), 4, mesh)
    assert reports == []


def test_a_checkpoint_without_checksums_is_damaged(open_run, mesh):
    save(open_run, mesh)
    saver, reports = open_run()
    (saver.directory / '4' / 'checksums.json').unlink()
    require_restored(saver.restore(abstract(make_state(0, mesh, 'data'))), 2, mesh)
    assert len(reports) == 1 and 'its checksums are missing' in reports[0]


@pytest.mark.parametrize('content', ['', '[]', 'null', '3', '{"a": 1', '[' * 100_000, None])
def test_odd_checksums_are_damage(open_run, mesh, content):
    """As any damage: the checkpoint before is used. None: a folder in the place of the file."""
    save(open_run, mesh)
    saver, reports = open_run()
    path = saver.directory / '4' / 'checksums.json'
    path.unlink()
    path.mkdir() if content is None else path.write_text(content)
    require_restored(saver.restore(abstract(make_state(0, mesh, 'data'))), 2, mesh)
    assert len(reports) == 1 and 'checksums.json' in reports[0]


def require_nothing_moved(saver, steps=(2, 4)):
    assert (
        saver.steps() == [*steps] and not saver.directory.with_name('checkpoints-broken').exists()
    )


@pytest.mark.parametrize('seen', [[], [2]])
@pytest.mark.parametrize('going_on', [GoingOn(), None], ids=['trains', 'reads'])
def test_a_folder_that_was_not_listed_is_not_one_without_checkpoints(
    open_run, mesh, monkeypatch, going_on, seen
):
    """Or training would begin at step 0, or at an earlier one."""
    save(open_run, mesh)
    monkeypatch.setattr(Checkpointer, 'steps', lambda _: seen)
    with pytest.raises(UsageError, match='has 2 checkpoints, but the folder could not be read'):
        open_run(going_on=going_on)


@pytest.mark.parametrize('name', ['.DS_Store', 'state/._d', '.nfs0000000123', 'note'])
def test_files_that_are_not_of_a_checkpoint_are_left_alone(open_run, mesh, name):
    save(open_run, mesh)
    saver, reports = open_run()
    (saver.directory / '4' / name).write_text('of another program')
    require_restored(saver.restore(abstract(make_state(0, mesh, 'data'))), 4, mesh)
    assert reports == [f'Checkpoint 4 also holds {name}, not of it: left alone.']
    require_nothing_moved(saver)


@pytest.mark.parametrize('number', [errno.EIO, errno.EACCES, errno.ESTALE, errno.EMFILE])
def test_what_cannot_be_read_just_now_is_not_damage(open_run, mesh, monkeypatch, number):
    save(open_run, mesh)
    saver, reports = open_run()

    def fail(path, **_):
        raise OSError(number, os.strerror(number), str(path))

    with monkeypatch.context() as broken:
        broken.setattr(checksums, '_checksum', fail)
        with pytest.raises(UsageError, match='checkpoint 4 cannot be read.*nothing was moved'):
            saver.restore(abstract(make_state(0, mesh, 'data')))
    require_nothing_moved(saver)
    require_restored(saver.restore(abstract(make_state(0, mesh, 'data'))), 4, mesh)
    assert reports == []


def test_only_what_was_read_twice_is_damage(open_run, mesh, monkeypatch):
    save(open_run, mesh)
    saver, _ = open_run()
    read = checksums._checksum
    wrong = lambda path, from_disk=False: read(path) ^ (not from_disk)  # noqa: E731
    with monkeypatch.context() as broken:
        broken.setattr(checksums, '_checksum', wrong)
        with pytest.raises(
            UsageError, match='read twice: first .* changed or .*then nothing wrong'
        ):
            saver.restore(abstract(make_state(0, mesh, 'data')))
    require_nothing_moved(saver)


@pytest.mark.parametrize('part', ['identity_of', '_read'])
def test_a_problem_of_the_library_is_not_damage(open_run, mesh, monkeypatch, part):
    """After all checksums were right."""
    save(open_run, mesh)
    saver, _ = open_run()

    def fail(*_, **__):
        raise ValueError('too many open files')

    monkeypatch.setattr(restoring, part, fail)
    with pytest.raises(UsageError, match='checkpoint 4 is intact, but cannot be restored'):
        saver.restore(abstract(make_state(0, mesh, 'data')))
    require_nothing_moved(saver)


@pytest.mark.parametrize(
    'keep, kept',
    [(1, [6, 8]), pytest.param(2, [6, 8], marks=pytest.mark.slow), (3, [4, 6, 8])],
)
def test_a_checkpoint_that_no_finite_step_followed_pushes_out_no_other(open_run, mesh, keep, kept):
    saver, _ = open_run(keep=keep)
    for step in (2, 4, 6, 8):
        assert saver.maybe_save(step, make_state(step, mesh, 'data'))
    saver.wait()
    assert saver.steps() == kept
    state = make_state(10, mesh, 'data')
    assert not saver.maybe_save(10, state, bad=1), 'saved while steps were not finite'
    for step, bad in ((10, 1), (11, 2), (12, 3)):  # as by signals; step 9 was the last finite one
        assert saver.maybe_save(step, make_state(step, mesh, 'data'), force=True, bad=bad)
        saver.wait()
        assert saver.steps() == [*range(8, 10 - 2 * max(keep, 2), -2)][::-1] + [step]


def test_going_back_moves_later_checkpoints_aside_once(open_run, mesh):
    save(open_run, mesh, steps=(2, 4, 6))
    folder, wanted = None, abstract(make_state(0, mesh, 'data'))
    for count, settings in enumerate(({'rate': 1}, {'rate': 2})):
        saver, reports = open_run(at=2, going_on=GoingOn(settings=settings))
        folder = saver.directory.with_name('checkpoints-left')
        require_restored(saver.restore(wanted), 2, mesh)
        assert saver.went_back and saver.steps() == [2]
        assert any('Back to step 2: the checkpoints 4' in line for line in reports)
        assert len(list(folder.iterdir())) == 2 + count
        saver.maybe_save(4, make_state(4, mesh, 'data'))
        saver.close()
        # The same command again, as a cluster would start it.
        saver, reports = open_run(at=2, going_on=GoingOn(settings=settings))
        require_restored(saver.restore(wanted), 4, mesh)
        assert not saver.went_back and 'went back there before' in reports[0]
        saver.close()
    saver, _ = open_run(at=3)
    with pytest.raises(UsageError, match='no checkpoint of step 3; there are 2, 4'):
        saver.restore(wanted)
    saver.close()
    saver, _ = open_run(at=2, going_on=None)
    require_restored(saver.restore(wanted), 2, mesh)
    assert saver.steps() == [2, 4], 'where checkpoints are only read, none is moved'


@pytest.mark.parametrize('name', ['checkpoints', 'checkpoints/4', 'checkpoints/run.json'])
def test_a_link_in_a_run_changes_nothing_elsewhere(open_run, mesh, tmp_path, name):
    save(open_run, mesh)
    path, elsewhere = tmp_path / name, tmp_path / 'elsewhere'
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    files = elsewhere.rglob('*') if elsewhere.is_dir() else [elsewhere]
    before = {each: each.read_bytes() for each in files if each.is_file()}
    if name == 'checkpoints/run.json':
        saver, _ = open_run()
        saver._going_on, saver._run = GoingOn(), 'another'
        saver.maybe_save(6, make_state(6, mesh, 'data'))
        saver.close()
        assert not path.is_symlink()
    else:
        with pytest.raises(UsageError, match=f'{path}: is a symbolic link'):
            open_run()
    assert before == {each: each.read_bytes() for each in before}


def test_all_broken_never_begins_anew(open_run, mesh):
    save(open_run, mesh)
    saver, reports = open_run()
    for step in (2, 4):
        flip(saver.directory / str(step))
    with pytest.raises(UsageError, match='all 2 checkpoints are broken'):
        saver.restore(abstract(make_state(0, mesh, 'data')))
    assert len(reports) == 2
    saver.close()
    # The same command again, as a cluster would start it: still no new run over the old one.
    with pytest.raises(UsageError, match='no checkpoint is left.*checkpoints-broken'):
        open_run()[0].restore(abstract(make_state(0, mesh, 'data')))


def test_a_whole_checkpoint_that_does_not_fit_is_left_where_it_is(open_run, mesh):
    """Structure, shapes and dtypes are compared before anything is read."""
    save(open_run, mesh)
    saver, reports = open_run()
    state = make_state(0, mesh, 'data')
    replicated = NamedSharding(mesh, P())
    others = {
        'optimizer: nothing in the checkpoint, float32 [3] asked for': {
            **state, 'optimizer': jax.device_put(jnp.zeros(3), replicated)
        },
        'memory: bfloat16 [4, 2] in the checkpoint, nothing asked for': {
            name: leaf for name, leaf in state.items() if name != 'memory'
        },
        r'memory: bfloat16 \[4, 2\] in the checkpoint, bfloat16 \[4, 3\]': {
            **state, 'memory': jax.device_put(jnp.ones((4, 3), jnp.bfloat16), replicated)
        },
        r'memory: bfloat16 \[4, 2\] in the checkpoint, float32 \[4, 2\]': {
            **state, 'memory': jax.device_put(jnp.ones((4, 2)), replicated)
        },
    }  # fmt: skip
    for text, other in others.items():
        pattern = text if '\\' in text else re.escape(text)
        with pytest.raises(UsageError, match=f'checkpoint 4 does not fit(?s:.*){pattern}'):
            saver.restore(abstract(other))
    assert saver.steps() == [2, 4] and not any('broken' in line for line in reports)
    require_restored(saver.restore(abstract(state)), 4, mesh)


def test_another_model_is_refused_with_its_fields(open_run, mesh):
    save(open_run, mesh)
    model = {'num_layers': 3, 'attention': ['local', 'local']}
    saver, reports = open_run({'config.model': model, 'tokenizer': 'b2'})
    with pytest.raises(UsageError) as caught:
        saver.restore(abstract(make_state(0, mesh, 'data')))
    text = str(caught.value)
    assert 'config.model.num_layers: 2 in the checkpoint, 3 given' in text
    assert "tokenizer: 'a1' in the checkpoint, 'b2' given" in text and 'attention' not in text
    assert reports == [] and saver.steps() == [2, 4]


def test_a_checkpoint_of_another_format_is_refused_in_one_line(open_run, mesh):
    save(open_run, mesh)  # without a format, as the first versions
    saver, reports = open_run(IDENTITY | {'format': 2, 'tokenizer': 'b2'})
    refused = (saver.require_format, lambda: saver.restore(abstract(make_state(0, mesh, 'data'))))
    for call in refused:
        with pytest.raises(UsageError, match='an earlier version, whose parameters have') as caught:
            call()
        text = str(caught.value)
        assert 'Train again in another --workdir' in text and 'tokenizer' not in text
        assert '\n' not in text
    assert reports == [] and saver.steps() == [2, 4]


def test_differing_fields():
    same = {'a': {'b': [1, 2], 'c': None}}
    assert differing_fields(same, same) == []
    assert differing_fields({'a': {'b': 1}}, {'a': {'b': 1, 'c': 2}}) == [
        'a.c: None in the checkpoint, 2 given'
    ]
    assert differing_fields({'a': {'b': 1}}, {'a': 1}) == ["a: {'b': 1} in the checkpoint, 1 given"]


def test_tuples_of_a_config_equal_the_lists_of_json(open_run, mesh):
    save(open_run, mesh)
    model = {'num_layers': 2, 'attention': ('local', 'local')}
    saver, _ = open_run({'config.model': model, 'tokenizer': 'a1'})
    require_restored(saver.restore(abstract(make_state(0, mesh, 'data'))), 4, mesh)


def test_windows_of_no_vectors_come_back(mesh, open_run):
    """Orbax cannot store empty arrays, which a memory of length 0 has."""
    state = make_state(2, mesh, 'data')
    empty = jnp.zeros((8, 0, 4), jnp.bfloat16)
    state['window'] = jax.device_put(empty, NamedSharding(mesh, P('data')))
    saver, _ = open_run()
    saver.maybe_save(2, state, force=True)
    saver.wait()
    found, step = saver.restore(abstract(state))
    assert step == 2 and found['window'].shape == (8, 0, 4)
    assert found['window'].dtype == jnp.bfloat16
    np.testing.assert_array_equal(found['params']['kernel'], state['params']['kernel'])


def test_fields_that_were_added_later_have_their_defaults(open_run, mesh):
    """A run of an earlier version continues; a field that was set to something else is refused."""
    model = base().model.to_dict()
    earlier = {name: value for name, value in model.items() if name != 'parallel_residual'}
    earlier['lora'] = {'rank': 0}
    save(open_run, mesh, identity={'config.model': earlier})
    saver, _ = open_run({'config.model': model})
    require_restored(saver.restore(abstract(make_state(0, mesh, 'data'))), 4, mesh)
    saver, _ = open_run({'config.model': model | {'parallel_residual': True}})
    with pytest.raises(UsageError, match='config.model.parallel_residual: False in the checkpoint'):
        saver.restore(abstract(make_state(0, mesh, 'data')))


def test_tuples_of_a_configuration_are_no_difference():
    """A checkpoint keeps JSON, which has lists only; every resumed run would say that it differs."""
    given = GoingOn(
        settings={'groups': (('lora', 1.0),), 'rate': 0.1}, data={'content': {'x': ()}, 'place': {}}
    )
    saved = plain(given.stored())
    assert other_settings(saved, given) == [], 'compare with the settings as JSON has them'
    assert other_data(saved, given, 'checkpoint 3') == []
    changed = dataclasses.replace(given, settings=given.settings | {'rate': 0.2})
    assert other_settings(saved, changed) == ['rate: 0.1 in the checkpoint, 0.2 given']


def test_a_memory_whose_code_has_changed_is_told_so():
    saved, asked = ({f'memory/0/{name}': ((4, 8), 'float32')} for name in 'SM')
    with pytest.raises(
        UsageError, match='(?s)states of the memories.*M: nothing.*Go back to the code'
    ):
        restoring._require_fits(saved, asked, 'RUN/checkpoints/60', part=False)
