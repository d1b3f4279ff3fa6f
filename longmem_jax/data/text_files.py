"""Folders and files of text: plain, JSON lines, tables, gzip and xz.

A folder contains `train/ validation/ test/` (as PG-19 does), one file for each split, or files whose
names have the split as a word, such as `wiki.train.tokens` and `train-00000-of-00003.parquet`. The files
of one that has none of these are divided by their names. A single file is cut by position. Validation
may be called valid, val or dev.
"""

import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from longmem_jax.data.documents import FRACTIONS, SPLITS, Document, require_fractions, split_seeded
from longmem_jax.data.line_borders import line_borders
from longmem_jax.data.stored_files import MARK, PACKED, StoredFiles, read_whole
from longmem_jax.errors import UsageError, nearest, number_of, require_extra
from longmem_jax.files import looked_for

NAMES = {
    'train': ('train', 'training'),
    'validation': ('validation', 'valid', 'val', 'dev'),
    'test': ('test',),
}
SCRIPTS = ('.py', '.md', '')  # what also stands beside data
LISTS = ('.csv', '.tsv')  # that list the texts beside them
TABLES = ('.parquet', *LISTS)
SUFFIXES = ('.txt', '.jsonl', '.tokens', '.tex', '.py', '.md', '.raw', *TABLES, '')
HEADING = re.compile(rb' = (?!=).*[^= ] = *\r?')  # of level 1
WAYS = (
    'Provide the data in one of these ways:\n'
    '  --config.data.path=FOLDER with train/ validation/ test/ of .txt, .md, .jsonl, .csv, .parquet, '
    '.gz or .xz files, or with train.txt validation.txt test.txt, or with three or more texts of other '
    'names, or one FILE;\n'
    "  --config.data.source=tfds --config.data.name=pg19 (first: pip install 'longmem_jax[tfds]');\n"
    "  --config.data.source=huggingface --config.data.name=NAME (pip install 'longmem_jax[hf]')."
)


def kind_of(path: Path) -> str:
    """The suffix before .gz or .xz."""
    return Path(path.stem).suffix if path.suffix in PACKED else path.suffix


def find_files(path: Path, split: str, fractions: Sequence[float] = FRACTIONS) -> list[Path]:
    """The files of a split in a folder.

    `fractions`: shares of the splits, for files without any.

    Raises:
      UsageError: no such split, or nothing in it.
    """
    files = _of_split(path, split)
    if files is None and not has_splits(path):
        flat = _texts(file for file in path.iterdir() if file.is_file())
        named = {file.name: file for file in flat if not file.name.startswith('.')}
        if (count := sum(kind_of(Path(name)) in SUFFIXES for name in named)) >= 3:
            return [named[name] for name in split_seeded(list(named), split, fractions)]
        if count and not any(file.is_dir() for file in path.iterdir()):
            raise UsageError(
                f'config.data.path = {path}: {number_of(count, "text")}, and every split needs one of '
                f'its own: give a folder of three or more texts, or one FILE.\n{WAYS}'
            )
    if files is not None:
        return files
    expected = f'{"/, ".join(NAMES[split])}/ or {split}.txt, .jsonl, .parquet, .csv, .gz, .xz'
    present = ', '.join(sorted(entry.name for entry in path.iterdir())[:8]) or 'nothing'
    files = [entry for entry in path.iterdir() if entry.is_file()]
    unread = ''
    if files and not any(kind_of(file) in SUFFIXES for file in files):
        unread = f' None of these files is read as a text; {", ".join(filter(None, SUFFIXES))} are.'
    others = {other: files for other in SPLITS if (files := _of_split(path, other))}
    taken = ''.join(
        f' {files[0].relative_to(path).parts[0]} is taken for the {other} split; rename it if it is not.'
        for other, files in others.items()
    )
    raise UsageError(
        f'config.data.path = {path}: no {split} split; expected {expected}; it contains {present}.'
        f'{unread}{taken}\n{WAYS}'
    )


def has_splits(path: Path) -> bool:
    """Whether a folder has a folder or file with the name of any split."""
    return any(_of_split(path, split) for split in SPLITS)


