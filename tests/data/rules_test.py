"""Rules of tasks: what they see and no more, and their scores."""

import collections

import numpy as np
import pytest

from longmem_jax.data.tasks import mad
from longmem_jax.data.tasks.registry import TASKS
from longmem_jax.errors import UsageError
from tests.data.tasks_test import COUNTS, GAPS, KEYS, PAIRS, SKILLS, STATES, WALKS, WORLD

NOISE = dict(num_words=32, num_noise=16, noise=0.3)
CASES = {
    'collision': ('collision', WORLD | dict(eval_steps=150)),
    'collision, last': ('collision', WORLD | dict(question='last', eval_steps=150)),
    'collision, three': ('collision', WORLD | dict(question='last_three', eval_steps=150)),
    'copy': ('copy', GAPS),
    'instruction': ('instruction', WALKS | dict(locations=30)),
    **{f'mad, {kind}': ('mad', SKILLS | dict(kind=kind)) for kind in mad.KINDS},
    **{f'mad, {kind}, noise': ('mad', SKILLS | NOISE | dict(kind=kind))
       for kind in ('recall', 'fuzzy', 'compression', 'memorization')},
    'mqar': ('mqar', PAIRS),
    'mqar, far': ('mqar', PAIRS | dict(fill='blank', distances=(0, 30), num_fillers=3)),
    'sorting': ('sorting', COUNTS | dict(length=150)),
    **{f'recall, {kind}': ('recall', KEYS | dict(kind=kind)) for kind in
       ('passkey', 'needles', 'associative', 'copy')},
    **{f'state_tracking, {group}': ('state_tracking', STATES | dict(group=group))
       for group in ('S5', 'S5_swaps', 'A5', 'Z60', 'A4_x_Z5')},
}  # fmt: skip


def documents(source, settings, split='test'):
    """Inputs, asked places, targets of the documents of a split that ask for anything."""
    task = TASKS[source]
    corpus = task.corpus(settings, split, 0)
    for index in range(len(corpus)):
        document = corpus[index]
        asked = np.flatnonzero(document.scored)
        inputs = document.inputs
        if inputs is None:
            inputs = np.concatenate([[corpus.tokenizer.begin], document.tokens[:-1]])
        if len(asked):
            yield inputs, asked, document.tokens[asked]


def accuracy(source, settings, rule, before):
    """Share of right tokens with `before` tokens before the question."""
    task, right = TASKS[source], []
    for inputs, asked, targets in documents(source, settings):
        since = np.maximum(task.questions(settings, inputs, asked) - before, 0)
        chances = task.rules[rule](settings, inputs, asked, since)
        right.append(chances[np.arange(len(asked)), targets])
    return np.concatenate(right).mean()


@pytest.mark.parametrize('case', CASES)
def test_who_has_seen_everything_knows_everything(case):
    source, settings = CASES[case]
    assert accuracy(source, settings, next(iter(TASKS[source].rules)), 10**9) == 1.0


@pytest.mark.parametrize('case', CASES)
def test_rules_do_not_read_the_future_nor_what_was_not_seen(case):
    (source, settings), random = CASES[case], np.random.default_rng(0)
    task = TASKS[source]
    words, checked = task.vocabulary(settings).vocab_size, 0
    for inputs, asked, _ in documents(source, settings):
        question = task.questions(settings, inputs, asked)
        assert (question <= asked).all()
        for before in (0, 7, 30):
            since = np.maximum(question - before, 0)
            for rule in task.rules.values():
                chances = rule(settings, inputs, asked, since)
                np.testing.assert_allclose(chances.sum(axis=1), 1.0)
                for row in random.integers(0, len(asked), 2):
                    at, first, changed = asked[row], since[row], inputs.copy()
                    changed[at + 1 :] = random.integers(0, words, len(inputs) - at - 1)
                    changed[:first] = random.permutation(changed[:first])
                    one = slice(row, row + 1)
                    found = rule(settings, changed, asked[one], since[one])
                    np.testing.assert_array_equal(found[0], chances[row])
                    checked += 1
    assert checked > 10


def test_sorting_by_the_question_alone_is_any_token_not_yet_named():
    """(1/6 + 1/5 + ... + 1) / 6, exactly; and by the counts of the end."""
    settings = COUNTS | dict(num_tokens=6, length=1000, eval_documents=64)
    wanted = sum(1 / left for left in range(1, 7)) / 6
    assert accuracy('sorting', settings, 'counts', 0) == pytest.approx(wanted)
    scores = [accuracy('sorting', settings, 'counts', before) for before in (128, 256)]
    assert 0.56 < scores[0] < scores[1] < 0.7


@pytest.mark.parametrize('before', [20, 60])
def test_sorting_by_the_last_counts_is_that_of_a_loop(before):
    settings, right = COUNTS | dict(num_tokens=5, length=150), []
    for inputs, asked, targets in documents('sorting', settings):
        tokens = inputs[asked[0] - before : asked[0]].tolist()
        common = [token for token, _ in collections.Counter(tokens).most_common()]
        common += sorted(set(range(5)) - set(common))
        for place, target in enumerate(targets):
            named = set(targets[:place])
            right.append(next(token for token in common if token not in named) == target)
    assert accuracy('sorting', settings, 'counts', before) == pytest.approx(np.mean(right))


def test_recall_by_the_question_alone_is_any_digit():
    for kind in ('passkey', 'needles', 'associative', 'copy'):
        assert accuracy('recall', KEYS | dict(kind=kind), 'look up', 0) == pytest.approx(0.1)


