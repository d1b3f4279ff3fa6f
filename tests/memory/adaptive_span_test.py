"""Adaptive-Span: trimming does not change any output."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from longmem_jax.memory.adaptive_span import layer
from longmem_jax.memory.adaptive_span.maths import reach, span_mask
from longmem_jax.memory.registry import LAYERS
from tests.toys import LENGTH, random_segments, run, toy, with_config


def changed(**fields):
    return with_config('adaptive_span', adaptive_span=LAYERS['adaptive_span'].small() | fields)


def with_shares(*shares):
    _, params = toy('adaptive_span')
    params = jax.tree.map(lambda leaf: leaf, params)
    for number in range(2):
        params[f'block_{number}']['attention']['span_share'] = jnp.asarray(shares)
    return params


def gradient(model, params, segments):
    def value(params):
        return jnp.square(run(model, params, segments)[0]).sum()

    return jax.jit(jax.grad(value))(params)


@pytest.mark.parametrize('shares', [(0.0, 0.1), (0.2, 0.6), (1.0, 0.3)])
@pytest.mark.slow
def test_trimmed_is_whole(shares):
    """Both layers' reach is 4, 8 and 8 of 8: the branches of 2 sizes, against one."""
    params, segments = with_shares(*shares), random_segments(segments=5)
    whole, trimmed = changed(num_sizes=1), changed(num_sizes=3)
    np.testing.assert_allclose(
        run(whole, params, segments)[0], run(trimmed, params, segments)[0], atol=1e-5
    )
    chex.assert_trees_all_close(
        gradient(whole, params, segments), gradient(trimmed, params, segments), atol=2e-4
    )


def test_mask_and_reach_are_those_of_a_loop():
    share, span, ramp = np.asarray([0.0, 0.35, 1.0], np.float32), 20, 6
    distance = np.arange(1, span + 1)
    soft = span_mask(jnp.asarray(share), jnp.asarray(distance), span, ramp)
    for head in range(3):
        wanted = [min(max((share[head] * span + 1 - d) / ramp + 1, 0), 1) for d in distance]
        np.testing.assert_allclose(soft[head], wanted, atol=1e-6)
        widest = int(reach(jnp.asarray(share[head : head + 1]), span, ramp))
        seen = [d for d, mask in zip(distance, wanted, strict=True) if mask > 0]
        assert max(seen) <= widest <= max(seen) + 1


def test_a_trimmed_memory_forgets_what_is_out_of_reach(monkeypatch):
    monkeypatch.setattr(layer, 'MARGIN', 1)
    params, segments = with_shares(0.1, 0.1), random_segments(segments=5)
    model = changed(trim_memory=True)
    logits, states = run(model, params, segments)
    widest = int(reach(jnp.asarray([0.1]), 8, 3))
    assert int(states[0].attention.count[-1, 0]) == widest + 1 < 8
    assert not np.any(states[0].attention.hidden[-1, :, : 8 - widest - 1])
    np.testing.assert_allclose(logits, run(changed(), params, segments)[0], atol=1e-5)


def test_a_fixed_span_sees_exactly_so_many_places():
    """One layer: changing a token changes the logits of the next `max_span` positions."""
    model = with_config(
        'adaptive_span',
        num_layers=1,
        attention=('adaptive_span',),
        feed_forward=('dense',),
        adaptive_span=LAYERS['adaptive_span'].small() | dict(per='none', max_span=6),
    )
    params = {k: v for k, v in with_shares(0.0, 0.0).items() if k != 'block_1'}
    params['shared_adaptive_span'] = {'table': params['shared_adaptive_span']['table'][:6]}
    segments = random_segments(segments=4)
    tokens = segments.tokens.at[1, 0, 1].add(1) % 24
    place = 1 * LENGTH + 1
    logits, _ = run(model, params, segments)
    other, _ = run(model, params, segments.replace(tokens=tokens))
    change = np.abs(logits - other).max(axis=-1)[:, 0].reshape(-1) > 0
    assert np.flatnonzero(change).tolist() == list(range(place, place + 7))