def files_below(folder: Path) -> list[Path]:
    """All files of a folder and of the folders in it, in order; hidden ones are left out.

    Raises:
      OSError: a folder cannot be listed, in which `Path.rglob` would see no files.
    """

    def fail(error: OSError) -> None:
        raise error

    found, entered = [], {os.path.realpath(folder)}
    for parent, folders, names in os.walk(folder, onerror=fail, followlinks=True):
        # A link may lead to a folder above it, or to one that has been read.
        real = {name: os.path.realpath(Path(parent, name)) for name in sorted(folders)}
        folders[:] = [name for name, path in real.items() if name[0] != '.' and path not in entered]
        entered.update(real[name] for name in folders)
        paths = [Path(parent, name) for name in names if name[0] != '.']
        if gone := [path for path in paths if path.is_symlink() and not path.exists()]:
            raise UsageError(f'{gone[0]}: is a link to nothing; remove it, or put its file back.')
        found += [path for path in paths if path.is_file()]
    return sorted(found)


def _texts(files: Iterable[Path]) -> list[Path]:
    """The files that are texts: beside others a table lists them, as in PG-19."""
    files = list(files)
    return [file for file in files if kind_of(file) not in LISTS] or files


def _of_split(path: Path, split: str) -> list[Path] | None:
    """The files of a folder or file with the name of a split; None = there is none."""
    for name in NAMES[split]:
        folder = path / name
        if folder.is_dir():
            files = files_below(folder)
            if not files:
                raise UsageError(f'{folder}: has no files; put the texts of the split there.')
            return _texts(files)
        found = [
            file
            for suffix in SUFFIXES
            for packed in ('', *PACKED)
            if (file := path / f'{name}{suffix}{packed}').is_file()
        ]
        if len([file for file in found if kind_of(file) not in SCRIPTS]) > 1:
            raise UsageError(
                f'{path}: {" and ".join(file.name for file in found[:3])} are both the {split} split; '
                'take one away, or put all into a folder of this name.'
            )
        if found:
            return found[:1]
    return _by_word(path).get(split) or None


