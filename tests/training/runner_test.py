"""The loop, with a task other than a language model: resumes bit for bit, ends, stops, refuses."""

import errno
import json
import os
import shutil
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from longmem_jax import stopping
from longmem_jax.errors import UsageError
from longmem_jax.reporting.events import Events
from longmem_jax.reporting.progress import Progress
from longmem_jax.reporting.writers import Writer, read_metrics
from longmem_jax.training import identity, runner
from longmem_jax.training.checkpoint import Checkpointer
from longmem_jax.training.job import Plan, Step
from longmem_jax.training.record import by_head
from tests.reporting.writers_test import read_events


class Walk:
    """A random walk: the state is a pytree of its own, the batches are numbers drawn by position."""

    def __init__(
        self,
        *,
        num_steps=10,
        length=100,
        bad=(),
        kill_at=None,
        warnings=None,
        plan=(1, 4),
        broken=None,
        **best,
    ):
        self.plan = Plan(num_steps, *plan, 2, 'take smaller steps', warnings or {}, **best)
        self._length, self._bad, self._kill_at, self._broken = length, bad, kill_at, broken
        self.calls, self.writer, self.at = [], None, {}

    @property
    def abstract_state(self):
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding),
            self.first_state(),
        )

    def first_state(self):
        position, skipped = (jnp.zeros((), jnp.int32) for _ in range(2))
        inside = jnp.ones((3,)), jnp.zeros((0, 2))
        return {'position': position, 'skipped': skipped, 'inside': inside}

    def reached(self, *call):
        """Notes a call, and does what the test wants there."""
        self.calls.append(call)
        if call in self.at:
            self.at[call]()

    def begin(self, step):
        self.reached('begin', step)

    def compile(self):
        self.reached('compile')

        def step(state, number, bad):
            at, nothing = state['inside']
            skipped = jnp.where(bad, state['skipped'] + 1, 0)
            at = jnp.where(bad, at, jnp.sin(at * 1.7 + number))
            position = state['position'] + 1
            metrics = {'at': at.sum(), 'skipped': skipped, 'frames_seen': 4.0 * position}
            return {'position': position, 'skipped': skipped, 'inside': (at, nothing)}, metrics

        return Step(jax.jit(step, donate_argnums=0), flops=12.0)

    def batches(self, state):
        for position in range(int(state['position']), self._length):
            if position == self._broken:
                raise UsageError('line 7: no text')
            if position == self._kill_at:
                os.kill(os.getpid(), signal.SIGTERM)
            yield np.random.default_rng(position).random(dtype=np.float32), position in self._bad

    def in_short(self, metrics):
        return f'at {metrics["at"]:.3f}'

    def evaluate(self, state, step):
        self.reached('evaluate', step)
        stopping.poll()
        self.writer.scalars(step, 'validation', {'at': float(state['inside'][0].sum())})

    def finish(self, state, step):
        self.reached('finish', step)
        stopping.poll()
        return np.asarray(state['inside'][0])


def walk(folder, every=3, identity='walk', at=None, back=0, **settings):
    """Runs a `Walk` in a folder; returns it and how it ended.

    `at`: a call to what is done there; `back`: the step to go back to.
    """
    task, progress = Walk(**settings), Progress(settings.get('num_steps', 10), log_every=1)
    task.writer, task.at = Writer(folder), at or {}
    saver = Checkpointer(
        folder / 'checkpoints', every=every, keep=2, identity={'task': identity},
        report=progress.say, at=back,
    )  # fmt: skip
    return task, runner.run(task, saver=saver, writer=task.writer, progress=progress)


