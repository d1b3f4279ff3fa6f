"""Training as a user sees it: runs, ends, resumes, refuses; and the promises of the step itself."""

import json
import shutil
import signal
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import longmem_jax
from experiments.trainings import train_seeds
from longmem_jax.commands import evaluate
from longmem_jax.commands.restart_lanes import next_document, restarted
from longmem_jax.commands.train import LanguageModelTask, train
from longmem_jax.config.base import base, stack
from longmem_jax.config.checks import find_problems
from longmem_jax.config.recipes import section, use
from longmem_jax.data import lanes
from longmem_jax.devices import sharding
from longmem_jax.errors import UsageError
from longmem_jax.evaluation.evaluator import Evaluator
from longmem_jax.evaluation.token_losses import token_losses
from longmem_jax.experiment import Experiment, lower_step, to_devices
from longmem_jax.reporting.progress import Progress
from longmem_jax.reporting.writers import Writer, read_metrics
from longmem_jax.training import step as train_step
from tests.stopping import stopped


def small_config(path, **mesh):
    """A run of 12 steps on the texts in `path`."""
    config = base()
    stack(config.model, 1, 'transformer_xl')
    config.model.d_model = config.model.d_embed = 32
    config.model.num_heads, config.model.head_dim, config.model.d_feed_forward = 2, 16, 48
    config.model.transformer_xl = section('transformer_xl', memory_length=16)
    config.model.vocab_size = 264
    config.model.dropout = 0.1
    config.data.path = str(path)
    config.train.num_steps, config.train.num_lanes, config.train.segment_length = 12, 8, 8
    config.train.segments_per_step, config.train.log_every = 2, 1
    config.train.evaluate_every = 6
    config.evaluate.segment_length, config.evaluate.num_lanes = 8, 8
    config.generate.sample_length = 0
    config.checkpoint.every = 3
    config.mesh = mesh or dict(data=1, fsdp=1, tensor=1, memory=1)
    config.notes = ('a memory: one size was chosen otherwise',)
    return config


@pytest.fixture(scope='module')
def texts(tmp_path_factory):
    path = tmp_path_factory.mktemp('texts')
    random = np.random.default_rng(0)
    for split, count in (('train', 6), ('validation', 3), ('test', 3)):
        (path / split).mkdir()
        for i in range(count):
            words = random.choice(['alpha', 'beta', 'gamma', 'delta'], size=80 + 40 * i)
            (path / split / f'{i}.txt').write_text(' '.join(words))
    return path


def experiment(config, workdir, devices=None):
    mesh = sharding.make_mesh(config.mesh.to_dict(), devices or jax.devices()[:1])
    workdir.mkdir(parents=True, exist_ok=True)
    return Experiment(config, workdir, mesh)


def training_lines(workdir):
    return [line for line in read_metrics(workdir / 'metrics.jsonl') if line['group'] == 'train']


@pytest.fixture(scope='module')
def finished(texts, tmp_path_factory):
    """A finished run: (workdir, summary, its metrics)."""
    workdir = tmp_path_factory.mktemp('finished')
    summary = train(experiment(small_config(texts), workdir))
    return workdir, summary, training_lines(workdir)


def test_a_run_leaves_what_it_says(finished, capsys):
    workdir, summary, lines = finished
    assert summary.finished and summary.step == 12
    assert [line['step'] for line in lines] == list(range(1, 13))
    assert lines[-1]['loss'] < lines[0]['loss']
    results = json.loads((workdir / 'results.json').read_text())
    assert results['parameters'] > 1000
    assert results['state_bytes_per_lane'] > 0
    for name in ('test', 'test, memory reset'):
        assert results[name]['bits_per_byte'] == summary.results[name].bits_per_byte
        assert 'segment 8, memory transformer_xl 16' in results[name]['protocol']
    assert (workdir / 'learning_curve.png').exists()  # what it shows: writers_test
    config = json.loads((workdir / 'config.json').read_text())
    assert config['model']['transformer_xl']['memory_length'] == 16
    assert list((workdir / 'tensorboard').glob('events*'))
    assert {path.name for path in (workdir / 'checkpoints').iterdir() if path.is_dir()} == {
        '6', '9', '12',
    }  # fmt: skip


