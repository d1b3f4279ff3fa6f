"""The tasks that `config.data.source` may name."""

import functools
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from longmem_jax.data.corpus import AnyCorpus
from longmem_jax.data.tasks import (
    collision,
    collision_rules,
    copy_task,
    instruction,
    mad,
    mad_rules,
    mqar,
    recall,
    sorting,
    state_tracking,
)
from longmem_jax.problems import of_section
from longmem_jax.registry import Registry

Settings = Any  # `config.data.task`


class Players(NamedTuple):
    """What floors need of a task, of a source that is none; the attributes are those of `Task`."""

    questions: Callable[[Settings, np.ndarray, np.ndarray], np.ndarray]
    rules: Mapping[str, Callable[[Settings, np.ndarray, np.ndarray, np.ndarray], np.ndarray]]


class Task(NamedTuple):
    """A task.

    A rule is a player without parameters, to compare models with. Its inputs are the tokens that a
    model reads, int [n], the places at which it is asked for the next token, int [m], and for each the
    first place that it has seen, at most where the question begins. It returns the chances of what it
    names, float [m, words]; those of place p depend on the inputs from the first seen to p only.

    Attributes:
      corpus: (settings, split, seed) to the documents of a split.
      check: problems of the settings.
      vocabulary: the words.
      questions: (settings, inputs, asked) to where the question of every asked place begins, int [m].
      rules: name to (settings, inputs, asked, first seen) to chances.
      distance: settings to the greatest distance in training, tokens; None = there is none.
      series: the setting with several numbers, in plural, each of which --mode=evaluate scores by
        itself; None = there is none.
    """

    corpus: Callable[[Settings, str, int], AnyCorpus]
    check: Callable[[Settings], list[str]]
    vocabulary: Callable[[Settings], Any]
    questions: Callable[[Settings, np.ndarray, np.ndarray], np.ndarray]
    rules: Mapping[str, Callable[[Settings, np.ndarray, np.ndarray, np.ndarray], np.ndarray]]
    distance: Callable[[Settings], int] | None = None
    series: str | None = None


def _task(
    module: ModuleType, corpus: Callable[..., AnyCorpus], rules: ModuleType | None = None
) -> Task:
    """The task of a module, by the names that every one of them has; its rules may be another's.

    One without `check` has its `FIELDS` checked, and no more.
    """
    rules, distance = rules or module, getattr(module, 'greatest_distance', None)
    check = getattr(module, 'check', None) or functools.partial(of_section, allowed=module.FIELDS)
    given = corpus, check, module.vocabulary, rules.questions, rules.RULES, distance
    return Task(*given, getattr(module, 'SERIES', None))


TASKS = Registry(
    'task',
    Task,
    {
        'collision': _task(collision, collision.Collision, collision_rules),
        'copy': _task(copy_task, copy_task.Copy),
        'instruction': _task(instruction, instruction.Instruction),
        'mad': _task(mad, mad.Mad, mad_rules),
        'mqar': _task(mqar, mqar.Mqar),
        'recall': _task(recall, recall.Recall),
        'sorting': _task(sorting, sorting.Sorting),
        'state_tracking': _task(state_tracking, state_tracking.StateTracking),
    },
    kind='task',
)
