"""Reward against the size of the memory in a small portal, fixed spans and Expire-Span (Fig. 4, middle).

python -m experiments.reinforcement.portal --output=DIR [--seeds=5] [--updates=60]
Trains `configs/portal.py:tiny,ppo` with six rooms; what it prints and draws is in `spans.py`.
"""

from typing import Any

from configs import portal
from experiments.reinforcement import spans

ROOMS, STEPS = 6, 60


def agent(memory: str) -> Any:
    """The agent with a memory, in six rooms of 3x3 cells, the last one to reach."""
    config = portal.get_config(f'tiny,ppo,{memory}')
    config.reinforcement.task.update(rooms=ROOMS, steps=STEPS)
    config.model.agent.observation = 9 * (5 + ROOMS)
    return config


TASK = spans.Task(
    name='portal',
    agent=agent,
    spans=(4, 8, 16),
    alone=(),
    losses=(3e-5, 1e-4),
    longest=24,  # an episode of a player who remembers all has about 26 steps
    ramp=2,
    updates=60,
)

if __name__ == '__main__':
    spans.main(TASK, __doc__)
