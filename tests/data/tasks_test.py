"""Tasks: every answer can be derived from the model's inputs, and generation is deterministic."""

import collections

import numpy as np
import pytest

from longmem_jax.data.lanes import batches
from longmem_jax.data.tasks import mad, mqar
from longmem_jax.data.tasks.collision import Collision
from longmem_jax.data.tasks.copy_task import Copy
from longmem_jax.data.tasks.instruction import Instruction
from longmem_jax.data.tasks.mad import Mad
from longmem_jax.data.tasks.mqar import FILLS, Mqar, by_power
from longmem_jax.data.tasks.recall import KINDS, Recall
from longmem_jax.data.tasks.registry import TASKS
from longmem_jax.data.tasks.sorting import Sorting, by_frequency
from longmem_jax.data.tasks.state_tracking import StateTracking
from longmem_jax.errors import UsageError

WORLD = dict(
    documents=3,
    steps=1500,
    eval_documents=2,
    eval_steps=800,
    question='colours',
    easy_question='present',
    easy_share=0.4,
    size=6,
    num_colours=3,
    speed=0.5,
    recolour=0.05,
)
GAPS = dict(documents=50, eval_documents=20, span=40, max_count=4)
WALKS = dict(
    documents=4,
    eval_documents=3,
    locations=60,
    num_characters=12,
    mean_gap=80.0,
    instruction_share=0.4,
    train_on_text=True,
)
COUNTS = dict(documents=6, eval_documents=4, length=500, num_tokens=20)
KEYS = dict(
    kind='needles',
    documents=30,
    eval_documents=9,
    distances=(40, 100),
    num_pairs=4,
    answer_length=3,
    num_fillers=5,
    before=20,
)
PAIRS = dict(
    documents=60,
    eval_documents=12,
    num_words=40,
    sizes=((32, 4), (64, 8), (96, 16)),
    power=0.01,
    passes=2,
    fill='random',
)
SKILLS = dict(
    kind='recall',
    documents=30,
    eval_documents=6,
    num_words=16,
    length=64,
    num_noise=0,
    noise=0.0,
    key_length=3,
    value_length=3,
    num_copied=16,
    train_on_text=False,
)
STATES = dict(documents=30, eval_documents=9, group='S5', lengths=(4, 8, 33))
EVERY = [
    (Collision, WORLD),
    (Copy, GAPS),
    (Instruction, WALKS),
    *((Mad, SKILLS | dict(kind=kind)) for kind in mad.KINDS),
    (Mqar, PAIRS),
    (Recall, KEYS),
    (Sorting, COUNTS),
    (StateTracking, STATES),
]


def frames(corpus, index):
    """Inputs and answers of a document by step: [steps, tokens], [steps] with -1 for none."""
    document = corpus[index]
    width = 8 if corpus._settings['question'] == 'colours' else 5
    inputs = document.inputs.reshape(-1, width)
    scored = document.scored.reshape(-1, width)
    assert not scored[:, :-1].any() and set(np.unique(scored)) <= {0, 2}
    answers = document.tokens.reshape(-1, width)[:, -1]
    return inputs, np.where(scored[:, -1] > 0, answers, -1)


