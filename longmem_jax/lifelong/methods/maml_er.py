"""MAML-ER: the inner loop learns the whole network (Holla et al., 2020, an ablation of ANML-ER)."""

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
    return episodes.Plan(network, ('encoder', 'head'), (), settings, optimizer, batch)


METHOD = Method(settings=SETTINGS, faults=episodes.faults, make=make)
