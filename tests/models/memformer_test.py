"""Memformer: slots that keep, forget and are written, and a decoder that sees only the encoder."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.analysis import memformer_slots
from longmem_jax.commands.train import train
from longmem_jax.config.base import stack
from longmem_jax.config.model_checks import model_problems
from longmem_jax.generation.reader import fresh_state
from longmem_jax.layers.feature_maps import unit
from longmem_jax.memory.memformer import slot_attention as slots
from longmem_jax.models.stack import make_settings
from tests.commands.train_test import experiment, small_config, texts  # noqa: F401  (a fixture)
from tests.toys import (
    BATCH,
    LENGTH,
    VOCAB,
    apply,
    model_config,
    parameters,
    random_segments,
    toy,
    with_config,
)
from tests.toys import run as read


def memory(states):
    return states[0].around


def test_slots_have_length_one_and_begin_where_they_end():
    """Without writes, slots drift back to the learned directions they started from."""
    bias = jnp.asarray(np.random.default_rng(0).normal(size=(3, 8)), jnp.float32)
    begun = jnp.broadcast_to(unit(bias, 0.0), (2, 3, 8))
    np.testing.assert_allclose(jnp.linalg.norm(begun, axis=-1), 1.0, rtol=1e-6)
    now = unit(jnp.asarray(np.random.default_rng(1).normal(size=(2, 3, 8))), 0.0)
    for _ in range(60):
        now = slots.forget(now, bias)
    np.testing.assert_allclose(now, begun, atol=1e-4)


def test_a_cold_writer_chooses():
    """At a low temperature a slot takes the value of the token with the highest score."""
    random = np.random.default_rng(2)
    draw = lambda *shape: jnp.asarray(random.normal(size=shape), jnp.float32)  # noqa: E731
    memory, queries, own = draw(1, 2, 4), draw(1, 1, 2, 4), draw(1, 1, 2, 4)
    keys, values = draw(1, 1, 5, 4), draw(1, 1, 5, 4)
    valid = jnp.asarray([[True, True, True, False, True]])
    new, weights = slots.write(memory, queries, own, keys, values, valid, 1e-3)
    scores = np.concatenate(
        [(queries * own).sum(-1, keepdims=True), queries @ keys.swapaxes(2, 3)], axis=-1
    )
    scores[..., 4] = -np.inf  # the padding
    for slot, best in enumerate(scores[0, 0].argmax(axis=-1)):
        wanted = memory[0, slot] if best == 0 else values[0, 0, best - 1]
        np.testing.assert_allclose(new[0, slot], wanted, atol=1e-4)
    assert np.asarray(weights)[..., 4].max() == 0.0


def test_the_past_comes_through_the_encoder():
    """A segment sees the one before it, and through the slots the one before that."""
    model, params = toy('memformer')
    segments = random_segments()
    logits, _ = read(model, params, segments)
    tokens = segments.tokens.at[0].set((segments.tokens[0] + 1) % VOCAB)
    other, _ = read(model, params, segments.replace(tokens=tokens))
    difference = np.abs(logits - other).max(axis=(1, 2, 3))
    assert (difference > 1e-5).all()


def left_after(model, params, writes):
    """How much a changed first segment changes the slots, after it is written and `writes` later."""
    segments = random_segments(segments=writes + 2)
    other = segments.tokens.at[0].set((segments.tokens[0] + 7) % VOCAB)
    slots = [
        memory(read(model, params, segments.replace(tokens=tokens))[1]).slots
        for tokens in (segments.tokens, other)
    ]
    # The segment is written when the next one is read.
    difference = np.linalg.norm(slots[0] - slots[1], axis=-1).mean(axis=(1, 2))
    assert difference[0] == 0
    return difference[-1] / difference[1]


def test_normalised_slots_keep_a_segment_for_many_writes():
    """Without training, and with small initial values; the paper's lose it at once."""
    width, left = 16, {}
    for normalized, bias_std in ((True, 0.05 * width**-0.5), (False, width**-0.5)):
        own = dict(
            model_config('memformer').memformer, num_slots=8, temperature=0.25,
            normalized=normalized, bias_std=bias_std,
        )  # fmt: skip
        model = with_config('memformer', layers=1, init_std=0.02, memformer=own)
        params = parameters(model)
        left[normalized] = left_after(model, params, 5)
    assert left[True] > 0.3 and left[False] < 1e-3, left


