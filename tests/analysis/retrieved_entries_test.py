"""Entries that were retrieved: of which tokens, with which weight, and what the report shows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.analysis import retrieved_entries as retrieved
from experiments.analysis.reading import one_lane
from longmem_jax.data.tokenizers import Bytes
from longmem_jax.errors import UsageError
from longmem_jax.generation.reader import fresh_state
from longmem_jax.reporting.gained import Gained, Read, write
from tests.toys import LENGTH, VOCAB, apply, toy


def test_entries_belong_to_the_newest_token_written_there():
    """As a loop that writes the ring says."""
    for num_written in (0, 3, 7, 12, 40):
        ring = np.full((7,), -1)
        for token in range(num_written):
            ring[token % 7] = token
        found = retrieved.written_token(np.arange(7), num_written, 7)
        assert found.tolist() == ring.tolist()
    assert retrieved.written_token(np.asarray([-1, 2]), 5, 7).tolist() == [-1, 2]


@pytest.fixture(scope='module')
def text():
    tokens = np.random.default_rng(0).integers(0, VOCAB, (5, LENGTH)).astype(np.int32)
    return tokens, np.roll(tokens.ravel(), -1).reshape(tokens.shape)


@pytest.fixture(scope='module')
def full(text):
    return retrieved.read_text(*toy('memorizing'), *text)


@pytest.mark.slow
def test_a_text_is_read_as_in_evaluation(text, full):
    """Log-probabilities of the model, and entries of earlier segments with the layer's weights."""
    model, params = toy('memorizing')
    inputs, targets = text
    found = full
    state, logs = fresh_state(model, params, 1), []
    for tokens, following in zip(inputs, targets, strict=True):
        logits, state, _ = apply(model, params, one_lane(tokens), state)
        logs.append(jax.nn.log_softmax(logits[0])[jnp.arange(LENGTH), following])
    np.testing.assert_allclose(found.logs, np.concatenate(logs), atol=1e-5)
    # Two layers with two heads read 3 of 12 entries each.
    assert found.earlier.shape == (5 * LENGTH, 12)
    assert (found.earlier[:LENGTH] == -1).all() and not found.weights[:LENGTH].any()
    np.testing.assert_allclose(found.weights[LENGTH:].sum(axis=1), 1.0, rtol=1e-5)
    for number in range(LENGTH, 5 * LENGTH):
        start = number // LENGTH * LENGTH
        assert (found.earlier[number] < start).all() and (found.earlier[number] >= start - 12).all()


@pytest.mark.slow
def test_resetting_the_entries_is_not_resetting_the_cache(text, full):
    model, params = toy('memorizing')
    none = retrieved.read_text(model, params, *text, reset=True)
    assert (none.earlier == -1).all()
    assert np.abs(full.logs - none.logs)[LENGTH:].max() > 1e-4
    # The first layer's cache still changes the second segment.
    alone = retrieved.read_text(model, params, *(part[1:2] for part in text))
    assert np.abs(none.logs[LENGTH : 2 * LENGTH] - alone.logs).max() > 1e-4


def test_fewer_entries(text):
    model, params = toy('memorizing')
    few = retrieved.read_text(retrieved.with_entries(model, 4), params, *text)
    last = few.earlier[-LENGTH:]
    assert last.min() >= 4 * LENGTH - 4 and last.max() < 4 * LENGTH
    with pytest.raises(UsageError, match='--smaller=2: .*top_k = 3: more than memory_size = 2'):
        retrieved.with_entries(model, 2)
    with pytest.raises(
        UsageError, match='no layer has a memory of entries; allowed are .*memorizing'
    ):
        retrieved.memory_fields(toy('local')[0].config)


def test_the_report_shows_what_was_read(tmp_path):
    text = np.frombuffer(b'the cat <b> the cat <b>', np.uint8).astype(np.int32)
    inputs, targets = text[None, :-1], text[None, 1:]
    number = targets.size - 1  # the last character
    logs = np.full((targets.size,), -2.0)
    smaller = retrieved.Retrieved(logs, None, None)
    better = logs.copy()
    better[number], better[0] = -0.5, -3.0
    earlier = np.full((targets.size, 3), -1)
    weights = np.zeros((targets.size, 3))
    earlier[number], weights[number] = (9, 4, 9), (0.3, 0.25, 0.45)
    full = retrieved.Retrieved(better, earlier, weights)
    (token,) = retrieved.gained(full, smaller, inputs, targets, Bytes(), 5)
    reads = [
        Read(0.75, '12 tokens before', 'the cat <b', '>', True),
        Read(0.25, '17 tokens before', 'the c', 'a', False),
    ]
    assert token == Gained('t <b> the cat <b', '>', -2.0, -0.5, reads)
    lines, page = (path.read_text() for path in write([token], tmp_path, 'r', 'Title'))
    assert '[>]  p 0.1353 -> 0.6065, gain 1.50 nats' in lines
    assert '    0.750  12 tokens before: the cat <b [>]' in lines
    assert '<tr class="right"><td>0.750</td>' in page and 'the cat &lt;b [&gt;]' in page
    assert page.count('<tr') == 3 and '<b>' not in page
