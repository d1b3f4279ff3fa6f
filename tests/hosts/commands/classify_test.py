"""BERT with memory tokens on a task of SuperGLUE, from a folder to metrics, as a user sees it."""

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from configs import bert_superglue as config_file
from longmem_jax.commands import evaluate
from longmem_jax.commands.start_from import first_parameters, newest_parameters
from longmem_jax.commands.train import train
from longmem_jax.config import checks
from longmem_jax.config.sections import add
from longmem_jax.errors import UsageError
from longmem_jax.hosts import hosts
from tests.commands.train_test import experiment, training_lines

GOLDENS = Path(__file__).parents[2] / 'goldens'
WORDS = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', 'good', 'bad', 'sun', 'sea', 'sky', 'so']


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """The reference BERT of two layers, with a tokenizer of a few words."""
    path = tmp_path_factory.mktemp('bert') / 'hf'
    shutil.copytree(GOLDENS / 'bert' / 'hf', path)
    (path / 'vocab.txt').write_text('\n'.join(WORDS))
    return path


def write_data(path, words=('bad', 'good')):
    """RTE in which one word of the premise decides; three of five examples are of the class 'good'."""
    (path / 'RTE').mkdir()
    random = np.random.default_rng(0)
    for file, count in (('train', 200), ('val', 30)):
        lines = []
        for label in np.arange(count) % 5 < 3:
            text = list(random.choice(['sun', 'sea', 'sky'], size=random.integers(1, 12)))
            text.insert(random.integers(min(len(text), 8) + 1), words[int(label)])
            lines.append(
                {
                    'premise': ' '.join(text),
                    'hypothesis': 'so',
                    'label': 'entailment' if label else 'not_entailment',
                }
            )
        text = ''.join(json.dumps(line) + '\n' for line in lines)
        (path / 'RTE' / f'{file}.jsonl').write_text(text)
    return path


@pytest.fixture(scope='module')
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp('data'))


def config_of(folder, data, steps=40, mem_tokens=2):
    config = config_file.get_config(f'tiny,path={folder},length=16,mem_tokens={mem_tokens}')
    config.data.path = str(data)
    config.train.num_steps, config.train.log_every = steps, 1
    config.train.evaluate_every = config.checkpoint.every = steps // 2
    config.optimizer.learning_rate, config.optimizer.warmup_steps = 3e-3, 4
    config.evaluate.num_lanes = 8
    config.mesh.data = 1
    assert checks.find_problems(config, 1) == []
    return config


@pytest.fixture(scope='module')
def finished(folder, data, tmp_path_factory):
    """A run that has learned the task."""
    run = experiment(config_of(folder, data), tmp_path_factory.mktemp('finished'))
    train(run)
    return run


def results_of(run):
    return json.loads((run.workdir / 'results.json').read_text())


@pytest.mark.slow  # a whole run
def test_a_run_learns_and_ends_with_metrics(finished, capsys):
    found = results_of(finished)
    scores = found['superglue']
    assert scores['accuracy'] > 0.9 > 0.75 > scores['majority']['accuracy']
    assert scores['accuracy'] == found['test']['accuracy'] == found['test']['exact_match']
    assert scores['examples'] == 30 and found['state_bytes_per_lane'] == 0
    assert 'memory classifier + memory tokens 2' in found['test']['protocol']
    assert training_lines(finished.workdir)[0]['loss'] == pytest.approx(np.log(2), abs=0.1)
    lines = (finished.workdir / 'answers.test.jsonl').read_text().splitlines()
    assert {json.loads(line)['label'] for line in lines} == {'entailment', 'not_entailment'}
    assert (finished.workdir / 'learning_curve.png').exists()
    evaluate.evaluate(finished, 'validation')
    again = json.loads((finished.workdir / 'superglue.validation.json').read_text())
    assert again | {'split': 'test'} == scores
    out = capsys.readouterr().out
    assert 'most frequent class' in out and '--mode=floors' not in out


@pytest.mark.slow  # a whole run
def test_a_resumed_run_ends_bit_for_bit_the_same(finished, tmp_path, capsys):
    workdir = tmp_path / 'copy'
    shutil.copytree(finished.workdir, workdir)
    for path in (workdir / 'checkpoints').glob('40*'):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    run = experiment(finished.config, workdir)
    train(run)
    assert 'Resuming at step 20' in capsys.readouterr().out
    losses = [
        [line['loss'] for line in training_lines(path)] for path in (finished.workdir, workdir)
    ]
    assert len(losses[0]) == 40 and losses[0] == losses[1]
    params = [restored.restore_parameters()[0] for restored in (finished, run)]
    jax.tree.map(np.testing.assert_array_equal, *params)


