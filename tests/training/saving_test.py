"""What a checkpoint belongs to, and that it is committed with its checksums; without a mesh."""

import itertools
import json
import os
import shutil
import time

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from longmem_jax.data.content import ORDER
from longmem_jax.errors import UsageError
from longmem_jax.training import checksums, identity
from longmem_jax.training.checkpoint import Checkpointer
from longmem_jax.training.identity import GoingOn

IDENTITY = {'config.model': {'num_layers': 2}, 'tokenizer': 'a1'}
DATA = {'place': {'config.data.path': 'a'}, 'content': {'training documents': 5, 'digest': 'd5'}}
SETTINGS = {'config': {'optimizer': {'learning_rate': 0.1}, 'data': {'seed': 0}}}

TRAINING = GoingOn(data=DATA, settings=SETTINGS)


@flax.struct.dataclass
class State:
    step: jax.Array
    params: dict
    cursor: dict


def make_state(step):
    params = {'kernel': jax.random.normal(jax.random.key(step), (64, 64))}
    return State(jnp.int32(step), params, {'document': jnp.full(3, 7), 'offset': jnp.full(3, step)})


def abstract():
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding),
        make_state(0),
    )


@pytest.fixture
def opened(tmp_path):
    """Opens the checkpoints of a workdir, and closes what was open; returns them and their reports."""
    savers = []

    def run(workdir='run', identity=IDENTITY, going_on=TRAINING):
        for saver in savers:
            saver.close()
        reports = []
        saver = Checkpointer(
            tmp_path / workdir / 'checkpoints', every=2, keep=9, identity=identity,
            report=reports.append, going_on=going_on,
        )  # fmt: skip
        savers.append(saver)
        return saver, reports

    yield run
    for saver in savers:
        saver.close()


def save(opened, *steps, workdir='run', **options):
    saver, _ = opened(workdir, **options)
    saver.restore(abstract())
    for step in steps:
        assert saver.maybe_save(step, make_state(step))
    saver.close()
    return saver.directory


def require_restored(found, step):
    assert found[1] == int(found[0].step) == step
    np.testing.assert_array_equal(found[0].params['kernel'], make_state(step).params['kernel'])


# Commit and checksums are one act.


def test_there_is_no_moment_with_a_checkpoint_without_checksums(opened, monkeypatch):
    """It ends just before the checksums are written, and just before the rename."""
    directory, written = save(opened, 2), checksums.seal
    for ending in ('before', 'after'):

        def end(folder, ending=ending):
            assert not (directory / '4').exists(), 'committed before its checksums are written'
            if ending == 'after':
                written(folder)
                assert (folder / checksums.CHECKSUMS).is_file()
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(checksums, 'seal', end)
            saver, _ = opened()
            saver.maybe_save(4, make_state(4))
            with pytest.raises(KeyboardInterrupt):
                saver.wait()
            saver.close()
        assert not (directory / '4').exists()
        saver, reports = opened()
        require_restored(saver.restore(abstract()), 2)
        assert reports == []
        saver.maybe_save(4, make_state(4))
        saver.close()
        assert sorted(path.name for path in directory.iterdir()) == ['2', '4', 'run.json']
        shutil.rmtree(directory / '4')


def test_every_file_of_a_checkpoint_is_listed(opened):
    """So that `damage` finds a change of any of them, Orbax's own as well."""
    directory = save(opened, 2)
    folder = directory / '2'
    files = {path.relative_to(folder).as_posix() for path in folder.rglob('*') if path.is_file()}
    listed = json.loads((folder / checksums.CHECKSUMS).read_text())
    assert {*listed} == files - {checksums.CHECKSUMS}
    assert {'_CHECKPOINT_METADATA', 'identity/metadata'} < {*listed}
    for name in files:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(bytes([content[0] ^ 1]) + content[1:] if content else b'x')
        assert checksums.damage(directory, 2), name
        (folder / name).write_bytes(content)
    assert not checksums.damage(directory, 2)


