"""State tracking and MAD: groups are groups, and documents are what their papers say."""

import collections
import itertools

import numpy as np
import pytest

from longmem_jax.data.tasks import mad, state_tracking
from longmem_jax.data.tasks.registry import TASKS
from tests.data.tasks_test import SKILLS, STATES


@pytest.mark.parametrize(
    'name, size, commutes',
    [('S5', 120, False), ('A5', 60, False), ('Z60', 60, True), ('A4_x_Z5', 60, False)],
)
def test_groups_have_their_laws(name, size, commutes):
    words, table = state_tracking.group(name)
    everyone = np.arange(size)
    assert len(set(words)) == size == len(words) and table.shape == (size, size)
    np.testing.assert_array_equal(table[0], everyone)
    np.testing.assert_array_equal(table[:, 0], everyone)
    np.testing.assert_array_equal(np.sort(table, axis=1), np.tile(everyone, (size, 1)))
    x, y, z = np.random.default_rng(0).integers(0, size, (3, 2000))
    np.testing.assert_array_equal(table[table[x, y], z], table[x, table[y, z]])
    assert (table == table.T).all() == commutes


def test_products_are_those_of_permutations():
    """A product applies its right factor first, and is the target at every position."""
    corpus = state_tracking.StateTracking(STATES, 'test', 0)
    words = corpus.tokenizer.words
    for index in range(3):
        document, so_far = corpus[index], range(5)
        assert len(document.inputs) == STATES['lengths'][index]
        assert document.scored.tolist() == [1] * (len(document.inputs) - 1) + [2]
        for element, target in zip(document.inputs, document.tokens, strict=True):
            so_far = [so_far[int(thing) - 1] for thing in words[element]]
            assert words[target] == ''.join(str(thing + 1) for thing in so_far)


def test_swaps_move_two_things_at_most():
    words, _ = state_tracking.group('S5')
    corpus = state_tracking.StateTracking(STATES | dict(group='S5_swaps'), 'test', 0)
    drawn = {words[element] for index in range(9) for element in corpus[index].inputs}
    moved = [sum(a != b for a, b in zip(word, '12345', strict=True)) for word in drawn]
    assert sorted(moved) == [0] + 10 * [2]


def test_lengths_are_drawn_in_training():
    training = state_tracking.StateTracking(STATES | dict(documents=400), 'train', 0).lengths()
    assert {*training} == {*range(4, 34)}


@pytest.mark.parametrize(
    'source, changes, message',
    [
        ('state_tracking', dict(group='S7'), "group = 'S7'"),
        ('state_tracking', dict(group='Q8'), "group = 'Q8'"),
        ('state_tracking', dict(group='A5_x_Z60'), 'of 2 to 1,000 elements'),
        ('state_tracking', dict(group='A5_x'), "group = 'A5_x'"),
        ('state_tracking', dict(group='Z1'), 'of 2 to'),
        ('state_tracking', dict(group='S5_pairs'), "group = 'S5_pairs'"),
        ('state_tracking', dict(group='A5_swaps'), 'or the swaps of S2 to S6, such as S5_swaps'),
        ('state_tracking', dict(group='S3_x_S3_swaps'), 'or the swaps of S2 to S6'),
        ('state_tracking', dict(lengths=(8, 4)), 'lengths = (8, 4): must be rising'),
        ('state_tracking', dict(lengths='long'), 'lengths = long'),
        ('state_tracking', dict(lengths=(0, 4)), 'must be rising'),
        ('state_tracking', dict(lengths=(True, 4)), 'must be rising ints from 1'),
        ('state_tracking', dict(lengths=(4.7, 8.2)), 'must be rising ints'),
        ('state_tracking', dict(lengths='48'), 'must be rising ints'),
        ('state_tracking', dict(lengths=(4, 10**8)), 'to 10,000,000, elements of a sequence'),
        ('mad', dict(kind='forgetting'), "kind = 'forgetting'"),
        ('mad', dict(noise=0.2), 'needs num_noise'),
        ('mad', dict(num_noise=14), 'too few for 14 of noise'),
        ('mad', dict(length=63), 'length = 63: must be even'),
        ('mad', dict(kind='memorization', length=63), 'must be even'),
        ('mad', dict(kind='fuzzy', length=17), 'length = 17: must be at least 18'),
        ('mad', dict(kind='fuzzy', num_words=6), 'must be different words of up to (3, 3)'),
        ('mad', dict(kind='copying', length=33), '16 words to copy need at least 34 tokens'),
        ('mad', dict(kind='copying', num_noise=2, noise=0.5), 'copying has blanks as noise'),
    ],
)
def test_bad_settings_have_one_clear_problem(source, changes, message):
    settings = (SKILLS if source == 'mad' else STATES) | changes
    problems = TASKS[source].check(settings)
    assert len(problems) == 1 and message in problems[0], problems