def test_bad_steps_push_out_no_checkpoint_and_a_run_can_go_back(whole, tmp_path, capsys):
    with pytest.raises(UsageError, match='2 steps in a row') as caught:
        walk(tmp_path, every=1, bad=(6, 7))
    assert folders(tmp_path / 'checkpoints') == [5, 6], 'of bad steps nothing is saved'
    assert str(caught.value).endswith(
        'Nothing of these steps was kept. The same command resumes from the checkpoint of step 6, which '
        'no finite step has followed, so it may be the cause. To go back to one before it, set '
        '--config.checkpoint.at=5.'
    )
    before = (tmp_path / 'metrics.jsonl').read_bytes()
    task, ended = walk(tmp_path, back=5)
    assert task.calls[0] == ('begin', 5) and ended.finished
    np.testing.assert_array_equal(ended.result, whole[1])
    said = capsys.readouterr().out
    assert 'the checkpoints 6 were moved' in said
    assert 'left out what came after step 5; the file as it was is metrics.jsonl.old' in said
    assert (tmp_path / 'metrics.jsonl.old').read_bytes() == before
    assert folders(tmp_path / 'checkpoints-left') == [6]


def test_data_that_break_off_lose_no_step(whole, tmp_path, capsys):
    with pytest.raises(UsageError, match='line 7: no text'):
        walk(tmp_path, every=100, broken=5)
    assert folders(tmp_path / 'checkpoints') == [5]
    assert 'Saved at step 5: the next one cannot be read.' in capsys.readouterr().out
    _, ended = walk(tmp_path, every=100)  # the line is put right
    np.testing.assert_array_equal(ended.result, whole[1])


def test_a_signal_in_bad_steps_saves_and_keeps_the_last_good_one(tmp_path):
    task, ended = walk(tmp_path, every=1, bad=(8,), kill_at=8)
    assert not ended.finished and folders(tmp_path / 'checkpoints') == [7, 9]


def lines(folder, group='train'):
    return [line for line in read_metrics(folder / 'metrics.jsonl') if line['group'] == group]


def folders(path):
    """Steps of the checkpoints in a folder."""
    return sorted(int(each.name) for each in path.iterdir() if each.is_dir())


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
    """(folder, end) of an uninterrupted walk."""
    folder = tmp_path_factory.mktemp('whole')
    task, ended = walk(folder)
    assert ended.finished and ended.step == 10
    assert task.calls == [
        ('begin', 0), ('compile',), ('evaluate', 4), ('evaluate', 8), ('evaluate', 10), ('finish', 10),
    ]  # fmt: skip
    return folder, ended.result


def test_what_is_seen_is_metered_by_its_name(whole):
    speed = lines(whole[0], 'speed')
    assert len(speed) == 9
    assert {'steps_per_s', 'frames_per_s', 'flops_per_s'} <= set(speed[0])
    assert speed[0]['frames_per_s'] == pytest.approx(4 * speed[0]['steps_per_s'])


def test_totals_of_two_parts_are_added_exactly():
    """At 10^10 tokens a float32 total would stand still for four steps, then jump by 1,024."""
    totals = [jnp.asarray([10_000.0, 999_700.0 + 100 * step]) for step in range(3)]
    found = [by_head({'tokens_seen': total, 'gate': total})['tokens_seen'] for total in totals]
    assert found == [10_000_999_700.0, 10_000_999_800.0, 10_000_999_900.0]


@pytest.mark.parametrize('kill_at', [6, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 7))])
def test_a_stopped_run_goes_on_bit_for_bit(whole, tmp_path, kill_at, capsys):
    """SIGTERM while a batch is made: the step is taken and saved, the handlers are restored."""
    before = signal.getsignal(signal.SIGTERM)
    task, ended = walk(tmp_path, kill_at=kill_at)
    assert not ended.finished and ended.step == kill_at + 1 and ended.result is None
    assert ('finish', kill_at + 1) not in task.calls
    assert f'SIGTERM: saved at step {kill_at + 1}' in capsys.readouterr().out
    assert signal.getsignal(signal.SIGTERM) is before
    task, ended = walk(tmp_path)
    assert f'Resuming at step {kill_at + 1}' in capsys.readouterr().out
    assert task.calls[0] == ('begin', kill_at + 1)
    np.testing.assert_array_equal(ended.result, whole[1])
    assert [line['at'] for line in lines(tmp_path)] == [line['at'] for line in lines(whole[0])]