# Step and run belong to the content.


def test_a_clock_that_goes_back_changes_nothing(opened, monkeypatch):
    """Which checkpoint is the newest is a matter of steps, not of times."""
    now = itertools.count(time.time(), -86_400)
    monkeypatch.setattr(time, 'time', lambda: next(now))
    monkeypatch.setattr(time, 'time_ns', lambda: int(next(now)) * 10**9)
    directory = save(opened, 2, 4, 6)
    day = itertools.count(2_000_000_000, -86_400)
    for step in (2, 4, 6):  # as the clock would have it, the newest is the oldest
        for path in (directory / str(step), *(directory / str(step)).rglob('*')):
            os.utime(path, (then := next(day), then))
    saver, reports = opened()
    require_restored(saver.restore(abstract()), 6)
    assert not any('broken' in line for line in reports), reports
    assert saver.maybe_save(8, make_state(8))
    saver.close()
    require_restored(opened()[0].restore(abstract()), 8)


def test_a_copy_under_another_step_is_found_out(opened):
    directory = save(opened, 2, 4)
    shutil.copytree(directory / '2', directory / '9')
    saver, reports = opened()
    require_restored(saver.restore(abstract()), 4)
    assert 'Checkpoint 9 is broken (it holds step 2)' in reports[0]


def test_a_checkpoint_of_another_run_is_refused(opened):
    ours, theirs = (save(opened, 2, 4, workdir=name) for name in ('ours', 'theirs'))
    shutil.copytree(theirs / '4', ours / '6')
    path = ours / '6' / 'identity' / 'metadata'
    path.write_text(json.dumps(json.loads(path.read_text()) | {'step': 6}))
    checksums.seal(ours / '6')
    with pytest.raises(UsageError, match='checkpoint 6 belongs to run') as caught:
        opened('ours')[0].restore(abstract())
    assert '\n' not in str(caught.value) and (ours / '6').is_dir()
    shutil.rmtree(ours / '6')
    require_restored(opened('ours')[0].restore(abstract()), 4)
    # A whole folder may be moved, and one checkpoint may be the start of a folder of its own.
    shutil.copytree(theirs / '4', ours.parent.parent / 'new' / 'checkpoints' / '4')
    saver, _ = opened('new')
    require_restored(saver.restore(abstract()), 4)
    saver.maybe_save(6, make_state(6))
    saver.close()
    run = [json.loads((folder / 'run.json').read_text()) for folder in (theirs, saver.directory)]
    assert run[0] == run[1]


def test_a_run_keeps_its_number_and_a_new_one_gets_another(opened):
    directory = save(opened, 2)
    first = (directory / 'run.json').read_text()
    save(opened, 4)
    assert (directory / 'run.json').read_text() == first
    for step in (2, 4):
        shutil.rmtree(directory / str(step))
    save(opened, 2)
    assert (directory / 'run.json').read_text() != first


# Data and settings where training goes on.


def test_other_data_is_refused_with_what_differs_and_can_be_accepted(opened):
    save(opened, 2)
    content = {'training documents': 3, 'digest': 'd3'}
    other = {'place': {'config.data.path': 'b'}, 'content': content}
    with pytest.raises(UsageError, match='checkpoint 2 was trained on other data') as caught:
        opened(going_on=GoingOn(data=other, settings=SETTINGS))[0].restore(abstract())
    for part in (
        'training documents: 5 in the checkpoint, 3 given',
        "config.data.path: 'a' in the checkpoint, 'b' given",
        '--config.checkpoint.accept_other_data=True',
    ):
        assert part in str(caught.value)
    accepted = GoingOn(data=other, settings=SETTINGS, accept_other_data=True)
    saver, reports = opened(going_on=accepted)
    state, _ = saver.restore(abstract())
    assert 'read from its first document' in reports[-1]
    assert not np.any(jax.tree.leaves(state.cursor)), 'the cursor is of the data before'
    np.testing.assert_array_equal(state.params['kernel'], make_state(2).params['kernel'])
    saver.maybe_save(4, make_state(4))
    saver.close()
    # What was accepted is now the data of the run, and the position in it counts.
    saver, reports = opened(going_on=accepted)
    assert np.all(saver.restore(abstract())[0].cursor['document'] == 7) and reports == []


