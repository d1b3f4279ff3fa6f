"""Reward against the size of the memory in corridors, fixed spans and Expire-Span (Fig. 4, left).

python -m experiments.reinforcement.corridor --output=DIR [--cells=20] [--seeds=5] [--updates=60]
Trains `configs/corridor.py:tiny,ppo` in corridors of 3 to `--cells` cells; the paper's have 3 to 200.
Spans, losses, the discount and the number of updates follow from the cells. What it prints and draws is
in `spans.py`.
"""

from typing import Any

from configs import corridor
from experiments.reinforcement import spans

LEAST = 15  # where Expire-Span's first spans do not reach beyond a segment of 16 steps, none grows


def in_cells(cells: int) -> spans.Task:
    """Corridors of 3 to `cells` cells.

    All spans are the same shares of the longest corridor. The loss weights fall as spans grow, so the
    loss of a span of a given share stays the same. The ramp, as a share of the longest span, is about
    what the paper has, 16 of 200. A reward at the end of the longest corridor is discounted alike. In
    long corridors the rate falls to the end: at a constant one an agent that earned 1.00 lost it again.
    """

    is_long = cells > 20  # the published ones have 20

    def agent(memory: str) -> Any:
        config = corridor.get_config(f'tiny,ppo,{memory}')
        config.reinforcement.task.longest = cells
        config.reinforcement.discount = 1 - 1 / cells
        return config

    return spans.Task(
        name='corridor',
        agent=agent,
        spans=tuple(round(share * cells) for share in (0.4, 0.8, 1.2)),
        alone=(round(1.2 * cells),),
        losses=(6e-4 / cells, 1.2e-3 / cells),
        longest=2 * cells,
        ramp=max(cells // 10, 1),
        updates=6 * cells if is_long else 3 * cells,
        schedule='linear' if is_long else 'constant',
    )


TASK = in_cells(20)

if __name__ == '__main__':
    spans.main(TASK, __doc__, in_cells, LEAST)
