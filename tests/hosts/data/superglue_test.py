"""SuperGLUE: every task's original files, as documents with an answer, and what is refused."""

import json

import numpy as np
import pytest

from longmem_jax.config import checks
from longmem_jax.config.base import base
from longmem_jax.data import load
from longmem_jax.data.tokenizers import Bytes
from longmem_jax.errors import UsageError
from longmem_jax.hosts.data.superglue import TASKS, read

CLAIM = {'premise': 'It rained.', 'hypothesis': 'It was wet.'}
PASSAGE = {
    'text': 'Ann ran. Bob sat.',
    'questions': [
        {
            'question': 'Who ran?',
            'answers': [{'text': 'Ann', 'label': 1}, {'text': 'Bob', 'label': 0}],
        },
        {'question': 'Who sat?', 'answers': [{'text': 'Bob', 'label': 1}]},
    ],
}
LINES = {
    'BoolQ': {'passage': 'Snow is white.', 'question': 'is snow white', 'label': True},
    'CB': CLAIM | {'label': 'neutral'},
    'COPA': {'premise': 'It rained.', 'choice1': 'I ran.', 'choice2': 'I sat.', 'question': 'effect',
             'label': 0},
    'MultiRC': {'idx': 0, 'passage': PASSAGE},
    'RTE': CLAIM | {'label': 'entailment'},
    'WiC': {'word': 'bank', 'sentence1': 'A bank.', 'sentence2': 'The bank.', 'label': False},
    'WSC': {'text': 'Ann saw Bob and he waved.', 'label': True,
            'target': {'span1_text': 'Bob', 'span1_index': 2, 'span2_text': 'he', 'span2_index': 4}},
}  # fmt: skip
PROMPTS = {
    'BoolQ': 'Snow is white.\nQuestion: is snow white?\nAnswer: yes',
    'CB': 'It rained.\nClaim: It was wet.\nAnswer: maybe',
    'COPA': 'It rained.\nWhat was the effect?\n1. I ran.\n2. I sat.\nAnswer: 1',
    'MultiRC': 'Ann ran. Bob sat.\nQuestion: Who ran?\nProposed answer: Ann\nAnswer: yes',
    'RTE': 'It rained.\nClaim: It was wet.\nAnswer: yes',
    'WiC': 'A bank.\nThe bank.\nDoes "bank" mean the same in both sentences?\nAnswer: no',
    'WSC': 'Ann saw Bob and he waved.\nDoes "he" refer to "Bob"?\nAnswer: yes',
}


def write(path, name, *lines, file='val.jsonl'):
    (path / name).mkdir(exist_ok=True)
    (path / name / file).write_text(''.join(json.dumps(line) + '\n' for line in lines))


def data_of(path, name):
    config = base()
    config.data.source, config.data.path = 'superglue', str(path)
    config.data.task = dict(name=name)
    return config


@pytest.mark.parametrize('name', TASKS)
def test_a_question_is_a_document_whose_answer_is_scored(tmp_path, name):
    write(tmp_path, name, LINES[name])
    config = data_of(tmp_path, name)
    assert checks.find_problems(config, 1) == []
    corpus = load.load(config.data, 'test', Bytes())
    document = corpus[0]
    answer = TASKS[name].answers[read(str(tmp_path), name, 'validation')[0].label]
    assert Bytes().decode(document.tokens).decode() == PROMPTS[name]
    wanted = [0] * (len(PROMPTS[name]) - len(answer)) + [1] * (len(answer) - 1) + [2]
    np.testing.assert_array_equal(document.scored, wanted)
    assert document.num_bytes == 0  # so that accuracy is shown
    assert corpus.lengths()[0] == len(PROMPTS[name])
    # A vocabulary is learned from the same texts.
    assert load.load_source(config.data, 'test')[0].text.decode() == PROMPTS[name]


def test_answers_to_one_question_belong_together(tmp_path):
    write(tmp_path, 'MultiRC', LINES['MultiRC'], LINES['MultiRC'])
    examples = read(str(tmp_path), 'MultiRC', 'test')
    assert [example.group for example in examples] == [(n, q) for n in (1, 2) for q in (0, 0, 1)]
    assert [example.label for example in examples] == [1, 0, 1] * 2


def test_a_file_without_questions_is_one_clear_error(tmp_path):
    """Also where a vocabulary would be learned from it."""
    write(tmp_path, 'MultiRC', {'passage': {'text': 'a', 'questions': []}})
    data = data_of(tmp_path, 'MultiRC').data
    with pytest.raises(UsageError, match='the test split has 0 documents and no text'):
        load.load(data, 'test', Bytes())
    (tmp_path / 'MultiRC' / 'val.jsonl').rename(tmp_path / 'MultiRC' / 'train.jsonl')
    data.tokenizer.kind = 'words'
    with pytest.raises(UsageError, match='the train split has 0 documents and no text'):
        load.make_tokenizer(data, tmp_path)


def test_no_answer_begins_with_another():
    for task in TASKS.values():
        assert len(task.labels) == len(task.answers)
        for one in task.answers:
            assert sum(other.startswith(one) for other in task.answers) == 1


@pytest.mark.parametrize(
    'name, changes, message',
    [
        ('BoolQ', {'label': 'yes'}, r'val.jsonl:1: label = .yes.: must be bool'),
        ('COPA', {'label': True}, 'label = True: must be int'),
        (
            'CB',
            {'label': 'perhaps'},
            'val.jsonl:1: label = .perhaps.: allowed are entailment, contra',
        ),
        ('COPA', {'question': 'why'}, 'question = .why.: must be cause or effect'),
        ('RTE', {'premise': ' '}, 'val.jsonl:1: no text'),
        ('WSC', {'target': {'span1_text': 'Bob'}}, 'target: no field .span2_text.'),
        ('MultiRC', {'passage': {'text': 'a'}}, 'passage: no field .questions.'),
        (
            'MultiRC',
            {'passage': {'text': 'a', 'questions': [3]}},
            'question 0: no field .question.',
        ),
    ],
)
def test_other_lines_are_one_clear_error(tmp_path, name, changes, message):
    write(tmp_path, name, LINES[name] | changes)
    with pytest.raises(UsageError, match=message):
        read(str(tmp_path), name, 'test')


def test_a_wrong_label_is_named_by_its_line_among_blank_ones(tmp_path):
    write(tmp_path, 'CB', LINES['CB'], LINES['CB'] | {'label': 'perhaps'})
    file = tmp_path / 'CB' / 'val.jsonl'
    file.write_text(file.read_text().replace('\n', '\n\n'))
    with pytest.raises(UsageError, match='val.jsonl:3: label = .perhaps.'):
        read(str(tmp_path), 'CB', 'test')


def test_a_file_without_labels_or_no_file(tmp_path):
    unlabelled = {k: v for k, v in LINES['RTE'].items() if k != 'label'}
    write(tmp_path, 'RTE', unlabelled)
    with pytest.raises(UsageError, match="no field 'label'"):
        read(str(tmp_path), 'RTE', 'test')
    with pytest.raises(UsageError, match=r'there is no RTE/train.jsonl; give the folder'):
        read(str(tmp_path), 'RTE', 'train')


def test_an_unknown_task_is_a_problem_of_the_config(tmp_path):
    (problem,) = checks.find_problems(data_of(tmp_path, 'BoolQA'), 1)
    assert 'config.data.task.name' in problem and "did you mean 'BoolQ'" in problem
