"""How well an agent does in new episodes."""

import functools
import math
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from longmem_jax import stopping
from longmem_jax.agents.acting import act, first_lanes
from longmem_jax.agents.environments.interface import Environment
from longmem_jax.agents.model import Agent
from longmem_jax.devices import sharding


class Tester:
    """Acts in new episodes; every lane in equally many, so that short ones count no more than long ones.

    Attributes:
      num_lanes: episodes at a time.
    """

    def __init__(self, model: Agent, environment: Environment, num_lanes: int, mesh: Mesh):
        """Compiles nothing yet."""
        self._longest, self._length = environment.longest, model.segment_length
        self.num_lanes = num_lanes
        lanes = sharding.lanes_sharding(mesh)
        self._first = jax.jit(
            lambda params, key: first_lanes(model, params, environment, num_lanes, key),
            out_shardings=lanes,
        )

        @functools.partial(jax.jit, static_argnums=3, donate_argnums=1)
        def further(params: Any, lanes: Any, key: jax.Array, greedy: bool) -> Any:
            after, rollout = act(model, params, environment, lanes, key, segments=1, greedy=greedy)
            told = dict(reward=rollout.total, length=rollout.steps, **rollout.measures)
            return after, jax.tree.map(lambda leaf: leaf[0], (rollout.ended, told))

        self._further = further

    def episodes(
        self, params: Any, number: int, key: jax.Array, *, greedy: bool = False
    ) -> dict[str, np.ndarray]:
        """'reward', 'length' and the environment's measures of new episodes, float64 [episodes].

        `number` is rounded up to a multiple of the lanes; `greedy`: always the most likely action.
        """
        per_lane = math.ceil(number / self.num_lanes)
        lanes = self._first(params, jax.random.fold_in(key, 0))
        counts = np.zeros(self.num_lanes, np.int64)
        found: dict[str, list[float]] = {}
        # Every episode ends in time, so every lane does.
        for part in range(math.ceil(per_lane * self._longest / self._length) + 1):
            lanes, seen = self._further(params, lanes, jax.random.fold_in(key, part + 1), greedy)
            ended, told = jax.device_get(seen)
            stopping.poll()
            # By time, then by lane.
            for place, lane in zip(*np.nonzero(ended.T), strict=True):
                if counts[lane] < per_lane:
                    counts[lane] += 1
                    for name, values in told.items():
                        found.setdefault(name, []).append(float(values[lane, place]))
            if (counts == per_lane).all():
                break
        return {name: np.asarray(values) for name, values in found.items()}


def in_short(found: dict[str, np.ndarray]) -> dict[str, float]:
    """Means over episodes, the number of episodes, and of several the standard error of the reward."""
    reward = found['reward']
    short = {name: float(values.mean()) for name, values in found.items()}
    if len(reward) > 1:
        short['reward_error'] = float(reward.std(ddof=1) / math.sqrt(len(reward)))
    return short | {'episodes': len(reward)}
