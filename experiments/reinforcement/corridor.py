"""Reward against the size of the memory in short corridors, fixed spans and Expire-Span (Fig. 4, left).

python -m experiments.reinforcement.corridor --output=DIR [--seeds=5] [--updates=60]
Trains `configs/corridor.py:tiny,ppo`; what it prints and draws is in `spans.py`.
"""

from configs import corridor
from experiments.reinforcement import spans

TASK = spans.Task(
    name='corridor',
    agent=lambda memory: corridor.get_config(f'tiny,ppo,{memory}'),
    spans=(8, 16, 24),
    alone=(24,),
    losses=(3e-5, 6e-5),
    longest=40,
    ramp=2,  # as a share of the longest span about what the paper has, 16 of 200
    updates=60,
)

if __name__ == '__main__':
    spans.main(TASK, __doc__)
