"""Folders and files of text: plain, JSON lines, gzip and xz.

A folder contains `train/ validation/ test/` (as PG-19 does) or one file for each split. A single file
is cut by position. Validation may be called valid, val or dev.
"""

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from longmem_jax.data.documents import SPLITS, Document
from longmem_jax.data.stored_files import PACKED, StoredFiles, read_whole
from longmem_jax.errors import UsageError

NAMES = {
    'train': ('train', 'training'),
    'validation': ('validation', 'valid', 'val', 'dev'),
    'test': ('test',),
}
SUFFIXES = ('.txt', '.jsonl', '.tokens', '.tex', '.py', '.md', '.raw', '')
HEADING = re.compile(rb' = (?!=).*[^= ] = *\r?')  # of level 1
WAYS = (
    'Provide the data in one of these ways:\n'
    '  --config.data.path=FOLDER with train/ validation/ test/ of .txt, .jsonl, .gz or .xz files '
    '(the layout of PG-19 itself), or with train.txt validation.txt test.txt, or one FILE;\n'
    "  --config.data.source=tfds --config.data.name=pg19 (first: pip install -e '.[tfds]');\n"
    "  --config.data.source=huggingface --config.data.name=NAME (pip install -e '.[hf]')."
)


def _kind(path: Path) -> str:
    """The suffix before .gz or .xz."""
    return Path(path.stem).suffix if path.suffix in PACKED else path.suffix


def find_files(path: Path, split: str) -> list[Path]:
    """The files of a split in a folder.

    Raises:
      UsageError: no such split, or nothing in it.
    """
    for name in NAMES[split]:
        folder = path / name
        if folder.is_dir():
            files = sorted(
                file
                for file in folder.rglob('*')
                if file.is_file()
                and not any(name.startswith('.') for name in file.relative_to(folder).parts)
                and _kind(file) != '.csv'
            )
            if not files:
                raise UsageError(f'{folder}: has no files; put the texts of the split there.')
            return files
        for suffix in SUFFIXES:
            for packed in ('', *PACKED):
                file = path / f'{name}{suffix}{packed}'
                if file.is_file():
                    return [file]
    expected = f'{"/, ".join(NAMES[split])}/ or {split}.txt, .jsonl, .gz, .xz'
    present = ', '.join(sorted(entry.name for entry in path.iterdir())[:8]) or 'nothing'
    raise UsageError(
        f'config.data.path = {path}: no {split} split; expected {expected}; it contains {present}.\n'
        f'{WAYS}'
    )


def _lines(files: StoredFiles, path: Path) -> Iterator[tuple[int, int]]:
    """(start, end) of the lines that are not blank, line ends included."""
    size = files.size(path)
    for start, line in files.lines(path):
        if line.strip():
            yield start, min(start + len(line) + 1, size)


def _articles(files: StoredFiles, path: Path) -> Iterator[tuple[int, int]]:
    """(start, end) of the articles; text before the first heading is one, if it is not blank."""
    begin, blank = 0, True
    for start, line in files.lines(path):
        if HEADING.fullmatch(line) and not blank:
            yield begin, start
            begin = start
        blank = blank and not line.strip()
    if not blank:
        yield begin, files.size(path)


class TextFiles:
    """Documents of the files of a split.

    Attributes:
      path: `config.data.path`.
      split: 'train', 'validation' or 'test'.
      documents: 'file', 'line' or 'wiki' (an article per level-1 heading); JSON lines are a
        document per line in any case, from the field `text`.
      fractions: where a single file is cut.
    """

    def __init__(self, path: str, split: str, documents: str, fractions: tuple[float, ...]):
        """Finds the documents; reads files only where they hold more than one.

        Raises:
          UsageError: no data, an unknown layout, or a file that cannot be read.
        """
        if not path:
            raise UsageError(f'config.data.path is empty: set it to your data. {WAYS}')
        root = Path(path).expanduser()
        if not root.exists():
            raise UsageError(f'config.data.path = {path} does not exist. {WAYS}')
        if documents not in ('file', 'line', 'wiki'):
            raise UsageError(
                f'config.data.documents = {documents!r}: allowed are file, folder, line and wiki.'
            )
        self._files = StoredFiles()
        # (start, end) of the documents of every file; None = the file is one document.
        self._parts: list[tuple[Path, np.ndarray | None]] = []
        for file in [root] if root.is_file() else find_files(root, split):
            if _kind(file) == '.jsonl' or documents == 'line':
                ranges = _lines(self._files, file)
            elif documents == 'wiki':
                ranges = _articles(self._files, file)
            else:
                self._parts.append((file, None))
                continue
            borders = np.fromiter(itertools.chain.from_iterable(ranges), np.int64).reshape(-1, 2)
            self._parts.append((file, borders))
        if root.is_file():
            self._cut(root, split, fractions)
        counts = [1 if borders is None else len(borders) for _, borders in self._parts]
        self._ends = np.cumsum(counts)  # documents up to the end of every file
        if not sum(counts):
            raise UsageError(f'config.data.path = {path}: the {split} split is empty.')

    def _cut(self, root: Path, split: str, fractions: tuple[float, ...]) -> None:
        """Keeps only the part of a single file that belongs to the split."""
        if len(fractions) != 3 or min(fractions) <= 0 or sum(fractions) > 1 + 1e-6:
            raise UsageError(
                f'config.data.fractions = {tuple(fractions)}: must be three positive numbers, the '
                'training, validation and test parts, with a sum of at most 1.'
            )
        index = SPLITS.index(split)
        borders = self._parts[0][1]
        size = self._files.size(root) if borders is None else len(borders)
        # Rounded: 0.7 + 0.2 is a little less than 0.9, so the last byte would be in no split.
        low, high = (round(size * sum(fractions[:end])) for end in (index, index + 1))
        if borders is None:
            borders = np.asarray([(low, high)][: high - low], np.int64).reshape(-1, 2)
        else:
            borders = borders[low:high]
        self._parts = [(root, borders)]

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> Document:
        file = int(np.searchsorted(self._ends, index, side='right'))
        path, borders = self._parts[file]
        if borders is None:
            return Document(str(path), read_whole(path))
        start, end = borders[index - int(self._ends[file])].tolist()  # counted from the end
        text = self._files.read(path, start, end)
        if _kind(path) == '.jsonl':
            try:
                text = json.loads(text)['text'].encode('utf-8', 'replace')
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                line = 1 + sum(begin < start for begin, _ in self._files.lines(path))
                raise UsageError(
                    f'{path}, line {line}: not a JSON object with a field "text" ({error}).'
                ) from error
        return Document(f'{path}[{start}:{end}]', text)
