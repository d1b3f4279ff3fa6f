"""The command from Python: the same runs, and what the command prints as values."""

import itertools
import json
import os
import signal
import sys
import types

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import optax
import pytest

import longmem_jax
from configs import corridor, memsizer_wmt16
from longmem_jax import stopping
from longmem_jax.commands import api
from longmem_jax.config import saved
from longmem_jax.config.files import configure
from longmem_jax.config.saved import saved_config
from longmem_jax.errors import UsageError
from longmem_jax.reporting import trackers
from longmem_jax.reporting.writers import Writer
from tests.commands.train_test import experiment, small_config, texts  # noqa: F401  (a fixture)

CHANGES = {
    'train.num_steps': 4,
    'train.evaluate_every': 2,
    'checkpoint.every': 2,
    'checkpoint.best': 'bits_per_byte',
    'train.ema_decay': 0.5,
}
# Far too fast after two updates, so that the second of two validations is the worse one.
OPTIMIZER = optax.adam(lambda count: jnp.where(count < 2, 1e-3, 1.0))


@pytest.fixture(scope='module')
def run(texts, tmp_path_factory):  # noqa: F811
    """A run made from Python, on all devices: folder, how it ended, what its hook was called with."""
    workdir, calls = tmp_path_factory.mktemp('api'), []

    def hook(step, group, values):
        calls.append((step, group, values))
        if group == 'checkpoint':
            assert (workdir / 'checkpoints' / str(step)).is_dir(), 'told before it is whole'

    config = small_config(texts, data=-1, fsdp=1, tensor=1, memory=1)
    ended = longmem_jax.train(
        config,
        workdir,
        changes=CHANGES,
        hooks=[hook],
        optimizer=OPTIMIZER,
    )
    assert config.train.num_steps == 12, 'the configuration of the caller stays as it is'
    return workdir, ended, calls


def test_hooks_get_every_number(run):
    _, ended, calls = run
    assert ended.finished and ended.step == 4
    groups = [(step, group) for step, group, _ in calls]
    for wanted in (
        (1, 'train'),
        (1, 'step'),
        (3, 'step'),
        (2, 'validation'),
        (2, 'checkpoint'),
        (4, 'checkpoint'),
        (4, 'test'),
    ):
        assert groups.count(wanted) == 1, wanted
    values = {group: values for _, group, values in calls}
    assert values['test']['bits_per_byte'] == ended.results['test'].bits_per_byte
    assert values['checkpoint'] == {} and 'learning_rate' not in values['train']


def test_an_optimizer_that_was_given_is_asked_for_again(run, texts):  # noqa: F811
    config = small_config(texts, data=-1, fsdp=1, tensor=1, memory=1)
    folder = os.fsencode(run[0])
    with pytest.raises(
        UsageError, match=r'to be given again: longmem_jax.train\(..., optimizer=...\)'
    ):
        longmem_jax.train(config, folder, changes=CHANGES)
    with pytest.raises(UsageError, match='has an average .* set config.train.ema_decay to above 0'):
        longmem_jax.train(
            config, folder, changes=CHANGES | {'train.ema_decay': 0.0}, optimizer=OPTIMIZER
        )
    changes = CHANGES | {'train.num_steps': 6}
    with pytest.raises(
        UsageError, match='another optimizer .*same object as optimizer= .*start_from'
    ):
        longmem_jax.train(config, folder, changes=changes, optimizer=optax.sgd(1e-3, momentum=0.9))


@pytest.mark.slow
def test_a_run_goes_on_and_a_hook_that_fails_loses_nothing(texts, run, tmp_path):  # noqa: F811
    def fails(step, group, values):
        if group == 'validation' and step == 4:
            raise RuntimeError('of the hook')

    config = small_config(texts, data=-1, fsdp=1, tensor=1, memory=1)
    with pytest.raises(RuntimeError, match='of the hook'):
        longmem_jax.train(config, tmp_path, changes=CHANGES, hooks=[fails], optimizer=OPTIMIZER)
    ended = longmem_jax.train(config, tmp_path, changes=CHANGES, optimizer=OPTIMIZER)
    assert ended.finished and ended.results['test'].nll == run[1].results['test'].nll


def test_a_hook_stops_the_training_and_the_run_is_saved(texts, run, tmp_path):  # noqa: F811
    def stops(step, group, values):
        if group == 'step' and step == 3:
            assert values['loss'] > 0
            raise longmem_jax.Stop

    config = small_config(texts, data=-1, fsdp=1, tensor=1, memory=1)
    given = dict(changes=CHANGES, optimizer=OPTIMIZER)
    ended = longmem_jax.train(config, tmp_path, hooks=[stops], **given)
    assert not ended.finished and not ended.results
    assert ended.step in (3, 4), 'numbers of a step are there one step later'
    assert (tmp_path / 'checkpoints' / str(ended.step)).is_dir()
    ended = longmem_jax.train(config, tmp_path, **given)
    assert ended.finished and ended.results['test'].nll == run[1].results['test'].nll


