"""One document per folder: the files of a repository or of a paper's source, one after another."""

from collections.abc import Sequence
from pathlib import Path

from longmem_jax.data.documents import FRACTIONS, Document, split_seeded
from longmem_jax.data.stored_files import read_whole
from longmem_jax.data.text_files import NAMES, files_below
from longmem_jax.errors import UsageError
from longmem_jax.files import looked_for


class Folders:
    """The folders of a split: `PATH/train/NAME/...`, or `PATH/NAME/...`, divided by name.

    A file next to the folders is a document of its own.
    """

    def __init__(
        self,
        path: str,
        split: str,
        endings: tuple[str, ...],
        fractions: Sequence[float] = FRACTIONS,
    ):
        """Lists the folders; reads no file.

        `endings` such as ('.py',): only such files; `fractions`: shares of the splits, where they
        are not folders.

        Raises:
          UsageError: no such folder, or no such files.
        """
        root = Path(path).expanduser() if path else None
        if root is None or not root.is_dir():
            raise UsageError(
                f'config.data.path = {path!r}{looked_for(path)}: '
                "config.data.documents='folder' needs a folder with train/ validation/ test/ of "
                'folders, or a folder of folders.'
            )
        split_folders = [root / name for name in NAMES[split] if (root / name).is_dir()]
        self._root = split_folders[0] if split_folders else root
        names = sorted(
            entry.name for entry in self._root.iterdir() if not entry.name.startswith('.')
        )
        names = [name for name in names if self._files(name, endings)]
        if not split_folders:
            if len(names) < 3:
                raise UsageError(
                    f'config.data.path = {path}: {len(names)} folders with files '
                    f'{" ".join(endings) or "of any kind"}; at least 3 are needed to divide them '
                    'into splits, or train/ validation/ test/.'
                )
            names = split_seeded(names, split, fractions)
        if not names:
            raise UsageError(
                f'{self._root}: no files {" ".join(endings) or "of any kind"} (config.data.endings).'
            )
        self._names, self._endings = names, endings

    def _files(self, name: str, endings: tuple[str, ...]) -> list[Path]:
        entry = self._root / name
        files = [entry] if entry.is_file() else files_below(entry)
        return [path for path in files if not endings or path.name.endswith(endings)]

    def files(self) -> list[tuple[str, Path]]:
        """Name and path of every file, in order."""
        return [
            (path.relative_to(self._root).as_posix(), path)
            for name in self._names
            for path in self._files(name, self._endings)
        ]

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, index: int) -> Document:
        files = self._files(self._names[index], self._endings)
        return Document(str(self._root / self._names[index]), b'\n'.join(map(read_whole, files)))
