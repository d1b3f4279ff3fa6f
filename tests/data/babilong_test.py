"""BABILong: where facts stand, what is scored, how long documents are read, floors, what is refused."""

import random
import tracemalloc

import numpy as np
import pytest

from longmem_jax.commands import babilong
from longmem_jax.config import checks
from longmem_jax.config.base import base
from longmem_jax.data import lanes, load
from longmem_jax.data.sets.babilong import novels
from longmem_jax.data.sets.babilong.source import Documents
from longmem_jax.data.sets.babilong.streamed import Streamed, part
from longmem_jax.data.sets.babilong.text import facts_in, label_match, question_of
from longmem_jax.data.sources import SOURCES
from longmem_jax.data.tokenizers import Bytes
from longmem_jax.errors import UsageError
from longmem_jax.evaluation import floors

WORDS = 'The sea was calm near house number {0}, said Mr. Smith to J. Brown! "Go on," he cried. '
FACT = 'Mary went to the garden. '


def config_of(path, **task):
    text = ''.join(WORDS.format(number) + FACT * (number % 3 == 0) for number in range(400))
    for split in ('train', 'validation', 'test'):
        (path / f'{split}.txt').write_text(text)
    config = base()
    config.data.source, config.data.path = 'babilong', str(path)
    config.data.task = (
        dict(name='qa1', documents=40, eval_documents=6, lengths=(0, 900, 3000), prompt=100) | task
    )
    config.evaluate.num_lanes, config.evaluate.segment_length = 2, 64
    config.evaluate.max_test_segments = 0
    return config


def text_of(tokens):
    return np.asarray(tokens).astype(np.uint8).tobytes().decode()


@pytest.mark.parametrize('task', ['qa1', 'qa2', 'qa3', 'qa4', 'qa5'])
def test_facts_stand_in_order_among_whole_sentences(task, tmp_path):
    config = config_of(tmp_path, name=task)
    assert checks.find_problems(config, 1) == []
    corpus = load.load(config.data, 'test', Bytes())
    lengths = corpus.lengths()
    for index in range(6):
        document, (sample, facts, length) = corpus[index], corpus.sample(index)
        context, rest = text_of(document.tokens).split('\n\nQuestion: ')
        question, answer = rest.split('\nAnswer:')
        assert question_of(question) == sample.question and answer == f' {sample.answer}.'
        assert [fact for _, fact in facts_in(context)] == list(sample.facts)
        assert len(context) == (length - 100 if length else sum(map(len, facts)))
        assert len(sample.facts) < (length - 100) / 8 or not length
        assert len(document.tokens) == len(document.scored) == lengths[index]
        assert document.num_bytes == 0
        scored = np.asarray(document.scored)
        assert scored.sum() == len(answer) + 1 == scored[-len(answer) :].sum() and scored[-1] == 2
        # Without the facts there are whole sentences, and the last one is cut.
        for fact in map(text_of, facts):
            context = context.replace(fact, '', 1)
        for sentence in filter(None, context.split(' "Go on," he cried.')[:-1]):
            place = sentence.index(' The sea was calm near')
            assert sentence[place:] in WORDS.format(sentence[place:].split()[7].strip(','))[
                :-20
            ].join('  ')


def test_every_gap_is_as_likely_and_training_draws_its_lengths(tmp_path):
    corpus = load.load(
        config_of(tmp_path, documents=400, lengths=(900, 3000)).data, 'train', Bytes()
    )
    places, found = [], []
    for index in range(400):
        _, facts, length = corpus.sample(index)
        found.append(length)
        if length == 3000:
            context = text_of(corpus[index].tokens).split('\n\nQuestion: ')[0]
            places += [place / len(context) for place, _ in facts_in(context)]
    # As many tokens of each, so that most documents are short.
    assert found.count(900) / found.count(3000) == pytest.approx(3050 / 950, rel=0.25)
    assert set(found) == {900, 3000}
    assert np.histogram(places, 4, (0, 1))[0] / len(places) == pytest.approx(0.25, abs=0.04)


def test_no_question_of_the_test_is_in_training(tmp_path):
    """Stories are drawn by the split, although its number and the seed are equal."""
    data = config_of(tmp_path, lengths=(600,), documents=20, eval_documents=20).data
    by_split = []
    for split in ('train', 'validation', 'test'):
        documents = load.load(data, split, Bytes())
        by_split.append({str(documents.sample(number)[0]) for number in range(20)})
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert len(by_split[one] & by_split[other]) < 4


def test_any_part_of_a_document_is_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(novels, 'BLOCK', 256)
    config = config_of(tmp_path, lengths=(9000,), name='qa2')
    whole = load.load(config.data, 'test', Bytes())[3].tokens[:]
    again = load.load(config.data, 'test', Bytes())[3].tokens
    draws = random.Random(0)
    for _ in range(60):
        start = draws.randrange(len(whole))
        stop = min(start + draws.randrange(900), len(whole))
        np.testing.assert_array_equal(again[start:stop], whole[start:stop])
    assert again[len(whole) - 1] == whole[-1] == again[-1]
    monkeypatch.setattr(novels, 'BLOCK', 1 << 20)
    np.testing.assert_array_equal(load.load(config.data, 'test', Bytes())[3].tokens[:], whole)
    config.data.seed = 1
    other = load.load(config.data, 'test', Bytes())[3].tokens[:]
    assert len(other) != len(whole) or (other != whole).any()


