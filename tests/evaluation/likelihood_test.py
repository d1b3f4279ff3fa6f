"""Scores of continuations: the same as in one go, whatever is shared and whatever is beside them."""

import functools

import jax
import numpy as np
import pytest

from longmem_jax.devices.sharding import make_mesh
from longmem_jax.errors import UsageError
from longmem_jax.evaluation.likelihood import Likelihood
from longmem_jax.generation.contexts import num_full
from longmem_jax.segment import Segment
from tests.toys import LENGTH, VOCAB, run, toy

MEMORIES = (
    'transformer_xl',
    *(pytest.param(name, marks=pytest.mark.slow) for name in ('infini', 'memory_tokens')),
)
SEGMENTS = 12  # of the longest text with its continuation


def random_tokens(seed, count):
    return np.random.default_rng(seed).integers(0, VOCAB, count).astype(np.int32)


@functools.cache
def likelihood(memory, lanes, devices=1):
    model, params = toy(memory)
    mesh = make_mesh(dict(data=devices), jax.devices()[:devices])
    return Likelihood(model, params, mesh, lanes)


def in_one_go(memory, text, continuation):
    """The score by the logits of the whole text."""
    model, params = toy(memory)
    tokens = np.concatenate([text, continuation])
    inputs, targets = tokens[:-1], tokens[1:]
    padded = np.zeros((SEGMENTS * LENGTH,), np.int32)  # always as long: one program
    padded[: len(inputs)] = inputs
    valid = np.arange(len(padded)) < len(inputs)
    start = np.zeros((SEGMENTS, 1), bool)
    start[0] = True
    logits, _ = run(
        model,
        params,
        Segment(padded.reshape(SEGMENTS, 1, LENGTH), valid.reshape(SEGMENTS, 1, LENGTH), start),
    )
    logits = np.asarray(jax.nn.log_softmax(logits[:, 0].reshape(-1, VOCAB)))[: len(inputs)]
    scored = slice(len(inputs) - len(continuation), None)
    chosen = logits[np.arange(len(inputs)), targets][scored]
    return chosen.sum(), bool((logits.argmax(-1) == targets)[scored].all())


@pytest.mark.parametrize('memory', MEMORIES)
def test_a_score_is_that_of_the_whole_text(memory):
    document = random_tokens(0, 3 * LENGTH + 2)
    pairs = [
        (document, random_tokens(1, 3)),
        (document, random_tokens(2, 2 * LENGTH)),  # through further segments
        (document[: 2 * LENGTH], random_tokens(3, 1)),  # at a border
        (document[:1], random_tokens(4, 11 * LENGTH)),  # longer than a step
        (random_tokens(5, LENGTH + 1), random_tokens(6, 4)),
    ]
    found = likelihood(memory, 2)(pairs)
    for (text, continuation), score in zip(pairs, found, strict=True):
        wanted, greedy = in_one_go(memory, text, continuation)
        assert score.log_likelihood == pytest.approx(wanted, rel=1e-4)
        assert score.greedy == greedy


def test_greedy_continuations_are_found():
    text = random_tokens(0, LENGTH + 2)
    best = [
        token
        for token in range(VOCAB)
        if in_one_go('transformer_xl', text, np.asarray([token], np.int32))[1]
    ]
    assert len(best) == 1
    scores = likelihood('transformer_xl', 2)(
        [(text, np.asarray([token], np.int32)) for token in range(VOCAB)]
    )
    assert [token for token, score in enumerate(scores) if score.greedy] == best
    assert sum(np.exp(score.log_likelihood) for score in scores) == pytest.approx(1, rel=1e-4)


@pytest.mark.slow
def test_neither_lanes_nor_order_nor_devices_matter():
    pairs = [(random_tokens(i % 3, 4 + i), random_tokens(9 + i, 1 + i % 7)) for i in range(9)]
    wanted = [score.log_likelihood for score in likelihood('transformer_xl', 2)(pairs)]
    for lanes, devices in ((1, 1), (16, 1), (4, 2)):
        found = likelihood('transformer_xl', lanes, devices)(pairs[::-1])[::-1]
        np.testing.assert_allclose([s.log_likelihood for s in found], wanted, rtol=1e-5)


def test_other_parameters_are_used_with_the_same_programs():
    model, params = toy('transformer_xl')
    other = jax.tree.map(lambda leaf: -leaf, params)
    mesh = make_mesh(dict(data=1), jax.devices()[:1])
    pairs = [(random_tokens(0, LENGTH + 3), random_tokens(1, 2 * LENGTH))]
    first, scorer = Likelihood(model, other, mesh, 2), Likelihood(model, params, mesh, 2)
    wanted, before = first(pairs), scorer(pairs)
    programs = scorer._score._cache_size()
    scorer.use(other)
    assert scorer(pairs) == wanted != before
    assert scorer._score._cache_size() == programs


def test_a_text_that_is_shared_is_read_once():
    document = random_tokens(0, 4 * LENGTH + 3)
    scorer = likelihood('transformer_xl', 2)
    before = scorer.reader.tokens_read
    scorer([(document, random_tokens(seed, 2)) for seed in range(7)])
    assert scorer.reader.tokens_read - before == num_full(len(document), LENGTH) == 4 * LENGTH


def test_nothing_to_score_and_nothing_to_read():
    scorer = likelihood('transformer_xl', 2)
    empty = np.zeros((0,), np.int32)
    assert scorer([]) == []
    assert scorer([(random_tokens(0, 3), empty)]) == [(0.0, True)]
    with pytest.raises(UsageError, match='needs at least the begin token'):
        scorer([(empty, random_tokens(0, 3))])