def test_recall_is_found_up_to_its_distance():
    """Three digits end 40 tokens before the question; the last two are at 40 and 41."""
    settings = KEYS | dict(kind='passkey', distances=(40,))
    for before, wanted in ((40, 0.1), (41, 0.4), (42, 0.7), (43, 1.0)):
        assert accuracy('recall', settings, 'look up', before) == pytest.approx(wanted)


def test_an_unseen_sender_is_any_other_character():
    """11 of the 12 words of an execution are always known."""
    wanted = (11 + 1 / (WALKS['num_characters'] - 1)) / 12
    assert accuracy('instruction', WALKS, 'execute', 0) == pytest.approx(wanted)


def test_an_unseen_count_is_the_longest():
    settings, right = GAPS | dict(eval_documents=60), []
    for _, _, targets in documents('copy', settings):
        count = len(targets) - 1
        right += [True] * count + [count == settings['max_count']]
    assert accuracy('copy', settings, 'count', 0) == pytest.approx(np.mean(right))


@pytest.mark.parametrize('question', ['colours', 'last'])
@pytest.mark.parametrize('rule', ['latest', 'commonest'])
def test_collisions_of_the_last_steps_are_those_of_a_loop(question, rule):
    settings = WORLD | dict(question=question, eval_steps=150)
    size, colours, steps, right = WORLD['size'], WORLD['num_colours'], 40, []
    width = 8 if question == 'colours' else 5

    def quadrant(row, column):
        return int(2 * (row >= size // 2) + (column - size >= size // 2))

    for inputs, asked, targets in documents('collision', settings):
        frames = inputs.reshape(-1, width)
        for now, target in zip(asked // width, targets, strict=True):
            met = collections.defaultdict(list)
            for frame in frames[max(now - steps, 0) : now + 1]:
                row, column, *other = frame[: width // 2 * 2]
                pair = (other[0], other[3]) if question == 'colours' else ()
                if (row, column) == tuple(other[1:3] if question == 'colours' else other[:2]):
                    met[pair].append(quadrant(row, column))
            ask = tuple(frames[now][6:] - colours) if question == 'colours' else ()
            if not met[ask]:
                second = frames[now][3:5] if question == 'colours' else frames[now][2:4]
                guesses = [quadrant(*frames[now][:2]), quadrant(*second)]
            elif rule == 'latest':
                guesses = met[ask][-1:]
            else:
                counts = collections.Counter(met[ask])
                guesses = [q for q, times in counts.items() if times == max(counts.values())]
            wanted = target - (question == 'colours')
            right.append(guesses.count(wanted) / len(guesses))
    found = accuracy('collision', settings, rule, steps * width)
    assert found == pytest.approx(np.mean(right))


def test_a_collision_of_which_a_token_was_not_seen_does_not_count():
    settings, rule = WORLD | dict(question='last'), TASKS['collision'].rules['latest']
    # Row, column, row, column, question: they meet at the upper left, then both are at the lower right.
    inputs = np.asarray([[0, 6, 0, 6, 12], [5, 10, 4, 11, 12]]).reshape(-1)
    for first, wanted in ((0, 0), (1, 3), (5, 3)):
        chances = rule(settings, inputs, np.asarray([9]), np.asarray([first]))
        assert chances[0, wanted] == 1.0 and chances.sum() == 1.0


@pytest.mark.parametrize(
    'source, settings', [('instruction', WALKS), ('mad', SKILLS | dict(train_on_text=True))]
)
def test_rules_do_not_score_text_that_is_only_learnt_from(source, settings):
    inputs, asked, _ = next(documents(source, settings, 'train'))
    with pytest.raises(UsageError, match='train_on_text=False'):
        TASKS[source].questions(settings, inputs, asked)


@pytest.mark.parametrize(
    'kind, before, wanted',
    [
        ('recall', 0, 1 / 8),
        ('fuzzy', 0, 1 / 8),
        ('copying', 0, 1 / 14),
        ('copying', 1, (15 / 14 + 1) / 16),  # the last word is right before the mark
        ('compression', 0, 1 / 15),
        ('compression', 21, (42 / 15 + 21) / 63),
        ('memorization', 0, 1.0),  # parameters know it
    ],
)
def test_what_was_not_seen_is_any_word_of_an_answer(kind, before, wanted):
    assert accuracy('mad', SKILLS | dict(kind=kind), 'look up', before) == pytest.approx(wanted)


def test_a_product_is_known_from_the_beginning_only():
    """Of 8 positions, `before` and one more see the first; the others have an equal chance of all."""
    settings = STATES | dict(group='A5', lengths=(8,))
    for before in (0, 5, 7):
        wanted = (before + 1 + (7 - before) / 60) / 8
        assert accuracy('state_tracking', settings, 'product', before) == pytest.approx(wanted)


def test_one_swap_that_was_not_seen_leaves_few_products():
    """Of S3, one of four equal elements is unknown; after two, none at all is the likeliest."""
    settings = STATES | dict(group='S3_swaps', lengths=(3,), eval_documents=4000)
    for before, wanted in ((2, 1), (1, (2 + 1 / 4) / 3), (0, (1 + 1 / 4 + 1 / 4) / 3)):
        found = accuracy('state_tracking', settings, 'product', before)
        assert found == pytest.approx(wanted, abs=0.01)
