"""OML-ER: the inner loop learns the head, the meta-gradient all parameters (Holla et al., 2020).

Online-aware meta-learning (Javed and White, 2019) with an episodic memory, of first order. The encoder
is the representation network, the head the prediction network.
"""

from longmem_jax.lifelong import episodes
from longmem_jax.lifelong.learner import Method

plan = episodes.of_network(fast=('head',))
METHOD = Method(episodes.SETTINGS, episodes.check, episodes.made_by(plan))
