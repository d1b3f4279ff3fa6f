"""Models as Hugging Face folders: weights, `config.json`, tokenizer files and a model card.

A host that has not changed gives the tensors that it was read from, byte for byte. With a memory, the
memory's parameters are in the same files under names of their own, and `config.json` has a section
`longmem`: other programs read the host alone, `hosts.find` and `hosts.load` read everything.
"""

import contextlib
import functools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import flax.traverse_util
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import save_file

from longmem_jax.data import model_files
from longmem_jax.data.tokenizer_files import LARGEST_FILE
from longmem_jax.errors import UsageError
from longmem_jax.files import copy, whole_file, write, write_json
from longmem_jax.hosts.families import FAMILIES
from longmem_jax.hosts.hosts import Host
from longmem_jax.hosts.model_fields import attributes_of, differences, model_of
from longmem_jax.hosts.own_layers import rows_of
from longmem_jax.hosts.patterns import layout
from longmem_jax.hosts.pieces import EACH, Pieces
from longmem_jax.hosts.tables import TABLE
from longmem_jax.hosts.tensor_files import DTYPES, INDEX, OWN, WHOLE
from longmem_jax.untrusted import json_file
from longmem_jax.untrusted.gguf_file import is_gguf

SHARD_BYTES = 5 << 30
COPIED = (
    'tokenizer.json', 'tokenizer_config.json', 'special_tokens_map.json', 'added_tokens.json',
    'vocab.json', 'merges.txt', 'vocab.txt', 'tokenizer.model', 'spiece.model',
    'chat_template.jinja', 'chat_template.json', 'generation_config.json',
)  # fmt: skip
NUMPY = {'F64': np.float64, 'F32': np.float32, 'F16': np.float16, 'BF16': jnp.bfloat16}
BY_NAME = {'float64': 'F64', 'float32': 'F32', 'float16': 'F16', 'bfloat16': 'BF16'}

# Name of a tensor to a function that makes it.
Tensors = dict[str, Callable[[], np.ndarray]]


def _joined(flat: Mapping[str, Any], row: Any) -> np.ndarray:
    """The tensor of a row."""
    return layout(row.layout).put([np.asarray(flat[path]) for path in row.ours])


def save(
    folder: str | Path,
    model: Any,
    params: Any,
    *,
    like: Host | None = None,
    segment_length: int = 1,
    files: Mapping[str, Path] | None = None,
    card: str = '',
    shard_bytes: int = SHARD_BYTES,
) -> list[str]:
    """Writes a model as a folder that `hosts.find` reads, and other programs as far as it is a host.

    Args:
      folder: must not exist, or be empty.
      like: the host that it began with: its attributes, names, dtypes and tokenizer are kept.
      segment_length: tokens per segment that it was trained with; kept where there is a memory.
      files: further files to copy: name in the folder to path, such as a tokenizer.
      card: text of README.md, see `card.model_card`.
      shard_bytes: weights beyond this are written as several files, with an index.

    Returns:
      The names of the files.

    Raises:
      UsageError: the folder has files, the model is of no family that it could be read as, or a file
        of the host is not one to publish (see `_of_host`). Nothing is left behind then.
    """
    folder = Path(folder).expanduser()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f'{folder}: already has files; give a folder that is empty or new.')
    given = dict(like.attributes) if like else attributes_of(model)
    given.pop('longmem', None)
    if not like:
        given['dtype'] = 'float32'
    elif model.tie_weights != like.plain.tie_weights:
        given['tie_word_embeddings'] = bool(model.tie_weights)
    tensors, sizes = _tensors(model, params, given, like)
    if differences(model_of(given, 'config.json'), model):
        given['longmem'] = {'segment_length': segment_length, 'model': model.to_dict()}
    copies = {}
    if like:
        names = (*COPIED, *(['config.json'] if given == like.attributes else []))
        copies = {
            name: _of_host(like.folder, name)
            for name in names
            if model_files.has(like.folder, name)
        }
    with _new_folder(folder) as partial:
        _write_tensors(partial, tensors, sizes, shard_bytes)
        if 'config.json' not in copies:
            write_json(partial / 'config.json', given, indent=2)
        for name, content in copies.items():
            write(partial / name, content)
        for name, path in dict(files or {}).items():
            copy(path, partial / name)
        if card:
            write(partial / 'README.md', card)
        written = sorted(path.name for path in partial.iterdir())
    return written


def _of_host(host: Path, name: str) -> bytes:
    """The content of a small file of a host, which the export will show to others.

    Raises:
      UsageError: it is a link that leads out of the folder and not into the hub's cache; it is too
        large; or it is not the JSON or the text that it should be.
    """
    path = host / name
    if is_gguf(host):
        return model_files.read(host, name)
    folder, real = host.resolve(), path.resolve()
    blobs = folder.parent.parent / 'blobs' if folder.parent.name == 'snapshots' else folder
    if not any(real.is_relative_to(allowed) for allowed in (folder, blobs)):
        raise UsageError(
            f'{path}: is a link to {real}, out of the folder; an export would publish that file. Put a '
            'copy in its place if it belongs to the model, or remove the link.'
        )
    content = json_file.read_bytes(path, largest=LARGEST_FILE)
    if path.suffix == '.json':
        json_file.parse(content, str(path))
    elif path.suffix in ('.txt', '.jinja'):
        try:
            content.decode()
        except UnicodeDecodeError as error:
            raise UsageError(f'{path}: is not a text in UTF-8 ({error.reason}).') from error
    return content


