"""Examples of a text, or of a few, and a class, as an encoder reads them; see `hosts.classifier`."""

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np

from longmem_jax.data.corpus import TokenizedDocument
from longmem_jax.data.documents import Document
from longmem_jax.data.sources import DataSource
from longmem_jax.data.tokenizers import FromJson, Tokenizer
from longmem_jax.errors import UsageError
from longmem_jax.segment import NOTHING, of_second

BEGIN, BORDER = '[CLS]', '[SEP]'


@dataclasses.dataclass(frozen=True)
class ClassExample:
    """A text with a class.

    Attributes:
      pairs: one pair (first text, second text), or one for every choice; the second may be ''.
      label: its class, or the number of the right choice.
      group: examples of one group are one question; others are a group each.
    """

    pairs: tuple[tuple[str, str], ...]
    label: int
    group: Hashable


class ClassSet(NamedTuple):
    """A data set for classifiers, of which `config.data.source` may be the name.

    Attributes:
      examples: (`config.data`, split) to the examples of a split.
      check: `config.data.task` to its problems; it has `max_length`, tokens of a pair with its marks.
      classes: `config.data.task` to the number of classes.
      by_choice: `config.data.task` to whether an example has a pair for every class.
    """

    examples: Callable[[Any, str], Sequence[ClassExample]]
    check: Callable[[Any], list[str]]
    classes: Callable[[Any], int]
    by_choice: Callable[[Any], bool]


class ClassTexts:
    """The texts of all examples, to learn a vocabulary from; a `data.documents.Source`."""

    def __init__(self, examples: Sequence[ClassExample]):
        """`examples`: of the training split."""
        self._examples = examples

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, index: int) -> Document:
        lines = [text for pair in self._examples[index].pairs for text in pair if text]
        return Document(f'example {index}', '\n'.join(lines).encode())


def cut(first: np.ndarray, second: np.ndarray, room: int) -> tuple[np.ndarray, np.ndarray]:
    """Cuts the ends of two texts so that both together have at most `room` tokens.

    Tokens are taken from the longer one, one after another; from the second if both are as long.
    """
    kept = min(len(first), max(room - len(second), (room + 1) // 2))
    return first[:kept], second[: room - kept]


def marks_of(tokenizer: Tokenizer) -> tuple[int, int]:
    """The ids of `BEGIN` and `BORDER`; raises `UsageError` if a tokenizer lacks one."""
    begin = border = None
    if isinstance(tokenizer, FromJson):
        begin, border = tokenizer.token_id(BEGIN), tokenizer.token_id(BORDER)
    if begin is None or border is None:
        raise UsageError(
            f'config.data.tokenizer: has no {BEGIN} and {BORDER}, which mark the texts of an '
            "encoder; use the folder of a BERT model, or kind = 'wordpiece'."
        )
    return begin, border


class ClassCorpus:
    """Tokenized examples, each one document of `max_length` positions for every pair, or fewer.

    A corpus as `data.corpus.Corpus`. The class is the target of the first position, and is scored as an
    answer; texts that are too long are cut, see `cut`.

    Attributes:
      tokenizer: the tokenizer of all texts.
      examples: the examples, in their order.
    """

    def __init__(self, examples: Sequence[ClassExample], tokenizer: Tokenizer, max_length: int):
        """Tokenizes nothing yet.

        Raises:
          UsageError: a tokenizer without the marks around texts.
        """
        self.tokenizer, self.examples, self._max_length = tokenizer, examples, max_length
        self._begin, self._border = np.asarray(marks_of(tokenizer), np.int32)[:, None]

    def __len__(self) -> int:
        return len(self.examples)

    def _ids(self, text: str) -> np.ndarray:
        """Tokens of a text, int32 [n]; what it spells like a mark is left out."""
        ids = self.tokenizer.encode(text.encode())
        return ids[(ids != self._begin) & (ids != self._border)]

    def pair(self, first: str, second: str) -> np.ndarray:
        """A marked pair, int32 [max_length]: the second text as `of_second`, `NOTHING` after it."""
        ids, others = self._ids(first), self._ids(second)
        ids, others = cut(ids, others, self._max_length - 2 - bool(second))
        parts = [self._begin, ids, self._border]
        if second:
            parts.append(of_second(np.concatenate([others, self._border])))
        tokens = np.concatenate(parts)
        return np.pad(tokens, (0, self._max_length - len(tokens)), constant_values=NOTHING)

    def __getitem__(self, index: int) -> TokenizedDocument:
        example = self.examples[index]
        inputs = np.concatenate([self.pair(*pair) for pair in example.pairs])
        inputs = inputs[: np.flatnonzero(inputs != NOTHING)[-1] + 1].astype(np.int32)
        targets, scored = np.zeros((len(inputs),), np.int32), np.zeros((len(inputs),), np.uint8)
        targets[0], scored[0] = example.label, 2
        return TokenizedDocument(targets, 0, inputs=inputs, scored=scored)

    def lengths(self) -> np.ndarray:
        """Positions of every document, int64 [documents]."""
        return np.asarray([len(self[i].tokens) for i in range(len(self))], np.int64)


def source_of(read: ClassSet, scores: str) -> DataSource:
    """The data set as a source; `scores` as in `DataSource`."""

    def corpus(data: Any, split: str, tokenizer: Tokenizer) -> ClassCorpus:
        return ClassCorpus(read.examples(data, split), tokenizer, data.task.max_length)

    return DataSource(
        lambda data, split: ClassTexts(read.examples(data, split)),
        corpus,
        read.check,
        reads='classes',
        scores=scores,
    )
