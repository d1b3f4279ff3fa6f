"""What the training data is, in a few fields that a checkpoint keeps to notice other data.

Small texts are digested whole. Large ones are not, as they would be read from disk at every start: one
that changes in the middle and keeps its length is not noticed.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from longmem_jax.data import order
from longmem_jax.data.corpus import AnyCorpus
from longmem_jax.data.folders import Folders
from longmem_jax.data.sources import SOURCES
from longmem_jax.data.stdlib import StandardLibrary
from longmem_jax.data.tasks.registry import TASKS
from longmem_jax.data.text_files import find_files
from longmem_jax.errors import UsageError
from longmem_jax.files import checksum

PLACE = ('path', 'name')  # where the data is: it may be moved
TOKENS = 'tokenized'  # the same data, read in another way
APART = ('tokenizer', 'seed')  # compared by themselves
ORDER = 'order of training documents'
WHOLE = 64 << 20  # bytes of text files that are digested whole, a fraction of a second
# Of larger ones, what is compared between processes: this many files, and bytes of each at three places.
SAMPLED_FILES, SAMPLED_BYTES = 256, 1 << 16
SAMPLED_DOCUMENTS, SAMPLED_TOKENS = 4096, 1 << 18
SAME_FILES = (
    'All processes must read the same files: copy them again to every machine, or give a folder on a '
    'disk that all of them share.'
)


def require_outside(data: Any, folder: str, field: str, what: str) -> None:
    """Raises `UsageError` if a folder to write is among the texts of `config.data`, which would read it.

    Args:
      folder: to write.
      field: that names it, for the message.
      what: is written there, for the message.
    """
    place, texts = (Path(path).expanduser().resolve() for path in (folder, data.path))
    if data.source == 'text' and place.is_relative_to(texts):
        raise UsageError(
            f'{field} = {folder!r}: is in config.data.path = {data.path!r}, where {what} could be read '
            'as texts; give another folder.'
        )


def describe(data: Any, corpus: Any) -> dict[str, Any]:
    """The training data.

    Returns:
      'place': where it is; 'content': all other fields of `config.data`, the number of documents, the
      version of their order, a digest of the tokens of the first, the middle and the last of them, and
      one of the names and sizes of text files, with all that is in them up to `WHOLE` bytes. Data that
      is drawn from `config.data.seed` has no digests.
    """
    content = fields_of(data)
    content['training documents'] = len(corpus)
    content[ORDER] = f'version {order.VERSION}'
    if data.source in SOURCES and SOURCES[data.source].sampled:
        content['digest of three training documents'] = _digest_of_documents(corpus)
    files = corpus.files if data.tokenized else digest_of_files(data, 'train')
    if files is not None:
        content['digest of training files'] = files
    return {'place': {f'config.data.{name}': data[name] for name in PLACE}, 'content': content}


def compared(data: Any, corpus: Any, split: str) -> dict[str, Any]:
    """What the processes of a run compare of a split; more than a checkpoint keeps, see `describe`.

    Returns:
      The number of documents; a digest of documents at even distances, up to `SAMPLED_TOKENS`; one of
      text files, of all bytes up to `WHOLE`, else of a sample.
    """
    found: dict[str, Any] = {'documents': len(corpus)}
    if data.source in TASKS:  # they are drawn from the seed
        return found
    digest, left = hashlib.sha256(), SAMPLED_TOKENS
    for index in _spread(len(corpus), 8) + _spread(len(corpus), SAMPLED_DOCUMENTS):
        document = corpus[index]
        tokens = np.asarray(document.tokens, np.int64)
        digest.update(f'{len(tokens)} {document.num_bytes} '.encode() + tokens.tobytes())
        if (left := left - len(tokens)) < 0:
            break
    found['digest of some documents'] = digest.hexdigest()[:16]
    if data.tokenized:
        return found | {'digest of the texts that were tokenized': corpus.files}
    files = _files(data, split) or _in_folders(data, split)
    return found | {'digest of files': files and digest_of(files, sampled=True)}


def _spread(count: int, most: int) -> list[int]:
    """Up to `most` numbers below `count` at even distances, with the first and the last."""
    return np.linspace(0, count - 1, min(count, most)).astype(int).tolist()


def fields_of(data: Any) -> dict[str, Any]:
    """The fields of `config.data` that say what the documents are, as JSON: no places, no tokenizer."""
    return {
        f'config.data.{name}': value
        for name, value in json.loads(data.to_json_best_effort()).items()
        if name not in (*PLACE, *APART, TOKENS)
    }


def _digest_of_documents(corpus: AnyCorpus) -> str:
    digest, last = hashlib.sha256(), len(corpus) - 1
    for index in sorted({0, last // 2, last}):
        tokens = np.asarray(corpus[index].tokens, np.int64)
        digest.update(f'{len(tokens)} '.encode() + tokens.tobytes())
    return digest.hexdigest()[:16]


def digest_of_files(data: Any, split: str) -> str | None:
    """A digest of the files of a split, see `describe`; None where the source has no such files."""
    files = _files(data, split)
    return None if files is None else digest_of(files)


def digest_of_folders(data: Any, split: str) -> str | None:
    """A digest like `digest_of_files` where documents are folders; else, or without them, None."""
    files = _in_folders(data, split)
    return None if files is None else digest_of(files)


def _files(data: Any, split: str) -> list[tuple[str, Path]] | None:
    """Names and paths of the files of `digest_of_files`."""
    if data.source != 'text' or data.documents == 'folder':
        return None
    root = Path(data.path).expanduser()
    files = [root] if root.is_file() else find_files(root, split, data.fractions)
    folder = root.parent if root.is_file() else root
    return [(str(file.relative_to(folder)), file) for file in files]


def _in_folders(data: Any, split: str) -> list[tuple[str, Path]] | None:
    """Names and paths of the files of `digest_of_folders`."""
    try:
        if data.source == 'stdlib':
            return StandardLibrary(split).files()
        if data.source == 'text' and data.documents == 'folder':
            folders = Folders(data.path, split, tuple(data.endings), tuple(data.fractions))
            return folders.files()
    except UsageError:  # they are not at hand
        pass
    return None


def digest_of(files: list[tuple[str, Path]], *, sampled: bool = False) -> str:
    """A digest of names and sizes of files, and of all that is in them up to `WHOLE` bytes.

    Of more it has nothing, or if `sampled` some bytes of some files.
    """
    whole = sum(file.stat().st_size for _, file in files) <= WHOLE
    looked = set(_spread(len(files), SAMPLED_FILES)) if sampled and not whole else set()

    def lines() -> Iterator[str]:
        for number, (name, file) in enumerate(files):
            inside = checksum(file) if whole else _sample(file) if number in looked else ''
            yield f'{name} {file.stat().st_size} {inside}'

    return hashlib.sha256('\n'.join(lines()).encode()).hexdigest()[:16]


def _sample(file: Path) -> str:
    """A checksum of some bytes at the start, in the middle and at the end of a file."""
    digest, last = hashlib.sha256(), max(file.stat().st_size - SAMPLED_BYTES, 0)
    with file.open('rb') as opened:
        for start in (0, last // 2, last):
            opened.seek(start)
            digest.update(opened.read(SAMPLED_BYTES))
    return digest.hexdigest()