def test_a_finished_run_only_evaluates(finished, texts, capsys):
    workdir, summary, lines = finished
    again = train(experiment(small_config(texts), workdir))
    out = capsys.readouterr().out
    assert 'Finished already' in out
    assert out.count('Note: a memory: one size was chosen otherwise') == 1
    assert json.loads((workdir / 'config.json').read_text())['notes']
    assert training_lines(workdir) == lines
    assert again.results['test'].nll == summary.results['test'].nll


def test_a_run_is_loaded_by_its_folder_alone(finished, texts, tmp_path):
    model, params, tokenizer = longmem_jax.load(str(finished[0]))
    wanted, step = experiment(small_config(texts), finished[0]).restore_parameters()
    assert step == 12 and model.segment_length == 8
    jax.tree.map(np.testing.assert_array_equal, params, wanted)
    state = model.apply({'params': params}, 1, method='initial_state')
    before, text = np.asarray([tokenizer.begin]), tokenizer.encode(b'alpha beta gamma')
    losses = np.concatenate([*token_losses(model, params, state, before, text)])
    assert losses.shape == (16,) and losses.mean() < finished[2][0]['loss']
    with pytest.raises(UsageError, match='no config.json there; give the workdir of a run'):
        longmem_jax.load(tmp_path)
    shutil.copy(finished[0] / 'config.json', tmp_path)
    with pytest.raises(UsageError, match='no checkpoint there; train first'):
        longmem_jax.load(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ['config.json'], 'nothing is made to look'


def test_a_sample_that_fails_loses_no_result(finished, texts, tmp_path, capsys, monkeypatch):
    workdir = tmp_path / 'copy'
    shutil.copytree(finished[0], workdir)
    for name in ('results.json', 'learning_curve.png'):
        (workdir / name).unlink()
    config = small_config(texts)
    config.generate.sample_length = 5

    def fail(*arguments):
        raise RuntimeError('no sample today')

    monkeypatch.setattr('longmem_jax.commands.train.sample_text', fail)
    with pytest.raises(RuntimeError, match='no sample today'):
        train(experiment(config, workdir))
    written = json.loads((workdir / 'results.json').read_text())
    assert written['test']['bits_per_byte'] == finished[1].results['test'].bits_per_byte
    assert (workdir / 'learning_curve.png').exists()
    assert 'test, memory reset' in capsys.readouterr().out.partition('Results')[2]


@pytest.mark.slow
def test_broken_checkpoint_falls_back_and_ends_bit_for_bit(finished, texts, tmp_path, capsys):
    """The newest checkpoint loses bytes; the one before is used, with the same losses."""
    workdir, _, lines = finished
    copy = tmp_path / 'copy'
    shutil.copytree(workdir, copy)
    largest = max((copy / 'checkpoints' / '12').rglob('*'), key=lambda p: p.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)
    train(experiment(small_config(texts), copy))
    out = capsys.readouterr().out
    assert 'Checkpoint 12 is broken' in out and 'Resuming at step 9' in out
    assert (copy / 'checkpoints-broken' / '12').is_dir()
    assert [line['loss'] for line in training_lines(copy)] == [line['loss'] for line in lines]


@pytest.mark.slow
def test_all_broken_is_an_error(finished, texts, tmp_path):
    copy = tmp_path / 'copy'
    shutil.copytree(finished[0], copy)
    for folder in (copy / 'checkpoints').iterdir():
        if folder.is_dir():
            for path in folder.rglob('*'):
                if path.is_file():
                    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UsageError, match='all 3 checkpoints are broken'):
        train(experiment(small_config(texts), copy))


@pytest.mark.slow
def test_another_model_is_refused_by_field(finished, texts):
    config = small_config(texts)
    config.model.d_feed_forward = 64
    config.model.transformer_xl.memory_length = 24
    with pytest.raises(UsageError) as caught:
        train(experiment(config, finished[0]))
    assert 'model.d_feed_forward: 48 in the checkpoint, 64 given' in str(caught.value)
    assert 'memory_length: 16 in the checkpoint, 24 given' in str(caught.value)


