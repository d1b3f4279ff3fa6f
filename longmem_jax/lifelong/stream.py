"""Tasks one after another as one stream of rows, read once; and the bounds of what it can teach.

A learner reads `Stream.rows` and nothing else. The number of every row's task is in an array of its
own, which only metrics see.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np

from longmem_jax.errors import UsageError, unknown
from longmem_jax.lifelong.rows import Rows


class Task(NamedTuple):
    """The rows of a task, all of numpy arrays of the same forms for all tasks of a stream.

    Attributes:
      train: what a stream shows.
      test: what a learner is asked.
    """

    train: Rows
    test: Rows


class Stream(NamedTuple):
    """Rows in the order in which they are read.

    Attributes:
      rows: numpy arrays.
      tasks: the task of every row, int32 [rows], numbers into `names`.
      names: tasks, in their order.
      tests: what each task asks, in the same order.
    """

    rows: Rows
    tasks: np.ndarray
    names: tuple[str, ...]
    tests: tuple[Rows, ...]

    @property
    def ends(self) -> np.ndarray:
        """The first row after each task, int64 [tasks]; of a stream `in_order`."""
        return np.cumsum(np.bincount(self.tasks, minlength=len(self.names)))


def concatenate(parts: Sequence[Rows]) -> Rows:
    """All rows, one part after another."""
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)


def _shuffled(rows: Rows, random: np.random.Generator) -> Rows:
    order = random.permutation(len(rows))
    return jax.tree.map(lambda leaf: leaf[order], rows)


def named_order(orders: Mapping[str, Sequence[str]], name: str) -> tuple[str, ...]:
    """A published order by its name; raises `UsageError` if there is none of the name."""
    if name not in orders:
        raise UsageError(f'{unknown("order", name, orders)}.')
    return tuple(orders[name])


def random_order(names: Sequence[str], seed: int) -> tuple[str, ...]:
    """The tasks in a random order."""
    return tuple(names[i] for i in np.random.default_rng(seed).permutation(len(names)))


def _require(tasks: Mapping[str, Task], order: Sequence[str]) -> None:
    for name in order:
        if name not in tasks:
            raise UsageError(f'{unknown("order", name, tasks)}.')
    if len(set(order)) < len(order) or not order:
        raise UsageError(
            f'order = {", ".join(order) or "()"}: at least one task is needed, and none twice.'
        )


def in_order(tasks: Mapping[str, Task], order: Sequence[str], seed: int) -> Stream:
    """A single pass over tasks one after another; the rows of each in random order.

    Raises:
      UsageError: a task that there is not, or one that occurs twice.
    """
    _require(tasks, order)
    # Another order of the tasks leaves the order within each as it is.
    parts = [
        _shuffled(tasks[name].train, np.random.default_rng([seed, sorted(tasks).index(name)]))
        for name in order
    ]
    numbers = np.repeat(np.arange(len(order), dtype=np.int32), [len(part) for part in parts])
    return _stream(tasks, order, concatenate(parts), numbers)


def joint(tasks: Mapping[str, Task], order: Sequence[str], seed: int, epochs: int = 1) -> Stream:
    """MTL, the usual bound.

    Rows of all tasks shuffled together, differently in each of `epochs` passes.

    Raises:
      UsageError: as by `in_order`.
    """
    once = in_order(tasks, order, seed)
    random = np.random.default_rng([seed, len(tasks)])
    passes = np.concatenate([random.permutation(len(once.rows)) for _ in range(epochs)])
    rows = jax.tree.map(lambda leaf: leaf[passes], once.rows)
    return _stream(tasks, order, rows, once.tasks[passes])


def single(tasks: Mapping[str, Task], name: str, seed: int, epochs: int = 1) -> Stream:
    """One task by itself; what the other tasks add to it or take from it is seen by comparison."""
    return joint(tasks, (name,), seed, epochs)


def _stream(
    tasks: Mapping[str, Task], order: Sequence[str], rows: Rows, numbers: np.ndarray
) -> Stream:
    return Stream(
        rows=rows,
        tasks=numbers,
        names=tuple(order),
        tests=tuple(tasks[name].test for name in order),
    )
