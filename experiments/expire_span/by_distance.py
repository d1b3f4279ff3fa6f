r"""Exact match by how long ago the answer was shown, as a Markdown table.

python -m experiments.expire_span.by_distance --config=configs/TASK.py:VARIANTS --workdir=DIR --seeds=3 \
    --bounds=0,64,128,256

Reads the newest checkpoints of `experiments.trainings` in DIR/0, DIR/1, ... and scores the answers of
the test split whose distance in tokens lies between two bounds (the last range has no end): mean
(minimum - maximum) over seeds, and the number of answers of the first seed. For instruction, the
distance is from
Y in 'tell the X that the Y wants to see them' to Y in its execution; for collision with the easy
question 'last', from the frame of the last collision to the question; for copy, from the last A.
"""

import dataclasses
import statistics
from typing import Any

import numpy as np
from absl import flags

from experiments import markdown
from experiments.options import define_seeds
from experiments.trainings import seeded
from longmem_jax.commands import entry
from longmem_jax.data.corpus import Corpus, TokenizedDocument
from longmem_jax.data.tasks import instruction
from longmem_jax.evaluation.evaluator import Evaluator
from longmem_jax.experiment import Experiment

if __name__ == '__main__':
    _SEEDS = define_seeds()
    _BOUNDS = flags.DEFINE_list(
        'bounds', ['0', '64', '128', '256'], 'Bounds of the ranges, tokens.'
    )


def copied(document: TokenizedDocument) -> np.ndarray:
    """Distance from the last A to the question, int64 [1]."""
    return np.asarray([np.count_nonzero(document.tokens == 2) + 1])


def executed(document: TokenizedDocument) -> np.ndarray:
    """Distance from every sender in an execution back to the instruction, int64 [executions]."""
    tokens, told, between = document.tokens, _told(), instruction.SENDER - instruction.TARGET
    starts = np.arange(len(tokens) - len(told))
    for offset, word in enumerate(told):
        starts = starts[tokens[starts + offset] == word]
    distances = []
    for end in np.flatnonzero(document.scored == 2):
        sender = end + 1 - instruction.EXECUTION + instruction.SENDER
        given = starts[(starts < sender) & (tokens[starts + 4] == tokens[sender - between])]
        distances.append(sender - (given[-1] + 7))
    return np.asarray(distances, np.int64)


def _told() -> np.ndarray:
    """The words before X, 'that the', Y."""
    return np.asarray(instruction.vocabulary({}).ids('can you tell the'))


def collided(document: TokenizedDocument) -> np.ndarray:
    """Distance from every question back to the last collision, int64 [questions]."""
    frames = document.inputs.reshape(-1, 5)
    met = (frames[:, :2] == frames[:, 2:4]).all(axis=1)
    index = np.arange(len(frames))
    since = index - np.maximum.accumulate(np.where(met, index, -1))
    return 5 * since[document.scored.reshape(-1, 5)[:, -1] == 2]


DISTANCES = {'copy': copied, 'instruction': executed, 'collision': collided}


class Between:
    """A corpus of which only answers are scored that were shown `least` to `most` tokens ago."""

    def __init__(self, corpus: Corpus, source: str, least: int, most: float):
        """Reads nothing yet."""
        self._corpus, self._distances = corpus, DISTANCES[source]
        self._least, self._most = least, most
        self.tokenizer = corpus.tokenizer

    def __len__(self) -> int:
        return len(self._corpus)

    def __getitem__(self, index: int) -> TokenizedDocument:
        document = self._corpus[index]
        distances = self._distances(document)
        inside = (distances >= self._least) & (distances < self._most)
        # Tokens belong to the answer that ends next.
        ends = document.scored == 2
        answer = np.minimum(np.cumsum(ends) - ends, len(inside) - 1)
        return dataclasses.replace(document, scored=np.where(inside[answer], document.scored, 0))

    def lengths(self) -> np.ndarray:
        """Tokens of every document, int64 [documents]."""
        return self._corpus.lengths()


def scores(
    experiment: Experiment, evaluator: Evaluator, bounds: list[int]
) -> list[tuple[float, int]]:
    """Exact match in % and number of answers, for every range of distances."""
    params, _ = experiment.restore_parameters()
    corpus, source, found = experiment.corpus('test'), experiment.config.data.source, []
    for least, most in zip(bounds, [*bounds[1:], np.inf], strict=True):
        between = Between(corpus, source, least, most)
        result, _ = evaluator.evaluate(params, between, 'test')
        found.append((100 * result.exact_match, result.answers))
    return found


def table(bounds: list[int], seeds: list[list[tuple[float, int]]]) -> str:
    """A Markdown table of `scores` of several seeds."""
    ends = [f'- {most - 1}' for most in bounds[1:]] + ['and more']
    heads = ['distance', *(f'{least} {end}' for least, end in zip(bounds, ends, strict=True))]
    columns = [[score for score, _ in found] for found in zip(*seeds, strict=True)]
    cells = [f'{statistics.mean(c):.1f} ({min(c):.1f} - {max(c):.1f})' for c in columns]
    rows = [['exact match, %', *cells], ['answers', *(f'{n:,}' for _, n in seeds[0])]]
    return markdown.table(heads, rows)


def _main(experiment: Experiment) -> None:
    bounds = [int(bound) for bound in _BOUNDS.value]
    evaluator: Any = Evaluator(experiment.evaluation_model, experiment.mesh, experiment.config)
    found = [scores(seeded(experiment, seed), evaluator, bounds) for seed in _SEEDS.value]
    print(table(bounds, found))


if __name__ == '__main__':
    entry.command(_main)