@pytest.mark.slow
def test_a_run_with_64_bits_is_one_of_32(finished, texts, tmp_path, capsys):
    """`JAX_ENABLE_X64=1`: the program accepts it, and its checkpoints are read without it."""
    jax.config.update('jax_enable_x64', True)
    try:
        wide = train(experiment(small_config(texts), tmp_path))
    finally:
        jax.config.update('jax_enable_x64', False)
    first = [folder[0]['loss'] for folder in (training_lines(tmp_path), finished[2])]
    assert first[0] == pytest.approx(first[1], rel=0.1), 'other random numbers, the same scale'
    narrow = train(experiment(small_config(texts), tmp_path))
    assert 'Finished already' in capsys.readouterr().out
    for name, result in narrow.results.items():
        assert result.bits_per_byte == pytest.approx(wide.results[name].bits_per_byte, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize('memory', ['transformer_xl', 'infini', 'linear'])
def test_everything_may_be_one(memory, texts, tmp_path):
    """One lane, layer and head, segments of one token, width 1, and the words of the tokenizer."""
    config = small_config(texts)
    config.model.d_model = config.model.d_embed = config.model.d_feed_forward = 1
    config.model.num_heads = config.model.head_dim = 1
    use(config, memory, reach=1, memories=1)
    config.model.dropout, config.model.vocab_size = 0.0, 257
    config.train.num_lanes = config.train.segment_length = config.train.segments_per_step = 1
    config.evaluate.num_lanes = config.evaluate.segment_length = 1
    config.evaluate.max_segments = config.evaluate.max_test_segments = 8
    config.train.num_steps = 3
    assert find_problems(config, 1) == []
    summary = train(experiment(config, tmp_path))
    losses = [line['loss'] for line in training_lines(tmp_path)]
    assert len(losses) == 3 and np.isfinite(losses).all() and summary.finished
    assert all(np.isfinite(result.bits_per_byte) for result in summary.results.values())


def copied(finished, tmp_path):
    return Path(shutil.copytree(finished[0], tmp_path / 'copy'))


def test_other_data_is_refused_when_a_run_goes_on(finished, texts, tmp_path, capsys):
    """As a command would: no step is taken, and nothing of the run before changes."""
    workdir, other = copied(finished, tmp_path), tmp_path / 'other'
    shutil.copytree(texts, other)
    (other / 'train' / '5.txt').unlink()
    config = small_config(other)
    config.train.num_steps = 13
    before = {path: path.read_bytes() for path in workdir.glob('*.json*')}
    with pytest.raises(UsageError, match='checkpoint 12 was trained on other data') as caught:
        train(experiment(config, workdir))
    assert 'training documents: 6 in the checkpoint, 5 given' in str(caught.value)
    assert 'config.data.path' in str(caught.value)
    assert {path: path.read_bytes() for path in before} == before
    # The same data in another place, other seeds and another learning rate are said, and it goes on.
    moved = shutil.copytree(texts, tmp_path / 'moved')
    config = small_config(moved)
    config.data.seed, config.train.seed, config.optimizer.learning_rate = 5, 9, 1.0
    run, lines = experiment(config, workdir), []
    saver = run.checkpointer(lines.append, run.going_on(run.corpus('train')))
    assert saver.restore(run.abstract_state)[1] == 12
    saver.close()
    for part in ('data.path', 'data.seed: 0 in', 'train.seed: 0 in', 'learning_rate: 0.00025 in'):
        assert part in lines[0], lines
    assert len(lines) == 1 and '\n' not in lines[0]


def test_other_data_can_be_accepted_and_begins_at_its_start(finished, texts, tmp_path):
    workdir, other = copied(finished, tmp_path), shutil.copytree(texts, tmp_path / 'other')
    (other / 'train' / '5.txt').write_text('epsilon ' * 40)
    config = small_config(other)
    config.checkpoint.accept_other_data = True
    run, lines = experiment(config, workdir), []
    task = LanguageModelTask(run, Writer(workdir), Progress(0, log_every=0))
    saver = run.checkpointer(lines.append, run.going_on(task.corpora['train']))
    state, _ = saver.restore(run.abstract_state)
    saver.close()
    batch, _ = next(task.batches(state))
    assert 'read from its first document' in lines[-1] and np.all(batch.start[0])
    task.begin(12)
    kept = json.loads((workdir / 'config.json').read_text())
    assert kept['checkpoint']['accept_other_data'] is False, 'it is accepted once, not for good'


def test_what_only_training_needs_is_not_asked_of_a_reader(finished, texts, tmp_path):
    """Other lanes, another optimizer, no training data; and the folder stays as it is."""
    workdir = copied(finished, tmp_path)
    config = small_config(tmp_path / 'nowhere')
    config.train.num_lanes, config.optimizer.name = 4, 'adamw'
    before = sorted(workdir.rglob('*'))
    params, step = experiment(config, workdir).restore_parameters()
    wanted, _ = experiment(small_config(texts), workdir).restore_parameters()
    assert step == 12 and sorted(workdir.rglob('*')) == before
    jax.tree.map(np.testing.assert_array_equal, params, wanted)
    config.data.tokenizer.update(kind='words', size=20)
    with pytest.raises(UsageError, match='no checkpoint there; train first'):
        experiment(config, tmp_path / 'typo').restore_parameters()
    assert not list((tmp_path / 'typo').iterdir()), 'not even a vocabulary'


def command(workdir, texts, *more):
    """A run of `:tiny` with one layer, as a process of its own."""
    return [
        '--config=configs/quickstart.py:tiny',
        f'--workdir={workdir}', '--config.data.source=text', f'--config.data.path={texts}',
        '--config.train.log_every=1', '--config.generate.sample_length=0',
        '--config.checkpoint.every=3', '--config.model.num_layers=1',
        "--config.model.attention=('transformer_xl',)", "--config.model.feed_forward=('dense',)",
        *more,
    ]  # fmt: skip


def until(process, wanted):
    """Reads the process's output up to a line with `wanted`."""
    lines = []
    for line in process.stdout:
        lines.append(line)
        if wanted in line:
            return
    raise AssertionError(f'{wanted!r} never came:\n' + ''.join(lines))


@pytest.fixture(scope='module')
def whole(start, texts, tmp_path_factory):
    """The folder of a finished run of `command`."""
    workdir = tmp_path_factory.mktemp('whole')
    process = start(command(workdir, texts))
    out = process.communicate()[0]
    assert process.returncode == 0, out
    return workdir


@pytest.mark.slow
def test_killed_and_started_again_goes_on_bit_for_bit(start, whole, texts, tmp_path):
    cut = tmp_path / 'cut'
    process = start(command(cut, texts))
    until(process, 'step 8/20')
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    process = start(command(cut, texts))
    out = process.communicate()[0]
    assert process.returncode == 0 and 'Resuming at step' in out, out
    losses = [[line['loss'] for line in training_lines(path)] for path in (whole, cut)]
    assert losses[0] == losses[1] and len(losses[0]) == 20


def free_port():
    import socket

    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        return probe.getsockname()[1]


@pytest.mark.slow
def test_two_processes_are_one_and_stop_together(start, whole, texts, tmp_path):
    """Two processes with gloo train and evaluate to the numbers of one.

    SIGTERM to one of them: both save the same step and end; both resume from it.
    """

    def start_two():
        port = free_port()
        flags = [f'--coordinator=127.0.0.1:{port}', '--num_processes=2']
        return [
            start(
                command(tmp_path / 'two', texts, *flags, f'--process_id={number}'),
                cache=tmp_path / f'cache{number}',
            )
            for number in range(2)
        ]

    def ends(processes, code):
        outs = [process.communicate()[0] for process in processes]
        assert [process.returncode for process in processes] == [code, code], '\n'.join(outs)
        return outs[0]

    processes = start_two()
    until(processes[0], 'step 6/20')
    processes[1].send_signal(signal.SIGTERM)
    assert 'SIGTERM: saved at step' in ends(processes, 143)
    assert 'Resuming at step' in ends(start_two(), 0)
    two = tmp_path / 'two'
    a, b = (training_lines(path) for path in (whole, two))
    assert [line['step'] for line in b] == list(range(1, 21))
    np.testing.assert_allclose(
        [line['loss'] for line in a], [line['loss'] for line in b], rtol=1e-5
    )
    a, b = (json.loads((path / 'results.json').read_text()) for path in (whole, two))
    np.testing.assert_allclose(a['test']['loss'], b['test']['loss'], rtol=1e-4)
    assert a['test']['tokens'] == b['test']['tokens']


def steps(config, workdir, devices, count=3):
    """Losses and parameters of some steps on `devices`."""
    made = experiment(config, workdir, devices)
    compiled = lower_step(made).compile()
    state = jax.jit(made.make_state, out_shardings=made.state_shardings)()
    source = lanes.batches(
        made.corpus('train'), lanes=range(8), num_lanes=8, segment_length=8, segments_per_batch=2,
        seed=0, shuffle=True, num_epochs=None, cursor=None,
    )  # fmt: skip
    losses = []
    for _ in range(count):
        state, metrics = compiled(state, *to_devices(made, *next(source)))
        losses.append(float(metrics['loss']))
    return losses, state


@pytest.mark.slow
def test_saved_on_eight_devices_and_resumed_on_one_and_two(texts, tmp_path, finished, capsys):
    """Data, memories and random numbers are the same; sums are added in another order."""
    eight = dict(data=2, fsdp=2, tensor=2)
    with stopped(LanguageModelTask, line=6):
        train(experiment(small_config(texts, **eight), tmp_path / 'eight', jax.devices()))
    for count in (1, 2):
        workdir = tmp_path / str(count)
        shutil.copytree(tmp_path / 'eight', workdir)
        capsys.readouterr()
        config = small_config(texts, data=1, fsdp=count)
        summary = train(experiment(config, workdir, jax.devices()[:count]))
        out = capsys.readouterr().out
        here = '1 device' if count == 1 else '2 devices'
        assert f'Saved on 8 devices in 1 process, resumed on {here} in 1 process: ' in out
        assert 'later losses agree to rounding only' in out and summary.finished
        found, wanted = (
            [(line['step'], line['loss']) for line in lines]
            for lines in (training_lines(workdir), finished[2])
        )
        assert [step for step, _ in found] == list(range(1, 13))
        np.testing.assert_allclose(
            [loss for _, loss in found], [loss for _, loss in wanted], rtol=5e-5
        )


@pytest.mark.slow
def test_other_lanes_begin_again_where_that_is_said(texts, tmp_path, finished, capsys):
    workdir = tmp_path / 'run'
    shutil.copytree(finished[0], workdir)
    config = small_config(texts)
    config.train.num_steps, config.train.num_lanes = 15, 4
    with pytest.raises(
        UsageError, match=r'step 12 .* has 8 lanes, .*num_lanes=8; or .*restart_lanes=T'
    ):
        train(experiment(config, workdir))
    other = small_config(texts)
    use(other, 'local')
    other.train.num_lanes = 4
    with pytest.raises(UsageError, match=r'(?s)model.attention.*num_lanes: 8 in the checkpoint, 4'):
        train(experiment(other, workdir))
    config.train.restart_lanes = True
    kept = experiment(small_config(texts), finished[0])
    saver = kept.checkpointer(print)
    wanted, _ = saver.restore(kept.abstract_state)
    saver.close()
    resumed = experiment(config, workdir)
    state, step = restarted(resumed, resumed.corpus('train'), print)
    assert step == 12 and int(state.step) == 12
    for part in ('params', 'optimizer', 'tokens_seen'):
        chex.assert_trees_all_equal(getattr(state, part), getattr(wanted, part))
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(state.memory)), 'memories are empty'
    assert {leaf.shape[0] for leaf in jax.tree.leaves((state.memory, state.cursor))} == {4}
    with stopped(LanguageModelTask, line=1):
        train(experiment(config, workdir))
    assert '8 lanes in the checkpoint of step 12, 4 now: parameters' in capsys.readouterr().out
    # Nothing is said from now on: the newest checkpoint has four lanes.
    assert not json.loads((workdir / 'config.json').read_text())['train']['restart_lanes']
    config.train.restart_lanes = False
    assert train(experiment(config, workdir)).finished
    assert [line['step'] for line in training_lines(workdir)] == list(range(1, 16))