def test_a_slot_begins_by_keeping_most_of_itself():
    """Whatever the temperature, the width and the number of tokens, with heads of 32 or more."""
    for width, heads, temperature, segment in ((64, 2, 0.25, 64), (256, 4, 1.0, 16)):
        settings = dataclasses.replace(
            make_settings(model_config('memformer'), segment), d_model=width, num_heads=heads
        )
        writer = slots.SlotWriter(settings, temperature, normalized=True)
        memory = unit(jax.random.normal(jax.random.key(0), (2, 9, width)), 0.0)
        tokens = jax.random.normal(jax.random.key(1), (2, segment, width))
        valid = jnp.ones((2, segment), bool)
        variables = jax.jit(writer.init)(jax.random.key(2), memory, tokens, valid)
        new, weights = jax.jit(writer.apply)(variables, memory, tokens, valid)
        assert 0.45 < float(weights[..., 0].mean()) < 0.8
        assert (unit(new, 0.0) * memory).sum(-1).min() > 0.7


def test_slots_that_do_not_forget_do_not_drift():
    """Without tokens to write, `forgets` alone moves a slot to its learned direction."""
    own = dict(model_config('memformer').memformer)
    moved = {}
    for forgets in (True, False):
        model = with_config('memformer', memformer=own | dict(forgets=forgets))
        _, params = toy('memformer')
        around = params['around_0']
        encoder = dict(around['encode'], bias=100 * around['encode']['bias'])
        changed = {**params, 'around_0': around | dict(encode=encoder)}
        _, after = read(model, changed, random_segments())
        start = unit(encoder['bias'], 0.0)[None]
        moved[forgets] = float(np.abs(memory(after).slots[-1] - start).max())
    assert moved[True] < 0.05 < moved[False]


def test_no_memory_is_an_encoder_alone():
    """A segment sees the one before it and nothing else; there are no parameters of slots."""
    model, params = toy('memformer:none')
    encoder = params['around_0']['encode']
    assert not {'bias', 'summaries', 'writer'} & {*encoder}
    assert not any('reader' in name for name in encoder['layer_0'])
    segments = random_segments()
    logits, states = read(model, params, segments)
    assert memory(states).slots is None
    tokens = segments.tokens.at[0].set((segments.tokens[0] + 1) % VOCAB)
    other, _ = read(model, params, segments.replace(tokens=tokens))
    difference = np.abs(logits - other).max(axis=(1, 2, 3))
    assert (difference[:2] > 1e-5).all()
    np.testing.assert_array_equal(difference[2:], 0)


@pytest.mark.parametrize(
    'name', ['memformer', pytest.param('memformer:joint', marks=pytest.mark.slow)]
)
def test_slots_are_written_only_by_tokens(name):
    model, params = toy(name)
    state = fresh_state(model, params, BATCH)
    segment = jax.tree.map(lambda leaf: leaf[0], random_segments())
    _, first, _ = apply(model, params, segment, state)
    # Nothing had been read when the first segment began.
    bias = params['around_0']['encode']['bias']
    learned = jnp.zeros_like(bias) if 'joint' in name else unit(bias, 0.0)
    np.testing.assert_allclose(memory(first).slots[0], learned, atol=1e-6)
    again = segment.replace(start=jnp.zeros((BATCH,), bool))
    _, second, _ = apply(model, params, again, first)
    assert np.abs(memory(second).slots - memory(first).slots).max() > 1e-4
    assert (memory(second).count == LENGTH).all()


