"""Pairs of texts, such as sentences and their translations; each is a document of one segment.

Two files per split, aligned by lines (`train.en`, `train.de`, ..., also .gz and .xz), or a TFDS set
whose examples have one text per language, such as the WMT sets.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np

from longmem_jax.data import hubs
from longmem_jax.data.corpus import TokenizedDocument
from longmem_jax.data.documents import Document
from longmem_jax.data.other_files import warning_of
from longmem_jax.data.stored_files import PACKED, read_whole
from longmem_jax.data.text_files import NAMES
from longmem_jax.data.tokenizers import Tokenizer
from longmem_jax.errors import UsageError, number_of
from longmem_jax.segment import NOTHING

BREAK = re.compile('\r?\n')


def lines_of(text: str) -> list[str]:
    """The lines of a text, also empty ones: other breaks, such as a form feed, are part of a line."""
    lines = BREAK.split(text)
    return lines if lines[-1] else lines[:-1]


def file_of(root: Path, split: str, language: str) -> Path:
    """The file of a split in a language; raises `UsageError` if there is none."""
    for name in NAMES[split]:
        for packed in ('', *PACKED):
            path = root / f'{name}.{language}{packed}'
            if path.is_file():
                return path
    present = ', '.join(sorted(entry.name for entry in root.iterdir())[:8]) or 'nothing'
    raise UsageError(
        f'config.data.path = {root}: no {NAMES[split][0]}.{language} (or .gz, .xz); it contains '
        f'{present}.'
    )


class _Examples:
    """Pairs of a TFDS set."""

    def __init__(self, table: Any, name: str, languages: tuple[str, ...]):
        self._table, self._name, self._languages = table, name, languages

    def __len__(self) -> int:
        return len(self._table)

    def __getitem__(self, index: int) -> tuple[str, str]:
        example = self._table[index]
        missing = [language for language in self._languages if language not in example]
        if missing:
            raise UsageError(
                f'config.data.name = {self._name!r}: no text in {missing}; the fields are '
                f'{sorted(example)}; set config.data.pairs.languages.'
            )
        texts = (example[language] for language in self._languages)
        first, second = (t.decode() if isinstance(t, bytes) else str(t) for t in texts)
        return first, second


def load_pairs(data: Any, split: str) -> Any:
    """The pairs of a split: `len(pairs)`, `pairs[i]` = (source, target).

    Raises:
      UsageError: no data, or files whose lines do not pair up.
    """
    languages = tuple(data.pairs.languages)
    if not data.path:
        if not data.name:
            raise UsageError(
                'config.data.path is empty: give --config.data.path=FOLDER with '
                f'train.{languages[0]} and train.{languages[1]}, the same for validation and test, '
                'or --config.data.name=wmt14_translate/de-en for a TFDS set.'
            )
        return _Examples(hubs.tfds_table(data.name, split), data.name, languages)
    root = Path(data.path).expanduser()
    if not root.is_dir():
        raise UsageError(
            f'config.data.path = {data.path}: must be a folder with train.{languages[0]} and so on.'
        )
    files = [file_of(root, split, language) for language in languages]
    source, target = (lines_of(read_whole(file).decode('utf-8', 'replace')) for file in files)
    if len(source) != len(target):
        # A file that is no UTF-8 has breaks in other places.
        odd = ''.join(f' {file} {said}.' for file in files if (said := warning_of(file)))
        raise UsageError(
            f'config.data.path = {data.path}: {split} has {len(source):,} lines of {languages[0]} and '
            f'{len(target):,} of {languages[1]}; line i of one must translate line i of the other.{odd}'
        )
    return list(zip(source, target, strict=True))


class PairTexts:
    """Both sides of every pair as one text, to learn a vocabulary from."""

    def __init__(self, pairs: Any):
        """`pairs`: from `load_pairs`."""
        self._pairs = pairs

    def __len__(self) -> int:
        return len(self._pairs)

    def __getitem__(self, index: int) -> Document:
        source, target = self._pairs[index]
        return Document(f'pair {index}', f'{source}\n{target}\n'.encode())


def source_places(tokens: np.ndarray, places: int) -> np.ndarray:
    """The first `places` tokens, int32 [places], filled up with `NOTHING`."""
    padded = np.full((places,), NOTHING, np.int32)
    padded[: min(len(tokens), places)] = tokens[:places]
    return padded


class PairCorpus:
    """Tokenized pairs, a corpus as `data.corpus.Corpus`; `models.seq2seq` describes the layout.

    Training leaves out pairs with a side that is empty or too long; evaluation cuts what is too long.
    The tokenizer's begin token also ends a target.

    Attributes:
      left_out: number of pairs that training leaves out.
      cut: number of pairs of another split of which evaluation cuts a side.
    """

    def __init__(self, data: Any, split: str, tokenizer: Tokenizer):
        """Tokenizes all pairs once, to find those that are too long.

        Raises:
          UsageError: no pair that fits, or an empty split.
        """
        self.tokenizer, self.pairs = tokenizer, load_pairs(data, split)
        self._max_source, self._max_target = data.pairs.max_source, data.pairs.max_target
        self._indices = np.arange(len(self.pairs))
        self.cut = 0
        if split == 'train':
            fitting = [i for i in range(len(self.pairs)) if self._fits(i)]
            self._indices = np.asarray(fitting, np.int64)
        else:
            self.cut = sum(self._is_cut(i) for i in range(len(self.pairs)))
        self.left_out = len(self.pairs) - len(self._indices)
        if not len(self._indices):
            said = f'{number_of(len(self.pairs), "pair")} of {split}'
            raise UsageError(
                f'config.data: of {said} none has two sides that are not empty, with at most '
                f'{self._max_source} and {self._max_target - 1} tokens; give other files, or raise '
                'config.data.pairs.max_source and max_target.'
            )

    def sides(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Tokens of both sides of pair `index`, int32 [n] each, without begin or end."""
        source, target = self.pairs[index]
        return self.tokenizer.encode(source.encode()), self.tokenizer.encode(target.encode())

    def _fits(self, index: int) -> bool:
        source, target = self.sides(index)
        return 0 < len(source) <= self._max_source and 0 < len(target) < self._max_target

    def _is_cut(self, index: int) -> bool:
        source, target = self.sides(index)
        return len(source) > self._max_source or len(target) >= self._max_target

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, index: int) -> TokenizedDocument:
        index = int(self._indices[index])
        source, whole = self.sides(index)
        target, end = whole[: self._max_target - 1], [self.tokenizer.begin]
        num_bytes: float = len(self.pairs[index][1].encode())
        if len(target) < len(whole):  # else bits per byte, of fewer tokens, would be too low
            num_bytes *= len(target) / len(whole)
        unscored = np.zeros((self._max_source,), np.int32)
        scored = np.concatenate([unscored, np.ones((len(target) + 1,), np.int32)]).astype(np.uint8)
        source = source_places(source, self._max_source)
        return TokenizedDocument(
            tokens=np.concatenate([unscored, target, end]).astype(np.int32),
            num_bytes=num_bytes,
            inputs=np.concatenate([source, end, target]).astype(np.int32),
            scored=scored,
        )

    def lengths(self) -> np.ndarray:
        """Positions of every document, int64 [documents]."""
        return np.asarray([len(self[i].tokens) for i in range(len(self))], np.int64)