@pytest.mark.slow
def test_eight_devices_give_the_numbers_of_one(texts, tmp_path):
    mesh = dict(data=2, fsdp=2, tensor=2)
    one, _ = steps(small_config(texts), tmp_path / 'one', jax.devices()[:1])
    config = small_config(texts, **mesh)
    eight, state = steps(config, tmp_path / 'eight', jax.devices())
    np.testing.assert_allclose(one, eight, rtol=2e-5)
    kernel = state.params['block_0']['feed_forward']['up']['kernel']
    assert kernel.addressable_shards[0].data.size * 4 == kernel.size
    moment = jax.tree.leaves(state.optimizer, is_leaf=lambda x: False)
    assert any(
        m.shape == kernel.shape and m.addressable_shards[0].data.size * 4 == m.size for m in moment
    )


@pytest.mark.slow
def test_steps_that_are_not_finite_change_nothing_and_end_the_run(texts, tmp_path):
    config = small_config(texts)
    config.optimizer.warmup_steps = 8
    made = experiment(config, tmp_path / 'run')
    state = jax.jit(made.make_state)()
    broken = jax.tree.map(lambda leaf: leaf, state.params)
    broken['embedding']['table_0'] = broken['embedding']['table_0'].at[:].set(jnp.nan)
    state = state.replace(params=broken)
    step = jax.jit(train_step.make_train_step(made.model, made.optimizer, made.schedule, config))
    batch, cursor = next(
        lanes.batches(
            made.corpus('train'), lanes=range(8), num_lanes=8, segment_length=8,
            segments_per_batch=2, seed=0, shuffle=True, num_epochs=None, cursor=None,
        )
    )  # fmt: skip
    after, metrics = step(state, batch, cursor)
    assert int(after.skipped) == 1 and int(after.step) == 1
    for old, new in zip(
        jax.tree.leaves((state.optimizer, state.memory)),
        jax.tree.leaves((after.optimizer, after.memory)),
        strict=True,
    ):
        np.testing.assert_array_equal(old, new)
    again, metrics_again = step(after, batch, cursor)
    assert int(again.skipped) == 2
    # The schedule counts updates, and there was none: the rate is still that of the first.
    np.testing.assert_array_equal(metrics_again['learning_rate'], metrics['learning_rate'])

    config.optimizer.learning_rate = float('nan')
    config.train.max_bad_steps = 2
    with pytest.raises(UsageError, match='2 steps in a row were not finite'):
        train(experiment(config, tmp_path / 'fatal'))


