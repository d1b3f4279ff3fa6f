"""What a lifelong learner knows, keeps and transfers; from scores on all tasks after each task.

Let A[i, j] be the score on task j after task i, both from 0 and in the order of the stream, and a[j] the
score on it before any training. The definitions are those of Avalanche (Lomonaco et al., 2021) and of
Lopez-Paz and Ranzato (2017), each a mean over tasks j and T the last task:

  average            A[T, j], all j
  forgetting         A[j, j] - A[T, j], j < T
  backward transfer  A[T, j] - A[j, j], j < T
  forward transfer   A[j - 1, j] - a[j], j > 0
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

DRAWS_AT_ONCE = 1 << 22  # numbers of rows that are held at a time


class Transfer(NamedTuple):
    """Means over tasks, see above; nan where no task counts, or nothing is known from before training.

    Attributes:
      average, forgetting, backward, forward: see above.
    """

    average: float
    forgetting: float
    backward: float
    forward: float


def transfer(matrix: np.ndarray, before: np.ndarray | None = None) -> Transfer:
    """The four numbers of a matrix of scores `A`, [tasks, tasks], rows in the order of time.

    `before`: scores `a` before any training, [tasks]; None = not known.

    Raises:
      ValueError: a matrix that is not square.
    """
    matrix = np.asarray(matrix, np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f'scores after every task on every task are needed, got {matrix.shape}')
    learned, last = np.diagonal(matrix)[:-1], matrix[-1, :-1]
    forward = np.nan
    if before is not None and len(matrix) > 1:
        forward = float((np.diagonal(matrix, 1) - np.asarray(before, np.float64)[1:]).mean())
    forgetting = float((learned - last).mean()) if len(matrix) > 1 else np.nan
    return Transfer(float(matrix[-1].mean()), forgetting, -forgetting, forward)


class Difference(NamedTuple):
    """Of two methods on the same rows.

    Attributes:
      mean: of the first one's scores less the second one's.
      low, high: 95 % interval of it.
      p: two-sided; how often a difference of no sign, or of the other one, is drawn.
    """

    mean: float
    low: float
    high: float
    p: float


def paired_bootstrap(
    first: np.ndarray, second: np.ndarray, draws: int = 10_000, seed: int = 0
) -> Difference:
    """Whether the scores of one method, [rows] from 0 to 1, are better than those of another for
    the same test rows (Efron and Tibshirani, 1993, ch. 16), by `draws` samples of rows with
    replacement.

    Raises:
      ValueError: no rows, or not the same.
    """
    first, second = np.asarray(first, np.float64), np.asarray(second, np.float64)
    if first.shape != second.shape or first.ndim != 1 or not first.size:
        raise ValueError(f'scores of the same rows are needed, got {first.shape}, {second.shape}')
    differences, random = first - second, np.random.default_rng(seed)
    at_once = max(DRAWS_AT_ONCE // len(first), 1)
    means = np.concatenate([
        differences[random.integers(0, len(first), (min(at_once, draws - at), len(first)))].mean(1)
        for at in range(0, draws, at_once)
    ])  # fmt: skip
    low, high = np.quantile(means, (0.025, 0.975))
    # The observed sample counts as a draw, so that p is never 0.
    tail = 1 + min((means <= 0).sum(), (means >= 0).sum())
    return Difference(
        float(differences.mean()), float(low), float(high), float(min(2 * tail / (draws + 1), 1.0))
    )


def num_bytes(tree: Any) -> int:
    """Bytes of all arrays of a tree, such as `LearnerState.memory`; those of abstract ones too."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def origins(
    numbers: np.ndarray, found: np.ndarray, asked: np.ndarray, tasks: np.ndarray, num_tasks: int
) -> np.ndarray:
    """From which tasks the neighbours of test rows come, float64 [tasks asked, tasks of
    neighbours]: shares with the sum 1, or 0 if there are no neighbours. `numbers` are rows of the
    stream, int [test rows, k], `found` bool of the same shape; `asked` and `tasks` have the task of
    every test row and of every row of the stream.
    """
    counts = np.zeros((num_tasks, num_tasks))
    lines = np.broadcast_to(np.asarray(asked)[:, None], np.shape(numbers))
    kept = np.asarray(found, bool)
    origin = np.asarray(tasks)[np.where(kept, numbers, 0)]
    np.add.at(counts, (lines[kept], origin[kept]), 1)
    return counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)


def by_task(right: Sequence[np.ndarray]) -> np.ndarray:
    """Mean score of every task, float64 [tasks], of the scores of its rows."""
    return np.asarray([np.mean(scores, dtype=np.float64) for scores in right])
