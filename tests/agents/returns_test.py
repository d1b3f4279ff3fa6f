"""Advantages against a plain loop."""

import numpy as np
import pytest

from longmem_jax.agents.returns import advantages

STEPS, LANES = 12, 5


def by_loop(reward, value, terminated, truncated, last_value, discount, trace):
    found = np.zeros((STEPS, LANES))
    for lane in range(LANES):
        after = 0.0
        for step in reversed(range(STEPS)):
            if terminated[step, lane]:
                following, after = 0.0, 0.0
            elif truncated[step, lane]:
                following, after = value[step, lane], 0.0
            else:
                following = value[step + 1, lane] if step + 1 < STEPS else last_value[lane]
            delta = reward[step, lane] + discount * following - value[step, lane]
            after = found[step, lane] = delta + discount * trace * after
    return found


@pytest.mark.parametrize('discount, trace', [(0.98, 1.0), (0.9, 0.95), (0.9, 0.0), (1.0, 1.0)])
def test_advantages_are_those_of_a_plain_loop(discount, trace):
    random = np.random.default_rng(0)
    reward, value = random.normal(size=(2, STEPS, LANES)).astype(np.float32)
    ended = random.random((STEPS, LANES)) < 0.4
    terminated = ended & (random.random((STEPS, LANES)) < 0.5)
    ended[-1, :2] = terminated[-1, 0] = True  # at the very end, in both ways, and not
    ended[-1, 2:] = terminated[-1, 1:] = False
    truncated = ended & ~terminated
    last = random.normal(size=LANES).astype(np.float32)
    given = (reward, value, terminated, truncated, last)
    found = advantages(*given, discount=discount, trace=trace)
    np.testing.assert_allclose(found, by_loop(*given, discount, trace), atol=1e-5)


def test_returns_with_a_full_trace_are_discounted_sums():
    reward = np.eye(STEPS, dtype=np.float32)[:, -1:]  # 1 in the last step
    zeros = np.zeros((STEPS, 1), np.float32)
    none = zeros > 0
    found = advantages(reward, zeros, none, none, zeros[0], discount=0.5, trace=1.0)
    np.testing.assert_allclose(found[:, 0], 0.5 ** np.arange(STEPS)[::-1])