@pytest.mark.slow  # a whole run
def test_the_head_alone_learns_on_a_frozen_encoder(finished, folder, tmp_path):
    """It begins with a run that has learned the task, and the words have changed their meaning."""
    config = config_of(folder, write_data(tmp_path, ('good', 'bad')))
    config.optimizer.learning_rate = 0.1
    config.optimizer.groups = (('^(?!head/)', 0.0, False),)
    config.train.start_from = str(finished.workdir)
    run = experiment(config, tmp_path / 'run')
    train(run)
    assert training_lines(run.workdir)[0]['accuracy'] < 0.2
    assert results_of(run)['superglue']['accuracy'] > 0.9
    before, after = (each.restore_parameters()[0] for each in (finished, run))
    del before['head'], after['head']
    jax.tree.map(np.testing.assert_array_equal, after, before)


@pytest.mark.slow
def test_it_begins_with_the_folder_and_more_memory_tokens_with_a_run(folder, data, tmp_path):
    run, said = experiment(config_of(folder, data), tmp_path), []
    params, step = newest_parameters(run, said.append)
    assert step == 0 and 'Loaded 39 tensors' in said[1]
    assert said[2].endswith('new: head/bias, head/kernel, memory_tokens/tokens.')
    host = hosts.find(folder)
    own = hosts.load(host, hosts.make(host.model, 1), report=lambda line: None)
    assert 'pooler' in own
    jax.tree.map(np.testing.assert_array_equal, {name: params[name] for name in own}, own)


@pytest.mark.slow  # needs a whole run
def test_memory_tokens_are_added_to_a_run(finished, folder, data, tmp_path):
    config = config_of(folder, data, mem_tokens=5)
    config.train.start_from = str(finished.workdir)
    run, said = experiment(config, tmp_path), []
    first = first_parameters(run, jax.jit(run.make_state)().params, said.append)
    assert 'rows 2 .. 4 of memory_tokens/tokens' in said[0]
    trained, _ = finished.restore_parameters()
    tokens = [params['memory_tokens']['tokens'] for params in (first, trained)]
    np.testing.assert_array_equal(tokens[0][:2], tokens[1])


def test_a_folder_without_a_pooler_gets_a_new_one(folder, data, tmp_path):
    import safetensors.numpy

    other = tmp_path / 'bert'
    shutil.copytree(folder, other)
    tensors = safetensors.numpy.load_file(other / 'model.safetensors')
    kept = {name: value for name, value in tensors.items() if 'pooler' not in name}
    kept['classifier.weight'] = np.zeros((3, 32), np.float32)  # of another task
    safetensors.numpy.save_file(kept, other / 'model.safetensors')
    run, said = experiment(config_of(other, data, mem_tokens=0), tmp_path / 'run'), []
    params, _ = newest_parameters(run, said.append)
    assert 'ignored: classifier.weight' in said[1] and 'pooler/kernel' in said[2]
    assert np.abs(params['pooler']['kernel']).max() > 0


@pytest.mark.parametrize(
    'argument, message',
    [
        ('path={tmp}/none', 'no such file or folder'),
        ('path={tmp}', 'has no config.json'),
        ('path={goldens}/gpt2/hf', r'is a decoder \(gpt2\).*configs/superglue.py'),
        ('path={goldens}/bert/hf', 'tokenizer.json or vocab.txt is needed there'),
        ('task=RTEE', "did you mean 'RTE'"),
        ('length=0', 'must be an integer above 0'),
        ('length=4', 'config.data.task.max_length = 4: must lie between 8 and'),
        ('mem_tokens=few', 'mem_tokens=few: must be an integer from 0'),
        ('memory=infini', 'allowed are length, mem_tokens, path, task, tiny'),
    ],
)
def test_bad_arguments(tmp_path, argument, message):
    with pytest.raises(UsageError, match=message):
        config_file.get_config(argument.format(tmp=tmp_path, goldens=GOLDENS))


@pytest.mark.parametrize(
    'path, value, message',
    [
        ('data.source', 'superglue', "'superglue_pairs' and 'classifier' belong together"),
        ('data.task.name', 'CB', 'classifier.classes = 2: CB needs 3'),
        ('data.task.name', 'COPA', 'classifier.by_choice = False: COPA needs True'),
        ('data.task.name', 'BoolQA', "did you mean 'BoolQ'"),
        ('data.task.max_length', 12, 'config.train.segment_length = 16: must be 12'),
        ('model.num_positions', 12, 'texts of 16 tokens, and there are'),
        ('retrieval.kind', 'cache', "must be 'none' for models of the kind 'classifier'"),
        ('evaluate.context', 4, 'only texts are read in overlapping windows'),
    ],
)
def test_problems(folder, data, path, value, message):
    config = config_of(folder, data)
    section, _, name = path.rpartition('.')
    if section == 'retrieval':
        add(config, section)
    config[section][name] = value
    problems = checks.find_problems(config, 1)
    assert any(message in problem for problem in problems), problems


def test_a_config_of_another_model_is_not_begun_with(folder, data, tmp_path):
    config = config_of(folder, data)
    config.train.start_from = str(GOLDENS / 'gpt2' / 'hf')
    with pytest.raises(UsageError, match='config.model is another model'):
        newest_parameters(experiment(config, tmp_path), lambda line: None)
