"""The papers' experiments that two cores cannot do: tasks of Expire-Span, sorting, agents."""

import re
from pathlib import Path
from typing import Any

from experiments.gpu.job import Place, seeds
from experiments.gpu.trainings import SAVED, M, train
from experiments.reinforcement import corridor, runs, spans

SHIFT, ONE = f'{M}.token_shift=half', f'{M}.expire_span.num_sizes=1'
SMALL = (  # the model of experiments/expire_span
    f'--config.data.task.documents=64 --config.data.task.steps=24000 --config.train.num_lanes=64 '
    f'--config.train.num_steps=2500 --config.train.evaluate_every=2500 '
    f'--config.optimizer.learning_rate=5e-4 {SHIFT} {M}.num_layers=4 {M}.d_model=128 {M}.d_embed=128 '
    f'{M}.head_dim=32 {M}.d_feed_forward=512 {M}.feed_forward={("dense",) * 4}'
)
FLAGS = re.compile(r' (?=--)')  # between flags, whose values may have spaces
# By task: config, flags of all rows; and the rows: variants and flags of each.
PAPERS: dict[str, tuple[str, str, dict[str, str]]] = {
    'small collision': ('collision', SMALL, {
        'Expire-Span 128': f'easy,tiny,span=128 {ONE} {M}.attention={("expire_span",) * 4}',
        'Expire-Span 256': f'easy,tiny,span=256 {ONE} {M}.attention={("expire_span",) * 4}',
        'fixed span 256': f'easy,tiny,memory=transformer_xl {M}.adaptive_span.max_span=256 '
        f'{M}.attention={("adaptive_span",) * 4}',
    }),
    'sorting': ('sorting', '', {
        name: f'memory={name},equal_state'
        for name in ('infinity_former', 'transformer_xl', 'compressive')
    }),
    'collision': ('collision', f'--config.train.num_steps=8000 {SHIFT}', {
        'Expire-Span 1,024': f'easy,span=1024 {ONE}',
        'fixed span 1,024': 'easy,memory=transformer_xl',
    }),
    'instruction': ('instruction', f'--config.train.num_steps=8000 {SHIFT}', {
        'Expire-Span 2,048': f'span=2048 {ONE}',
        'fixed span 2,048': 'memory=transformer_xl',
    }),
    'portal': ('portal', '--config.train.num_steps=2000', {
        'Expire-Span 100': 'ppo', 'fixed span 100': 'ppo,memory=transformer_xl,memory_size=100',
    }),
}  # fmt: skip


def paper_cells(tiny: bool) -> list[str]:
    """The tasks, all rows of the first seed first."""
    rows = [(task, row) for task, (_, _, by_row) in PAPERS.items() for row in by_row]
    if tiny:
        rows = list(dict(rows).items())  # the last of each task
    return seeds([f'{task}/{row}' for task, row in rows], 5, tiny)


def arguments(task: str, row: str) -> tuple[str, str, list[str]]:
    """Config, variants and flags of a row."""
    config, shared, by_row = PAPERS[task]
    variants, *flags = FLAGS.split(by_row[row])
    return config, variants, [*flags, *filter(None, FLAGS.split(shared)), SAVED]


def paper(place: Place, cell: str, folder: Path) -> dict[str, Any]:
    """A task of a paper at its size."""
    task, row, seed = cell.split('/')
    config, variants, flags = arguments(task, row)
    if place.tiny:  # the flags are of the size
        flags = ['--config.reinforcement.test_episodes=2'] if config == 'portal' else []
    return train(place, folder / 'run', config, variants, flags, int(seed))


def corridor_cells(tiny: bool) -> list[str]:
    """Corridors of 100 and 200 cells by memory, five seeds."""
    names = [
        f'{cells}/{spans.label(kind, value)}'
        for cells in ((20,) if tiny else (100, 200))
        for kind, value in _agents(cells)[: 1 if tiny else None]
    ]
    return seeds(names, 5, tiny)


def _agents(cells: int) -> list[tuple[str, float]]:
    task = corridor.in_cells(cells)
    by_kind = {spans.FIXED: task.spans, spans.ALONE: task.alone, spans.LEARNED: task.losses}
    return [(kind, value) for kind, values in by_kind.items() for value in values]


def corridors(place: Place, cell: str, folder: Path) -> dict[str, Any]:
    """Reward and steps held of an agent in corridors."""
    cells, label, seed = cell.split('/')
    chosen = {spans.label(*each): each for each in _agents(int(cells))}[label]
    task = corridor.in_cells(int(cells))
    config = spans.configuration(task, *chosen, 2 if place.tiny else task.updates)
    if place.tiny:
        config.reinforcement.test_episodes = 2
    (found,) = runs.train(config, folder, [int(seed)])
    kept = {name: found[name] for name in ('test', 'test_greedy', 'held', 'parameters', 'seconds')}
    # The sum over layers, so that rows with one and two layers compare.
    return kept | {'held_together': spans.together(found, 'mean')}