@pytest.mark.slow
def test_evaluation_does_not_depend_on_lanes_devices_or_padding(finished, texts, tmp_path):
    workdir, _, _ = finished
    params, _ = experiment(small_config(texts), workdir).restore_parameters()
    values = {}
    for name, num_lanes, mesh in (
        ('one lane', 1, {}), ('three', 3, {}), ('eight', 8, {}), ('devices', 8, dict(data=8)),
    ):  # fmt: skip
        config = small_config(texts, **mesh)
        config.evaluate.num_lanes = num_lanes
        made = experiment(config, tmp_path / name, jax.devices() if mesh else None)
        evaluator = Evaluator(made.evaluation_model, made.mesh, config)
        here = jax.device_put(params, sharding.replicated(made.mesh))
        result, _ = evaluator.evaluate(here, made.corpus('test'), 'test')
        values[name] = result.nll, result.tokens, result.num_bytes
    nll, tokens, num_bytes = values.pop('one lane')
    assert tokens == num_bytes == sum(p.stat().st_size for p in (texts / 'test').iterdir())
    for other in values.values():
        np.testing.assert_allclose(other[0], nll, rtol=1e-6)
        assert other[1:] == (tokens, num_bytes)


@pytest.mark.slow
def test_memory_reset_is_every_segment_by_itself(finished, texts):
    workdir, _, _ = finished
    made = experiment(small_config(texts), workdir)
    params, _ = made.restore_parameters()
    evaluator = Evaluator(made.evaluation_model, made.mesh, made.config)
    kept, reset = (
        evaluator.evaluate(params, made.corpus('test'), 'test', reset=flag)[0]
        for flag in (False, True)
    )
    config = small_config(texts)
    config.evaluate.model = dict(transformer_xl=dict(memory_length=0))
    bare = experiment(config, workdir)
    without = Evaluator(bare.evaluation_model, bare.mesh, config).evaluate(
        params, made.corpus('test'), 'test'
    )[0]
    np.testing.assert_allclose(reset.nll, without.nll, rtol=1e-5)
    assert abs(kept.nll - reset.nll) > 1e-5 * kept.nll
    assert evaluator._program._cache_size() == 1, 'compiled once for each; `reset` must be an array'