def test_a_run_goes_on_inside_of_a_document(tmp_path):
    corpus = load.load(config_of(tmp_path, lengths=(3000,)).data, 'test', Bytes())
    batches = list(lanes.in_order(corpus, 2, 64, 2))
    _, cursor = batches[4]
    for batch, _ in batches[5:9]:
        got, cursor = next(lanes.in_order(corpus, 2, 64, 2, cursor=cursor))
        np.testing.assert_array_equal(got.tokens, batch.tokens)
        np.testing.assert_array_equal(got.targets, batch.targets)
        np.testing.assert_array_equal(got.scored, batch.scored)


def test_memory_does_not_grow_with_the_length(tmp_path, monkeypatch):
    """A document of 300,000 tokens takes 1.2 MB as an array."""
    monkeypatch.setattr(novels, 'BLOCK', 512)
    config = config_of(tmp_path, lengths=(2000, 300_000))
    corpus = load.load(config.data, 'test', Bytes())
    assert len(corpus[0].tokens[:]) > 1900  # the text is read
    document = corpus[1]
    tracemalloc.start()
    try:
        for start in range(0, len(document.tokens), 4096):
            assert len(document.tokens[start : start + 4096]) <= 4096
            assert len(document.scored[start : start + 4096]) <= 4096
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 500_000, 'a document is held whole; read it by blocks'


def test_sentences():
    text = 'One two. "Three," he said. Mr. Jones and J. Lee ran!\nYes? no.\n\nA heading\n\n(Four.) 5 is.'
    found = [sentence for _, sentence in novels.sentences(text, 0, len(text))]
    assert found == [
        'One two.', '"Three," he said.', 'Mr. Jones and J. Lee ran!', 'Yes? no.', 'A heading', '(Four.)',
    ]  # fmt: skip
    assert all(
        text[place:].startswith(sentence) for place, sentence in novels.sentences(text, 0, 99)
    )


def test_without_a_path_the_noise_is_the_docstrings_of_the_standard_library(tmp_path):
    config = config_of(tmp_path, lengths=(4000,))
    config.data.path = ''
    corpus = load.load(config.data, 'validation', Bytes())
    text = text_of(corpus[0].tokens)
    assert len(text.split('\n\nQuestion')[0]) == 3900
    library = novels.Docstrings('validation')
    prose = ''.join(library[index].text.decode() for index in range(len(library)))
    assert text[1:40].split('. ')[0] in prose + text[: next(facts_in(text))[0] + 60]


@pytest.mark.parametrize(
    'task, words',
    [
        (dict(lengths=(300, 200)), 'lengths = (300, 200): must be rising ints'),
        (dict(lengths=()), 'must be rising ints'),
        (dict(lengths=(-5,)), 'must be rising ints'),
        (dict(lengths=(0, 100)), 'for the prompt'),
        (dict(name='qa6'), "name = 'qa6'"),
        (dict(distances=3), 'distances: not a field here'),
    ],
)
def test_problems(tmp_path, task, words):
    problems = checks.find_problems(config_of(tmp_path, **task), 1)
    assert [problem for problem in problems if words in problem]


def test_a_length_in_which_nothing_fits_is_refused_with_one_that_fits(tmp_path):
    config = config_of(tmp_path, name='qa3', lengths=(120,))
    with pytest.raises(UsageError, match='hardly any question of qa3 fits in 120 tokens') as error:
        load.load(config.data, 'test', Bytes())
    config.data.task.lengths = (int(str(error.value).split('do in ')[1][:-1].replace(',', '')),)
    load.load(config.data, 'test', Bytes())


def test_a_length_is_refused_in_tokens_before_there_is_a_vocabulary(tmp_path):
    """The texts to learn it from are bytes, of which the user knows nothing."""
    config, texts = (
        config_of(tmp_path, name='qa3', lengths=(40,), prompt=8),
        SOURCES['babilong'].texts,
    )
    with pytest.raises(UsageError, match='in 40 tokens, of which 8 are for the prompt; ') as error:
        texts(config.data, 'train')
    about = int(str(error.value).split('do in about ')[1][:-1])
    assert 100 < about < 250
    config.data.task.lengths = (about,)
    texts(config.data, 'train')


def test_texts_without_sentences_are_refused(tmp_path):
    config = config_of(tmp_path)
    (tmp_path / 'test.txt').write_text('no sentence ends here ' * 400)
    with pytest.raises(UsageError, match='no sentences of at least 10 tokens'):
        load.load(config.data, 'test', Bytes())[1].tokens[:]