def test_the_average_of_the_best_checkpoint_is_what_is_read(run, texts):  # noqa: F811
    workdir, ended, calls = run
    scores = {step: row['bits_per_byte'] for step, group, row in calls if group == 'validation'}
    assert scores[2] < scores[4]
    params, state = longmem_jax.load(workdir).params, {}
    for decay, best in itertools.product((0.5, 0.0), ('bits_per_byte', '')):
        changes = {'train.ema_decay': decay, 'checkpoint.best': best}
        made = experiment(configure(saved_config(workdir), changes), workdir)
        state[decay, best] = made.restore_parameters()
    assert [step for _, step in state.values()] == [2, 4, 2, 4]
    jax.tree.map(np.testing.assert_array_equal, params, state[0.5, 'bits_per_byte'][0])
    sums = {float(sum(map(jnp.sum, jax.tree.leaves(each)))) for each, _ in state.values()}
    assert len(sums) == 4
    saved = json.loads((workdir / 'results.json').read_text())
    assert saved['step'] == 2 and saved['test']['loss'] == ended.results['test'].loss
    with pytest.raises(UsageError, match='trained with an object of optax; call longmem_jax.train'):
        longmem_jax.train(saved_config(workdir), workdir)
    with pytest.raises(UsageError, match="'losss': did you mean 'loss'"):
        longmem_jax.train(
            small_config(texts, data=-1), workdir / 'other', changes={'checkpoint.best': 'losss'}
        )


def test_modes_return_what_the_command_prints(run, capsys):
    workdir, ended, _ = run
    results = longmem_jax.evaluate(workdir)
    assert results['test'].nll == ended.results['test'].nll
    capsys.readouterr()
    text = longmem_jax.generate(workdir, '@alpha', length=5, temperature=0.0)
    assert text and text == longmem_jax.generate(workdir, '@alpha', length=5, temperature=0.0)
    several = longmem_jax.generate(workdir, ['@alpha', 'beta'], length=5, temperature=0.0)
    assert several[0] == text and len(several) == 2
    assert longmem_jax.generate(workdir, []) == []
    assert longmem_jax.generate(workdir, b'@alpha', length=5, temperature=0.0) == text
    assert capsys.readouterr().out == ''
    losses = longmem_jax.score(workdir, 'alpha beta')
    assert len(losses.nats) == 10 and np.isfinite(losses.nats).all()


@pytest.mark.parametrize(
    'option, message',
    [
        (dict(lenght=5), "did you mean 'length'"),
        (dict(temperature=-1.0), 'generate.temperature = -1.0: must be at least 0'),
        (dict(temperature=float('inf')), 'generate.temperature = inf: must be a number'),
        (dict(beams=2, top_k=3), 'beams = 2 with top_k: a search .* draws nothing'),
        (dict(length=2.5), 'generate.length: must be an int'),
    ],
)
def test_options_are_checked_like_fields(run, option, message):
    with pytest.raises(UsageError, match=message):
        longmem_jax.generate(run[0], 'alpha', **option)


@pytest.mark.parametrize(
    'call, message',
    [
        (lambda run: longmem_jax.train(None, run), "config = None .* a name such as 'quickstart'"),
        (lambda run: longmem_jax.train('quickstart', None), 'workdir = None .* a path'),
        (lambda run: longmem_jax.train('quickstart', run, hooks=print), 'hooks = .* a list of'),
        (lambda run: longmem_jax.train('quickstart', run, hooks='ab'), "hooks = 'ab': give a list"),
        (lambda run: longmem_jax.train('quickstart', run, hooks=[lambda n: 1]), 'cannot be called as'),
        (lambda run: longmem_jax.train('quickstart', run, hooks=[trackers.Tracker]), 'cannot be called'),
        (lambda run: longmem_jax.run_mode('generate', run, length=True), 'length = True .* one of int'),
        (lambda run: longmem_jax.train('quickstart', run, hooks=[3]), 'a hook = 3 .* a function'),
        (lambda run: longmem_jax.evaluate(run, changes='x=1'), "changes = 'x=1' .* a dictionary"),
        (lambda run: longmem_jax.generate(run, 'a', changes='x=1'), "changes = 'x=1' .* a dictionary"),
        (lambda run: longmem_jax.evaluate(run, 3), "split"),
        (lambda run: longmem_jax.generate(run, 5), 'prompt = 5 .* a text, or a list'),
        (lambda run: longmem_jax.generate(run, ['a', 5]), 'the text = 5 .* give text'),
        (lambda run: longmem_jax.generate(run, 'ab\ud800'), r"half a character, '\\ud800', at 2"),
        (lambda run: longmem_jax.generate(run, 'a', save_state=5), 'save_state = 5 .* a path'),
        (lambda run: longmem_jax.score(run, None), 'the text = None is of the type NoneType: give text'),
        (lambda run: longmem_jax.load(None), 'workdir = None .* the folder of a run'),
        (lambda run: longmem_jax.load(run, 'newest'), "at = 'newest' .* the step of a checkpoint"),
    ],
)  # fmt: skip
def test_arguments_of_a_wrong_type_are_named(run, call, message):
    with pytest.raises(UsageError, match=message):
        call(run[0])


