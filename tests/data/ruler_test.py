"""RULER: samples of the released generator, what is scored, rules, and lengths that are refused."""

import hashlib
import itertools
import json
import string

import numpy as np
import pytest
import tokenizers

from configs import leaderboard
from longmem_jax.config import checks
from longmem_jax.config.base import base
from longmem_jax.data import load
from longmem_jax.data.sets.ruler import source, words
from longmem_jax.data.tokenizers import Bytes
from longmem_jax.errors import UsageError
from longmem_jax.evaluation import floors
from tests.parity import compare
from tests.parity_systems import ruler

WORDS = dict(
    noun=(*(f'n{number}' for number in range(4200)), 'new-n7'),
    adjective=('old', 'old-new', 'new', 'oldest'),
    verb=('go', 'new'),
)
ESSAY = ' '.join(f'This is sentence {number} of the essay.\n' for number in range(150))
# Made by the released generator from the words and files here, seed 3, with a token for every four
# bytes: (task, length) -> checksum of three samples.
RELEASED = {
    ('niah_single_1', 1000): '8f0ab3d6d60699ae',
    ('niah_single_1', 5000): '1b2ddd04e14c8d0b',
    ('niah_single_2', 1000): '809f2ebb468c4c3b',
    ('niah_single_2', 5000): 'b4843c4a0ea872bf',
    ('niah_single_3', 1000): 'e3a607a073d6ebb7',
    ('niah_multikey_1', 1000): '07794099ff46513e',
    ('niah_multikey_2', 1000): '70a7983024d01ec4',
    ('niah_multikey_2', 5000): '34748b6a4111f316',
    ('niah_multikey_3', 1000): '777096d6b10aaa24',
    ('niah_multikey_3', 5000): '44859b032b6342b3',
    ('niah_multiquery', 1000): 'e59caec181c96443',
    ('niah_multivalue', 1000): 'c1146c0302bd6b8a',
    ('vt', 1000): '4ea4a9f9a44ae749',
    ('vt', 5000): 'a668594cd3d1fb59',
    ('cwe', 1000): 'c7f9a617ca13c225',
    ('cwe', 5000): 'c666d739130fb6d0',
    ('fwe', 1000): '8b6279d15f354244',
    ('fwe', 5000): '5a6b42a2b141cf1d',
    ('qa_1', 400): '9db0484b3eaf48a7',
    ('qa_1', 1000): 'eff55a24e8a9de1a',
    ('qa_2', 400): '1adb19d61cec27a0',
    ('qa_2', 1000): 'a5b85d3474d957f8',
}


def crude(text):
    return len(text.encode()) // 4


def paragraph(a, p):
    return f'Paragraph {p} of article {a} says that the number of {a} and {p} is {10 * a + p}.'


def questions(name):
    """The JSON of SQuAD or HotpotQA."""
    if name == 'qa_2':
        return [
            dict(
                question=f'What is the number of {a} and 1?',
                answer=str(10 * a + 1),
                context=[
                    [f'Title {a}', [paragraph(a, 0), paragraph(a, 1)]],
                    [f'Title {a + 1}', [paragraph(a + 1, 2)]],
                ],
            )
            for a in range(8)
        ]

    def asked(a, p):
        answers = [dict(text=str(10 * a + p)), dict(text=f'the {10 * a + p}')]
        question = f'What is the number of {a} and {p}?'
        return [dict(question=question, is_impossible=p == 1, answers=answers)]

    articles = [
        dict(paragraphs=[dict(context=paragraph(a, p), qas=asked(a, p)) for p in range(4)])
        for a in range(6)
    ]
    return dict(data=articles)


@pytest.fixture(autouse=True)
def few_words(monkeypatch):
    monkeypatch.setattr(words, 'listed', lambda: WORDS)
    words.pairs.cache_clear()
    yield
    words.pairs.cache_clear()


