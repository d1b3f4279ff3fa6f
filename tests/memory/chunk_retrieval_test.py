"""Attention to few blocks of a long past: the layer is its papers' formulas."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from longmem_jax.contract import ModelSettings, identity
from longmem_jax.layers import positions
from longmem_jax.memory.chunk_retrieval import far, reading
from longmem_jax.memory.chunk_retrieval.layer import ChunkRetrieval, check
from longmem_jax.segment import Segment

BATCH, TOKENS, HEADS, KV_HEADS, WIDTH = 2, 29, 4, 2, 4
SETTINGS = ModelSettings(
    d_model=8, num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=WIDTH, d_feed_forward=1, num_layers=1,
    segment_length=16, dropout=0.0, attention_dropout=0.0, init_std=0.5, dtype=jnp.dtype('float32'),
)  # fmt: skip
X = jnp.asarray(np.random.default_rng(0).normal(size=(BATCH, TOKENS, 8)), jnp.float32)
CASES = {
    'moba': dict(top_k=3),
    'own block alone': dict(top_k=1),
    'landmark': dict(top_k=3, landmarks=True),
    'landmark, all blocks': dict(top_k=0, landmarks=True),
    'the first block': dict(top_k=3, sinks=True),
    'the blocks before': dict(top_k=4, near=2),
    'both': dict(top_k=4, sinks=True, near=1),
    'the largest score': dict(top_k=3, gate='largest'),
    'rotary': dict(top_k=3, gate='largest', position='rotary'),
    'up to a distance': dict(top_k=3, gate='largest', position='rotary', clamp_length=5),
    'up to a distance, by means': dict(top_k=3, position='rotary', clamp_length=1),
    'up to a distance, landmark': dict(top_k=3, landmarks=True, position='rotary', clamp_length=7),
}


@pytest.fixture(scope='module', autouse=True)
def _two_blocks_at_a_time():
    """As in long texts: programs read in several turns, of which the last two may share slots."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, 'TURN', 8)
        patch.setattr(reading, 'FEW', 4)
        yield


@functools.cache
def made(**fields):
    """A layer with four blocks of four tokens, its variables, and a program that reads a segment."""
    fields = dict(memory_length=16, block_length=4, position='none') | fields
    layer = ChunkRetrieval(settings=SETTINGS, normalize=identity, shared=None, **fields)

    @jax.jit
    def read(variables, x, state):
        valid, start = jnp.ones(x.shape[:2], bool), jnp.zeros(x.shape[:1], bool)
        segment = Segment(valid.astype(jnp.int32), valid, start)
        return layer.apply(variables, x, state, segment, train=False)[:2]

    state = layer.initial_state(BATCH)
    segment = Segment(jnp.zeros((BATCH, 4), jnp.int32), jnp.ones((BATCH, 4), bool), None)
    init = jax.jit(functools.partial(layer.init, train=False))
    variables = init(jax.random.key(0), X[:, :4], state, segment)
    return layer, jax.tree.map(jnp.asarray, variables), read


def read_all(lengths, **fields):
    """The outputs of segments of these lengths, joined, and the last state."""
    layer, variables, read = made(**fields)
    state, ys, at = layer.initial_state(BATCH), [], 0
    for length in lengths:
        y, state = read(variables, X[:, at : at + length], state)
        ys, at = [*ys, y], at + length
    return np.concatenate(ys, axis=1) if ys else None, state


def shares(scores):
    """Softmax of a few scores."""
    scores = np.exp(scores - np.max(scores))
    return scores / scores.sum()


