"""A FAISS index as safetensors: cells, product codes, and the keys of every cell.

FAISS's own files are read by code that trusts them: another kind of index, or numbers of keys that are
not there, are found only when it is too late. Here every array is compared with the index it is for.

centroids    float32 [cells, width]
codebooks    float32 [n], the centroids of the codes
sizes        int64 [cells], keys of every cell
codes        uint8 [keys, code size], cell after cell
numbers      int64 [keys], of the keys in the datastore, in the same order
"""

from pathlib import Path
from typing import Any

import jax
import numpy as np

from longmem_jax.errors import UsageError
from longmem_jax.untrusted import tensor_file

KEYS = 'keys'  # in the metadata: the digest of the datastore


def save(path: Path, faiss: Any, index: Any, digest: str) -> None:
    """Writes a filled `IndexIVFPQ`; `digest` is of the datastore whose keys it holds."""
    cells, lists = range(index.nlist), index.invlists
    sizes = np.asarray([lists.list_size(cell) for cell in cells], np.int64)
    codes = [
        faiss.rev_swig_ptr(lists.get_codes(cell), size * index.code_size).copy()
        for cell, size in zip(cells, sizes.tolist(), strict=True)
        if size
    ]
    numbers = [
        faiss.rev_swig_ptr(lists.get_ids(cell), size).copy()
        for cell, size in zip(cells, sizes.tolist(), strict=True)
        if size
    ]
    arrays = {
        'centroids': index.quantizer.reconstruct_n(0, index.nlist),
        'codebooks': faiss.vector_to_array(index.pq.centroids),
        'sizes': sizes,
        'codes': np.concatenate(codes).reshape(-1, index.code_size),
        'numbers': np.concatenate(numbers),
    }
    tensor_file.write(path, arrays, {KEYS: digest})


def load(path: Path, faiss: Any, index: Any, digest: str, keys: int) -> None:
    """Fills an empty `IndexIVFPQ`, of the settings that the file was made with, from a file.

    `digest` and `keys` are of the datastore.

    Raises:
      UsageError: the file is damaged, or of other keys or another kind of index.
    """
    where = f'{path} (delete it; it will be rebuilt)'
    arrays, metadata = tensor_file.read(path, where)
    if metadata.get(KEYS) != digest or tensor_file.CHECKSUM not in metadata:
        raise UsageError(f'{where}: an index of other keys.')
    book = index.pq.M * index.pq.ksub * index.pq.dsub
    wanted = {
        'centroids': jax.ShapeDtypeStruct((index.nlist, index.d), np.float32),
        'codebooks': jax.ShapeDtypeStruct((book,), np.float32),
        'sizes': jax.ShapeDtypeStruct((index.nlist,), np.int64),
        'codes': jax.ShapeDtypeStruct((keys, index.code_size), np.uint8),
        'numbers': jax.ShapeDtypeStruct((keys,), np.int64),
    }
    tensor_file.require_shapes(arrays, wanted, where)
    tensor_file.require_finite(arrays, where)
    sizes, numbers = arrays['sizes'], arrays['numbers']
    inside = bool((numbers >= 0).all() and (numbers < keys).all())
    if not inside or np.bincount(numbers, minlength=keys).max() > 1:
        raise UsageError(f'{where}: numbers are not those of the {keys:,} keys, each once.')
    # Sums of whole numbers may overflow, so each is looked at first.
    if (sizes < 0).any() or (sizes > keys).any() or sizes.sum() != keys:
        raise UsageError(f'{where}: sizes are not those of {keys:,} keys.')
    index.quantizer.add(arrays['centroids'])
    faiss.copy_array_to_vector(arrays['codebooks'], index.pq.centroids)
    index.is_trained = True
    index.precompute_table()
    at = 0
    for cell, size in enumerate(sizes.tolist()):
        if size:
            part = slice(at, at + size)
            index.invlists.add_entries(
                cell, size, faiss.swig_ptr(numbers[part]), faiss.swig_ptr(arrays['codes'][part])
            )
        at += size
    index.ntotal = keys