def words_of(kind, split='test', **changes):
    """Pairs of an input and its target, '' where there is none, with documents of a kind of MAD."""
    settings = SKILLS | dict(kind=kind, eval_documents=40, documents=40) | changes
    corpus = mad.Mad(settings, split, 0)
    words = corpus.tokenizer.words
    assert corpus.lengths().tolist() == [len(corpus[i].tokens) for i in range(len(corpus))]
    assert max(corpus[i].inputs.max() for i in range(40)) < len(words)
    for index in range(len(corpus)):
        document = corpus[index]
        targets = np.where(document.scored > 0, document.tokens, -1)
        yield (
            [words[i] for i in document.inputs],
            [words[t] if t >= 0 else '' for t in targets],
            document.scored,
        )


@pytest.mark.parametrize('noise', [{}, dict(num_words=32, num_noise=16, noise=0.4)])
def test_recall_asks_for_every_key_that_comes_again(noise):
    for inputs, targets, scored in words_of('recall', **noise):
        assert len(inputs) == 63 and scored[-1] == 2 and {*scored} == {0, 2}
        told = {}
        for place in range(0, 63, 2):
            key, value = inputs[place], (*inputs, targets[-1])[place + 1]
            assert (key[0], value[0]) in (('k', 'v'), ('n', 'n'))
            asked = key[0] == 'k' and key in told
            assert targets[place] == (value if asked else '')
            assert told.setdefault(key, value) == value or key[0] == 'n'


def parsed(text):
    """(key, value) of a fuzzy text; None at noise."""
    runs = [(sort, [*of]) for sort, of in itertools.groupby(text, lambda word: word[0])]
    return [(tuple(one[1]), tuple(two[1])) for one, two in itertools.pairwise(runs)
            if (one[0], two[0]) == ('k', 'v')]  # fmt: skip


@pytest.mark.parametrize('noise', [{}, dict(num_words=32, num_noise=16, noise=0.4)])
def test_the_last_key_of_fuzzy_recall_was_shown(noise):
    sizes = collections.Counter()
    for inputs, targets, _ in words_of('fuzzy', **noise):
        pairs = parsed([*inputs, targets[-1]])
        assert {len(key) for key, _ in pairs} == {3}
        (last, value), told = pairs[-1], dict(pairs[:-1])
        assert told[last] == value, 'a question for a key that was never shown'
        for key, answer in pairs:
            assert told[key] == answer and len({*key}) == 3 and len({*answer}) == len(answer)
        sizes.update(len(value) for _, value in pairs)
        again = sum(len(v) for i, (k, v) in enumerate(pairs) if k in dict(pairs[:i]))
        assert sum(map(bool, targets)) == again
    assert {*sizes} == {1, 2, 3}
    lengths = {len(k) for inputs, *_ in words_of('fuzzy', 'train') for k, _ in parsed(inputs)}
    assert lengths == {1, 2, 3}


def test_noise_of_compression_is_not_asked_for():
    for inputs, targets, scored in words_of('compression', num_words=32, num_noise=8, noise=0.4):
        assert inputs[63:] == ['?'] + ['_'] * 63 and len(inputs) == 127
        plain = [word if word[0] == 'v' else '' for word in inputs[:63]]
        assert targets == [''] * 64 + plain and 0 < sum(map(bool, plain)) < 63
        assert (scored == 2).sum() == 1


def test_what_is_copied_stands_among_blanks():
    for inputs, targets, scored in words_of('copying'):
        mark = inputs.index('?')
        assert (mark, len(inputs)) == (47, 64) and inputs[48:] == ['_'] * 16
        assert targets == [''] * 48 + [word for word in inputs[:mark] if word != '_']
        assert scored.tolist() == [0] * 48 + [1] * 15 + [2]


def test_a_seed_repeats_what_is_copied():
    """Whatever was drawn from the global generator of numpy before."""
    texts = []
    for seed in (0, 1):
        np.random.seed(seed)
        texts.append([inputs for inputs, *_ in words_of('copying')])
    assert texts[0] == texts[1]


def test_facts_are_those_of_every_split_and_seed():
    told = {}
    for seed, split in itertools.product((0, 1), ('train', 'test')):
        settings = SKILLS | dict(kind='memorization', num_words=32, documents=9)
        corpus = mad.Mad(settings, split, seed)
        for index in range(6):
            document = corpus[index]
            assert (document.inputs[1::2] == 31).all() and (document.scored == [0, 2] * 32).all()
            pairs = zip(document.inputs[::2].tolist(), document.tokens[1::2].tolist(), strict=True)
            assert all(told.setdefault(key, value) == value for key, value in pairs)
    assert len(told) == len({*told.values()}) == 15