def test_what_only_training_needs_is_not_asked_of_reading(run, texts, tmp_path):  # noqa: F811
    changes = {'checkpoint.best': '', 'train.patience': 3}
    assert longmem_jax.score(run[0], 'alpha', changes=changes).scored
    with pytest.raises(UsageError, match='patience = 3: needs config.checkpoint.best'):
        longmem_jax.train(small_config(texts, data=-1), tmp_path, changes=changes)
    with pytest.raises(UsageError, match='a text has no answers'):
        longmem_jax.train('quickstart:tiny', tmp_path, changes={'checkpoint.best': 'exact_match'})


def test_a_signal_ends_the_program_too(monkeypatch, texts, tmp_path):  # noqa: F811
    """As it would have without the library, once the run is saved."""
    signum = signal.SIGINT
    monkeypatch.setattr(api, 'load', lambda name: lambda *_, **__: stopping.end(signum))
    with pytest.raises(KeyboardInterrupt):
        longmem_jax.train(small_config(texts, data=-1), tmp_path)
    signum = signal.SIGTERM
    with pytest.raises(stopping.Stopped) as stopped:
        longmem_jax.train(small_config(texts, data=-1), tmp_path)
    assert stopped.value.code == 143 and stopping.exit_code() == 0


def test_a_memory_is_kept_in_a_file(run, tmp_path):
    workdir, file = run[0], tmp_path / 'alpha.memory'
    one_lane = {'evaluate.num_lanes': 8}
    longmem_jax.generate(workdir, 'alpha ' * 9, length=0, save_state=file, changes=one_lane)
    again = longmem_jax.score(workdir, 'beta', load_state=file, changes=one_lane)
    alone = longmem_jax.score(workdir, 'beta')
    assert again.loss != alone.loss


def test_a_refused_training_leaves_no_folder(tmp_path):
    changes = {'data.source': 'text', 'data.path': str(tmp_path / 'nowhere')}
    with pytest.raises(UsageError, match='nowhere does not exist'):
        longmem_jax.train('quickstart', tmp_path / 'run', changes=changes)
    assert not list(tmp_path.iterdir())


def test_configurations_by_name_and_what_is_wrong_with_them(tmp_path):
    config = longmem_jax.configure('quickstart:memory=infini', {'train.num_steps': 7})
    assert config.train.num_steps == 7 and 'infini' in config.model.attention
    frozen = ml_collections.FrozenConfigDict(config)
    changed = longmem_jax.configure(frozen, {'train.num_steps': 8})
    assert changed.train.num_steps == 8 and longmem_jax.configure(frozen) == config
    file = tmp_path / 'own.py'
    file.write_text('from longmem_jax.configs.quickstart import get_config  # noqa\n')
    assert longmem_jax.configure(file) == longmem_jax.configure('quickstart')
    with pytest.raises(UsageError, match="no file or name quickstar; did you mean 'quickstart'"):
        longmem_jax.configure('quickstar')
    with pytest.raises(UsageError, match='has no field'):
        longmem_jax.configure('quickstart', {'train.steps': 7})
    with pytest.raises(UsageError, match='no config.json there'):
        longmem_jax.generate(tmp_path, 'alpha')


def test_other_modes(run, tmp_path):
    changes = {'train.ema_decay': 0.5}
    page = tmp_path / 'page.html'
    longmem_jax.run_mode('inspect', run[0], prompt='alpha', output=page, changes=changes)
    assert '<html' in page.read_text()
    for options, said in (
        (dict(outputs='x'), '--outputs: not for --mode=inspect .* options are --'),
        (dict(reads='many'), "reads = 'many' is of the type str: give one of int"),
    ):
        with pytest.raises(UsageError, match=said):
            longmem_jax.run_mode('inspect', run[0], **options)
    with pytest.raises(UsageError, match="mode = 'inspekt': did you mean 'inspect'.* allowed are "):
        longmem_jax.run_mode('inspekt', run[0])
    with pytest.raises(UsageError, match=r'longmem_jax.train\(config, workdir\) trains'):
        longmem_jax.run_mode('train', run[0])