def config_of(path, task_name, *lengths, **task):
    config = base()
    config.data.source, config.data.seed = 'ruler', 3
    config.data.task = (
        dict(name=task_name, lengths=lengths, documents=40, eval_documents=3, example=True) | task
    )
    if task_name.startswith('qa'):
        config.data.path = str(path / f'{task_name}.json')
        (path / f'{task_name}.json').write_text(json.dumps(questions(task_name)))
    elif task_name.startswith('niah'):
        config.data.path = str(path / 'essay.txt')
        (path / 'essay.txt').write_text(ESSAY)
    return config


def checksum(samples):
    return hashlib.sha256(json.dumps([list(sample) for sample in samples]).encode()).hexdigest()[
        :16
    ]


@pytest.mark.parametrize('name, length', RELEASED)
def test_samples_are_those_of_the_released_generator(name, length, tmp_path):
    config = config_of(tmp_path, name, length)
    assert checks.find_problems(config, 1) == []
    samples = source.Samples(config.data, 'test', crude)
    last = samples[2]  # in any order
    assert checksum(samples) == RELEASED[name, length]
    assert samples[2] == last
    for text, prefix, outputs in samples:
        assert crude(text + prefix) + samples.family.generated <= length
        assert all(output in text for output in outputs[:1])


TASKS = [*dict.fromkeys(name for name, _ in RELEASED)]


def length_of(name):
    """Bytes that suffice."""
    return {'vt': 1500, 'cwe': 3800, 'fwe': 900, 'qa_1': 2600, 'qa_2': 2600}.get(name, 4000)


@pytest.fixture(params=TASKS)
def case(request, tmp_path):
    """Configuration of a task for bytes."""
    return config_of(
        tmp_path, request.param, length_of(request.param), example=request.param == 'cwe'
    )


def test_the_answer_alone_is_scored(case):
    corpus = load.load(case.data, 'train', Bytes())
    samples = source.samples_of(case.data, 'train', Bytes())
    for index in range(6):
        document, sample = corpus[index], samples[index]
        text = Bytes().decode(document.tokens).decode()
        answer = Bytes().decode(document.tokens[document.scored > 0]).decode()
        assert text == sample.text + sample.prefix + answer and document.num_bytes == 0
        parts = sample.outputs[:1] if case.data.task.name.startswith('qa') else sample.outputs
        assert all(part in answer for part in parts)
        ends = np.flatnonzero(document.scored == 2)  # of a part each: RULER scores the share
        named = zip(samples.family.parts(sample), ends, strict=True)
        assert all(text.encode()[: end + 1].endswith(part.encode()) for part, end in named)
        assert sorted(samples.family.parts(sample)) == sorted(parts) and ends[-1] == len(text) - 1
        assert len(text) - len(answer) + samples.family.generated <= length_of(case.data.task.name)


@pytest.mark.parametrize('kind', ['Metaspace', 'Prepend', 'words'])
def test_parts_are_scored_whatever_begins_or_ends_a_text(kind, tmp_path):
    """The answer is encoded at once, and rules are right, where a tokenizer adds to every text."""
    config = config_of(tmp_path, 'fwe', 900)
    config.model.vocab_size, config.data.tokenizer.kind = 4096, 'words'
    if kind != 'words':
        made = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token='<unk>'))
        made.decoder, mark = tokenizers.decoders.Metaspace(), '\u2581'
        if kind == 'Metaspace':
            made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
        else:
            both = [tokenizers.normalizers.Prepend(mark), tokenizers.normalizers.Replace(' ', mark)]
            made.normalizer = tokenizers.normalizers.Sequence(both)
        characters = [*string.printable, mark]
        trainer = tokenizers.trainers.BpeTrainer(
            vocab_size=200, special_tokens=['<unk>', '<s>'], initial_alphabet=characters
        )
        made.train_from_iterator(['the three most frequently appeared words are'] * 9, trainer)
        made.save(str(tmp_path / 'tokenizer.json'))
        config.data.tokenizer.update(kind='tokenizers', path=str(tmp_path))
    tokenizer = load.make_tokenizer(config.data, tmp_path)
    corpus = load.load(config.data, 'test', tokenizer)
    sample, document = source.samples_of(config.data, 'test', tokenizer)[0], corpus[0]
    answer = tokenizer.encode(f' {", ".join(sample.outputs)}'.encode())
    np.testing.assert_array_equal(document.tokens[document.scored > 0], answer)
    found = floors.measure(config, 'test', corpus, lambda: corpus)
    assert found.answers == 9
    if kind != 'words':  # coded words are unknown there
        assert found.scores['look up: everything']['exact_match'] == 1.0


