"""Question answering as four tasks: files as distributed, spans of tokens, and the span head."""

import itertools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from longmem_jax.errors import UsageError
from longmem_jax.lifelong import span_head, stream
from longmem_jax.lifelong.data import qa
from longmem_jax.lifelong.network import Encoded
from longmem_jax.lifelong.rows import Rows
from tests.lifelong.words import word_tokenizer, words_of

SHARED = Path(__file__).parents[3] / 'shared' / 'data'
SETTINGS = dict(rows=0, test_rows=0, max_length=24, max_question=6, seed=0)
WORDS = 'ann bob ran sat home who in london the of river thames cannotanswer'.split()


def answer(context, text, which=0):
    start = -1
    for _ in range(which + 1):
        start = context.index(text, start + 1)
    return dict(text=text, answer_start=start)


def squad_file(*paragraphs):
    """(context, [(question, [answers])])."""
    made = [
        dict(context=context, qas=[dict(question=q, id=q, answers=found) for q, found in asked])
        for context, asked in paragraphs
    ]
    return dict(version='1.1', data=[dict(title='T', paragraphs=made)])


def trivia_file(field, *questions):
    """(question, value, aliases, files)."""
    return dict(
        Data=[
            {
                'Question': question,
                'Answer': dict(Value=value, Aliases=aliases),
                field: [dict(Filename=name) for name in names],
            }
            for question, value, aliases, names in questions
        ]
    )


def write(file, content):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content if isinstance(content, str) else json.dumps(content))


RAN = 'Ann ran home. Bob sat in London.'
QUAC = f'{RAN} CANNOTANSWER'


@pytest.fixture
def root(tmp_path):
    asked = [
        ('Who ran?', [answer(RAN, 'Ann')]),
        ('Who sat?', [answer(RAN, 'Bob'), answer(RAN, 'Bob sat'), answer(RAN, 'Bob')]),
    ]
    for split in ('train', 'dev'):
        write(tmp_path / 'squad' / f'{split}-v1.1.json', squad_file((RAN, asked)))
    quac = squad_file(
        (QUAC, [('Who?', [answer(QUAC, 'CANNOTANSWER')]), ('Home?', [answer(QUAC, 'ran')])])
    )
    quac['data'][0]['paragraphs'][0]['qas'][1]['orig_answer'] = answer(QUAC, 'Ann ran home')
    for split in ('train', 'val'):
        write(tmp_path / 'quac' / f'{split}_v0.2.json', quac)
    for domain, field in (('web', 'SearchResults'), ('wikipedia', 'EntityPages')):
        folder = tmp_path / 'triviaqa'
        write(folder / 'evidence' / domain / 'a' / 'no.txt', 'Nothing here.')
        write(
            folder / 'evidence' / domain / 'yes.txt',
            'The  river\n\nThames, the Thames of LONDON. Thamesis.',
        )
        asked = ('Who in London?', 'River Thames', ['Thames', ''], ['a/no.txt', 'yes.txt'])
        for split in ('train', 'dev'):
            write(folder / 'qa' / f'{domain}-{split}.json', trivia_file(field, asked))
    return tmp_path


def tokenizer():
    return word_tokenizer(*WORDS)


def made(root, names=tuple(qa.TASKS), **changes):
    settings = SETTINGS | changes
    lines = []
    found = qa.tasks(qa.read(str(root), settings, names), tokenizer(), settings, lines.append)
    return found, lines


def texts_of(rows):
    """(question, spans as words) of every row."""
    found = {}
    for row in range(len(rows)):
        words = words_of(tokenizer(), rows.tokens[row])
        asked = ' '.join(
            word for word, kind in zip(words, rows.types[row], strict=False) if kind == 1
        )
        spans = [' '.join(words[a : b + 1]) for a, b in rows.answer[row] if a >= 0]
        found[asked] = spans
    return found