@contextlib.contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder that becomes `folder` if the block ends without an error."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f'.{folder.name}-'))
    except OSError as error:
        raise UsageError(f'{folder}: cannot be written ({error.strerror}).') from error
    try:
        yield partial
        partial.chmod(0o777 & ~_umask())
        if folder.exists():
            folder.rmdir()
        made = partial.stat()
        try:
            partial.replace(folder)
        except OSError:
            # Some file systems say so of what they did: then the next attempt would find files there.
            if folder.exists() and os.path.samestat(made, folder.stat()):
                _remove(folder)
            raise
    except OSError as error:
        raise UsageError(f'{folder}: cannot be written ({error.strerror}).') from error
    finally:
        _remove(partial)


def _remove(folder: Path) -> None:
    """Deletes a folder, as far as the disk lets it; an earlier error is the one to report."""
    with contextlib.suppress(OSError):  # it may come in spite of `ignore_errors`, from closing
        shutil.rmtree(folder, ignore_errors=True)


def _umask() -> int:
    """The permissions that new files of this process do not get."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _tensors(
    model: Any, params: Any, given: Mapping[str, Any], like: Host | None
) -> tuple[Tensors, dict[str, int]]:
    """What to write, made when it is asked for, and the bytes of each tensor."""
    family = like.family if like else FAMILIES[given['model_type']]
    flat = flax.traverse_util.flatten_dict(params, sep='/')
    usual = BY_NAME.get(str(given.get('dtype', given.get('torch_dtype'))).removeprefix('torch.'))
    tensors: Tensors = {}
    sizes: dict[str, int] = {}
    covered: set[str] = set()
    pieces = dict(like.files.pieces) if like else {}

    def add(name: str, dtype: str, row: Any) -> None:
        covered.update(row.ours)
        tensors[name] = lambda: _joined(flat, row).astype(NUMPY[dtype])
        sizes[name] = sum(flat[path].size for path in row.ours) * DTYPES[dtype]

    for row in rows_of(family, like.plain if like else model):
        found = like.name_of(row) if like else None
        name = found or family.prefixed(row.theirs)
        dtype = like.files.dtypes[found] if like and found else usual or 'F32'
        if all(path in flat for path in row.ours):
            add(name, dtype, row)
            if EACH in name and not found:
                shape = layout(row.layout).their_shape([flat[path].shape for path in row.ours])
                pieces[name] = Pieces.each(name, shape[0])
        elif found and row.theirs in family.heads and model.tie_weights:
            add(name, dtype, row._replace(ours=(TABLE,)))
    for path, leaf in flat.items():
        if path not in covered:
            name = OWN + path.replace('/', '.')
            tensors[name] = functools.partial(np.ascontiguousarray, leaf)
            sizes[name] = leaf.size * leaf.dtype.itemsize
    if like:  # what the model has no use for
        for name in like.files.shapes:
            if name not in tensors and not name.startswith(OWN):
                tensors[name] = functools.partial(like.files.whole, name)
                sizes[name] = like.files.num_bytes([name])
    for name in [name for name in tensors if name in pieces]:
        parts = pieces[name].cut(functools.cache(tensors.pop(name)))
        tensors |= parts
        size, rows = sizes.pop(name), pieces[name].rows
        sizes |= {part: size * n // sum(rows) for part, n in zip(parts, rows, strict=True)}
    return tensors, sizes


def _write_tensors(
    folder: Path, tensors: Tensors, sizes: Mapping[str, int], shard_bytes: int
) -> None:
    """Writes one file, or several with an index; only one is in memory at a time."""
    shards: list[list[str]] = [[]]
    total = 0
    for name in tensors:
        if shards[-1] and total + sizes[name] > shard_bytes:
            shards.append([])
            total = 0
        shards[-1].append(name)
        total += sizes[name]
    names = [WHOLE]
    if len(shards) > 1:
        names = [
            f'model-{number:05}-of-{len(shards):05}.safetensors'
            for number in range(1, len(shards) + 1)
        ]
    for file, shard in zip(names, shards, strict=True):
        with whole_file(folder / file) as partial:
            save_file({name: tensors[name]() for name in shard}, partial, {'format': 'pt'})
    if len(shards) > 1:
        placed = {name: file for file, shard in zip(names, shards, strict=True) for name in shard}
        index = {
            'metadata': {'total_size': sum(sizes.values())},
            'weight_map': dict(sorted(placed.items())),
        }
        write_json(folder / INDEX, index, indent=2)
