"""MAML-ER: the inner loop learns the whole network (Holla et al., 2020, an ablation of ANML-ER)."""

from longmem_jax.lifelong import episodes
from longmem_jax.lifelong.learner import Method

plan = episodes.of_network(fast=('encoder', 'head'))
METHOD = Method(episodes.SETTINGS, episodes.check, episodes.made_by(plan))