@pytest.mark.parametrize(
    'changes, message',
    [
        (dict(temperature=0.0), 'must be above 0'),
        (dict(num_slots=0, encoder='joint'), 'num_slots = 0'),
        (dict(slot_heads=3), 'slot_heads = 3 must divide'),
        (dict(bias_std=0.0), 'bias_std = 0.0: must be above 0'),
        (dict(encoder='gru'), 'allowed are slot_attention, joint'),
        (dict(num_slots='many'), 'must be an int'),
    ],
)
def test_bad_fields_are_problems(changes, message):
    model = model_config('memformer')
    model.memformer = dict(model.memformer) | changes
    assert any(message in problem for problem in model_problems(model, LENGTH))


@pytest.mark.slow
def test_a_run_continues_text_and_its_slots_are_drawn(texts, tmp_path, made_figures):  # noqa: F811
    config = small_config(texts)
    del config.model.transformer_xl
    stack(config.model, 1, 'local')
    config.model.local = dict(position='none')
    config.model.around, config.model.position = ('memformer',), 'sinusoidal'
    config.model.memformer = dict(model_config('memformer').memformer)
    config.train.remat, config.train.num_steps, config.train.evaluate_every = True, 4, 4
    config.evaluate.context, config.generate.sample_length = 3, 12
    run = experiment(config, tmp_path)
    summary = train(run)
    assert summary.results['test'].tokens and 'after 3 tokens' in summary.results['test'].protocol
    assert len(summary.sample) > 0
    config.evaluate.context = 0
    made_figures.clear()
    rows = memformer_slots.slot_kinds(run, 'test', tmp_path / 'slots.png')
    assert [row['slots'] for row in rows] == ['mostly themselves', 'mixed', 'tokens']
    assert sum(row['share'] for row in rows) == pytest.approx(1.0)
    shares, norms = memformer_slots.kept_shares(run, 'test')
    assert shares.shape[1] == norms.shape[0] == config.model.memformer.num_slots
    assert 0 < shares.min() and shares.max() < 1
    (left, right), (points,) = made_figures[0].axes, made_figures[0].axes[1].collections
    heights, _ = np.histogram(shares, bins=20, range=(0, 1), density=True)
    np.testing.assert_allclose([bar.get_height() for bar in left.patches], heights)
    np.testing.assert_allclose(points.get_offsets(), np.stack([shares.mean(axis=0), norms], 1))
    assert left.get_xlabel() == 'share of the weight on itself'
    assert right.get_ylabel() == 'norm of the learned vector'
    assert (tmp_path / 'slots.png').exists()


def test_the_kinds_of_slots_and_their_figure():
    """Slots of known kinds: 3 of 8 keep, 1 mixes, 4 follow the tokens."""
    mean = np.asarray([0.9, 0.8, 0.55, 0.3, 0.05, 0.02, 0.01, 0.0], np.float32)
    shares = np.stack([np.clip(mean - 0.05, 0, 1), np.clip(mean + 0.05, 0, 1)])
    found = memformer_slots.kinds_of(shares)
    assert [int(mask.sum()) for mask in found.values()] == [3, 1, 4]
    assert found['mixed'][3] and found['mostly themselves'][:3].all()
    norms = np.linspace(1, 3, 8)
    left, right = memformer_slots.draw(shares, norms).axes
    heights = [bar.get_height() for bar in left.patches]
    np.testing.assert_allclose(
        heights, np.histogram(shares, 20, (0, 1), density=True)[0], rtol=1e-5
    )
    points = right.collections[0].get_offsets()
    np.testing.assert_allclose(points, np.stack([shares.mean(0), norms], 1), rtol=1e-6)


def test_unknown_kinds_are_said():
    model = model_config('memformer')
    model.kind = 'gpt'
    assert any('config.model.kind' in problem for problem in model_problems(model, LENGTH))
