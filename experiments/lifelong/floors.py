"""What counting words scores on a stream of classification sets: floors without a network.

python -m experiments.lifelong.floors --workdir=DIR --config.data.path=FOLDER \
    --config=configs/lifelong_classification.py:tiny,method=sequential,path=BERT

Counts are added up row by row, so nothing is forgotten and the order does not matter. Printed, with the
right answers in % by task and their mean: naive Bayes of the tokens of a text (multinomial, one added to
every count, tokens that a text has several times counted once), the commonest class of the stream, and
one class of all at random.
"""

import numpy as np

from experiments import markdown
from longmem_jax.commands import entry
from longmem_jax.experiment import Experiment
from longmem_jax.lifelong import settings
from longmem_jax.lifelong.build import Built
from longmem_jax.lifelong.rows import Rows
from longmem_jax.segment import NOTHING


def words(rows: Rows, vocabulary: int) -> np.ndarray:
    """Which tokens every text has, float32 [rows, vocabulary]."""
    tokens = np.asarray(rows.tokens)
    found = np.zeros((len(tokens), vocabulary), np.float32)
    row, place = np.nonzero(tokens != np.array(NOTHING).astype(tokens.dtype))
    found[row, tokens[row, place]] = 1
    return found


def bayes(
    rows: Rows, tests: tuple[Rows, ...], classes: int, vocabulary: int, at_once: int = 1000
) -> list[float]:
    """Share of right answers of naive Bayes on each test set.

    Args:
      rows: of the stream.
      tests: of its tasks.
      classes: of all tasks.
      vocabulary: different tokens.
      at_once: rows that are counted at a time.
    """
    labels, counts = np.asarray(rows.answer), np.zeros((classes, vocabulary))
    for first in range(0, len(labels), at_once):
        part = Rows(*(leaf[first : first + at_once] for leaf in (rows.tokens, rows.types, labels)))
        one_hot = np.eye(classes)[part.answer]
        counts += one_hot.T @ words(part, vocabulary)
    seen = np.bincount(labels, minlength=classes)
    of_word = np.log(counts + 1) - np.log(counts.sum(axis=1, keepdims=True) + vocabulary)
    of_class = np.log(seen + 1) - np.log(seen.sum() + classes)
    return [
        float(((words(each, vocabulary) @ of_word.T + of_class).argmax(1) == each.answer).mean())
        for each in tests
    ]


def _main(experiment: Experiment) -> None:
    settings.require(experiment.config)
    built = Built(experiment.config, experiment.workdir, experiment.mesh)
    stream, classes = built.stream, built.asked.head.count
    labels = np.asarray(stream.rows.answer)
    commonest = np.bincount(labels, minlength=classes).argmax()
    found = {
        'naive Bayes of words': bayes(
            stream.rows, stream.tests, classes, built.tokenizer.vocab_size
        ),
        'the commonest class': [float((t.answer == commonest).mean()) for t in stream.tests],
        'one class of all': [1 / classes] * len(stream.tests),
    }
    lines = [
        [name, *(f'{100 * share:.1f}' for share in (*shares, np.mean(shares)))]
        for name, shares in found.items()
    ]
    print(markdown.table(['rule', *stream.names, 'mean'], lines))


if __name__ == '__main__':
    entry.command(_main)
