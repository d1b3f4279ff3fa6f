"""Product-key memories: exact search, batch statistics through training, usage."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.extend.core import jaxprs_in_params

from experiments.analysis import slot_statistics as slot_usage
from experiments.analysis import slot_usage as analysis
from longmem_jax.commands.train import train
from longmem_jax.data.lanes import in_order
from longmem_jax.errors import UsageError
from longmem_jax.memory import product_key
from longmem_jax.standalone import make_layer
from tests.commands.train_test import experiment, small_config, texts  # noqa: F401  (a fixture)
from tests.toys import apply, random_segments, toy

find = jax.jit(product_key.find, static_argnums=(2, 3))


@given(st.integers(0, 9), st.sampled_from([1, 4]), st.booleans())  # every k is a program
def test_the_best_pairs_are_found(seed, k, normalized):
    random = np.random.default_rng(seed)
    queries = jnp.asarray(random.normal(size=(7, 2, 8)), jnp.float32)
    keys = jnp.asarray(random.normal(size=(2, 2, 6, 4)), jnp.float32)
    scores, slots = find(queries, keys, k, normalized)
    halves = np.split(np.asarray(queries), 2, axis=-1)
    if normalized:
        halves = [half / np.linalg.norm(half, axis=-1, keepdims=True) for half in halves]
    first, second = (np.einsum('thd,hnd->thn', h, keys[:, i]) for i, h in enumerate(halves))
    every = (first[..., :, None] + second[..., None, :]).reshape(7, 2, 36)
    np.testing.assert_allclose(scores, -np.sort(-every, axis=-1)[..., :k], atol=1e-5)
    np.testing.assert_allclose(np.take_along_axis(every, np.asarray(slots), -1), scores, atol=1e-5)


@pytest.mark.parametrize('variant', ['', ':flat'])
def test_slots_are_found_in_float32_on_every_device(variant):
    """TPUs round the float32 numbers of a product to bfloat16, unless it asks for more."""
    model, params = toy(f'product_key{variant}')
    segment = jax.tree.map(lambda leaf: leaf[0], random_segments())
    memory = model.apply({'params': params}, len(segment.tokens), method='initial_state')
    program = jax.make_jaxpr(lambda: apply(model, params, segment, memory))()
    asked = [equation for equation in products(program.jaxpr) if equation.params['precision']]
    assert len(asked) == 2 * 3, 'maps of queries and scores, in two layers'


def products(jaxpr):
    """All products of a program."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == 'dot_general':
            yield equation
        for inner in jaxprs_in_params(equation.params):
            yield from products(inner)


@pytest.mark.parametrize('keys', [(2, 2, 6, 4), (2, 6, 8)], ids=['product', 'flat'])
def test_a_query_of_zeros_can_be_normalised(keys):
    """Its scores are zero, and the gradients of all queries are finite."""
    queries = jnp.zeros((3, 2, 8)).at[1:].set(1.0)
    keys = jnp.asarray(np.random.default_rng(0).normal(size=keys), jnp.float32)

    def total(queries):
        scores, _ = product_key.find(queries, keys, 3, True)
        return scores.sum(), scores

    gradient, scores = jax.jit(jax.grad(total, has_aux=True))(queries)
    np.testing.assert_array_equal(scores[0], 0.0)
    assert np.isfinite(gradient).all() and np.abs(scores[1:]).max() > 0


def test_use_is_counted_without_padding():
    """Sums of weights and reads by slot, against a loop over tokens, heads and neighbours."""
    random = np.random.default_rng(3)
    weights = random.random((7, 2, 3)).astype(np.float32)
    slots = random.integers(0, 11, (7, 2, 3))
    counted = np.asarray([True, True, False, True, False, True, True])
    wanted, reads = np.zeros(11), np.zeros(11)
    for token, head, neighbour in np.ndindex(weights.shape):
        if counted[token]:
            wanted[slots[token, head, neighbour]] += weights[token, head, neighbour]
            reads[slots[token, head, neighbour]] += 1
    found = product_key.usage(*map(jnp.asarray, (weights, slots, counted)), 11)
    np.testing.assert_allclose(found[0], wanted, rtol=1e-5)
    np.testing.assert_array_equal(found[1], reads)


def test_values_gathered_in_parts_are_the_same():
    random = np.random.default_rng(0)
    values = jnp.asarray(random.normal(size=(30, 5)), jnp.float32)
    weights = jnp.asarray(random.random((11, 2, 3)), jnp.float32)
    slots = jnp.asarray(random.integers(0, 30, (11, 2, 3)), jnp.int32)
    whole = product_key.read(values, weights, slots, 0)
    np.testing.assert_allclose(product_key.read(values, weights, slots, 4), whole, atol=1e-6)
    np.testing.assert_allclose(whole, np.einsum('thk,thkd->td', weights, values[slots]), atol=1e-5)


