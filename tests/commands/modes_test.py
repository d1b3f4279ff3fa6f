"""Which modes write into the folder of a run, and which leave out what a config has."""

import pytest

import longmem_jax
from longmem_jax import workdir
from longmem_jax.commands import api, modes
from longmem_jax.config.base import base
from longmem_jax.data.sources import SOURCES
from longmem_jax.data.tasks.registry import TASKS
from longmem_jax.errors import UsageError


def config_of(source, **task):
    config = base()
    config.data.source = source
    config.data.task = task
    return config


@pytest.mark.parametrize(
    'source, task, writes',
    [
        ('text', {}, False),
        ('ruler', {}, False),
        ('copy', {}, False),
        ('recall', {}, True),
        ('state_tracking', {}, True),
        ('babilong', {}, True),
        ('superglue', {}, True),
        ('cmu_dog', dict(respond=True), True),
        ('cmu_dog', dict(respond=False), False),
    ],
)
def test_an_evaluation_writes_what_its_task_or_source_writes(source, task, writes):
    config = config_of(source, **task)
    assert modes.writes(modes.choose('evaluate', config, {}), config, {}) == writes
    assert not modes.writes(modes.choose('generate', config, {}), config, {})


def test_a_chat_is_for_models_of_texts():
    config = base()
    assert modes.choose('generate', config, {'chat': True}).option == 'chat'
    for kind, message in (
        ('seq2seq', '--chat: not for --mode=generate'),
        ('text_encoder', 'not for'),
    ):
        config.model.kind = kind
        with pytest.raises(UsageError, match=message):
            modes.choose('generate', config, {'chat': True})


@pytest.mark.parametrize('name, said', [('generate', True), ('score', True), ('train', False)])
def test_a_section_that_a_mode_does_not_use_is_said(name, said, capsys):
    """Otherwise a text would seem to be drawn with the neighbours of a datastore."""
    config = base('retrieval')
    modes.choose(name, config, {})
    assert not capsys.readouterr().err
    config.retrieval.kind = 'knn_lm'
    modes.choose(name, config, {})
    out, beside = capsys.readouterr()
    assert ('of the model alone; config.retrieval is for --mode=evaluate' in beside) == said
    assert not out, 'what is printed there may be read by a program'


def test_a_section_that_is_switched_off_is_said(capsys):
    """Otherwise who names a datastore, and no kind, would take the model's score for that with it."""
    config = base('retrieval')
    config.retrieval.datastore = 'STORE'
    modes.choose('evaluate', config, {})
    assert "of the model alone, since config.retrieval.kind = 'none'" in capsys.readouterr().err
    config.retrieval.kind = 'knn_lm'
    modes.choose('evaluate', config, {})
    modes.choose('evaluate', base(), {})
    assert not capsys.readouterr().err
    with pytest.raises(
        UsageError, match='save_state: not for --mode=evaluate with config.retrieval'
    ):
        modes.choose('evaluate', config, dict(save_state='x'))


@pytest.mark.parametrize('source', ['recall', 'babilong'])
def test_nothing_is_written_for_a_memory_of_one_text(source):
    config = config_of(source)
    given = dict(load_state='x', save_state='')
    mode = modes.choose('evaluate', config, given)
    assert modes.writes(mode, config, {}) and not modes.writes(mode, config, given)


def test_all_series_and_all_scores_count():
    """Also those of later tasks and sources."""
    names = [name for name, task in TASKS.items() if task.series]
    names += [name for name, each in SOURCES.items() if each.scores and each.reads == 'texts']
    for name in names:
        config = config_of(name, respond=True)
        assert modes.writes(modes.choose('evaluate', config, {}), config, {}), name


def test_a_read_only_folder_is_noticed_before_anything_is_scored(tmp_path, monkeypatch):
    """From Python as by the command; other evaluations go on."""

    def refused(folder):
        raise OSError('Read-only file system')

    begun = []
    config = config_of('state_tracking')
    monkeypatch.setattr(api, '_of_run', lambda *_: Run(config, tmp_path))
    monkeypatch.setattr(api, 'load', lambda _: lambda *given, **flags: begun.append(given))
    monkeypatch.setattr(workdir, 'probe', refused)
    with pytest.raises(UsageError, match='cannot be written .*Read-only'):
        longmem_jax.evaluate(tmp_path)
    assert not begun
    config.data.source = 'text'
    longmem_jax.evaluate(tmp_path)
    assert begun


class Run:
    """As much of an experiment as the choice of a mode needs."""

    def __init__(self, config, folder):
        self.config, self.workdir = config, folder
