"""Datastores of given arrays, for tests."""

import json
from pathlib import Path

import numpy as np

from longmem_jax.files import checksum
from longmem_jax.retrieval.datastore import CONTEXT, FORMAT, Datastore, shard_arrays


def write_store(folder: Path, keys, documents, values=None) -> Datastore:
    """Writes keys [n, width] and documents [n] as a datastore of one shard, and opens it."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {
        'keys': keys,
        'documents': documents,
        'values': np.arange(len(keys)) if values is None else values,
        'contexts': np.zeros((len(keys), CONTEXT)),
    }
    shard = {'count': len(keys), 'sha256': {}}
    for name, (dtype, _) in shard_arrays(keys.shape[1], 'float32').items():
        path = folder / f'{name}.00000.bin'
        arrays[name].astype(dtype).tofile(path)
        shard['sha256'][name] = checksum(path)
    manifest = {
        'format': FORMAT,
        'identity': {'width': keys.shape[1]},
        'dtype': 'float32',
        'shards': [shard],
        'complete': True,
    }
    (folder / 'manifest.json').write_text(json.dumps(manifest))
    return Datastore(folder, None, False)