@pytest.mark.slow
def test_overlapping_windows_are_scored_once_and_without_memory(finished, texts, tmp_path, capsys):
    """Each window is read by itself, so the result is not called one with memory."""
    workdir, summary, _ = finished
    workdir = shutil.copytree(workdir, tmp_path / 'run')
    config = small_config(texts)
    config.evaluate.context, config.evaluate.num_lanes = 5, 2
    results = evaluate.evaluate(experiment(config, workdir), 'test')
    assert list(results) == ['test'] and results['test'].memory == 'reset'
    out = capsys.readouterr().out
    assert 'gain by memory' not in out
    assert 'segment 8 after 5 tokens of context, memory transformer_xl 16 reset before' in out
    # The context takes the place of the memory that is missing.
    assert results['test'].tokens == summary.results['test'].tokens
    assert results['test'].nll != summary.results['test, memory reset'].nll
    again = train(experiment(config, workdir))
    assert list(again.results) == ['test']
    assert again.results['test'].nll == pytest.approx(results['test'].nll, rel=1e-6)
    with pytest.raises(UsageError, match='there is none to save; set --config.evaluate.context=0'):
        config.evaluate.num_lanes = 1
        evaluate.evaluate(experiment(config, workdir), 'test', save_state=str(workdir / 'saved'))


