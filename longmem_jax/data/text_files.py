"""Folders and files of text: plain, JSON lines, gzip and xz.

A folder holds `train/ validation/ test/` (as PG-19 does), or one file for each of them. A single file
is cut by position. Validation may be called valid, val or dev.
"""

import functools
import gzip
import json
import lzma
import re
import zlib
from pathlib import Path

from longmem_jax.data.documents import Document
from longmem_jax.errors import UsageError

NAMES = {
    'train': ('train', 'training'),
    'validation': ('validation', 'valid', 'val', 'dev'),
    'test': ('test',),
}
SUFFIXES = ('.txt', '.jsonl', '.tokens', '.tex', '.py', '.md', '.raw', '')
PACKED = {'.gz': gzip.decompress, '.xz': lzma.decompress}
HEADING = re.compile(rb'^ = [^=].*[^=] = *\r?$', re.MULTILINE)
WAYS = (
    'Give the data in one of these ways:\n'
    '  --config.data.path=FOLDER with train/ validation/ test/ of .txt, .jsonl, .gz or .xz files '
    '(the layout of PG-19 itself), or with train.txt validation.txt test.txt, or one FILE;\n'
    "  --config.data.source=tfds --config.data.name=pg19 (preparing it: pip install -e '.[tfds]');\n"
    "  --config.data.source=huggingface --config.data.name=NAME (pip install -e '.[hf]')."
)


@functools.lru_cache(maxsize=4)
def read(path: Path) -> bytes:
    """The unpacked bytes of a file.

    Raises:
      UsageError: it cannot be read or unpacked.
    """
    try:
        content = path.read_bytes()
        return PACKED[path.suffix](content) if path.suffix in PACKED else content
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise UsageError(f'{path}: cannot be read ({error}).') from error


def _kind(path: Path) -> str:
    """The suffix below .gz or .xz."""
    return Path(path.stem).suffix if path.suffix in PACKED else path.suffix


def find_files(path: Path, split: str) -> list[Path]:
    """The files of a split in a folder.

    Raises:
      UsageError: no such split, or nothing in it.
    """
    for name in NAMES[split]:
        folder = path / name
        if folder.is_dir():
            found = sorted(
                file
                for file in folder.rglob('*')
                if file.is_file() and not file.name.startswith('.') and _kind(file) != '.csv'
            )
            if not found:
                raise UsageError(f'{folder}: no files there.')
            return found
        for suffix in SUFFIXES:
            for packed in ('', *PACKED):
                file = path / f'{name}{suffix}{packed}'
                if file.is_file():
                    return [file]
    wanted = f'{"/, ".join(NAMES[split])}/ or {split}.txt, .jsonl, .gz, .xz'
    present = ', '.join(sorted(entry.name for entry in path.iterdir())[:8]) or 'nothing'
    raise UsageError(
        f'config.data.path = {path}: no {split} split; wanted {wanted}; there is {present}.\n{WAYS}'
    )


def _lines(path: Path) -> list[tuple[int, int]]:
    content, borders, start = read(path), [], 0
    while start < len(content):
        end = content.find(b'\n', start)
        end = len(content) if end < 0 else end + 1
        if content[start:end].strip():
            borders.append((start, end))
        start = end
    return borders


def _articles(path: Path) -> list[tuple[int, int]]:
    content = read(path)
    heads = [match.start() for match in HEADING.finditer(content)]
    borders = sorted({0, *heads, len(content)})
    return [(a, b) for a, b in zip(borders, borders[1:], strict=False) if content[a:b].strip()]


class TextFiles:
    """Documents of the files of a split.

    Attributes:
      path: `config.data.path`.
      split: 'train', 'validation' or 'test'.
      documents: 'file', 'line' or 'wiki' (an article per level-1 heading); JSON lines are a document
        per line whatever it says, from the field `text`.
      fractions: where a single file is cut.
    """

    def __init__(self, path: str, split: str, documents: str, fractions: tuple[float, ...]):
        """Finds the documents; reads files only where they hold more than one.

        Raises:
          UsageError: no data, an unknown layout, or a file that cannot be read.
        """
        if not path:
            raise UsageError(f"config.data.path = '': where is the data? {WAYS}")
        root = Path(path).expanduser()
        if not root.exists():
            raise UsageError(f'config.data.path = {path}: not there. {WAYS}')
        if documents not in ('file', 'line', 'wiki'):
            raise UsageError(
                f'config.data.documents = {documents!r}: allowed are file, line and wiki.'
            )
        # (file, start, end), borders None = the whole file.
        self._parts: list[tuple[Path, int | None, int | None]] = []
        for file in [root] if root.is_file() else find_files(root, split):
            if _kind(file) == '.jsonl':
                self._parts += [(file, *border) for border in _lines(file)]
            elif documents == 'file':
                self._parts.append((file, None, None))
            else:
                find = _lines if documents == 'line' else _articles
                self._parts += [(file, *border) for border in find(file)]
        if root.is_file():
            self._cut(root, split, fractions)
        if not self._parts:
            raise UsageError(f'config.data.path = {path}: the {split} split is empty.')

    def _cut(self, root, split, fractions):
        """Keeps the part of one file that belongs to the split."""
        if len(fractions) != 3 or min(fractions) <= 0 or sum(fractions) > 1 + 1e-6:
            raise UsageError(
                f'config.data.fractions = {tuple(fractions)}: three positive numbers, the training, '
                'validation and test part, with a sum of at most 1.'
            )
        number = ('train', 'validation', 'test').index(split)
        low, high = sum(fractions[:number]), sum(fractions[: number + 1])
        if self._parts == [(root, None, None)]:
            size = len(read(root))
            self._parts = [(root, int(size * low), int(size * high))]
            if self._parts[0][1] == self._parts[0][2]:
                self._parts = []
        else:
            size = len(self._parts)
            self._parts = self._parts[int(size * low) : int(size * high)]

    def __len__(self) -> int:
        return len(self._parts)

    def __getitem__(self, index: int) -> Document:
        path, start, end = self._parts[index]
        content = read(path)
        if start is None:
            return Document(str(path), content)
        text = content[start:end]
        if _kind(path) == '.jsonl':
            line = content.count(b'\n', 0, start) + 1
            try:
                text = json.loads(text)['text'].encode()
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise UsageError(
                    f'{path}, line {line}: not a JSON object with a field "text" ({error}).'
                ) from error
        return Document(f'{path}[{start}:{end}]', text)
