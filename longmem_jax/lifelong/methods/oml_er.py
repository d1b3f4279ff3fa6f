"""OML-ER: the inner loop learns the head, the meta-gradient all parameters (Holla et al., 2020).

Online-aware meta-learning (Javed and White, 2019) with an episodic memory, of first order. The encoder
is the representation network, the head the prediction network.
"""

from typing import Any

import optax

from longmem_jax.lifelong import episodes
from longmem_jax.lifelong.learner import Learner, Method
from longmem_jax.lifelong.network import Network

SETTINGS = dict(episodes.SETTINGS)


def make(
    network: Network, settings: Any, optimizer: optax.GradientTransformation, batch: int
) -> Learner:
    """The learner; see `learner.Method`."""
    return episodes.make(plan(network, settings, optimizer, batch))


def plan(
    network: Network, settings: Any, optimizer: optax.GradientTransformation, batch: int
) -> episodes.Plan:
    """What it learns in an episode."""
    return episodes.Plan(network, ('head',), (), settings, optimizer, batch)


METHOD = Method(settings=SETTINGS, faults=episodes.faults, make=make)