def rotated(vector, position):
    """Rotary positions of one vector."""
    turn = position * 10000.0 ** (-2 * np.arange(WIDTH // 2) / WIDTH)
    a, b = vector[: WIDTH // 2], vector[WIDTH // 2 :]
    return np.concatenate(
        [a * np.cos(turn) - b * np.sin(turn), b * np.cos(turn) + a * np.sin(turn)]
    )


def weights_of(
    q, keys, i, top_k, landmarks=False, gate='mean', sinks=False, near=0, size=4, held=4,
    position='none', clamp_length=TOKENS,
):  # fmt: skip
    """Weights of all tokens up to i for one query, by the formulas of the papers."""
    weights, own = np.zeros(len(keys)), i // size
    far = np.minimum(i - np.arange(len(keys)), clamp_length) * (position == 'rotary')
    scores = np.asarray([k @ rotated(q, t) for k, t in zip(keys, far, strict=True)])
    scores = scores / np.sqrt(WIDTH)
    always = [0] * sinks + [*range(own - near, own)]
    earlier = [b for b in range(own) if b > own - held + sinks or b in always]
    tokens = {b: list(range(b * size, (b + 1) * size)) for b in earlier}
    kinds = {
        'landmark': lambda t: scores[t[-1]],
        'mean': lambda t: scores[t].mean(),
        'largest': lambda t: scores[t].max(),
    }
    gates = {b: kinds['landmark' if landmarks else gate](t) for b, t in tokens.items()}
    best = sorted(earlier, key=lambda b: (b not in always, -gates[b]))
    best = best[: top_k - 1 if top_k else held]
    now = list(range(own * size, i + 1))
    if not landmarks:
        chosen = sum((tokens[b] for b in best), now)
        weights[chosen] = shares(scores[chosen])
        return weights
    if i % size == size - 1:
        now = now[:-1]  # a landmark does not see itself
    first = shares(np.concatenate([scores[now], [gates[b] for b in best]]))
    weights[now] = first[: len(now)]
    for b, share in zip(best, first[len(now) :], strict=True):
        weights[tokens[b][:-1]] = share * shares(scores[tokens[b][:-1]])
    return weights


def by_formula(**case):
    """The layer's outputs for the whole text, [batch, tokens, d_model]."""
    _, variables, _ = made(**case)
    maps = variables['params']['projections']
    kernels = {name: np.asarray(part['kernel'].unbox(), float) for name, part in maps.items()}
    q, k, v = (np.einsum('btd,dhw->bhtw', X, kernels[name]) for name in ('query', 'key', 'value'))
    out = np.zeros((BATCH, TOKENS, 8))
    for b, h, i in np.ndindex(BATCH, HEADS, TOKENS):
        group = h // (HEADS // KV_HEADS)
        weights = weights_of(q[b, h, i], k[b, group, : i + 1], i, **case)
        out[b, i] += weights @ v[b, group, : i + 1] @ kernels['out'][h]
    return out


@pytest.mark.parametrize('name', CASES)
def test_the_layer_is_its_formula(name):
    """Beyond the capacity too: 29 tokens, of which four blocks of four are held."""
    found, _ = read_all((10, 10, 9), **CASES[name])
    np.testing.assert_allclose(found, by_formula(**CASES[name]), atol=1e-5)


@pytest.mark.parametrize('name', ['up to a distance', 'up to a distance, landmark'])
def test_training_reads_the_same(name):
    """Without dropout, by a program that reads all slots."""
    layer, variables, read = made(**CASES[name])
    _, state = read_all((10, 10), **CASES[name])
    x, valid = X[:, 20:], jnp.ones((BATCH, TOKENS - 20), bool)
    segment = Segment(valid.astype(jnp.int32), valid, jnp.zeros((BATCH,), bool))
    found, _, _ = layer.apply(variables, x, state, segment, train=True)
    np.testing.assert_allclose(found, read(variables, x, state)[0], atol=1e-5)


@pytest.mark.parametrize('name', CASES)
@pytest.mark.parametrize(
    'lengths',
    [(3, 16, 10), *(pytest.param(n, marks=pytest.mark.slow) for n in ((1,) * TOKENS, (29,)))],
)
def test_segments_of_any_length_give_the_same(name, lengths):
    """A token sees the same blocks wherever segments end, also when the oldest ones are dropped."""
    wanted, state = read_all((10, 10, 9), **CASES[name])
    found, other = read_all(lengths, **CASES[name])
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), other, state)


@pytest.mark.parametrize('name', ['moba', 'landmark', 'the largest score', 'up to a distance'])
@pytest.mark.parametrize('held', [0, 4, 8])
def test_only_the_filled_part_is_read(monkeypatch, name, held):
    """What is neither held nor of the segment may be anything."""
    monkeypatch.setattr(reading, 'TURN', 4)
    _, variables, read = made.__wrapped__(**CASES[name])
    _, state = read_all([held] if held else [], **CASES[name])
    wanted, _ = read(variables, X[:, held : held + 4], state)
    never = jnp.where(jnp.arange(16) < held, 0.0, jnp.nan)[:, None]
    other = state.replace(keys=state.keys + never, values=state.values + never)
    found, _ = read(variables, X[:, held : held + 4], other)
    np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_far_scores_have_the_gain_of_rotations():
    """YaRN and LongRoPE multiply queries and keys."""
    random = np.random.default_rng(0)
    queries, keys = (jnp.asarray(random.normal(size=(1, 1, 9, WIDTH))) for _ in range(2))

    def rotate(x, start):
        return positions.rotary(x, start, positions.rotary_frequencies(WIDTH), 1.5)

    offset, clamp = jnp.zeros((1,), jnp.int32), 4
    near = far.near_scores(rotate(queries, 0), rotate(keys, 0), offset, clamp)
    scores = far.scores_of(far.far_queries(rotate, queries, clamp), keys)
    found = far.with_near(scores, near, offset, clamp)[0, 0]
    for i, j in itertools.combinations(range(9), 2):
        turned = rotated(np.asarray(queries[0, 0, j]), min(j - i, clamp))
        np.testing.assert_allclose(found[j, i], 1.5**2 * keys[0, 0, i] @ turned, rtol=1e-4)


def test_the_oldest_block_is_dropped_as_a_whole():
    """After 29 tokens the fifth to the eighth block are held, the last one with a single token."""
    layer, variables, _ = made(top_k=3)
    _, state = read_all((10, 10, 9), top_k=3)
    keys = layer.apply(variables, X, method=lambda layer, x: layer.projections.keys(x))
    np.testing.assert_array_equal(state.count, [13, 13])
    np.testing.assert_allclose(state.keys[:, :, :13], keys[:, :, 16:], atol=1e-6)
    assert not np.asarray(state.keys[:, :, 13:]).any()


def test_the_first_block_stays():
    """After 29 tokens the first block is held, and the sixth to the eighth."""
    layer, variables, _ = made(top_k=3, sinks=True)
    _, state = read_all((10, 10, 9), top_k=3, sinks=True)
    keys = layer.apply(variables, X, method=lambda layer, x: layer.projections.keys(x))
    np.testing.assert_allclose(state.keys[:, :, :4], keys[:, :, :4], atol=1e-6)
    np.testing.assert_allclose(state.keys[:, :, 4:13], keys[:, :, 20:], atol=1e-6)


@pytest.mark.parametrize(
    ('fields', 'words'),
    [
        (dict(memory_length=10), 'multiple of 4'),
        (dict(memory_length=4), 'multiple of 4'),
        (dict(top_k=5), 'the 4 blocks'),
        (dict(block_length=1, landmarks=True), 'block_length'),
        (dict(top_k=2, sinks=True, near=1), 'use 3 or more'),
        (dict(landmarks=True, gate='largest'), 'or landmarks = False'),
        (dict(clamp_length=8), 'use 0, or one of rotary'),
    ],
)
def test_unusable_fields_are_refused(fields, words):
    good = dict(
        memory_length=16,
        block_length=4,
        top_k=3,
        landmarks=False,
        sinks=False,
        near=0,
        gate='mean',
        position='none',
        clamp_length=0,
    )
    assert not check(good, None, 8)
    (problem,) = check(good | fields, None, 8)
    assert words in problem