def test_padding_does_not_enter_the_statistics():
    model, params = toy('product_key')
    segment = jax.tree.map(lambda leaf: leaf[0], random_segments())
    valid = segment.valid.at[:, 3:].set(False)
    state = model.apply({'params': params}, 2, method='initial_state')

    def statistics(tokens):
        part = segment.replace(tokens=tokens, valid=valid)
        return apply(model, params, part, state, train=True)[2].statistics

    found = statistics(segment.tokens)
    assert {path.rpartition('/')[2] for path in found} == {'running_mean', 'running_var'}
    assert len(found) == 4  # of two layers
    changed = statistics(segment.tokens.at[:, 3:].set(1))
    for path in found:
        np.testing.assert_array_equal(found[path], changed[path])


def config_of(texts):  # noqa: F811
    config = small_config(texts)
    config.model.feed_forward = ('product_key',)
    config.model.product_key = dict(
        num_keys=8, num_heads=2, top_k=4, query_dim=8, query_hidden=(), query_norm='batch',
        normalize_query=False, temperature=1.0, keys='product', chunk=0,
    )  # fmt: skip
    config.optimizer.groups = (('feed_forward/values$', 4.0, False),)
    return config


@pytest.mark.slow
def test_running_averages_move_in_training_and_are_kept(  # noqa: F811
    texts,  # noqa: F811
    tmp_path,
    monkeypatch,
    made_figures,
):
    run = experiment(config_of(texts), tmp_path)
    train(run)
    params, _ = run.restore_parameters()
    norm = params['block_0']['feed_forward']['network']['norm_0']
    assert np.abs(norm['running_mean']).max() > 1e-3
    # 24 segments at a momentum of 0.1 leave 8 % of what it was, one.
    assert 0.05 < float(norm['running_var'].min()) and float(norm['running_var'].max()) < 10
    made_figures.clear()
    found = analysis.slot_usage_of(run, 'test', tmp_path / 'usage.png')
    (row,) = found
    assert row['layer'] == 0 and row['slots'] == 64
    # Every token reads 4 slots with each of 2 heads, whose weights add up to one.
    (weights, reads) = analysis.accumulate(run, 'test')[0]
    tokens = sum(int(batch.valid.sum()) for batch, _ in in_order(run.corpus('test'), 1, 16))
    assert reads.sum() == 8 * tokens
    np.testing.assert_allclose(weights.sum(), 2 * tokens, rtol=1e-5)
    # The rows of the table are those of the slots, here computed with other functions.
    share = np.sort(weights / weights.sum())[::-1]
    assert row['used'] == pytest.approx(100 * np.mean(reads > 0))
    entropy = -(share[share > 0] * np.log(share[share > 0])).sum()
    assert row['kl_weights'] == pytest.approx(np.log(64) - entropy, abs=1e-5)
    assert row['top50'] == pytest.approx(1 + np.argmax(np.cumsum(share) >= 0.5), abs=1)
    assert row['kl_weights'] >= 0 and row['top50'] <= row['top90'] <= row['top99'] <= 64
    (line,) = made_figures[0].axes[0].lines
    slots, shares = line.get_xydata().T
    assert line.get_label() == 'layer 0' and np.array_equal(slots, np.arange(1, 65))
    assert np.all(np.diff(shares) >= 0) and shares[-1] == pytest.approx(1.0)
    # The share of the weight that the most used slots have: `top50` of them have half of it.
    assert shares[row['top50'] - 2] <= 0.5 <= shares[row['top50'] - 1]
    assert (tmp_path / 'usage.png').exists()
    # Averages of training are used: with others, other slots are read.
    params['block_0']['feed_forward']['network']['norm_0']['running_mean'] += 3.0
    monkeypatch.setattr(type(run), 'restore_parameters', lambda run: (params, None))
    other, _ = analysis.accumulate(run, 'test')[0]
    assert np.abs(other - weights).max() > 1


def test_even_use_has_no_divergence():
    even = np.full((32,), 3.0)
    assert slot_usage.used(even) == 100 and slot_usage.divergence(even) == pytest.approx(0)
    one = np.eye(32)[0]
    assert slot_usage.divergence(one) == pytest.approx(np.log(32))
    assert slot_usage.top(one, 0.5) == 1 and slot_usage.top(even, 0.5) in (16, 17)
    assert slot_usage.gini(one) > 0.9 > slot_usage.gini(even)


def test_widths_inside_of_the_query_network_are_above_0():
    with pytest.raises(UsageError, match=r'query_hidden = \(8, 0\): widths must be at least 1'):
        make_layer('product_key', d_model=16, num_heads=2, segment_length=8, query_hidden=(8, 0))
