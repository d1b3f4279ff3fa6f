"""Documents that were tokenized once, in files that are mapped into memory.

`config.data.tokenized` names a folder with one folder per split: safetensors files of many documents
each, and an index, written last. Every file has a checksum, which is compared when tokenizing is taken
up again, and one of all but the tokens, which is compared when it is opened. Every document has a
digest of its tokens and bytes, which is compared when it is read.
"""

import contextlib
import dataclasses
import hashlib
import itertools
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError

from longmem_jax.data import content
from longmem_jax.data.corpus import AnyCorpus, TokenizedDocument
from longmem_jax.data.tokenizers import Tokenizer
from longmem_jax.errors import UsageError
from longmem_jax.files import write_json
from longmem_jax.untrusted import json_file, schema, tensor_file

FORMAT = 2
INDEX = 'index.json'
MOST_SHARDS = 256
DIGESTS = ('files', 'folders')  # of texts, if they are at hand
AGAIN = 'run --mode=tokenize, which writes what is missing'
TABLE = 'table'  # in the metadata of a file: checksum of the arrays of `_DTYPES`
_DTYPES = {'ends': 'I64', 'num_bytes': 'I64', 'digests': 'U64'}
_ABOUT = schema.named(schema.anything)
_INDEX = schema.fields(
    {
        'about': _ABOUT,
        'documents': schema.whole(1, tensor_file.LARGEST_SIZE),
        'shards': schema.items(schema.whole(0, tensor_file.LARGEST_SIZE), most=MOST_SHARDS),
    }
)


