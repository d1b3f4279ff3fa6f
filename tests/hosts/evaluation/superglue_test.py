"""Metrics of SuperGLUE, by hand; and a model that learns to answer."""

import json

import numpy as np
import pytest

from configs import superglue as config_file
from experiments.hosts import load
from longmem_jax.commands import evaluate
from longmem_jax.commands.train import train
from longmem_jax.config import checks
from longmem_jax.errors import UsageError
from longmem_jax.hosts.data.superglue import Example
from longmem_jax.hosts.evaluation.superglue import f1, macro_f1, majority, scores
from tests.commands.train_test import experiment


def examples(labels, groups=None):
    groups = range(len(labels)) if groups is None else groups
    return [Example('', '', label, group) for label, group in zip(labels, groups, strict=True)]


def test_f1_of_a_class_and_of_all():
    right, found = np.asarray([1, 1, 0, 0, 1]), np.asarray([1, 0, 1, 0, 1])
    assert f1(right, found) == pytest.approx(2 / 3)  # precision and recall are 2 of 3
    assert f1(right, found, 0) == pytest.approx(1 / 2)
    assert macro_f1(right, found) == pytest.approx((2 / 3 + 1 / 2) / 2)
    # A class that is neither there nor found does not count.
    assert macro_f1(np.asarray([2, 2]), np.asarray([2, 0])) == pytest.approx((2 / 3 + 0) / 2)
    assert f1(np.asarray([0]), np.asarray([0])) == 0


def test_tasks_have_their_metrics():
    labels, found = [0, 1, 1, 2], np.asarray([0, 1, 0, 2])
    assert scores('RTE', examples(labels), found) == {'accuracy': 0.75, 'score': 0.75}
    cb = scores('CB', examples(labels), found)
    assert cb['accuracy'] == 0.75 and cb['f1'] == pytest.approx((2 / 3 + 2 / 3 + 1) / 3)
    assert cb['score'] == pytest.approx((cb['accuracy'] + cb['f1']) / 2)
    groups = [(0, 0), (0, 0), (0, 1), (1, 0)]
    multirc = scores('MultiRC', examples([1, 0, 1, 0], groups), np.asarray([1, 1, 1, 0]))
    assert multirc['em'] == pytest.approx(2 / 3) and multirc['f1a'] == pytest.approx(4 / 5)


def test_the_majority_is_one_class():
    assert majority(examples([2, 1, 2])).tolist() == [2, 2, 2]


def test_a_host_answers_with_and_without_a_memory(tmp_path):
    load.write(tmp_path / 'host', 1, small=True)
    given = f'tiny,task=CB,path={tmp_path / "host"},segment=32'
    config = config_file.get_config(f'{given},memory=transformer_xl')
    assert checks.find_problems(config, 1) == []
    assert {*config.model.attention} == {'transformer_xl'}
    assert config.model.transformer_xl.memory_length == 256
    assert config.train.start_from == str(tmp_path / 'host')
    assert config.train.segment_length == config.evaluate.segment_length == 32
    alone = config_file.get_config(f'{given},memory=none')
    assert {*alone.model.attention} == {'full'} and not alone.train.loss_weights
    assert (
        alone.model.d_model == config.model.d_model != config_file.get_config('tiny').model.d_model
    )
    for argument, message in (
        ('tiny,memory=none', 'needs the host of path=FOLDER'),
        (f'{given},from=run', 'from one of them'),
    ):
        with pytest.raises(UsageError, match=message):
            config_file.get_config(argument)


@pytest.mark.slow  # a whole run
def test_a_model_learns_to_answer(tmp_path, capsys):
    data = tmp_path / 'data'
    (data / 'BoolQ').mkdir(parents=True)
    random = np.random.default_rng(0)
    for file, count in (('train', 200), ('val', 30)):
        lines = []
        for label in random.random(count) < 0.7:
            # The answer stands at the beginning, a segment or two before the question.
            filler = ' '.join(random.choice(['sun', 'sea', 'sky'], size=random.integers(3, 12)))
            passage = f'{"good" if label else "bad"} {filler}'
            lines.append({'passage': passage, 'question': 'so', 'label': bool(label)})
        text = ''.join(json.dumps(line) + '\n' for line in lines)
        (data / 'BoolQ' / f'{file}.jsonl').write_text(text)
    config = config_file.get_config('tiny,task=BoolQ')
    config.data.path = str(data)
    config.data.tokenizer = dict(kind='words', path='', size=100)
    config.model.num_layers, config.model.vocab_size = 1, 40
    config.model.d_model = config.model.d_embed = config.model.d_feed_forward = 32
    config.model.head_dim = 16
    config.model.attention, config.model.feed_forward = ('transformer_xl',), ('dense',)
    config.train.segment_length, config.train.num_steps, config.train.evaluate_every = 8, 40, 40
    config.train.log_every, config.evaluate.segment_length = 20, 8
    config.optimizer.learning_rate = 2e-2
    config.mesh.data = 1
    run = experiment(config, tmp_path / 'run')
    train(run)
    found = json.loads((run.workdir / 'results.json').read_text())
    assert found['superglue']['accuracy'] > 0.9 > found['superglue']['majority']['accuracy']
    assert found['superglue']['accuracy'] == pytest.approx(found['test']['exact_match'], abs=0.05)
    assert 'most frequent class' in capsys.readouterr().out
    answers = (run.workdir / 'answers.test.jsonl').read_text().splitlines()
    assert len(answers) == 30 and json.loads(answers[3]).keys() == {'idx', 'label'}
    evaluate.evaluate(run, 'validation')
    again = json.loads((run.workdir / 'superglue.validation.json').read_text())
    assert again | {'split': 'test'} == found['superglue']
