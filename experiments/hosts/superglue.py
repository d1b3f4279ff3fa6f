"""Tasks of SuperGLUE, by the host with and without memories, and of the most frequent class."""

from pathlib import Path
from typing import Any

from experiments import compare, markdown, provenance
from experiments.hosts import scores

CONFIG = 'configs/superglue.py'
# Texts of a few segments first, then those whose passages are longer than any window.
TASKS = ('COPA', 'WiC', 'CB', 'RTE', 'BoolQ', 'MultiRC')
MEMORIES = (scores.LOCAL, 'transformer_xl')


def flags(options: Any) -> list[str]:
    """Flags of every fine-tuning."""
    steps = options.superglue_steps
    return [
        f'--config.data.path={options.superglue}', '--config.train.num_lanes=8',
        f'--config.train.num_steps={steps}', f'--config.train.evaluate_every={steps}',
        '--config.train.log_every=10',
        # The metrics are of all examples; the loss of some is enough.
        '--config.evaluate.max_segments=4', '--config.evaluate.max_test_segments=4',
        *options.flags,
    ]  # fmt: skip


def variants(options: Any, task: str, memory: str) -> str:
    """What follows `--config=configs/superglue.py:`."""
    exported = options.output / 'exported'
    return f'tiny,path={exported},segment={scores.SEGMENT},task={task},memory={memory}'


def run(options: Any) -> None:
    """Fine-tunes the host on every task with every memory; every seed's superglue.test.json."""
    for task in TASKS:
        for memory in MEMORIES:
            folder = options.output / 'superglue' / task / memory
            given = CONFIG, variants(options, task, memory), flags(options)
            for seed, _ in compare.every_seed(*given, folder, options.seeds):
                found = provenance.saved(folder / str(seed) / 'superglue.test.json')
                print(f'{task}, {memory}, seed {seed}: {found["score"]:.3f}', flush=True)


def table(output: Path) -> str:
    """Mean of a task's metrics in %, with the standard error of an accuracy of that many examples."""
    lines = []
    for task in TASKS:
        found = {
            memory: [
                provenance.saved(path)
                for path in sorted(
                    (output / 'superglue' / task / memory).glob('*/superglue.test.json')
                )
            ]
            for memory in MEMORIES
        }
        every = [seed for seeds in found.values() for seed in seeds]
        if not every:
            continue
        examples, floor = every[0]['examples'], every[0]['majority']
        metrics = [name for name in floor if name != 'score']
        error = 100 * (0.25 / examples) ** 0.5
        for metric in metrics:
            cells = [f'{task}, {metric}', str(examples), f'{100 * floor[metric]:.1f}']
            cells += [
                markdown.span([100 * seed[metric] for seed in seeds], 1) if seeds else ''
                for seeds in found.values()
            ]
            lines.append([*cells, f'{error:.1f}'])
    if not lines:
        return ''
    heads = ['task', 'examples', 'most frequent class', *(f'`{memory}`' for memory in MEMORIES)]
    return markdown.table([*heads, 'standard error'], lines)