def test_rows_of_all_tasks(root):
    found, _ = made(root)
    assert set(found) == set(qa.TASKS) == set(qa.ORDERS['i'])
    squad, quac = found['squad'].train, found['quac'].train
    assert words_of(tokenizer(), squad.tokens[0])[:9] == (
        ['[CLS]', 'ann', 'ran', 'home', '.', 'bob', 'sat', 'in', 'london']
    )
    assert texts_of(squad) == {
        'who ran ? [SEP]': ['ann'],
        'who sat ? [SEP]': ['bob', 'bob sat'],
    }
    # What cannot be answered is the first word, and the teacher's answer is the first one.
    assert texts_of(quac) == {
        'who ? [SEP]': ['cannotanswer'],
        'home ? [SEP]': ['ann ran home', 'ran'],
    }
    for name in ('trivia_web', 'trivia_wikipedia'):
        # To train on, the first document with an answer; to test, the first one.
        assert texts_of(found[name].train) == {
            'who in london ? [SEP]': ['river thames', 'thames'],
        }
        assert texts_of(found[name].test) == {'who in london ? [SEP]': []}
    shapes = {rows.answer.shape[1:] for task in found.values() for rows in task}
    assert shapes == {(2, 2)} and squad.answer.dtype == np.int16
    assert stream.in_order(found, qa.ORDERS['ii'], 0).tasks.tolist() == [0, 0, 1, 2, 2, 3]


def test_a_cut_context_loses_answers(root):
    """Rows to train on without an answer are left out; test rows stay and count as wrong."""
    found, lines = made(root, ('squad',), max_length=16, max_question=3)
    assert len(found['squad'].train) == 2
    context = 'the ' * 20 + 'Ann'
    asked = ('Who?', [answer(context, 'Ann')])
    for split in ('train', 'dev'):
        file = squad_file((context, [asked]), (RAN, [('Who ran?', [answer(RAN, 'Ann')])]))
        write(root / 'squad' / f'{split}-v1.1.json', file)
    found, lines = made(root, ('squad',))
    assert len(found['squad'].train) == 1 and len(found['squad'].test) == 2
    assert '1 rows to train on' in lines[0] and '1 of these have no answer' in lines[0]


def test_training_texts(root):
    texts = qa.training_texts(qa.read(str(root), SETTINGS))
    assert texts.count(RAN) == 1 and 'Who ran?' in texts and 'Nothing here.' in texts


@pytest.mark.parametrize(
    'file, content, message',
    [
        ('squad/train-v1.1.json', '{"data": [', 'not JSON'),
        ('squad/train-v1.1.json', [1], "no field 'data'"),
        ('squad/train-v1.1.json', dict(data=[]), '0 questions have their answer'),
        ('squad/train-v1.1.json', dict(data=[dict(title='T')]), "no field 'paragraphs'"),
        (
            'squad/train-v1.1.json',
            squad_file((RAN, [('Who?', [dict(text='Bob', answer_start=0)])])),
            'and 1 do not;',
        ),
        (
            'squad/train-v1.1.json',
            squad_file((RAN, [('Who?', [dict(text='Bob')])])),
            "no field 'answer_start'",
        ),
        ('triviaqa/qa/web-train.json', dict(Data=[]), 'has no questions with SearchResults'),
        (
            'triviaqa/qa/web-train.json',
            trivia_file('SearchResults', ('Who?', 'Ann', [], ['gone.txt'])),
            'gone.txt: cannot be read',
        ),
    ],
)
def test_wrong_files(root, file, content, message):
    write(root / file, content)
    name = 'squad' if 'squad' in file else 'trivia_web'
    with pytest.raises(UsageError, match=message):
        made(root, (name,))


def test_wrong_settings(root):
    with pytest.raises(UsageError, match='max_question = 20: leaves no room'):
        made(root, max_question=20)
    with pytest.raises(UsageError, match='squad: has 2 usable rows'):
        made(root, ('squad',), rows=3)
    with pytest.raises(UsageError, match="task = 'news'"):
        made(root, ('news',))
    with pytest.raises(UsageError, match='no such file'):
        made(root / 'squad')


def head_rows(answers):
    """A row of 5 context tokens, 2 of a question: [CLS] c c c c c [SEP] q q [SEP] and no token."""
    tokens = np.asarray([[2, 10, 11, 12, 13, 14, 3, 20, 21, 3, 65535]], np.uint16)
    types = np.asarray([[0] * 7 + [1] * 3 + [0]], np.uint8)
    count = len(answers)
    return jax.tree.map(
        jnp.asarray,
        Rows(tokens.repeat(count, 0), types.repeat(count, 0), np.asarray(answers, np.int16)),
    )