def _by_word(path: Path) -> dict[str, list[Path]]:
    """The texts of a folder by the split that is a word of their names; {} if they have none.

    Names of one split alone, such as `test_units.py` among others, say nothing.
    """
    found: dict[str, list[Path]] = {split: [] for split in SPLITS}
    others: list[Path] = []
    files = [file for file in path.iterdir() if file.is_file() and file.name[0] != '.']
    for file in sorted(_texts(file for file in files if kind_of(file) in SUFFIXES)):
        words = {*re.split('[^a-z]+', file.name.lower())}
        splits = [split for split in SPLITS if words.intersection(NAMES[split])]
        (found[splits[0]] if len(splits) == 1 else others).append(file)
    if not found['train'] or not (found['validation'] or found['test']):
        return {}
    if others:
        raise UsageError(
            f'{path}: {found["train"][0].name} and others are named by their split, and '
            f'{others[0].name} is not. Take it away, or put the texts of every split into a folder.'
        )
    return found


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
      documents: 'file', 'line' or 'wiki' (an article per level-1 heading); JSON lines and tables are
        a document per line or row in any case.
      fractions: where a single file is cut, or the files of a folder without splits are divided.
      field: of JSON lines, or column of tables, that has the text.
    """

    def __init__(
        self,
        path: str,
        split: str,
        documents: str,
        fractions: tuple[float, ...],
        field: str = 'text',
    ):
        """Finds the documents; reads files only where they hold more than one.

        Raises:
          UsageError: no data, an unknown layout, or a file that cannot be read.
        """
        if not path:
            raise UsageError(f'config.data.path is empty: set it to your data. {WAYS}')
        root = Path(path).expanduser()
        if not root.exists():
            raise UsageError(f'config.data.path = {path} does not exist{looked_for(path)}. {WAYS}')
        if not (root.is_file() or root.is_dir()):
            raise UsageError(f'config.data.path = {path} is neither a file nor a folder. {WAYS}')
        if documents not in ('file', 'line', 'wiki'):
            raise UsageError(
                f'config.data.documents = {documents!r}: allowed are file, folder, line and wiki.'
            )
        self._files, self._field = StoredFiles(), field
        self._tables: dict[Path, Any] = {}
        # (start, end) of the documents of every file; None = the file is one document.
        self._parts: list[tuple[Path, np.ndarray | None]] = []
        for file in [root] if root.is_file() else find_files(root, split, fractions):
            if kind_of(file) in TABLES:
                with require_extra('data', str(file)):
                    from longmem_jax.data.tables import Table  # pyarrow takes long to import

                self._tables[file] = Table(file, field)
                rows = np.arange(len(self._tables[file]))
                self._parts.append((file, np.stack([rows, rows + 1], axis=1)))
                continue
            if kind_of(file) == '.jsonl' or documents == 'line':
                borders = line_borders(self._files, file)
            elif documents == 'wiki':
                ranges = itertools.chain.from_iterable(_articles(self._files, file))
                borders = np.fromiter(ranges, np.int64).reshape(-1, 2)
            else:
                borders = None
            self._parts.append((file, borders))
            # A wrong field is known at once.
            if borders is not None and len(borders) and kind_of(file) == '.jsonl':
                self._field_of(file, *borders[0].tolist())
        if root.is_file():
            self._cut(root, split, fractions)
        counts = [1 if borders is None else len(borders) for _, borders in self._parts]
        self._ends = np.cumsum(counts)  # documents up to the end of every file
        if not sum(counts):
            raise UsageError(f'config.data.path = {path}: the {split} split is empty.')

    def _cut(self, root: Path, split: str, fractions: tuple[float, ...]) -> None:
        """Keeps only the part of a single file that belongs to the split."""
        require_fractions(fractions)
        index = SPLITS.index(split)
        borders = self._parts[0][1]
        size = self._files.size(root) if borders is None else len(borders)
        # Rounded: 0.7 + 0.2 is a little less than 0.9, so the last byte would be in no split.
        low, high = (round(size * sum(fractions[:end])) for end in (index, index + 1))
        if borders is None:
            low, high = (self._whole(root, at) for at in (low, high))
            borders = np.asarray([(low, high)][: high - low], np.int64).reshape(-1, 2)
        else:
            borders = borders[low:high]
        self._parts = [(root, borders)]

    def _whole(self, path: Path, at: int) -> int:
        """The first position from `at` on that is not inside of a character of UTF-8."""
        before = self._files.read(path, max(at - 3, 0), at)
        for back, byte in enumerate(reversed(before), 1):
            if byte & 0xC0 != 0x80:  # where a character begins: its first bits say how long it is
                length = 1 + (byte >= 0xC0) + (byte >= 0xE0) + (byte >= 0xF0)
                return min(at + max(length - back, 0), self._files.size(path))
        return at

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> Document:
        file = int(np.searchsorted(self._ends, index, side='right'))
        path, borders = self._parts[file]
        if borders is None:
            return Document(str(path), read_whole(path))
        start, end = borders[index - int(self._ends[file])].tolist()  # counted from the end
        name = f'{path}[{start}:{end}]'
        if path in self._tables:
            return Document(name, self._tables[path][start])
        if kind_of(path) == '.jsonl':
            return Document(name, self._field_of(path, start, end))
        text = self._files.read(path, start, end)
        return Document(name, text if start else text.removeprefix(MARK))

    def _field_of(self, path: Path, start: int, end: int) -> bytes:
        """The text of a line of JSON; raises `UsageError` if it has none."""
        try:
            line = json.loads(self._files.read(path, start, end))
            problem = '' if isinstance(line, dict) else 'not a JSON object'
        except (ValueError, RecursionError) as error:
            line, problem = {}, f'not a JSON object ({error})'
        text = line.get(self._field) if not problem else None
        if isinstance(text, str):
            return text.encode('utf-8', 'replace')
        if not problem:
            names = ', '.join(line) or 'none'
            found = f'{nearest(self._field, line)}it has {names}'
            if self._field in line:
                found = f'it is {json.dumps(text)[:40]}'
            problem = f'no text in a field {self._field!r} (config.data.text_field); {found}'
        number = 1 + sum(begin < start for begin, _ in self._files.lines(path))
        raise UsageError(f'{path}, line {number}: {problem}.')