# A vocabulary takes seconds to learn. With a larger one texts are shorter, so that what fits with that
# of `tiny` fits; only the shortest `cwe` is shorter there.
ROOM = [*itertools.product(leaderboard.RULER, ('tiny,',), (0,)), ('cwe', '', 0)]
SLOW = set(itertools.product(leaderboard.RULER, ('tiny,', ''), (0, 1))) - {*ROOM}


@pytest.mark.parametrize(
    'name, size, seed',
    [*ROOM, *(pytest.param(*case, marks=pytest.mark.slow) for case in sorted(SLOW))],
)
def test_the_leaderboards_tasks_have_room(name, size, seed, tmp_path):
    config = leaderboard.get_config(f'{size}task={name}')
    config.data.seed = seed
    tokenizer = load.make_tokenizer(config.data, tmp_path)
    longest = config.data.task.lengths[-1]
    for split in ('train', 'test'):
        corpus = load.load(config.data, split, tokenizer)
        sizes = [len(corpus[index].tokens) for index in range(8)]
        assert max(sizes) <= longest and len({*sizes}) > 1


def test_training_draws_other_samples_the_same_again(case):
    train, again = (source.samples_of(case.data, 'train', Bytes()) for _ in range(2))
    held = [
        sample
        for split in ('validation', 'test')
        for sample in source.samples_of(case.data, split, Bytes())
    ]
    assert train[7] == again[7] and len(train) == 40
    drawn = [train[index] for index in range(12)]
    assert len({sample.text for sample in (*drawn, *held)}) > 12
    assert not {sample.text for sample in drawn} & {sample.text for sample in held}
    if case.data.task.name.startswith('qa'):
        asked = [{sample.text.split('Question: ')[-1] for sample in part} for part in (drawn, held)]
        assert not asked[0] & asked[1]


def places(corpus, index):
    """Inputs, asked places and targets of a document."""
    document = corpus[index]
    asked = np.flatnonzero(document.scored)
    inputs = np.concatenate([[corpus.tokenizer.begin], document.tokens[:-1]])
    return inputs, asked, document.tokens[asked]


def test_who_has_seen_everything_knows_everything_and_nobody_else(case):
    corpus = load.load(case.data, 'train', Bytes())
    task = load.SOURCES['ruler'].players(case.data, Bytes())
    scores = []
    for index in range(4):
        inputs, asked, targets = places(corpus, index)
        question = task.questions(None, inputs, asked)
        begins = Bytes().decode(inputs[question[0] + 1 :]).decode()
        assert source.family_of(case.data).question.startswith(begins[:1]) or begins
        for first in (np.zeros_like(question), question):
            chances = task.rules['look up'](None, inputs, asked, first)
            np.testing.assert_allclose(chances.sum(axis=1), 1.0)
            scores.append(chances[np.arange(len(asked)), targets].mean())
    assert scores[0::2] == [1.0] * 4 and max(scores[1::2]) < 0.5


def test_rules_do_not_read_the_future_nor_what_was_not_seen(case):
    corpus, random = load.load(case.data, 'train', Bytes()), np.random.default_rng(0)
    task = load.SOURCES['ruler'].players(case.data, Bytes())
    for index in range(2):
        inputs, asked, _ = places(corpus, index)
        question = task.questions(None, inputs, asked)
        for before in (0, 300, 900):
            since = np.maximum(question - before, 0)
            chances = task.rules['look up'](None, inputs, asked, since)
            for row in random.integers(0, len(asked), 3):
                changed, one = inputs.copy(), slice(row, row + 1)
                changed[asked[row] + 1 :] = random.integers(0, 256, len(inputs) - asked[row] - 1)
                changed[: since[row]] = random.permutation(changed[: since[row]])
                found = task.rules['look up'](None, changed, asked[one], since[one])
                np.testing.assert_array_equal(found[0], chances[row])