@contextlib.contextmanager
def written() -> Iterator[None]:
    """Turns errors of writing to `config.data.tokenized` inside the block into `UsageError`."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise UsageError(f'config.data.tokenized: cannot be written ({error}).') from error


@dataclasses.dataclass(frozen=True)
class Shards:
    """The files of a split.

    Attributes:
      folder: of the split.
      about: what is in them, see `about`.
      documents: their number.
    """

    folder: Path
    about: dict[str, Any]
    documents: int

    @property
    def borders(self) -> list[int]:
        """First documents of the shards, and the number of all documents."""
        number = min(self.documents, MOST_SHARDS)
        return [self.documents * shard // number for shard in range(number + 1)]

    def path(self, shard: int) -> Path:
        """The file of a shard."""
        return self.folder / f'{shard:03}-of-{len(self.borders) - 1:03}.safetensors'

    def write(self, shard: int, corpus: AnyCorpus) -> int:
        """Tokenizes the documents of a shard and writes its file, if it is not there already.

        Returns the number of its tokens.

        Raises:
          UsageError: there is a file, with other tokens, or it cannot be written.
        """
        path = self.path(shard)
        first, last = self.borders[shard : shard + 2]
        if path.exists():
            try:
                arrays, found = tensor_file.read(path)
            except UsageError:
                arrays, found = {}, {}  # torn: written again
            if arrays:
                stored = json_file.parse(found.get('about', '{}'), str(path))
                stored = schema.require(stored, _ABOUT, path) | {
                    'documents': len(arrays.get('ends', ()))
                }
                require_same(stored, self.about | {'documents': last - first}, path)
                return len(arrays['tokens'])
        documents = [corpus[index] for index in range(first, last)]
        tokens = [document.tokens for document in documents]
        arrays = {
            'tokens': np.concatenate(tokens),
            'ends': np.cumsum([len(part) for part in tokens], dtype=np.int64),
            'num_bytes': np.asarray([document.num_bytes for document in documents], np.int64),
            'digests': np.asarray([_digest(document) for document in documents], np.uint64),
        }
        table = tensor_file.checksum({name: arrays[name] for name in _DTYPES})
        about = {'about': json.dumps(self.about), TABLE: table}
        with written():
            tensor_file.write(path, arrays, about)
        return len(arrays['tokens'])

    def finish(self, tokens: list[int]) -> None:
        """Writes the index: `tokens` of every shard; raises `UsageError` if it cannot be written."""
        index = {'about': self.about, 'documents': self.documents, 'shards': tokens}
        with written():
            write_json(self.folder / INDEX, index)


def require_same(stored: dict[str, Any], wanted: dict[str, Any], path: Path) -> None:
    """Raises `UsageError` where tokens at `path` were made from other data than is read, see
    `about`.
    """
    made = stored.get('format')
    if made != wanted.get('format') and isinstance(made, int):
        raise UsageError(
            f'{path}: tokens of {"an earlier" if made < FORMAT else "a later"} version of this library '
            f'(format {made}, this version has {FORMAT}). Delete {path.parent} and run --mode=tokenize '
            'again, or give another folder as config.data.tokenized.'
        )
    for name in sorted({*stored, *wanted}, key=lambda name: (name in DIGESTS, name)):
        ours, theirs = wanted.get(name), stored.get(name)
        if ours != theirs and not (name in DIGESTS and None in (ours, theirs)):
            raise UsageError(
                f'{path}: tokens of other data: {name} = {schema.shown(theirs)}, here '
                f'{schema.shown(ours)}. Set what they were made with, or another folder as '
                'config.data.tokenized, and run --mode=tokenize.'
            )


def about(data: Any, split: str, tokenizer: Tokenizer) -> dict[str, Any]:
    """What tokens depend on: the fields of `config.data`, its files, and the tokenizer.

    Names to values of JSON. Those of `DIGESTS` are None where there are none, or they are not at
    hand.
    """
    there = data.path and Path(data.path).expanduser().exists()
    return content.fields_of(data) | {
        'config.data.name': data.name,
        'format': FORMAT,
        'split': split,
        'tokenizer': tokenizer.fingerprint(),
        'files': content.digest_of_files(data, split) if there else None,
        'folders': content.digest_of_folders(data, split),
    }


def _digest(document: TokenizedDocument) -> int:
    """A digest of all that is stored of a document, 64 bits."""
    digest = hashlib.sha256(f'{len(document.tokens)} {document.num_bytes} '.encode())
    digest.update(np.ascontiguousarray(document.tokens).data)
    return int.from_bytes(digest.digest()[:8], 'little')


class _Shard:
    """One file, mapped into memory."""

    def __init__(self, path: Path, documents: int, tokens: int):
        """Raises `UsageError` if it is torn, or not what the index says."""
        header = tensor_file.read_header(path)
        tensors = header.tensors
        wanted = {name: (dtype, (documents,)) for name, dtype in _DTYPES.items()}
        found = {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()}
        dtype, shape = found.pop('tokens', ('', ()))
        if found != wanted or dtype not in ('U16', 'I32') or shape != (tokens,):
            raise UsageError(f'{path}: not what {INDEX} says; delete it, and {AGAIN}.')

        def mapped(name: str) -> np.ndarray:
            tensor = tensors[name]
            kind = tensor_file.DTYPES[tensor.dtype]
            if not np.prod(tensor.shape):  # nothing cannot be mapped
                return np.zeros(tensor.shape, kind)
            return np.memmap(path, kind, 'r', tensor.start, tensor.shape)

        self._path, self._tokens = path, mapped('tokens')
        self._ends, self._num_bytes, self._digests = (np.array(mapped(name)) for name in _DTYPES)
        arrays = (self._ends, self._num_bytes, self._digests)
        table = tensor_file.checksum(dict(zip(_DTYPES, arrays, strict=True)))
        if header.metadata.get(TABLE) != table:
            raise UsageError(
                f'{path}: its lengths, bytes and digests are not those that were written; delete it, '
                f'and {AGAIN}.'
            )
        sizes = self.lengths()
        if documents and (sizes.min() < 0 or self._ends[-1] != tokens):
            raise UsageError(
                f'{path}: the ends of its documents are wrong; delete it, and {AGAIN}.'
            )

    def lengths(self) -> np.ndarray:
        """Tokens of every document, int64."""
        return np.diff(self._ends, prepend=0)

    def sizes(self) -> np.ndarray:
        """Source bytes of every document, int64."""
        return self._num_bytes

    def document(self, index: int) -> TokenizedDocument:
        """A document of this file; raises `UsageError` if it has changed since it was written."""
        tokens = self._tokens[self._ends[index - 1] if index else 0 : self._ends[index]]
        document = TokenizedDocument(tokens, int(self._num_bytes[index]))
        if _digest(document) != int(self._digests[index]):
            raise UsageError(
                f'{self._path}: the tokens of its document {index} are not those that were written; '
                f'delete it, and {AGAIN}.'
            )
        return document


class StoredCorpus:
    """Documents tokenized before, with the interface of `Corpus`.

    Attributes:
      tokenizer: the tokenizer of all documents.
      files: digest of the source's files when they were tokenized, see `about`.
    """

    def __init__(self, data: Any, split: str, tokenizer: Tokenizer):
        """Reads the index; the texts of `config.data` need not be there.

        Raises:
          UsageError: no tokens, or those of another source or tokenizer.
        """
        folder = Path(data.tokenized).expanduser() / split
        path = folder / INDEX
        if not path.exists():
            begun = folder.is_dir() and any(folder.iterdir())
            state = 'are not finished' if begun else 'are not there'
            raise UsageError(f'config.data.tokenized: the tokens in {folder} {state}; {AGAIN}.')
        index = schema.require(json_file.read(path), _INDEX, path)
        require_same(index['about'], about(data, split, tokenizer), path)
        self._shards = Shards(folder, index['about'], index['documents'])
        self._sizes, self._borders = index['shards'], self._shards.borders
        if len(self._sizes) != len(self._borders) - 1:
            raise UsageError(f'{path}: lists {len(self._sizes)} files; delete it, and {AGAIN}.')
        self.tokenizer, self.files = tokenizer, index['about'].get('files')
        self._opened: dict[int, _Shard] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._borders[-1]

    def _shard(self, number: int) -> _Shard:
        with self._lock:
            if number not in self._opened:
                first, last = self._borders[number : number + 2]
                path = self._shards.path(number)
                self._opened[number] = _Shard(path, last - first, self._sizes[number])
            return self._opened[number]

    def __getitem__(self, index: int) -> TokenizedDocument:
        if not 0 <= index < len(self):
            raise IndexError(index)
        number = int(np.searchsorted(self._borders, index, side='right')) - 1
        return self._shard(number).document(index - self._borders[number])

    def lengths(self) -> np.ndarray:
        """Tokens of every document, int64 [documents]; no document is read."""
        shards = (self._shard(number).lengths() for number in range(len(self._sizes)))
        return np.fromiter(itertools.chain.from_iterable(shards), np.int64, len(self))

    def sizes(self) -> np.ndarray:
        """Source bytes of every document, int64 [documents]; no document is read."""
        return np.concatenate([self._shard(number).sizes() for number in range(len(self._sizes))])
