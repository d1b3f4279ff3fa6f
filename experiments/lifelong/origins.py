r"""From which tasks the neighbours of test rows come, of a trained learner with keys.

python -m experiments.lifelong.origins --workdir=DIR --output=origins.png \
    --config=configs/lifelong_classification.py:tiny,method=mbpa_plus --config.data.path=FOLDER

Configuration and workdir are those of the run. Printed is how often a neighbour is of the task of the
row that asks, how often it has the same answer, and, as a floor for what adapts to neighbours, how often
a vote of the neighbours is right.
"""

import numpy as np
from absl import flags

from experiments.lifelong import comparisons
from longmem_jax.commands import entry
from longmem_jax.errors import UsageError
from longmem_jax.experiment import Experiment
from longmem_jax.lifelong import episodic, steps
from longmem_jax.lifelong.build import Built
from longmem_jax.lifelong.commands import learned
from longmem_jax.lifelong.figures import shares as draw
from longmem_jax.lifelong.learner import LearnerState
from longmem_jax.reporting import figures
from longmem_jax.reporting.progress import Progress

if __name__ == '__main__':
    _OUTPUT = flags.DEFINE_string('output', 'origins.png', 'The figure.')


def found_for(built: Built, state: LearnerState) -> tuple[np.ndarray, ...]:
    """Neighbours of all test rows: numbers and which there are [rows, K], tasks and answers [rows]."""
    if 'key_network' not in state.own:
        raise UsageError(
            f'method={built.config.lifelong.method}: has no keys; use mbpa, mbpa_plus or meta_mbpa.'
        )
    numbers, there, tasks, answers = [], [], [], []
    for task, rows in enumerate(built.stream.tests):
        keys = steps.keys_of_rows(
            built.network, state.own['key_network'], built.placed(rows), len(rows)
        )
        found = episodic.nearest(state.memory, keys, built.fields['num_neighbours'])
        numbers.append(np.asarray(found[0]))
        there.append(np.asarray(found[2]))
        tasks.append(np.full(len(rows), task))
        answers.append(np.asarray(rows.answer))
    return tuple(np.concatenate(parts) for parts in (numbers, there, tasks, answers))


def votes(answers: np.ndarray, there: np.ndarray) -> np.ndarray:
    """The most frequent answer of the neighbours of every row, int [rows]; of a tie, the nearest's.

    Args:
      answers: of the neighbours, the nearest first, int [rows, K], from 0.
      there: which neighbours there are, bool [rows, K]. Without any, the vote is -1.
    """
    same = (answers[:, :, None] == answers[:, None]) & there[:, None]
    winner = np.where(there, same.sum(axis=2), 0).argmax(axis=1)
    found = np.take_along_axis(answers, winner[:, None], axis=1)[:, 0]
    return np.where(there.any(axis=1), found, -1)


def _main(experiment: Experiment) -> None:
    built, state, _ = learned(experiment, Progress(0, log_every=0))
    numbers, there, tasks, answers = found_for(built, state)
    names = built.stream.names
    shares = comparisons.origins(numbers, there, tasks, built.stream.tasks, len(names))
    figure = draw(shares, names, names, ('test rows of', 'neighbours from'))
    figures.save(figure, _OUTPUT.value)
    given = np.asarray(built.stream.rows.answer)[numbers]
    same = (given == answers[:, None])[there].mean()
    for name, share in zip(names, np.diagonal(shares), strict=True):
        print(f'{name}: {100 * share:.1f} % of the neighbours are of the same task')
    print(f'all: {100 * same:.1f} % of the neighbours have the same answer')
    right = votes(given, there) == answers
    by_task = [right[tasks == task].mean() for task in range(len(names))]
    share = 100 * np.mean(by_task)
    print(f'a vote of {numbers.shape[1]} neighbours: {share:.1f} % right, mean of the tasks')


if __name__ == '__main__':
    entry.command(_main)