HEAD = span_head.SpanHead(max_question=3)


def test_only_the_context_can_be_the_answer():
    rows = head_rows([[[1, 2]]])
    allowed = np.flatnonzero(np.asarray(span_head.of_context(rows))[0])
    np.testing.assert_array_equal(allowed, [1, 2, 3, 4, 5])
    params = HEAD.init(jax.random.key(0), 4)
    vectors = np.random.default_rng(1).normal(size=(1, 11, 4)).astype(np.float32)
    encoded = Encoded(None, jnp.asarray(vectors))

    @jax.jit
    def read(params):
        scores = HEAD.scores(params, encoded, rows)
        return HEAD.losses(scores, rows).sum(), scores

    (loss, scores), gradient = jax.device_get(jax.value_and_grad(read, has_aux=True)(params))
    assert scores.shape == (1, 11, 2) and scores.dtype == jnp.float32
    np.testing.assert_allclose(np.exp(scores[0, 1:6]).sum(axis=0), 1, rtol=1e-5)
    assert (np.asarray(scores[0, [0, 6, 7, 8, 9, 10]]) < -1e20).all()
    expected = -(scores[0, 1, 0] + scores[0, 2, 1]) / 2
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    assert all(np.isfinite(leaf).all() and np.any(leaf) for leaf in jax.tree.leaves(gradient))
    nothing = head_rows([[[-1, -1]]])
    assert HEAD.losses(scores, nothing) == 0 and HEAD.right(scores, nothing) == 0


def test_the_key_is_the_question_alone():
    rows = head_rows([[[1, 2]]])
    asked = HEAD.key_inputs(rows)
    assert asked.tokens.shape == (1, 5)
    np.testing.assert_array_equal(asked.tokens[0][asked.valid[0]], [2, 20, 21, 3])
    assert not asked.types.any()
    short = span_head.SpanHead(max_question=1).key_inputs(rows)
    np.testing.assert_array_equal(short.tokens, [[2, 20, 21]])


def test_the_best_span_does_not_end_before_it_starts():
    """Against trying all spans."""
    scores = np.random.default_rng(0).normal(size=(40, 9, 2)).astype(np.float32)
    start, end = span_head.best_span(jnp.asarray(scores))
    for row, (first, last) in enumerate(zip(start, end, strict=True)):
        pairs = itertools.combinations_with_replacement(range(9), 2)
        best = max(pairs, key=lambda pair: scores[row, pair[0], 0] + scores[row, pair[1], 1])
        assert (first, last) == best


def test_f1_is_the_best_over_the_answers():
    answers = jnp.asarray([[[1, 2], [4, 5], [-1, -1]]], jnp.int16)

    def found(start, end):
        return float(span_head.f1(jnp.asarray([start]), jnp.asarray([end]), answers)[0])

    assert found(1, 2) == found(4, 5) == 1
    assert found(2, 2) == pytest.approx(2 / 3) and found(3, 3) == 0
    # Two of four tokens are common with either answer: precision 2/5, recall 1.
    assert found(1, 5) == pytest.approx(4 / 7)


def test_the_head_is_right_where_the_scores_are():
    rows = head_rows([[[2, 3], [-1, -1]], [[5, 5], [1, 1]]])
    scores = jnp.full((2, 11, 2), -9.0).at[:, 2, 0].set(0.0).at[:, 3, 1].set(0.0)
    np.testing.assert_allclose(HEAD.right(scores, rows), [1, 0])


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.is_dir(), reason='the real files are not here')
def test_real_files():
    assert len(qa.squad(SHARED / 'squad' / 'dev-v1.1.json')) == 544
    file = SHARED / 'qa_samples' / 'quac_sample.json'
    given = [
        asked['orig_answer']['text']
        for article in json.loads(file.read_text())['data']
        for paragraph in article['paragraphs']
        for asked in paragraph['qas']
    ]
    contexts = [next(question.contexts()) for question in qa.squad(file)]
    assert [context.text[slice(*context.spans[0])] for context in contexts] == given
    assert all(context.text.startswith('CANNOTANSWER ') for context in contexts)