def test_what_is_seen_of_a_chain_is_known(tmp_path):
    """The last three names of five, and of each of the others any letters."""
    config = config_of(tmp_path, 'vt', 1500, example=False)
    corpus = load.load(config.data, 'test', Bytes())
    inputs, asked, targets = places(corpus, 0)
    text = Bytes().decode(inputs[1:]).decode()
    third = text.index('VAR', text.index(' = VAR', text.index(' = VAR') + 1) + 6) + 1
    task = load.SOURCES['ruler'].players(config.data, Bytes())
    chances = task.rules['look up'](None, inputs, asked, np.full(len(asked), third))
    right = chances[np.arange(len(asked)), targets]
    assert (right[-12:] == 1.0).all() and (right[:12] < 0.1).all()


def test_floors_are_those_of_the_rules(tmp_path):
    config = config_of(tmp_path, 'fwe', 900)
    corpus = load.load(config.data, 'test', Bytes())
    found = floors.measure(config, 'test', corpus, lambda: corpus)
    assert found.answers == 9 and found.scores['look up: everything']['exact_match'] == 1.0
    assert found.scores['look up: the question']['accuracy'] < 0.2


@pytest.mark.parametrize(
    'name, length',
    [('niah_multikey_3', 900), ('cwe', 700), ('fwe', 300), ('qa_1', 600), ('vt', 600)],
)
def test_a_length_that_nothing_fits_is_refused_with_the_shortest(name, length, tmp_path):
    def samples(length):
        config = config_of(tmp_path, name, length, example=False)
        return list(source.samples_of(config.data, 'test', Bytes()))

    with pytest.raises(UsageError, match=f'no sample fits in {length:,} tokens') as error:
        samples(length)
    shortest = int(str(error.value).split()[-1].rstrip('.').replace(',', ''))
    assert len(samples(shortest)) == 3
    with pytest.raises(UsageError, match='no sample fits'):
        samples(shortest - 1)


def test_a_worked_example_that_cannot_fit_is_refused(tmp_path):
    config = config_of(tmp_path, 'vt', 100_000)
    with pytest.raises(UsageError, match='the worked example of vt may have 500 tokens, and has'):
        load.load(config.data, 'test', Bytes())


def test_lengths_take_turns_in_testing_and_are_drawn_in_training(tmp_path):
    config = config_of(tmp_path, 'vt', 1200, 2400, example=False, eval_documents=6)
    test = load.load(config.data, 'test', Bytes())
    sizes = [len(test[index].tokens) for index in range(6)]
    assert max(sizes[0::2]) <= 1200 < min(sizes[1::2]) <= max(sizes) <= 2400
    alone = source.samples_of(config_of(tmp_path, 'vt', 2400, example=False).data, 'test', Bytes())
    assert [source.samples_of(config.data, 'test', Bytes())[i] for i in (1, 3, 5)] == list(alone)
    sizes = load.load(config.data, 'train', Bytes()).lengths()
    assert 8 < (sizes <= 1200).sum() < 32


@pytest.mark.parametrize(
    'task, words',
    [
        (dict(lengths=(100, 30)), 'lengths = (100, 30): must be rising ints'),
        (dict(lengths=()), 'must be rising ints'),
        (dict(lengths=(0, 3)), 'must be rising ints'),
        (dict(name='niah'), 'name = '),
        (dict(distances=3), 'distances: not a field here'),
    ],
)
def test_problems(tmp_path, task, words):
    problems = checks.find_problems(config_of(tmp_path, 'vt', 500, **task), 1)
    assert [problem for problem in problems if words in problem]


