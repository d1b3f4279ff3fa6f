"""N-gram models: the equations by a loop, probabilities that sum to one, and nothing of the future."""

import collections
import itertools

import numpy as np
import pytest

from longmem_jax.evaluation.ngrams import NGrams, stream

VOCAB, ORDER, BEGIN = 5, 3, 4
TEXT = [np.asarray(text) for text in ([0, 1, 0, 1, 2, 0, 1, 1], [1, 0], [2, 2, 0, 1, 0, 1, 0])]


def model(texts=TEXT, vocab=VOCAB, order=ORDER, begin=BEGIN):
    tokens, real = stream(((begin, text) for text in texts), begin, order)
    return NGrams(tokens, real, vocab, order)


def scored(ngrams, text, first=BEGIN):
    """Probabilities of a text by every order, [order, n]."""
    tokens, real = stream([(first, np.asarray(text))], BEGIN, ngrams.order)
    return ngrams.chances(tokens)[:, real]


def by_loop(history, word, order, texts=TEXT, top=True):
    """p(word | the last order - 1 of history) with dictionaries; lower orders count what is before."""
    if not order:
        return 1 / VOCAB
    grams = collections.Counter()
    for text in texts:
        padded = [BEGIN] * (ORDER - 1) + list(text)
        for end in range(ORDER - 1, len(padded)):
            grams[
                tuple(padded[end - order + 1 : end + 1]), (padded[end - order] if not top else 0)
            ] += 1
    counts = collections.Counter()
    for (gram, _), times in grams.items():
        counts[gram] += times if top else 1
    once, twice = (list(counts.values()).count(times) for times in (1, 2))
    discount = (once + 1) / (once + 2 * twice + 2)
    context = tuple(history[len(history) - order + 1 :])
    following = {gram[-1]: times for gram, times in counts.items() if gram[:-1] == context}
    shorter = by_loop(history, word, order - 1, texts, top=False)
    if not following:
        return shorter
    kept = max(following.get(word, 0) - discount, 0)
    return (kept + discount * len(following) * shorter) / sum(following.values())


@pytest.mark.parametrize('text', [[0, 1, 0, 3, 1, 2], [2, 2, 2, 0, 1, 0, 1], [3]])
def test_chances_are_those_of_a_loop(text):
    found = scored(model(), text)
    for order, place in itertools.product(range(1, ORDER + 1), range(len(text))):
        history = [BEGIN] * (ORDER - 1) + text[:place]
        wanted = by_loop(history, text[place], order)
        np.testing.assert_allclose(found[order - 1, place], wanted, err_msg=f'{order} {place}')


@pytest.mark.parametrize('order', [1, 2, 5])
def test_chances_sum_to_one(order):
    random = np.random.default_rng(0)
    texts = [random.integers(0, 7, size) ** 2 % 11 for size in (400, 3, 1, 90)]
    ngrams = model(texts, vocab=13, order=order, begin=12)
    for context in ([], [4], [3, 3], [1, 4, 9], [0, 1, 4, 9, 5], [11, 1, 4]):
        chances = np.stack(
            [
                ngrams.chances(stream([(12, np.asarray([*context, word]))], 12, order)[0])[:, -1]
                for word in range(13)
            ]
        )
        assert (chances > 0).all()
        np.testing.assert_allclose(chances.sum(axis=0), 1.0)


def test_a_token_depends_on_those_before_it_in_its_document_only():
    ngrams, text = model(), [0, 1, 2, 0, 1, 1]
    found = scored(ngrams, text)
    np.testing.assert_array_equal(scored(ngrams, [*text[:3], 3, 3, 3])[:, :3], found[:, :3])
    tokens, real = stream([(BEGIN, np.asarray(t)) for t in ([2, 2, 2], text)], BEGIN, ORDER)
    np.testing.assert_array_equal(ngrams.chances(tokens)[:, real][:, 3:], found)


def test_a_window_begins_after_the_token_before_it():
    found = scored(model(), [0, 1, 0])
    np.testing.assert_allclose(scored(model(), [1, 0], first=0)[:2], found[:2, 1:])


def test_more_context_is_better_where_there_is_enough_text():
    random = np.random.default_rng(0)
    follows = random.dirichlet(np.full(4, 0.3), (4, 4))
    text = [0, 1]
    for _ in range(6000):
        text.append(int(random.choice(4, p=follows[text[-2], text[-1]])))
    text = np.asarray(text)
    nll = -np.log(scored(model([text[:5000]]), text[5000:])).mean(axis=1)
    least = -np.log(follows[text[4998:-2], text[4999:-1], text[5000:]]).mean()
    assert nll[0] > nll[1] > nll[2] and least < nll[2] < 1.02 * least