@pytest.mark.parametrize('task', ['qa1', 'qa3', 'qa5'])
def test_rules_that_see_everything_are_right_and_windows_are_floors(task, tmp_path):
    config = config_of(tmp_path, name=task, eval_documents=24)
    corpus = load.load(config.data, 'test', Bytes())
    scores = floors.measure(config, 'test', corpus, lambda: None).scores
    exact = {name: score['exact_match'] for name, score in scores.items()}
    labels = {'qa1': 6, 'qa3': 5, 'qa5': 4.9}[task]  # that a question leaves
    assert exact['rules: everything'] == 1.0
    assert exact['rules: the question'] == pytest.approx(1 / labels, abs=0.06)
    assert exact['rules: the question'] < exact['rules: 1,024 tokens more'] < 1.0
    assert exact['last label: everything'] < 0.8
    assert ('whatever thing: everything' in exact) == (task == 'qa3')
    assert exact.get('whatever thing: everything', 0.7) == pytest.approx(0.7, abs=0.2)
    assert {exact[f'commonest label: {seen}'] for seen in ('the question', 'everything')} == {
        exact['commonest label: the question']
    }
    assert exact['commonest label: everything'] < 0.6


def test_parts_are_read_as_one_array():
    whole, parts = np.arange(20), [part(np.arange(7)), part(np.arange(0)), part(np.arange(7, 20))]
    streamed = Streamed(parts, np.int32)
    for index in (slice(3, 12), slice(None, -1), slice(6, 8), slice(9, 3), slice(0, 20, 3), 7, -1):
        np.testing.assert_array_equal(streamed[index], whole[index])
    np.testing.assert_array_equal(streamed[np.asarray([1, 8])], [1, 8])
    np.testing.assert_array_equal(np.asarray(streamed), whole)
    with pytest.raises(IndexError):
        streamed[20]


def test_prompts_for_other_models_are_the_documents_without_their_answers(tmp_path):
    config = config_of(tmp_path, name='qa5', lengths=(0, 900))
    found = list(SOURCES['babilong'].prompts(config.data, Bytes()))
    assert [each.name for each in found] == ['babilong_qa5_0', 'babilong_qa5_900']
    assert found[0].score == 'longmem_jax.data.sets.babilong.text:label_match'
    config.data.task.lengths = (900,)
    corpus = load.load(config.data, 'test', Bytes())
    samples = list(found[1].samples)
    assert len(samples) == len(corpus) == 6
    for index, sample in enumerate(samples):
        answer, question = sample['outputs']
        text = sample['input'] + sample['answer_prefix'] + f' {answer}.'
        assert text == text_of(corpus[index].tokens) and question in text
        assert label_match(f'{answer}.', sample['outputs'])


class Reader:
    """A `ContextReader` that keeps what it reads."""

    def __init__(self, model, params, mesh, num_lanes, report):
        self.model = model

    def fit(self, longest):
        pass

    def start(self):
        return [[], []]

    def read(self, texts, states):
        return [[*state, *text.tolist()] for state, text in zip(states, texts, strict=False)]


@pytest.mark.parametrize('right', [True, False])
def test_written_answers_are_scored_by_their_labels(right, tmp_path, monkeypatch):
    config, corpus = config_of(tmp_path), None
    config.data.task.lengths = (0, 900)

    def completed(reader, states, pending, length, *others, until):
        texts = [text_of([*state, *rest][1:]) for state, rest in zip(states, pending, strict=False)]
        assert all(text.endswith('\nAnswer:') for text in texts) and until == ('.',)
        assert all(0 < len(rest) <= 64 for rest in pending)
        numbers = [n for n in range(6) if text_of(corpus[n].tokens).startswith(tuple(texts))]
        answers = [corpus.sample(n)[0].answer for n in numbers]
        assert len(answers) == 2
        return [f' It is {answer}' if right else ' kitchen office' for answer in answers]

    class Run:
        pass

    corpus = Documents(config.data, 'test', Bytes())
    run, said = Run(), []
    run.config, run.workdir, run.mesh, run.tokenizer = config, tmp_path, None, Bytes()
    run.corpus, run.evaluation_model = (lambda split: corpus), Run()
    run.evaluation_model.segment_length = 64
    run.conventions = lambda: load_conventions()
    progress = Run()
    progress.say = said.append
    monkeypatch.setattr(babilong, 'ContextReader', Reader)
    monkeypatch.setattr(babilong, 'complete_texts', completed)
    monkeypatch.setattr(babilong, 'SEGMENTS', 2)
    result = babilong.score(run, None, 'test', progress)['babilong']
    assert result['right'] == {'0': float(right), '900': float(right)} and result['answers'] == 6
    assert said[-1] == 'No parser of the facts was used.' == result['note']
    assert (tmp_path / 'babilong.test.json').exists()


def load_conventions():
    from longmem_jax.data.conventions import Conventions

    return Conventions(begin=(256,), first=256)
