r"""Floors: the scores of rules without a network on a stream.

python -m experiments.lifelong.floors --workdir=DIR --config.data.path=FOLDER \
    --config=configs/lifelong_classification.py:tiny,method=sequential,path=BERT

With `configs/lifelong_relations.py` or `configs/lifelong_qa.py` the rules are different. Counts are
added up row by row, so nothing is forgotten and the order does not matter. The program prints the right
answers in % by task, and their mean:

- classes: naive Bayes of the tokens of a text (multinomial, one added to every count, tokens that a text
  has several times counted once), the commonest class of the stream, and one class of all at random;
- relations: the same naive Bayes among the candidates of a row, the candidate of whose name most tokens
  stand in the sentence, the one that was right in most of the rows that had it, and one at random;
- spans: those of `span_floors.py`.
"""

from typing import Any

import numpy as np

from experiments import markdown
from experiments.lifelong import span_floors
from longmem_jax.commands import entry
from longmem_jax.experiment import Experiment
from longmem_jax.lifelong import settings
from longmem_jax.lifelong.build import Built
from longmem_jax.lifelong.rows import Rows
from longmem_jax.segment import NOTHING

Shares = dict[str, list[float]]  # rule to the share of right answers of each task


def words(rows: Rows, vocabulary: int) -> np.ndarray:
    """Which tokens every text has, float32 [rows, vocabulary]."""
    tokens = np.asarray(rows.tokens)
    found = np.zeros((len(tokens), vocabulary), np.float32)
    row, place = np.nonzero(tokens != np.array(NOTHING).astype(tokens.dtype))
    found[row, tokens[row, place]] = 1
    return found


def scores(
    rows: Rows, labels: np.ndarray, test: Rows, classes: int, vocabulary: int, at_once: int = 1000
) -> np.ndarray:
    """Log-probabilities of naive Bayes up to a constant, float64 [rows of the test, classes].

    Args:
      rows: of the stream.
      labels: their classes, int [rows].
      test: what is asked.
      classes: of all tasks.
      vocabulary: different tokens.
      at_once: rows that are counted at a time.
    """
    counts = np.zeros((classes, vocabulary))
    for first in range(0, len(labels), at_once):
        part = slice(first, first + at_once)
        texts = Rows(rows.tokens[part], rows.types[part], None)
        counts += np.eye(classes)[labels[part]].T @ words(texts, vocabulary)
    seen = np.bincount(labels, minlength=classes)
    of_word = np.log(counts + 1) - np.log(counts.sum(axis=1, keepdims=True) + vocabulary)
    of_class = np.log(seen + 1) - np.log(seen.sum() + classes)
    return words(test, vocabulary) @ of_word.T + of_class


def of_classes(rows: Rows, tests: tuple[Rows, ...], head: Any, vocabulary: int) -> Shares:
    """The rules of classes; arguments as in `scores`, with `heads.Classes`."""
    labels = np.asarray(rows.answer)
    commonest = np.bincount(labels, minlength=head.number).argmax()
    by_words = [
        (scores(rows, labels, test, head.number, vocabulary).argmax(1) == test.answer).mean()
        for test in tests
    ]
    return {
        'naive Bayes of words': by_words,
        'the commonest class': [(test.answer == commonest).mean() for test in tests],
        'one class of all': [1 / head.number] * len(tests),
    }


def of_candidates(rows: Rows, tests: tuple[Rows, ...], head: Any, vocabulary: int) -> Shares:
    """The rules of relations; arguments as in `scores`, with `heads.Candidates`.

    Of candidates that score the same each is right in its share of the cases.
    """
    names = np.asarray(head.relations)
    # All names end with [SEP], as sentences do.
    unmarked = Rows(names, np.zeros(names.shape, np.uint8), None)
    of_names = words(unmarked, vocabulary)
    of_names *= of_names.mean(axis=0) < 1
    of_names /= np.maximum(of_names.sum(axis=1, keepdims=True), 1)
    labels = np.asarray(rows.answer.gold)
    offered = np.asarray(rows.answer.candidates)
    offered = np.bincount(offered[offered >= 0], minlength=len(names))
    was_right = np.bincount(labels, minlength=len(names)) / (offered + 1)
    rules = ('naive Bayes of words', 'tokens of the name', 'right most often', 'one candidate')
    found: Shares = {rule: [] for rule in rules}
    for test in tests:
        every = (
            scores(rows, labels, test, len(names), vocabulary),
            words(test, vocabulary) @ of_names.T,
            np.broadcast_to(was_right, (len(test), len(names))),
            np.zeros((len(test), len(names))),
        )
        for shares, each in zip(found.values(), every, strict=True):
            shares.append(_among(each, np.asarray(test.answer.candidates), test.answer.gold))
    return found


def _among(each: np.ndarray, candidates: np.ndarray, gold: np.ndarray) -> float:
    """Share of rows whose best candidate is the right one.

    Args:
      each: scores of all relations, [rows, relations].
      candidates: int [rows, n], below 0 = none.
      gold: int [rows].
    """
    there = candidates >= 0
    chosen = np.where(there, np.take_along_axis(each, np.maximum(candidates, 0), 1), -np.inf)
    best = there & (chosen == chosen.max(axis=1, keepdims=True))
    right = best & (candidates == np.asarray(gold)[:, None])
    return float((right.sum(axis=1) / best.sum(axis=1)).mean())


def of_spans(rows: Rows, tests: tuple[Rows, ...], head: Any, vocabulary: int) -> Shares:
    """The rules of `span_floors`."""
    del head, vocabulary
    return span_floors.shares(rows, tests)


RULES = {'classification': of_classes, 'relations': of_candidates, 'qa': of_spans}


def _main(experiment: Experiment) -> None:
    settings.require(experiment.config)
    built = Built(experiment.config, experiment.workdir, experiment.mesh)
    stream, rule = built.stream, RULES[experiment.config.data.source]
    found = rule(stream.rows, stream.tests, built.asked.head, built.tokenizer.vocab_size)
    lines = [
        [name, *(f'{100 * share:.1f}' for share in (*shares, np.mean(shares)))]
        for name, shares in found.items()
    ]
    print(markdown.table(['rule', *stream.names, 'mean'], lines))


if __name__ == '__main__':
    entry.command(_main)