def test_what_was_written_after_the_checkpoint_is_forgotten(whole, tmp_path):
    walk(tmp_path, kill_at=6)
    with (tmp_path / 'metrics.jsonl').open('a') as file:
        file.write(json.dumps({'step': 8, 'group': 'train', 'at': 0.0}) + '\n{"step": 9')
    walk(tmp_path)
    assert [line['at'] for line in lines(tmp_path)] == [line['at'] for line in lines(whole[0])]


def test_a_run_ends_where_its_batches_do(tmp_path):
    for evaluated in ([('evaluate', 4), ('evaluate', 5)], []):
        task, ended = walk(tmp_path, length=5)
        assert ended.finished and ended.step == 5
        assert task.calls[2:] == [*evaluated, ('finish', 5)]
    assert (tmp_path / 'checkpoints' / '5').is_dir()


def test_a_finished_run_is_only_finished_again(whole, capsys):
    task, ended = walk(whole[0])
    assert 'Finished already: 10 of 10 steps' in capsys.readouterr().out
    assert task.calls == [('begin', 10), ('finish', 10)]
    np.testing.assert_array_equal(ended.result, whole[1])


def test_bad_steps_in_a_row_end_a_run(tmp_path, capsys):
    walk(tmp_path / 'apart', bad=(2, 4))
    assert ', 1 bad steps' in capsys.readouterr().out
    with pytest.raises(UsageError, match='2 steps in a row were not finite .*; take smaller steps'):
        walk(tmp_path / 'together', bad=(2, 3))
    with pytest.raises(UsageError, match='No step since the first was finite.*testing.conformance'):
        walk(tmp_path / 'from_the_beginning', bad=(0, 1))


def test_a_metric_above_zero_is_warned_of_once(tmp_path, capsys):
    warnings = {'frames_seen': 'frames are seen; close your eyes', 'at_all': 'never said'}
    walk(tmp_path, num_steps=4, warnings=warnings)
    text = capsys.readouterr().out
    assert text.count('Warning') == 1 and 'never said' not in text
    assert 'step 1: frames_seen = 4, frames are seen; close your eyes' in text


def test_the_checkpoints_of_another_run_are_refused(whole):
    with pytest.raises(UsageError, match="task: 'walk' in the checkpoint, 'other' given"):
        walk(whole[0], identity='other')


def test_an_incomplete_profile_is_closed(tmp_path, monkeypatch, capsys):
    """The batches end before the last step to trace."""
    calls = []
    monkeypatch.setattr(jax.profiler, 'start_trace', lambda folder: calls.append(folder))
    monkeypatch.setattr(jax.profiler, 'stop_trace', lambda: calls.append('stopped'))
    task, progress = Walk(length=5), Progress(10, log_every=0)
    saver = Checkpointer(
        tmp_path / 'checkpoints', every=3, keep=2, identity={}, report=progress.say
    )
    folder = tmp_path / 'profile'
    task.writer = Writer(tmp_path)
    runner.run(task, saver=saver, writer=task.writer, progress=progress, profile=folder)
    assert calls == [str(folder), 'stopped']
    assert f'Profile of steps 3-5: {folder}' in capsys.readouterr().out


def test_a_hook_that_ends_the_run_at_an_evaluation_gets_the_state_of_it(whole, tmp_path, capsys):
    task, ended = walk(tmp_path, at={('evaluate', 4): stopping.ask})
    assert task.calls[-1] == ('evaluate', 4) and not ended.finished and ended.step == 4
    assert folders(tmp_path / 'checkpoints')[-1] == 4
    assert (
        'Stopped by a hook: saved at step 4; make the same call to resume.'
        in capsys.readouterr().out
    )
    np.testing.assert_array_equal(walk(tmp_path)[1].result, whole[1])


def send(name):
    """A function that sends this process a signal."""

    def now():
        os.kill(os.getpid(), getattr(signal, name))
        assert stopping.asked() == getattr(signal, name)

    return now