@pytest.mark.parametrize(
    'name, content, message',
    [
        ('niah_single_2', None, 'needs essays'),
        ('niah_single_2', '{"texts": 1}', "has no 'text' with words"),
        ('niah_single_2', '{', 'not JSON'),
        ('qa_1', None, 'needs the JSON file'),
        ('qa_1', '{"data": [{"paragraphs": 3}]}', 'not the JSON of SQuAD'),
        ('qa_2', '[{"question": "?"}]', 'not the JSON of HotpotQA'),
        ('qa_1', '{"data": []}', 'leave none of 0 for training'),
    ],
)
def test_a_missing_or_wrong_file_is_refused(name, content, message, tmp_path):
    config = config_of(tmp_path, name, 4000)
    config.data.path = '' if content is None else str(tmp_path / 'given.json')
    (tmp_path / 'given.json').write_text(content or '')
    with pytest.raises(UsageError, match=message):
        load.load(config.data, 'test', Bytes())


def test_more_words_than_there_are_need_the_second_list(tmp_path, monkeypatch):
    monkeypatch.setattr(words, 'listed', lambda: dict.fromkeys(words.KINDS, ('a', 'b')))
    config = config_of(tmp_path, 'cwe', 1000, example=False)
    with pytest.raises(UsageError, match='needs english_words.json'):
        source.Samples(config.data, 'test', crude)
    (tmp_path / 'more.json').write_text(json.dumps({str(i): f'm{i}' for i in range(5000)}))
    config.data.path = str(tmp_path / 'more.json')
    sample = source.Samples(config.data, 'test', crude)[0]
    assert all(output.startswith('m') for output in sample.outputs)


def test_a_common_word_may_be_two(tmp_path, monkeypatch):
    """Such as 'ad hoc'; the answer lists them in the order of the text."""
    twice = {kind: tuple(f'{word} hoc' for word in some) for kind, some in WORDS.items()}
    monkeypatch.setattr(words, 'listed', lambda: twice)
    config = config_of(tmp_path, 'cwe', 1000, example=False)
    samples = source.Samples(config.data, 'train', crude)
    sample, (text, _, answer) = samples[0], source.Documents(samples)[0]
    named = samples.family._list(answer.text)
    assert sorted(named) == sorted(sample.outputs)
    places = [text.text.index(f'. {word}') for word in named]
    assert places == sorted(places)


def test_pairs_of_words_are_sorted_and_each_once():
    """Also where an adjective begins another, and where two pairs are the same word."""
    wanted = sorted({f'{a}-{n}' for a in WORDS['adjective'] for n in WORDS['noun'][-300:]})
    assert list(words.Pairs(WORDS['adjective'], WORDS['noun'][-300:])) == wanted
    with pytest.raises(IndexError):
        words.Pairs(('a',), ('b',))[1]


def test_without_word_lists_the_extra_is_named(monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr('importlib.util.find_spec', lambda name: None)
    words.listed.cache_clear()
    with pytest.raises(UsageError, match=r"pip install 'longmem_jax\[ruler\]', or choose vt"):
        words.listed()


def test_the_parity_tool_draws_a_file_again(tmp_path, monkeypatch):
    """By the name of the file, or by its text and the next power of two."""
    monkeypatch.setattr(ruler, 'tokenizer_of', lambda path: Bytes())
    data = ruler.data_of('fwe', 1024, 42, 2)
    lines = [
        dict(input=s.text, answer_prefix=s.prefix, outputs=s.outputs, length=len(s.text) + 150)
        for s in source.samples_of(data, 'test', Bytes())
    ]
    for name, last, right in (
        ('fwe_1024_seed42', '', True),
        ('case', '', True),
        ('fwe_1024_seed42', 'x', False),
        ('fwe_1024_seed7', '', False),
    ):
        path = tmp_path / f'{name}.jsonl'
        lines[-1]['input'] += last
        path.write_text(''.join(json.dumps(line) + '\n' for line in lines))
        found = list(compare(path))
        assert len(found) == 4 and all(error <= most for _, error, most in found) == right, name
        lines[-1]['input'] = lines[-1]['input'].removesuffix('x')
    other = tmp_path / 'other.jsonl'
    other.write_text('{"text": "a"}\n')
    assert not ruler.knows(other) and not ruler.knows(tmp_path / 'none.jsonl')
