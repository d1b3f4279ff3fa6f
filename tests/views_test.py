"""What a memory says on the page of `--mode=inspect`, checked for every memory of the registry.

A memory joins by the `view` of its `Entry`; one without functions passes. One memory:
`pytest tests/views_test.py -k NAME`.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from longmem_jax.generation.reader import fresh_state
from longmem_jax.microscope.reading import views_of
from longmem_jax.models.inspect import glimpses
from longmem_jax.views import NOWHERE
from tests import toys
from tests.conformance_test import FIRST
from tests.toys import BATCH, LENGTH, SEGMENTS, VOCAB, apply, every_layer, random_segments

# The first entry of every package, as in the conformance suite.
NAMES = [
    pytest.param(name, marks=() if name in FIRST.values() else pytest.mark.slow)
    for name in every_layer()
]
# One layer, with parameters that have moved; pages of several are in `microscope/inspect_test.py`.
toy = toys.moved
# Whose first layer reads vectors of single tokens, or of neighbours, so that one can be changed alone.
OF_TOKENS = (
    'local', 'full', 'transformer_xl', 'normalized_xl', 'memorizing', 'adaptive_span', 'expire_span',
    'compressive', 'compressive:sliding', 'memory_tokens:leading', 'sinks', 'memorizing:of_a_host',
)  # fmt: skip


@functools.cache
def program(name):
    """(nats, state, glimpses) of a segment, compiled."""
    model, params = toy(name)

    def read(segment, state):
        views = views_of(model)
        return glimpses(model, params, segment, segment.tokens, state, views)

    return jax.jit(read)


def of(segments, number):
    """One of several segments, without a start."""
    segment = jax.tree.map(lambda leaf: leaf[number], segments)
    return segment.replace(start=jnp.zeros((BATCH,), bool))


def read_all(name, segments, number=SEGMENTS):
    """What is said of every segment."""
    model, params = toy(name)
    state, said = fresh_state(model, params, BATCH), []
    for i in range(number):
        nats, state, found = program(name)(of(segments, i), state)
        said.append(jax.device_get((nats, found)))
    return said


@functools.cache
def seen(name):
    return read_all(name, random_segments())


def begins_with_zeros(name):
    """Whether a document begins with zero vectors that count as entries."""
    config = toy(name)[0].config
    return any(config[layer].get('start') == 'zeros' for layer in config.attention)


@pytest.mark.parametrize('name', NAMES)
def test_held_is_what_was_read(name):
    zeros = begins_with_zeros(name)
    for number, (_, found) in enumerate(seen(name)):
        for path, glimpse in found.items():
            for when, held_then in ((number, glimpse.held), (number + 1, glimpse.after)):
                for kind, held in held_then.items():
                    where = f'{name}, {path}, {kind!r} after {when} segments'
                    weights, tokens_read = held.weights, when * LENGTH
                    ages = np.broadcast_to(held.ages, weights.shape)
                    assert weights.ndim == 2 and len(weights) == BATCH, f'{where}: [batch, n]'
                    assert weights.min(initial=0) >= 0, f'{where}: weights are at least 0'
                    if zeros:
                        continue
                    if not when:
                        assert not weights.any(), f'{where}: nothing is held at the start'
                    there = ages[weights > 0]
                    assert there.min(initial=1) >= 1, f'{where}: the last token read has age 1'
                    oldest = there.max(initial=0) + held.tokens - 1
                    assert oldest <= max(tokens_read, held.tokens - 1), (
                        f'{where}: age {oldest}, but {tokens_read} tokens were read'
                    )


@pytest.mark.parametrize('name', NAMES)
def test_reads_are_shares_of_what_was_there(name):
    zeros = begins_with_zeros(name)
    for number, (_, found) in enumerate(seen(name)):
        for path, glimpse in found.items():
            for kind, read in glimpse.read.items():
                where = f'{name}, {path}, {kind!r} in segment {number}'
                weights = read.weights
                assert weights.shape[0] == BATCH and weights.shape[2] == LENGTH, (
                    f'{where}: weights are [batch, heads, length, keys], not {weights.shape}'
                )
                places = np.broadcast_to(read.places, weights.shape)
                assert weights.min(initial=0) >= 0, f'{where}: weights are at least 0'
                assert weights.sum(axis=-1).max() <= 1 + 1e-5, f'{where}: weights sum to 1 at most'
                if read.slots:
                    assert places.min() >= 0, f'{where}: numbers of slots begin at 0'
                    continue
                known = (weights > 1e-6) & (places > NOWHERE)
                query = np.broadcast_to(np.arange(LENGTH)[:, None], weights.shape)
                assert (places <= query)[known].all(), f'{where}: a token read a later one'
                first = places - (read.tokens - 1)
                if not zeros:
                    assert (first >= -number * LENGTH)[known].all(), (
                        f'{where}: read a token before the first one'
                    )
                oldest = [
                    (np.where(held.weights > 0, held.ages, 0) + held.tokens - 1).max(initial=0)
                    for held in glimpse.held.values()
                ]
                if oldest and not zeros:
                    assert (-first[known]).max(initial=0) <= max(oldest), (
                        f'{where}: read what is older than all that is held'
                    )


@pytest.mark.parametrize('name', NAMES)
def test_lines_over_time(name):
    for _, found in seen(name):
        for path, glimpse in found.items():
            for kind, line in glimpse.series.by_token.items():
                where = f'{name}, {path}, {kind!r}'
                assert line.shape[:2] == (BATCH, LENGTH) and line.ndim == 3, where
                assert np.isfinite(line).all(), where
            for kind, line in glimpse.series.by_segment.items():
                where = f'{name}, {path}, {kind!r}'
                assert line.ndim == 2 and len(line) in (1, BATCH), where
                assert np.isfinite(line).all(), where


@pytest.mark.parametrize('name', NAMES)
def test_a_line_by_token_knows_no_later_token_and_no_padding(name):
    number, kept = SEGMENTS - 1, 3
    wanted = {path: glimpse.series.by_token for path, glimpse in seen(name)[number][1].items()}
    if not any(wanted.values()):
        return
    (model, params), segments = toy(name), random_segments()
    state = fresh_state(model, params, BATCH)
    for i in range(number):
        _, state, _ = program(name)(of(segments, i), state)
    last = of(segments, number)
    other = last.replace(tokens=last.tokens.at[:, kept:].add(1) % VOCAB)
    shorter = other.replace(valid=other.valid.at[:, kept:].set(False))
    for changed, what in ((other, 'later tokens'), (shorter, 'padding')):
        _, _, found = program(name)(changed, state)
        for path, lines in wanted.items():
            for kind, line in lines.items():
                np.testing.assert_allclose(
                    found[path].series.by_token[kind][:, :kept],
                    line[:, :kept],
                    atol=1e-6,
                    err_msg=f'{name}, {path}, {kind!r}: {what} changed what is said of earlier ones',
                )


@pytest.mark.parametrize('name', ['transformer_xl', 'infinity_former', 'memformer'])
def test_asking_changes_nothing(name):
    model, params = toy(name)
    segment, state = of(random_segments(), 0), fresh_state(model, params, BATCH)
    plain = apply(model, params, segment, segment.tokens, state, method='nll')[0].nll
    np.testing.assert_allclose(seen(name)[0][0], plain, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    'name',
    [pytest.param(n, marks=() if n in FIRST.values() else pytest.mark.slow) for n in OF_TOKENS],
)
def test_places_are_of_the_tokens_that_were_read(name):
    """Another token changes, in the first layer, only the scores of keys that stand for it."""
    segments, last, changed_some = random_segments(), SEGMENTS - 1, False
    before = seen(name)[last][1]['block_0/attention'].read
    for back in (1, 4, 7, 12, last * LENGTH):  # the last is the first token of the document
        at = last * LENGTH - back
        tokens = np.array(segments.tokens)
        where = (at // LENGTH, slice(None), at % LENGTH)
        tokens[where] = (tokens[where] + 1) % VOCAB
        other = read_all(name, segments.replace(tokens=jnp.asarray(tokens)))
        after = other[last][1]['block_0/attention'].read
        for kind, read in before.items():
            places = np.broadcast_to(read.places, read.weights.shape)
            if kind == 'entries':  # of which every query has its own
                same = places == np.broadcast_to(after[kind].places, places.shape)
                if not same.all():
                    continue
            both = (read.weights > 1e-6) & (after[kind].weights > 1e-6)
            with np.errstate(divide='ignore', invalid='ignore'):
                moved = np.log(after[kind].weights) - np.log(read.weights)
            moved = np.where(both, moved, np.nan)
            is_it = (places >= -back) & (places - read.tokens + 1 <= -back)
            others = np.where(is_it, np.nan, moved)
            spread = np.nanmax(others, axis=-1) - np.nanmin(others, axis=-1)
            assert np.nanmax(spread) < 1e-3, (
                f'{name}, {kind!r}: another token {back} before the segment changed the scores of keys '
                'that stand for others; `places` are wrong'
            )
            shift = np.abs(moved - np.nanmedian(others, axis=-1, keepdims=True))
            changed_some |= bool(np.nanmax(np.where(is_it, shift, 0), initial=0) > 1e-3)
    assert changed_some or name == 'local', (
        f'{name}: no key stands for the tokens that were changed'
    )