def quadrant(row, column, size):
    return 2 * (row >= size // 2) + (column >= size // 2)


@pytest.mark.parametrize('easy', ['present', 'last_collision'])
def test_collision_answers_follow_from_the_stream(easy):
    size, colours = WORLD['size'], WORLD['num_colours']
    corpus = Collision(WORLD | dict(easy_question=easy), 'train', 0)
    matches = 0
    for index in range(len(corpus)):
        history, last = {}, (-1, -1)
        inputs, answers = frames(corpus, index)
        for frame, answer in zip(inputs, answers, strict=True):
            row0, column0, colour0, row1, column1, colour1, ask0, ask1 = frame
            assert 0 <= row0 < size <= column0 < 2 * size <= colour0 < 2 * size + colours
            pair = (colour0 - 2 * size, colour1 - 2 * size)
            asked = (ask0 - 2 * size - colours, ask1 - 2 * size - colours)
            if row0 == row1 and column0 == column1:
                history[pair] = quadrant(row0, column0 - size, size)
                last = pair
            easy_pair = (pair if last != (-1, -1) else last) if easy == 'present' else last
            matches += asked == easy_pair
            assert answer == (1 + history[asked] if asked in history else -1)
    share = matches / (len(corpus) * WORLD['steps'])
    # 40 % by rule, and one in nine of the rest by chance.
    assert 0.4 < share < 0.55


def test_particles_move_as_told():
    inputs, _ = frames(Collision(WORLD | dict(speed=0.2), 'train', 0), 0)
    rows = inputs[:, 0].astype(int)
    assert np.abs(np.diff(rows)).max() <= 2 and len(set(rows)) == WORLD['size']
    changes = np.mean(inputs[1:, 2] != inputs[:-1, 2])
    assert 0.02 < changes < 0.05  # 5 %, a third of them to the same colour


@pytest.mark.parametrize('question', ['last', 'last_three'])
def test_easy_versions(question):
    size = WORLD['size']
    corpus = Collision(WORLD | dict(question=question), 'validation', 0)
    met, answered = [], 0
    inputs, answers = frames(corpus, 1)
    for (row0, column0, row1, column1, ask), answer in zip(inputs, answers, strict=True):
        assert ask == 2 * size
        if row0 == row1 and column0 == column1:
            met.append(quadrant(row0, column0 - size, size))
        wanted = -1
        if question == 'last' and met:
            wanted = met[-1]
        if question == 'last_three' and len(met) >= 3:
            wanted = 16 * met[-3] + 4 * met[-2] + met[-1]
        assert answer == wanted
        answered += answer >= 0
    assert answered > 100 and answers.max() < corpus.tokenizer.vocab_size


def test_the_released_world_has_the_released_statistics():
    """44 words; collisions every 221 to 246 steps; the four answers equally often."""
    settings = WORLD | dict(documents=256, steps=1000, size=16, num_colours=5)
    corpus = Collision(settings, 'train', 1)
    assert corpus.tokenizer.vocab_size == 44
    together, labels = 0, np.zeros(5)
    for index in range(len(corpus)):
        inputs, answers = frames(corpus, index)
        together += ((inputs[:, 0] == inputs[:, 3]) & (inputs[:, 1] == inputs[:, 4])).sum()
        labels += np.bincount(np.maximum(answers, 0), minlength=5)
    assert 210 < 256_000 / together < 280
    assert np.all(np.abs(labels[1:] / labels[1:].sum() - 0.25) < 0.04)


def test_copy():
    corpus, counts, gaps = Copy(GAPS, 'train', 0), [], []
    for index in range(len(corpus)):
        document = corpus[index]
        words = corpus.tokenizer.decode(document.tokens).decode().split()
        gap = words.count('B')
        count = words.index('B')
        assert words == ['A'] * count + ['B'] * gap + ['?'] + ['A'] * count + ['<end>']
        assert document.scored.tolist() == [0] * (count + gap + 1) + [1] * count + [2]
        counts.append(count)
        gaps.append(gap)
    assert set(counts) == {1, 2, 3, 4} and 1 <= min(gaps) < 8 and 33 < max(gaps) <= 40


def test_sorting_is_most_common_first():
    """The rule of `collections.Counter.most_common`, and absent tokens last."""
    corpus = Sorting(COUNTS, 'train', 0)
    assert corpus.tokenizer.vocab_size == 22
    for index in range(len(corpus)):
        document = corpus[index]
        tokens, answer = document.tokens[:500].tolist(), document.tokens[501:].tolist()
        assert document.tokens[500] == 20 and len(answer) == 20
        common = [token for token, _ in collections.Counter(tokens).most_common()]
        assert answer == common + sorted(set(range(20)) - set(common))
        assert document.scored.tolist() == [0] * 501 + [1] * 19 + [2]
    few = np.asarray([3, 1, 3, 0, 1])
    assert by_frequency(few, 6).tolist() == [3, 1, 0, 2, 4, 5]


def test_the_mixture_of_sorting_drifts():
    """Early tokens come from one distribution, late ones from another."""
    settings = COUNTS | dict(length=40_000, documents=1)
    tokens = Sorting(settings, 'train', 3)[0].tokens[:40_000]
    early, middle, late = (
        np.bincount(part, minlength=20) / len(part)
        for part in (tokens[:4000], tokens[18_000:22_000], tokens[-4000:])
    )
    assert np.abs(early - late).max() > 0.02
    np.testing.assert_allclose((early + late) / 2, middle, atol=0.02)


def executions(words):
    """Indices of the first words of executions, and (X, Y) of each."""
    for place in range(len(words) - 1):
        if words[place : place + 3] == ['You', 'tell', 'the']:
            yield place, (words[place + 3], words[place + 5])


def test_instructions_are_given_before_and_executed_once():
    corpus = Instruction(WALKS, 'test', 0)
    executed = 0
    for index in range(len(corpus)):
        document = corpus[index]
        words = corpus.tokenizer.decode(document.tokens).decode().split()
        starts = dict(executions(words))
        waiting = {}
        scored = np.zeros(len(words), int)
        for place in range(len(words)):
            if words[place : place + 4] == ['can', 'you', 'tell', 'the']:
                target, sender = words[place + 4], words[place + 7]
                assert target not in waiting
                waiting[target] = sender
            if words[place : place + 5] and words[place] == 'The' and words[place + 2 : place + 5] == [
                'is', 'here', '.'
            ]:  # fmt: skip
                # Whoever is met has word waiting exactly if the next line is an execution.
                assert (words[place + 1] in waiting) == (place + 5 in starts)
            if place in starts:
                target, sender = starts[place]
                assert words[place - 4 : place] == [target, 'is', 'here', '.']
                assert waiting.pop(target) == sender
                end = place + 12
                assert words[end - 1] == '"' and words[end - 2] == '!'
                scored[place : end - 1], scored[end - 1] = 1, 2
                executed += 1
        np.testing.assert_array_equal(document.scored, scored)
    assert executed > 10


def test_the_text_is_learnt_from_in_training_only_where_asked():
    for wanted, changes in ((1, {}), (0, dict(train_on_text=False))):
        document = Instruction(WALKS | changes, 'train', 0)[0]
        assert document.scored.min() == wanted and document.scored.max() == 2


@pytest.mark.parametrize('kind, settings', EVERY)
def test_documents_are_the_same_whatever_the_order(kind, settings):
    first, second, other = (
        kind(settings, 'test', 0),
        kind(settings, 'test', 0),
        kind(settings, 'test', 1),
    )
    indices = range(len(first))
    forward = [first[index] for index in indices]
    backward = [second[index] for index in reversed(indices)][::-1]
    for one, two in zip(forward, backward, strict=True):
        np.testing.assert_array_equal(one.tokens, two.tokens)
        np.testing.assert_array_equal(one.scored, two.scored)
    assert any(
        len(o.tokens) != len(f.tokens) or (o.tokens != f.tokens).any()
        for o, f in zip(map(other.__getitem__, indices), forward, strict=True)
    )
    validation = kind(settings, 'validation', 0)
    assert any(
        len(o.tokens) != len(f.tokens) or (o.tokens != f.tokens).any()
        for o, f in zip(map(validation.__getitem__, indices), forward, strict=True)
    ), 'the seed of a document must have the split'
    train = kind(settings, 'train', 0)[0]
    assert len(train.tokens) != len(forward[0].tokens) or (train.tokens != forward[0].tokens).any()
    np.testing.assert_array_equal(first.lengths(), [len(f.tokens) for f in forward])


def test_lanes_carry_inputs_and_marks():
    corpus = Collision(WORLD | dict(steps=20), 'train', 0)
    batch, _ = next(
        batches(
            corpus,
            lanes=range(3),
            num_lanes=3,
            segment_length=32,
            segments_per_batch=2,
            seed=0,
            shuffle=False,
            num_epochs=1,
            cursor=None,
        )
    )
    document = corpus[1]
    np.testing.assert_array_equal(batch.tokens[:, 1].reshape(-1), document.inputs[:64])
    np.testing.assert_array_equal(batch.targets[:, 1].reshape(-1), document.tokens[:64])
    np.testing.assert_array_equal(batch.scored[:, 1].reshape(-1), document.scored[:64])


@pytest.mark.parametrize(
    'source, settings, problem',
    [
        ('collision', WORLD | dict(easy_question='past'), "easy_question = 'past'"),
        ('collision', WORLD | dict(size=200), 'size = 200: must lie between 4 and 64'),
        ('collision', WORLD | dict(sizes=6), "did you mean 'size'"),
        ('copy', dict(documents=5, eval_documents=5, span=4), 'max_count is missing'),
        ('copy', GAPS | dict(span='long'), "span: must be an int, got 'long'"),
        ('instruction', WALKS | dict(train_on_text=1), 'True or False'),
        ('instruction', WALKS | dict(num_characters=500), 'num_characters = 500'),
    ],
)
def test_bad_settings_have_one_clear_problem(source, settings, problem):
    problems = TASKS[source].check(settings)
    assert len(problems) == 1 and problem in problems[0]


def test_a_word_that_is_not_there():
    with pytest.raises(UsageError, match="'C' is not a word"):
        Copy(GAPS, 'train', 0).tokenizer.encode(b'A B C')


@pytest.mark.parametrize('split', ['train', 'test'])
@pytest.mark.parametrize('kind', KINDS)
def test_what_is_asked_for_was_told_so_many_tokens_before(kind, split):
    settings, found = KEYS | dict(kind=kind), set()
    corpus = Recall(settings, split, 0)
    for index in range(len(corpus)):
        document = corpus[index]
        words = document.tokens.tolist()
        ask = words.index(2)
        named = words[ask + 1] >= 13  # after the digits
        answer = words[ask + 1 + named :]
        size = len(answer)
        assert size == KEYS['answer_length'] and named == (kind in ('needles', 'associative'))
        assert document.scored.tolist() == [0] * (ask + 1 + named) + [1] * (size - 1) + [2]
        keys = [place for place, word in enumerate(words) if word == 1]
        assert len(keys) == (4 if named else 1)
        if named:
            keys = [place for place in keys if words[place + 1] == words[ask + 1]]
        (key,) = keys
        end = key + 1 + named + size
        assert words[end - size : end] == answer
        found.add(ask - end)
    if split == 'test':
        assert found == {40, 100}
    else:
        assert min(found) >= 40 and max(found) <= 100 and len(found) > 10


def test_distances_can_be_as_frequent_in_every_doubling():
    settings = KEYS | dict(kind='passkey', documents=600, distances=(15, 127), spread='log')
    corpus = Recall(settings, 'train', 0)
    found = []
    for index in range(600):
        words = corpus[index].tokens.tolist()
        found.append(words.index(2) - words.index(1) - 1 - settings['answer_length'])
    assert min(found) == 15 and max(found) > 120 and max(found) <= 127
    for low in (15, 31, 63):
        share = np.mean([low <= distance <= 2 * low for distance in found])
        assert abs(share - 1 / 3) < 0.1


def test_questions_in_the_filler_are_not_answered():
    settings = KEYS | dict(kind='passkey')
    plain, asking = (
        Recall(settings | changes, 'test', 0)[1] for changes in ({}, dict(ask_every=8))
    )
    np.testing.assert_array_equal(plain.scored, asking.scored)
    end = plain.tokens.tolist().index(1) + 4
    changed = np.flatnonzero(plain.tokens != asking.tokens)
    assert changed.tolist() == list(range(end + 7, end + 100, 8))
    assert (asking.tokens[changed] == 2).all()
    inputs, asked = asking.tokens[:-1], np.flatnonzero(asking.scored[1:])
    found = TASKS['recall'].questions(settings, inputs, asked)
    assert found.tolist() == [end + 100] * 3


def test_distances_are_checked():
    check = TASKS['recall'].check
    assert check(KEYS) == []
    of_numpy = KEYS | dict(distances=tuple(np.int64(number) for number in KEYS['distances']))
    assert check(of_numpy) == []
    given, plain = Recall(of_numpy, 'test', 0), Recall(KEYS, 'test', 0)
    for index in range(4):
        np.testing.assert_array_equal(given[index].tokens, plain[index].tokens)
    for changes, message in (
        (dict(distances=(100, 40)), 'must be rising ints'),
        (dict(distances=()), 'must be rising ints'),
        (dict(distances='far'), 'must be rising ints'),
        (dict(distances=(40.0, 100)), 'must be rising ints'),
        (dict(distances=(True, 100)), 'must be rising ints'),
        (dict(num_pairs=20), '20 keys need 95 tokens'),
        (dict(kind='haystack'), "kind = 'haystack'"),
        (dict(spread='far'), "spread = 'far'"),
        (dict(ask_every=8), "ask_every = 8: only with kind = 'passkey'"),
        (dict(kind='passkey', ask_every=-1), 'ask_every'),
    ):
        assert any(message in problem for problem in check(KEYS | changes)), changes


@pytest.mark.parametrize('split', ['train', 'test'])
@pytest.mark.parametrize('fill', FILLS)
def test_every_key_is_told_and_then_asked_for_once(fill, split):
    corpus, found = Mqar(PAIRS | dict(fill=fill), split, 0), set()
    for index in range(len(corpus)):
        document = corpus[index]
        length, pairs = len(document.tokens), int((document.scored > 0).sum())
        found.add((length, pairs))
        listed = document.inputs[: 2 * pairs].reshape(pairs, 2)
        told = dict(listed.tolist())
        assert len(told) == len(set(told.values())) == pairs
        assert 1 <= min(told) and max(told) < 20 <= min(told.values()) and max(told.values()) < 40
        np.testing.assert_array_equal(document.inputs[2 * pairs : 4 * pairs], listed.reshape(-1))
        (asked,) = np.nonzero(document.scored)
        assert asked.min() >= 4 * pairs and not (asked % 2).any()
        assert set(document.scored[asked]) == {2}
        assert sorted(document.inputs[asked]) == sorted(told)
        answers = [told[key] for key in document.inputs[asked].tolist()]
        assert document.tokens[asked].tolist() == answers
        rest = np.delete(document.inputs[4 * pairs :], asked - 4 * pairs)
        if fill == 'blank':
            assert not rest.any()
        elif fill == 'others':
            assert rest.min() > 0 and not set(rest.tolist()) & set(told)
    assert found == set(PAIRS['sizes'])


def test_a_size_that_is_listed_again_comes_more_often():
    """Zoology trains on five times as many documents of the first size as of any other."""
    sizes = (*(PAIRS['sizes'][:1] * 5), *PAIRS['sizes'][1:])
    lengths = Mqar(PAIRS | dict(documents=700, sizes=sizes), 'train', 0).lengths()
    shares = [np.mean(lengths == length) for length, _ in PAIRS['sizes']]
    assert np.abs(np.subtract(shares, (5 / 7, 1 / 7, 1 / 7))).max() < 0.05


def test_sizes_of_mqar_are_drawn_in_training_and_cycled_in_evaluation():
    sizes = PAIRS['sizes']
    test = Mqar(PAIRS, 'test', 0).lengths()
    assert test.tolist() == [sizes[index % 3][0] for index in range(12)]
    train = Mqar(PAIRS | dict(documents=600), 'train', 0).lengths()
    shares = [np.mean(train == length) for length, _ in sizes]
    assert np.abs(np.subtract(shares, 1 / 3)).max() < 0.06


@pytest.mark.parametrize('fillers', [0, 3])
def test_a_distance_stands_between_list_and_questions(fillers):
    """The same document, with filler of its own; in training every doubling is as frequent."""
    near = PAIRS | dict(fill='blank', sizes=((16, 4), (8, 2)), passes=1, power=1.0)
    far = near | dict(distances=(5, 100), num_fillers=fillers)
    assert TASKS['mqar'].check(far) == [] and mqar.greatest_distance(far) == 114
    lengths = Mqar(far, 'test', 0).lengths().tolist()
    assert lengths[:5] == [16 + 5, 8 + 5, 16 + 100, 8 + 100, 16 + 5]
    for index in range(4):
        document, wanted = Mqar(far, 'test', 0)[index], Mqar(near, 'test', 0)[index]
        listed, distance = len(wanted.tokens) // 2, (5, 100)[index // 2]
        assert len(document.tokens) == lengths[index]
        gap = slice(listed, listed + distance)
        for name in ('inputs', 'tokens', 'scored'):
            rest = np.delete(getattr(document, name), gap)
            np.testing.assert_array_equal(rest, getattr(wanted, name))
        assert not document.tokens[gap].any() and not document.scored[gap].any()
        words = set(document.inputs[gap].tolist())
        assert words <= ({40, 41, 42} if fillers else {0}), 'filler is no key and no value'
        assert max(words) < mqar.vocabulary(far).vocab_size
    drawn = Mqar(far | dict(documents=900, sizes=((16, 4),)), 'train', 0).lengths() - 16
    assert drawn.min() == 5 and drawn.max() == 100
    assert 0.42 < np.mean(drawn < 24) < 0.58  # the middle of 6 and 101, as logarithms


def test_questions_come_by_a_power_of_the_distance():
    """The share of the first place is 1 over the harmonic sum; with power 1 all are alike."""
    random = np.random.default_rng(0)
    first = [by_power(random, 50, 0.0, 1)[0] == 0 for _ in range(4000)]
    assert abs(np.mean(first) - 1 / (1 / np.arange(1, 51)).sum()) < 0.03
    places = [by_power(random, 50, 1.0, 1)[0] for _ in range(4000)]
    assert abs(np.mean(places) - 24.5) < 1
    assert sorted(by_power(random, 8, 0.01, 8)) == list(range(8))


def test_sizes_are_checked():
    check = TASKS['mqar'].check
    assert check(PAIRS) == []
    for changes, message in (
        (dict(sizes=()), 'must be (length, pairs)'),
        (dict(sizes=(64, 4)), 'must be (length, pairs)'),
        (dict(sizes='much'), 'must be (length, pairs)'),
        (dict(sizes=((22, 4),)), '4 pairs in 22 tokens'),
        (dict(sizes=((33, 4),)), 'an even number of tokens, at least 24'),
        (dict(sizes=((33, 0),)), 'at least one pair'),
        (dict(sizes=((128, 20),)), '20 pairs need as many keys; num_words = 40 has 19'),
        (dict(num_words=41, sizes=((128, 20),)), 'num_words = 41 has 19'),
        (dict(fill='some'), "fill = 'some'"),
        (dict(distances=()), 'distances = (): must be rising numbers'),
        (dict(distances=(8, 4)), 'must be rising numbers in a tuple, such as (0, 256)'),
        (dict(distances=(-1, 4)), 'must be rising numbers'),
        (dict(distances='far'), 'must be rising numbers'),
        (dict(num_fillers=-1), 'num_fillers'),
    ):
        problems = check(PAIRS | changes)
        assert len(problems) == 1 and message in problems[0], (changes, problems)


def test_values_of_keys_that_were_seen_are_looked_up():
    """Right where the list was seen, one of the values otherwise."""
    corpus = Mqar(PAIRS | dict(fill='blank'), 'test', 0)
    for index in range(3):
        document = corpus[index]
        (asked,) = np.nonzero(document.scored)
        right = document.tokens[asked]
        chances = {
            name: mqar.RULES['look up'](PAIRS, document.inputs, asked, begin)
            for name, begin in (('all', np.zeros_like(asked)), ('none', asked))
        }
        assert (mqar.questions(PAIRS, document.inputs, asked) == asked).all()
        np.testing.assert_array_equal(chances['all'].argmax(axis=1), right)
        assert chances['all'].max(axis=1).min() == 1
        np.testing.assert_allclose(chances['none'][:, 20:], 1 / 20)
        assert not chances['none'][:, :20].any()
        any_value = mqar.RULES['any value'](PAIRS, document.inputs, asked, np.zeros_like(asked))
        np.testing.assert_allclose(any_value[np.arange(len(asked)), right], 1 / len(asked))