@pytest.mark.parametrize('name', ['SIGTERM', pytest.param('SIGINT', marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    'call, step, saved',
    [
        (('begin', 0), 0, []),
        (('compile',), 0, []),
        (('evaluate', 4), 4, [3, 4]),  # every 3 steps: not due, but it would be lost
        (('evaluate', 10), 10, [9, 10]),
        (('finish', 10), 10, [9, 10]),
    ],
)
def test_a_signal_is_obeyed_anywhere(whole, tmp_path, capfd, name, call, step, saved):
    """The state is saved before what may take long; what was missed is done when the run resumes."""
    task, ended = walk(tmp_path, at={call: send(name)})
    assert task.calls[-1] == call, 'nothing may begin after the signal was obeyed'
    assert not ended.finished and ended.step == step and ended.result is None
    out, error = capfd.readouterr()
    assert (
        error.count(
            f'{name}: stopping after this step, segment or compilation; a second signal, a second '
            'later, stops at once.'
        )
        == 1
    )
    told = f'saved at step {step}' if step else 'stopped before the first step'
    assert f'{name}: {told}; run the same command to resume.' in out
    assert stopping.exit_code() == 128 + getattr(signal, name)
    steps = sorted(
        int(path.name) for path in (tmp_path / 'checkpoints').glob('[0-9]*') if path.is_dir()
    )
    assert steps[-2:] == (saved if step < 9 else [9, 10]) and steps == (steps if step else [])
    task, ended = walk(tmp_path)
    assert ended.finished and stopping.exit_code() == 0
    np.testing.assert_array_equal(ended.result, whole[1])
    for group in ('train', 'validation'):
        found, wanted = (
            [(line['step'], line['at']) for line in lines(folder, group)]
            for folder in (tmp_path, whole[0])
        )
        assert found == wanted, f'{group}: rows are missing, doubled or other ones'


def test_a_checkpoint_comes_before_the_evaluation_of_its_step(tmp_path, monkeypatch):
    """What a scheduler kills in a long evaluation has lost nothing."""
    saved, save = [], Checkpointer.maybe_save
    monkeypatch.setattr(
        Checkpointer, 'maybe_save', lambda *args, **how: saved.append(args[1]) or save(*args, **how)
    )
    seen = []
    walk(tmp_path, every=4, at={('evaluate', 4): lambda: seen.extend(saved)})
    assert seen[-1:] == [4]


def test_tensorboard_has_no_holes_after_a_kill(tmp_path):
    """What a checkpoint holds is in the events, which otherwise wait for two minutes."""
    events, as_killed = tmp_path / 'tensorboard', tmp_path / 'as_killed'

    def kill():
        shutil.copytree(events, as_killed)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        walk(tmp_path, at={('evaluate', 8): kill})
    shutil.rmtree(events)
    as_killed.rename(events)
    walk(tmp_path)
    assert [step for step, _ in read_events(events)['train/at']] == list(range(1, 11))


def test_zero_means_only_at_the_end(tmp_path, capsys):
    task, ended = walk(tmp_path, every=0, plan=(0, 0))
    assert ended.finished and task.calls[2:] == [('evaluate', 10), ('finish', 10)]
    assert [line['step'] for line in lines(tmp_path)] == [10]
    assert sorted(path.name for path in (tmp_path / 'checkpoints').iterdir() if path.is_dir()) == [
        '10'
    ]
    assert 'config.checkpoint.every = 0: saved at the end' in capsys.readouterr().out


def test_files_of_a_run_that_cannot_be_written_are_one_message(tmp_path):
    (tmp_path / 'a' / 'metrics.jsonl').mkdir(parents=True)
    (tmp_path / 'b').mkdir()
    (tmp_path / 'b' / 'tensorboard').write_text('')
    (tmp_path / 'c').mkdir()
    (tmp_path / 'c' / 'checkpoints').write_text('')
    for folder, name in (('a', 'metrics.jsonl'), ('b', 'tensorboard'), ('c', 'checkpoints')):
        with pytest.raises(
            UsageError, match=f'{folder}/{name}.*: (cannot be written|is not a).*same command'
        ):
            walk(tmp_path / folder)
        if (tmp_path / folder / name).is_dir():
            (tmp_path / folder / name).rmdir()
        else:
            (tmp_path / folder / name).unlink()
        assert walk(tmp_path / folder, num_steps=3)[1].finished, 'as the message says'


def test_a_full_disk_ends_a_run_at_its_metrics(tmp_path, monkeypatch):
    """Also where closing the writer fails again: everything else is closed."""
    scalars, close, closed = Writer.scalars, Writer.close, []

    def full(self, step, group, values):
        if step == 5:
            raise OSError(errno.ENOSPC, 'No space left on device')
        scalars(self, step, group, values)

    def fail(self):
        closed.append(close(self))
        raise OSError(errno.ENOSPC, 'No space left on device')

    before = signal.getsignal(signal.SIGTERM)
    with monkeypatch.context() as patched:
        patched.setattr(Writer, 'scalars', full)
        patched.setattr(Writer, 'close', fail)
        with pytest.raises(UsageError, match=f'the disk of {tmp_path} is full; step 3 is whole'):
            walk(tmp_path)
    assert closed and signal.getsignal(signal.SIGTERM) is before
    assert walk(tmp_path)[1].finished


def test_events_that_cannot_be_written_end_a_run(tmp_path, monkeypatch, capfd):
    """A full disk is said once, by the run itself: no thread prints a traceback of its own."""
    show = Events.show

    def fail(self):
        show(self)
        os.close(self._file.fileno())

    monkeypatch.setattr(Events, 'show', fail)
    with pytest.raises(UsageError, match=r'tensorboard/events\S+: cannot be written'):
        walk(tmp_path)
    assert 'Traceback' not in capfd.readouterr().err


def test_a_folder_that_vanishes_ends_a_run(tmp_path, monkeypatch):
    scalars, run = Writer.scalars, tmp_path / 'run'

    def vanish(self, step, group, values):
        scalars(self, step, group, values)
        if (step, group) == (5, 'train'):
            run.rename(tmp_path / 'elsewhere')

    walk(run, num_steps=3)
    with monkeypatch.context() as patched:
        patched.setattr(Writer, 'scalars', vanish)
        with pytest.raises(UsageError, match='deleted, renamed or replaced'):
            walk(run, every=100)
    assert not run.exists()
    (tmp_path / 'elsewhere').rename(run)
    assert walk(run)[1].finished, 'as the message says'


HIGHEST, LOWEST = 2, 1  # steps of the walk at which it is furthest up and down


@pytest.mark.parametrize('higher, best', [(True, HIGHEST), (False, LOWEST)])
def test_the_best_checkpoint_stays(tmp_path, higher, best):
    walk(tmp_path, every=1, plan=(1, 1), best='at', higher=higher)
    at = {line['step']: line['at'] for line in lines(tmp_path, 'validation')}
    assert best == (max if higher else min)(at, key=at.get)
    assert folders(tmp_path / 'checkpoints') == sorted({best, 9, 10})
    assert identity.about(tmp_path / 'checkpoints')['best'] == best


@pytest.mark.parametrize('stop', [None, 'batch', 'evaluation'])
def test_a_run_ends_when_nothing_gets_better(tmp_path, capsys, stop):
    """Also where it was stopped in between, at a batch or in the evaluation that is the last."""
    given = dict(every=1, plan=(1, 1), best='at', higher=True, patience=2)
    end = HIGHEST + 2
    if stop:
        at = {('evaluate', end): send('SIGTERM')} if stop == 'evaluation' else {}
        kill_at = end - 2 if stop == 'batch' else None
        assert not walk(tmp_path, at=at, kill_at=kill_at, **given)[1].finished
    for said in (f'Ended at step {end}', 'Finished already'):
        task, ended = walk(tmp_path, **given)
        out = capsys.readouterr().out
        assert ended.finished and ended.step == end and task.calls[-1] == ('finish', end)
        assert [line['step'] for line in lines(tmp_path, 'validation')] == [*range(1, end + 1)]
        if stop != 'evaluation':
            assert f'{said}' in out and 'no better at in 2 evaluations' in out
    assert walk(tmp_path, **given | dict(patience=0))[1].step == 10, 'it can go on'


def test_a_number_that_validation_lacks_is_no_best(tmp_path):
    with pytest.raises(UsageError, match="best = 'accuracy': validation has no .* it has at"):
        walk(tmp_path, best='accuracy')
