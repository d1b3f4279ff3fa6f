"""Beam search against an enumeration of all sequences."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from longmem_jax.generation.beam_search import beam_search

VOCAB, BATCH, END, BEGIN = 4, 3, 2, 0


def chain(seed=0):
    """Logits [batch, previous, next] of a chain; the cache is the lane's own table."""
    random = np.random.default_rng(seed)
    return (2 * random.normal(size=(BATCH, VOCAB, VOCAB))).astype(np.float32)


def search(tables, beams, max_length, penalty, end=END):
    def step(tokens, cache, place):
        return jax.vmap(lambda table, token: table[token])(cache, tokens), cache

    return jax.jit(
        lambda tables: beam_search(
            step,
            tables,
            BATCH,
            begin=BEGIN,
            end=end,
            beams=beams,
            max_length=max_length,
            length_penalty=penalty,
        )
    )(jnp.asarray(tables))


def every_sequence(table, max_length, penalty):
    """(score, tokens) of all sequences that end, best first."""
    log = np.asarray(jax.nn.log_softmax(table))
    found = []
    for length in range(1, max_length + 1):
        for middle in itertools.product([t for t in range(VOCAB) if t != END], repeat=length - 1):
            tokens = (*middle, END)
            total = sum(log[a, b] for a, b in zip((BEGIN, *tokens[:-1]), tokens, strict=True))
            found.append((total / length**penalty, tokens))
    return sorted(found, reverse=True)


@pytest.mark.parametrize('penalty', [0.0, 0.6, 1.0, 1.7, -0.5])
def test_wide_beams_find_the_best(penalty):
    tables = chain()
    tokens, scores = search(tables, beams=40, max_length=4, penalty=penalty)
    for lane in range(BATCH):
        wanted = every_sequence(tables[lane], 4, penalty)
        for place in range(3):
            score, sequence = wanted[place]
            np.testing.assert_allclose(scores[lane, place], score, rtol=1e-5)
            row = tuple(int(token) for token in tokens[lane, place])
            assert row == (*sequence, *(END,) * (4 - len(sequence)))


def test_one_beam_is_greedy():
    tables = chain(1)
    tables[:, :, END] -= 3.0
    tokens, _ = search(tables, beams=1, max_length=5, penalty=0.0)
    for lane in range(BATCH):
        last, greedy = BEGIN, []
        for place in range(5):
            last = END if place == 4 else int(np.argmax(tables[lane, last]))
            greedy.append(last)
            if last == END:
                break
        assert list(map(int, tokens[lane, 0][: len(greedy)])) == greedy


def test_the_end_is_forced():
    tables = chain(2)
    tables[:, :, END] = -50.0
    tokens, scores = search(tables, beams=2, max_length=3, penalty=1.0)
    assert (np.asarray(tokens)[:, :, -1] == END).all()
    assert (np.asarray(tokens)[:, :, :-1] != END).all()
    assert np.isfinite(scores).all()


def test_a_penalty_prefers_longer():
    tables = np.zeros((BATCH, VOCAB, VOCAB), np.float32)
    short = search(tables, beams=6, max_length=5, penalty=0.0)[0]
    long = search(tables, beams=6, max_length=5, penalty=3.0)[0]
    assert int(short[0, 0, 0]) == END
    assert int(long[0, 0, 0]) != END


def test_a_sequence_ends_at_any_of_several_ends():
    """As if they were one token with the probability of the likeliest of them."""
    tables, ends = chain(1), (END, 3)
    tokens, scores = search(tables, beams=40, max_length=3, penalty=1.0, end=ends)
    for lane in range(BATCH):
        log = np.asarray(jax.nn.log_softmax(tables[lane]))
        wanted = []
        for length in range(1, 4):
            for middle in itertools.product((0, 1), repeat=length - 1):
                for end in ends:
                    sequence = (*middle, end)
                    steps = zip((BEGIN, *sequence[:-1]), sequence, strict=True)
                    wanted.append((sum(log[a, b] for a, b in steps) / length, sequence))
        wanted.sort(reverse=True)
        for place in range(3):
            np.testing.assert_allclose(scores[lane, place], wanted[place][0], rtol=1e-5)
            row = tuple(int(token) for token in tokens[lane, place])
            assert row[: len(wanted[place][1])] == wanted[place][1]
            assert {*row[len(wanted[place][1]) :]} <= {END}
