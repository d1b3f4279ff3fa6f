"""SuperGLUE for encoders: the pairs of every task, marked, cut, and what is refused."""

import json

import numpy as np
import pytest

from longmem_jax.config.base import base
from longmem_jax.data import load
from longmem_jax.data.tokenizer_files import load_tokenizer
from longmem_jax.data.tokenizers import Bytes
from longmem_jax.errors import UsageError
from longmem_jax.hosts.data.classes import ClassCorpus, ClassExample, cut
from longmem_jax.hosts.data.superglue_pairs import PAIRS, examples
from longmem_jax.segment import NOTHING, of_second
from tests.hosts.data.superglue_test import LINES, write

FOUND = {
    'BoolQ': [('Snow is white.', 'is snow white?')],
    'CB': [('It rained.', 'It was wet.')],
    'COPA': [
        ('It rained. What happened as a result?', 'I ran.'),
        ('It rained. What happened as a result?', 'I sat.'),
    ],
    'MultiRC': [('Ann ran. Bob sat.', 'Who ran? Ann')],
    'RTE': [('It rained.', 'It was wet.')],
    'WiC': [('bank: A bank.', 'The bank.')],
    'WSC': [('Ann saw * Bob * and # he # waved.', '')],
}
WORDS = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', 'a', 'b', '##s', 'c']


@pytest.fixture
def tokenizer(tmp_path):
    """A BERT folder's vocab.txt of a few words."""
    (tmp_path / 'bert').mkdir()
    (tmp_path / 'bert' / 'vocab.txt').write_text('\n'.join(WORDS))
    return load_tokenizer('tokenizers', tmp_path / 'bert')


def data_of(path, name, max_length=16):
    data = base().data
    data.source, data.path = 'superglue_pairs', str(path)
    data.task = dict(name=name, max_length=max_length)
    return data


@pytest.mark.parametrize('name', PAIRS)
def test_the_pairs_of_every_task(tmp_path, name):
    write(tmp_path, name, LINES[name])
    data = data_of(tmp_path, name)
    found = examples(data, 'validation')
    assert list(found[0].pairs) == FOUND[name]
    labels = dict(BoolQ=[1], CB=[2], COPA=[0], MultiRC=[1, 0, 1], RTE=[1], WiC=[0], WSC=[1])
    assert [example.label for example in found] == labels[name]
    # A vocabulary is learned from the same texts.
    text = load.load_source(data, 'test')[0].text.decode()
    assert text == '\n'.join(part for pair in FOUND[name] for part in pair if part)


def test_answers_to_one_question_belong_together(tmp_path):
    write(tmp_path, 'MultiRC', LINES['MultiRC'])
    groups = [example.group for example in examples(data_of(tmp_path, 'MultiRC'), 'test')]
    assert groups == [(1, 0), (1, 0), (1, 1)]


def test_the_longer_text_is_cut_first():
    def lengths(first, second, room):
        texts = np.arange(first), np.arange(second)
        kept = cut(*texts, room)
        assert all(np.array_equal(a, b[: len(a)]) for a, b in zip(kept, texts, strict=True))
        return tuple(map(len, kept))

    def one_by_one(first, second, room):
        while first + second > room:
            first, second = (first - 1, second) if first > second else (first, second - 1)
        return first, second

    for first in range(8):
        for second in range(8):
            for room in range(1, 16):
                assert lengths(first, second, room) == one_by_one(first, second, room)


def test_a_pair_is_marked_and_the_class_stands_at_its_first_position(tokenizer):
    example = ClassExample((('a bs', 'c'),), 1, 0)
    corpus = ClassCorpus([example], tokenizer, 10)
    document = corpus[0]
    assert document.inputs.tolist() == [2, 5, 6, 7, 3, of_second(8), of_second(3)]
    assert document.tokens.tolist() == [1, 0, 0, 0, 0, 0, 0]
    assert document.scored.tolist() == [2, 0, 0, 0, 0, 0, 0]
    assert document.num_bytes == 0 and corpus.lengths().tolist() == [7]
    assert of_second(of_second(8)) == 8 and of_second(0) < NOTHING


def test_long_pairs_single_texts_and_choices(tokenizer):
    def inputs(*pairs, length=7):
        return ClassCorpus([ClassExample(pairs, 0, 0)], tokenizer, length)[0].inputs.tolist()

    b, mark = of_second(6), of_second(3)
    assert inputs(('a a a a a a', 'b b b b')) == [2, 5, 5, 3, b, b, mark]
    assert inputs(('a a a a a a', 'b')) == [2, 5, 5, 5, 3, b, mark]
    assert inputs(('a a a a a a a a', '')) == [2, 5, 5, 5, 5, 5, 3]
    # Every choice has as many positions; only the end of the last is left out.
    assert inputs(('a', 'b'), ('c', 'b')) == [2, 5, 3, b, mark, NOTHING, NOTHING, 2, 8, 3, b, mark]
    # Texts cannot spell marks.
    assert inputs(('a [SEP] [CLS] c', 'b')) == [2, 5, 8, 3, b, mark]


def test_a_learned_vocabulary_has_the_marks(tmp_path):
    (tmp_path / 'data').mkdir()
    write(tmp_path / 'data', 'RTE', *[LINES['RTE']] * 9, file='train.jsonl')
    data = data_of(tmp_path / 'data', 'RTE')
    data.tokenizer = dict(kind='wordpiece', path='', size=300)
    tokenizer = load.make_tokenizer(data, tmp_path)
    corpus = load.load(data, 'train', tokenizer)
    text = corpus[0].inputs
    assert text[0] == tokenizer.token_id('[CLS]') and text[-1] == of_second(
        tokenizer.token_id('[SEP]')
    )
    assert load.make_tokenizer(data, tmp_path).fingerprint() == tokenizer.fingerprint()
    assert tokenizer.decode(text[1:4]) == b'it rained.'


def test_a_vocabulary_of_cases(tmp_path):
    (tmp_path / 'vocab.txt').write_text('\n'.join([*WORDS, 'A']))
    assert load_tokenizer('tokenizers', tmp_path).encode(b'A a').tolist() == [5, 5]
    (tmp_path / 'tokenizer_config.json').write_text(json.dumps({'do_lower_case': False}))
    assert load_tokenizer('tokenizers', tmp_path).encode(b'A a').tolist() == [9, 5]


@pytest.mark.parametrize(
    'name, changes, message',
    [
        ('CB', {'label': 'perhaps'}, 'val.jsonl:1: label = .perhaps.: allowed are entailment, contra'),
        ('COPA', {'question': 'why'}, 'question = .why.: must be cause or effect'),
        ('RTE', {'premise': ' '}, 'val.jsonl:1: no text'),
        ('WSC', {'target': {'span1_text': 'Bob', 'span2_text': 'he'}}, "target: no field 'span1_index'"),
        ('WSC', {'target': LINES['WSC']['target'] | {'span2_index': 6}},
         'span2_index = 6: the text has 6 words, and span2_text 1'),
    ],
)  # fmt: skip
def test_other_lines_are_one_clear_error(tmp_path, name, changes, message):
    write(tmp_path, name, LINES[name] | changes)
    with pytest.raises(UsageError, match=message):
        examples(data_of(tmp_path, name), 'test')


def test_no_files_or_a_tokenizer_without_marks(tmp_path):
    with pytest.raises(UsageError, match=r'there is no RTE/train.jsonl; give the folder'):
        examples(data_of(tmp_path, 'RTE'), 'train')
    with pytest.raises(UsageError, match=r'has no \[CLS\] and \[SEP\].*wordpiece'):
        ClassCorpus([], Bytes(), 16)
