"""A document per folder: the files of a repository or of a paper's source, one after the other."""

from pathlib import Path

from longmem_jax.data.documents import Document, split_seeded
from longmem_jax.data.stored_files import read_whole
from longmem_jax.data.text_files import NAMES
from longmem_jax.errors import UsageError


class Folders:
    """The folders of a split: `PATH/train/NAME/...`, or `PATH/NAME/...`, divided by name.

    A file that stands beside the folders is a document of its own.
    """

    def __init__(self, path: str, split: str, endings: tuple[str, ...]):
        """Lists the folders; reads no file.

        Args:
          path: `config.data.path`.
          split: 'train', 'validation' or 'test'.
          endings: only files whose names end so, such as ('.py',); () = all.

        Raises:
          UsageError: no folder, or none with such files.
        """
        root = Path(path).expanduser() if path else None
        if root is None or not root.is_dir():
            raise UsageError(
                f"config.data.path = {path!r}: config.data.documents='folder' needs a folder with "
                'train/ validation/ test/ of folders, or a folder of folders.'
            )
        divided = [root / name for name in NAMES[split] if (root / name).is_dir()]
        self._root = divided[0] if divided else root
        found = sorted(
            entry.name for entry in self._root.iterdir() if not entry.name.startswith('.')
        )
        found = [name for name in found if self._files(name, endings)]
        if not divided:
            if len(found) < 3:
                raise UsageError(
                    f'config.data.path = {path}: {len(found)} folders with files '
                    f'{" ".join(endings) or "of any kind"}; at least 3 are needed to divide them '
                    'into splits, or train/ validation/ test/.'
                )
            found = split_seeded(found, split)
        if not found:
            raise UsageError(
                f'{self._root}: no files {" ".join(endings) or "of any kind"} (config.data.endings).'
            )
        self._names, self._endings = found, endings

    def _files(self, name, endings):
        entry = self._root / name
        files = [entry] if entry.is_file() else entry.rglob('*')
        return sorted(
            path
            for path in files
            if path.is_file()
            and not any(part.startswith('.') for part in path.relative_to(self._root).parts)
            and (not endings or path.name.endswith(endings))
        )

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, index: int) -> Document:
        files = self._files(self._names[index], self._endings)
        return Document(str(self._root / self._names[index]), b'\n'.join(map(read_whole, files)))