@pytest.mark.slow
def test_accumulated_steps_are_one_large_step(texts, tmp_path):
    """Two half batches, accumulated, move the parameters once, on the second."""
    config = small_config(texts)
    config.model.dropout = 0.0
    config.optimizer.accumulate_steps = 2
    made = experiment(config, tmp_path / 'run')
    initial = jax.jit(made.make_state)().params
    _, state = steps(config, tmp_path / 'run', jax.devices()[:1], count=1)
    for a, b in zip(jax.tree.leaves(initial), jax.tree.leaves(state.params), strict=True):
        np.testing.assert_array_equal(a, b)
    _, state = steps(config, tmp_path / 'run', jax.devices()[:1], count=2)
    moved = [
        np.abs(np.asarray(a - b)).max()
        for a, b in zip(jax.tree.leaves(initial), jax.tree.leaves(state.params), strict=True)
    ]
    assert max(moved) > 0


def test_tokens_are_counted_beyond_float32():
    seen = jnp.asarray([20_000.0, 999_999.0])
    seen = train_step.count(seen, jnp.asarray(3.0))
    np.testing.assert_array_equal(seen, [20_001.0, 2.0])


@pytest.mark.slow
def test_seeds_share_what_is_compiled(texts, tmp_path, monkeypatch):
    """One compilation; every seed ends as if it had been trained by itself."""
    compiled = []
    monkeypatch.setattr(
        'longmem_jax.commands.train.lower_step',
        lambda *given: compiled.append(given) or lower_step(*given),
    )
    config = small_config(texts)
    train_seeds(experiment(config, tmp_path), range(2))
    assert len(compiled) == 1
    config.data.seed = config.train.seed = 1
    alone = train(experiment(config, tmp_path / 'alone')).results
    losses = []
    for seed in range(2):
        losses.append(
            json.loads((tmp_path / str(seed) / 'results.json').read_text())['test']['loss']
        )
    assert losses[1] == alone['test'].loss != losses[0]
    train_seeds(experiment(config, tmp_path), range(2))
    assert len(compiled) == 2  # that of `alone`: finished seeds are not repeated


def test_new_lanes_begin_with_documents_that_none_had_begun():
    """By hand: documents are dealt to the lanes in turn."""
    random = np.random.default_rng(0)
    for old, new in ((8, 4), (4, 8), (3, 5), (1, 1)):
        for _ in range(20):
            document, offset = random.integers(0, 6, old), random.integers(0, 2, old)
            begun = {
                lane + number * old
                for lane in range(old)
                for number in range(document[lane] + offset[lane])
            }
            first = next_document(document, offset, new)
            assert first * new > max(begun, default=-1)
            assert first == 0 or (first - 1) * new <= max(begun), 'as soon as possible'