class FakeWandb(types.ModuleType):
    """What is used of wandb; `calls` has what was asked of it."""

    def __init__(self):
        super().__init__('wandb')
        self.run, self.calls = None, []

    def init(self, **settings):
        self.calls.append(('init', settings))
        self.run = types.SimpleNamespace(id='a1', define_metric=lambda *_, **__: None)
        return self.run

    def log(self, values):
        self.calls.append(('log', values))

    def finish(self):
        self.calls.append(('finish',))
        self.run = None


def test_models_that_continue_no_texts_are_refused(tmp_path):
    """Their numbers would mean nothing, and errors would name other things."""
    made = dict(pairs=memsizer_wmt16.get_config('tiny'), agent=corridor.get_config('tiny'))
    for name, config in made.items():
        (tmp_path / name).mkdir()
        saved.write(config, tmp_path / name / 'config.json')
    for call in (longmem_jax.score, longmem_jax.generate):
        for name, kind in (('pairs', 'seq2seq'), ('agent', 'agent')):
            with pytest.raises(UsageError, match=f"not for models of the kind '{kind}'"):
                call(tmp_path / name, 'a')
    with pytest.raises(
        UsageError, match=r'a run of config.reinforcement, .*; use longmem_jax.evalu'
    ):
        longmem_jax.load(tmp_path / 'agent')


def test_a_hook_that_cannot_be_closed_is_a_warning_and_the_others_are_closed(tmp_path):
    closed = []

    class Hook:
        def __init__(self, fails):
            self.fails = fails

        def __call__(self, step, group, values):
            pass

        def close(self):
            closed.append(self.fails)
            if self.fails:
                raise OSError('no network')

    writer = Writer(tmp_path, hooks=(Hook(False), Hook(True)))
    with pytest.warns(RuntimeWarning, match="could not be closed: OSError.'no network'"):
        writer.close()
    assert closed == [True, False]


def test_a_tracker_makes_its_folder_before_a_run_begins(tmp_path):
    folder, sent = tmp_path / 'not' / 'there', []

    def begin(kept):
        assert folder.is_dir(), 'the id of a run that begins here could not be kept'
        return kept or 'id1'

    hook = trackers.Tracker(
        'own',
        folder,
        begin=begin,
        log=lambda *_: sent.append(_),
        end=lambda: None,
    )
    hook(1, 'train', {'loss': 2.0})
    assert sent == [({'train/loss': 2.0}, 1)]
    assert json.loads((folder / trackers.KEPT).read_text()) == {'own': 'id1'}


def test_trackers_get_names_of_events_and_go_on_with_their_run(monkeypatch, tmp_path):
    service = FakeWandb()
    monkeypatch.setitem(sys.modules, 'wandb', service)
    for again in ({}, dict(id='a1', resume='allow')):
        (hook,) = trackers.named('wandb', tmp_path, {'seed': 3})
        hook(3, 'step', {'loss': 1.5})
        hook(3, 'checkpoint', {})
        assert not service.calls, 'a process without numbers begins no run'
        hook(3, 'train', {'loss': np.float32(1.5)})
        hook.close()
        hook.close()
        assert service.calls == [
            ('init', dict(config={'seed': 3}) | again),
            ('log', {'train/loss': 1.5, 'step': 3}),
            ('finish',),
        ]
        service.calls.clear()


def test_a_tracker_leaves_a_run_of_the_caller_open(monkeypatch):
    service = FakeWandb()
    monkeypatch.setitem(sys.modules, 'wandb', service)
    service.init()
    hook = trackers.wandb(project='long')
    hook(1, 'train', {'loss': 2.0})
    hook.close()
    assert service.run is not None and [name for name, *_ in service.calls] == ['init', 'log']


def test_trackers_that_are_not_there(monkeypatch, tmp_path):
    with pytest.raises(UsageError, match="--tracker=wandv: did you mean 'wandb'"):
        trackers.named('wandv', tmp_path, {})
    monkeypatch.setitem(sys.modules, 'mlflow', None)
    with pytest.raises(UsageError, match='pip install mlflow'):
        trackers.named('mlflow', tmp_path, {})
    monkeypatch.setitem(sys.modules, 'wandb', FakeWandb())
    for kept in ('[]', '{"wandb": null}'):
        (tmp_path / trackers.KEPT).write_text(kept)
        with pytest.raises(UsageError, match='has no ids of runs; delete it'):
            trackers.wandb(tmp_path)(1, 'train', {'loss': 2.0})