def test_another_order_of_documents_is_refused(opened):
    """An order belongs to a version of the library; accepted, the data begins again."""
    before, now = (
        {**DATA, 'content': DATA['content'] | {ORDER: order}}
        for order in ('version 1', 'version 2')
    )
    save(opened, 2, going_on=GoingOn(data=before, settings=SETTINGS))
    with pytest.raises(UsageError, match="'version 1' in the checkpoint, 'version 2' given"):
        opened(going_on=GoingOn(data=now, settings=SETTINGS))[0].restore(abstract())
    accepted = GoingOn(data=now, settings=SETTINGS, accept_other_data=True)
    saver, _ = opened(going_on=accepted)
    assert not np.any(jax.tree.leaves(saver.restore(abstract())[0].cursor))


def test_data_in_another_place_and_other_settings_are_said_in_one_line(opened):
    save(opened, 2)
    moved = {**DATA, 'place': {'config.data.path': 'b'}}
    settings = {'config': {'optimizer': {'learning_rate': 1.0, 'new': 1}, 'data': {'seed': 5}}}
    saver, reports = opened(going_on=GoingOn(data=moved, settings=settings))
    require_restored(saver.restore(abstract()), 2)
    (line,) = reports
    assert line.startswith('Differs from checkpoint 2: ') and '\n' not in line
    for part in ('learning_rate: 0.1', 'data.seed: 0 in the checkpoint, 5', "path: 'a' in the"):
        assert part in line
    assert 'new' not in line, 'a field that the version of the checkpoint did not have'


# Reading.


def test_reading_changes_nothing_and_needs_only_the_model(opened, tmp_path):
    training = GoingOn(same={'config.train.num_lanes': 8, 'config.optimizer.name': 'adam'})
    directory = save(opened, 2, 4, going_on=training)
    (directory / '6.orbax-checkpoint-tmp').mkdir()  # of a run that is writing
    path = directory / '4' / 'identity' / 'metadata'
    path.write_text('{}')
    before = sorted(tmp_path.rglob('*'))
    wanted = {'params': abstract().params, 'step': abstract().step}
    saver, reports = opened(going_on=None)
    state, step = saver.restore(wanted)
    assert step == 2 and 'Checkpoint 4 is broken' in reports[0]
    np.testing.assert_array_equal(state['params']['kernel'], make_state(2).params['kernel'])
    saver.close()
    assert sorted(tmp_path.rglob('*')) == before
    (path.parent.parent / checksums.CHECKSUMS).unlink()
    with pytest.raises(UsageError, match='belongs to another run:\n  tokenizer'):
        opened(identity=IDENTITY | {'tokenizer': 'b2'}, going_on=None)[0].restore(wanted, at=2)
    with pytest.raises(
        UsageError, match='(?s)width: 2 in the .*--config.evaluate.model.FIELD=VALUE'
    ):
        identity.require_same(
            {'config.model': {'width': 2}}, {'config.model': {'width': 4}}, None, '', ''
        )
    with pytest.raises(UsageError, match='num_lanes: 8 in the checkpoint, 4 given'):
        other = GoingOn(same={**training.same, 'config.train.num_lanes': 4})
        opened(going_on=other)[0].restore(abstract(), at=2)
    saver, _ = opened('nowhere', going_on=None)
    assert saver.restore(wanted) is None
    saver.close()
    assert not (tmp_path / 'nowhere').exists()
