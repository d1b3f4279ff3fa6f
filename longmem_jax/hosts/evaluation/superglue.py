"""Answers to the questions of SuperGLUE, and the metrics of its tasks."""

from collections.abc import Callable, Hashable, Sequence

import numpy as np

from longmem_jax.data.conventions import Conventions
from longmem_jax.data.tokenizers import Tokenizer
from longmem_jax.evaluation.likelihood import Likelihood
from longmem_jax.hosts.data.classes import ClassExample
from longmem_jax.hosts.data.superglue import Example


def answer(
    likelihood: Likelihood,
    tokenizer: Tokenizer,
    conventions: Conventions,
    examples: Sequence[Example],
    answers: Sequence[str],
) -> np.ndarray:
    """The class whose word is the most likely after the prompt of every example, int64 [examples].

    A prompt is read once for all words.
    """
    words = [np.asarray(tokenizer.encode(word.encode()), np.int32) for word in answers]
    pairs = []
    for example in examples:
        text = conventions.read(tokenizer.encode(example.prompt.encode()))
        pairs += [(text, word) for word in words]
    scores = [score.log_likelihood for score in likelihood(pairs)]
    return np.asarray(scores).reshape(-1, len(words)).argmax(axis=1)


def accuracy(right: np.ndarray, found: np.ndarray) -> float:
    """The share of classes, int [n], that are found."""
    return float((right == found).mean())


def f1(right: np.ndarray, found: np.ndarray, label: int = 1) -> float:
    """F1 of one class; 0 where it is neither there nor found."""
    both = ((right == label) & (found == label)).sum()
    total = (right == label).sum() + (found == label).sum()
    return float(2 * both / total) if total else 0.0


def macro_f1(right: np.ndarray, found: np.ndarray) -> float:
    """The mean of F1 over the classes that are there or found."""
    return float(np.mean([f1(right, found, label) for label in np.union1d(right, found)]))


def exact_questions(right: np.ndarray, found: np.ndarray, groups: Sequence[Hashable]) -> float:
    """The share of groups of examples of which every one is right."""
    wrong = {group for group, same in zip(groups, right == found, strict=True) if not same}
    return 1 - len(wrong) / len(set(groups))


# Task to its metrics, the names those of the benchmark; the others have accuracy alone.
Metric = Callable[[np.ndarray, np.ndarray, Sequence[Hashable]], float]
METRICS: dict[str, dict[str, Metric]] = {
    'CB': {
        'accuracy': lambda right, found, groups: accuracy(right, found),
        'f1': lambda right, found, groups: macro_f1(right, found),
    },
    'MultiRC': {'f1a': lambda right, found, groups: f1(right, found), 'em': exact_questions},
}
ACCURACY: dict[str, Metric] = {'accuracy': lambda right, found, groups: accuracy(right, found)}


def scores(
    name: str, examples: Sequence[Example | ClassExample], found: np.ndarray
) -> dict[str, float]:
    """The metrics of task `name` for the classes `found`, int [examples], and their mean, 'score'."""
    right = np.asarray([example.label for example in examples])
    groups = [example.group for example in examples]
    values = {
        metric: function(right, found, groups)
        for metric, function in METRICS.get(name, ACCURACY).items()
    }
    return {**values, 'score': float(np.mean(list(values.values())))}


def majority(examples: Sequence[Example | ClassExample]) -> np.ndarray:
    """The most frequent class of `examples` for each of them: what a model must do better than."""
    labels = np.asarray([example.label for example in examples])
    return np.full(labels.shape, np.bincount(labels).argmax())
