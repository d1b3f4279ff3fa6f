"""The source code of Python's standard library: long real documents that every installation has."""

import sysconfig
from pathlib import Path

from longmem_jax.data.documents import Document, split_seeded
from longmem_jax.errors import UsageError

SKIPPED = {'test', 'tests', 'idle_test', '__pycache__', 'site-packages', 'dist-packages'}
MIN_BYTES = 2000


def _files(entry: Path) -> list[Path]:
    """The Python files of a top-level module or package, in order."""
    if entry.is_file():
        return [entry]
    return sorted(
        path
        for path in entry.rglob('*.py')
        if not SKIPPED & set(path.relative_to(entry).parts[:-1])
    )


class StandardLibrary:
    """One document per top-level package or module, split by document."""

    def __init__(self, split: str):
        """Lists the library of the running Python.

        Raises:
          UsageError: this Python has no source of its library.
        """
        self._root = Path(sysconfig.get_path('stdlib'))
        entries = {}
        for entry in sorted(self._root.iterdir()) if self._root.is_dir() else ():
            if entry.name in SKIPPED or entry.name.startswith(('.', '_sysconfigdata')):
                continue
            files = _files(entry) if entry.is_dir() or entry.suffix == '.py' else []
            if sum(path.stat().st_size for path in files) >= MIN_BYTES:
                entries[entry.name] = files
        if len(entries) < 20:
            raise UsageError(
                f'{self._root}: the source of the standard library is missing ({len(entries)} modules); '
                'use another Python, or --config.data.source=text --config.data.path=FOLDER.'
            )
        self._entries = entries
        self._names = split_seeded(sorted(entries), split)

    def files(self) -> list[tuple[str, Path]]:
        """Name and path of every file, in order."""
        return [
            (path.relative_to(self._root).as_posix(), path)
            for name in self._names
            for path in self._entries[name]
        ]

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, index: int) -> Document:
        name = self._names[index]
        parts = []
        for path in self._entries[name]:
            parts.append(f'# {path.relative_to(self._root).as_posix()}\n'.encode())
            parts.append(path.read_bytes())
        return Document(name, b''.join(parts))
