"""What a lifelong learner knows, keeps and transfers; from scores on all tasks after each task.

Let A[i, j] be the score on task j after task i, both from 0 and in the order of the stream, and a[j] the
score on it before any training. The definitions are those of Avalanche (Lomonaco et al., 2021) and of
Lopez-Paz and Ranzato (2017), each a mean over tasks j and T the last task:

  average            A[T, j], all j
  forgetting         A[j, j] - A[T, j], j < T
  backward transfer  A[T, j] - A[j, j], j < T
  forward transfer   A[j - 1, j] - a[j], j > 0
"""

from typing import Any, NamedTuple

import jax
import numpy as np


class Transfer(NamedTuple):
    """Means over tasks, see above; nan where no task counts, or without scores before training."""

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


def num_bytes(tree: Any) -> int:
    """Bytes of all arrays of a tree, such as `LearnerState.memory`; those of abstract ones too."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
