"""Queries per second and recall of the search for neighbours on the host.

python -m experiments.knn_lm.search_speed --output=DIR

Writes a datastore of random keys near a curved surface of few dimensions (hidden vectors lie near
one, too; in all dimensions alike nothing could be found without looking everywhere), searches it
exactly and by FAISS, and prints a Markdown table.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np

from longmem_jax.config.base import base
from longmem_jax.devices.sharding import make_mesh
from longmem_jax.retrieval import datastore
from longmem_jax.retrieval.index import make_index


def random_keys(random, directions, number):
    """Keys [number, width]: 12 random numbers each, mapped to the width, bent, a little noise."""
    bent = np.tanh(random.normal(size=(number, len(directions))) @ directions)
    return (bent + 0.05 * random.normal(size=bent.shape)).astype(np.float32)


def write_store(folder: Path, random, directions, number: int) -> None:
    """A datastore of one shard."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {
        'keys': random_keys(random, directions, number).astype(np.float16),
        'values': np.zeros((number,), np.int32),
        'documents': np.zeros((number,), np.int32),
        'contexts': np.zeros((number, datastore.CONTEXT), np.int32),
    }
    for name, array in arrays.items():
        array.tofile(folder / f'{name}.00000.bin')
    manifest = {
        'format': datastore.FORMAT,
        'identity': {'width': directions.shape[1]},
        'dtype': 'float16',
        'shards': [{'count': number, 'sha256': {}}],
        'complete': True,
    }
    (folder / 'manifest.json').write_text(json.dumps(manifest))


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--output', type=Path, required=True)
    parser.add_argument('--keys', type=int, default=1_000_000)
    parser.add_argument('--width', type=int, default=256)
    parser.add_argument('--queries', type=int, default=1024)
    parser.add_argument('--k', type=int, default=1024)
    options = parser.parse_args()
    random = np.random.default_rng(0)
    directions = random.normal(size=(12, options.width)) / 12**0.5
    if not (options.output / 'manifest.json').exists():
        write_store(options.output, random, directions, options.keys)
    queries = random_keys(random, directions, options.queries)
    store = datastore.Datastore(options.output, None, False)
    settings = base().retrieval
    settings.train_keys = 200_000
    exact = None
    print('| search | queries/s | recall | seconds to build |')
    print('|---|---|---|---|')
    for name, probe, rerank in (
        ('exact', 0, 0),
        ('FAISS, probe 8', 8, 2),
        ('FAISS, probe 32', 32, 2),
        ('FAISS, probe 128', 128, 2),
    ):
        settings.index = name.split(',')[0].lower()
        settings.probe, settings.rerank = max(probe, 1), float(max(rerank, 1))
        start = time.perf_counter()
        index = make_index(settings, store, make_mesh(dict(data=-1)))
        built = time.perf_counter() - start
        index.search(queries[:64], options.k)  # compiled, pages read
        index.search(queries, options.k)
        start = time.perf_counter()
        _, numbers = index.search(queries, options.k)
        rate = len(queries) / (time.perf_counter() - start)
        if exact is None:
            exact = numbers
        pairs = zip(numbers, exact, strict=True)
        recall = np.mean([len(np.intersect1d(a, b)) / options.k for a, b in pairs])
        print(f'| {name} | {rate:,.0f} | {recall:.3f} | {built:.0f} |', flush=True)


if __name__ == '__main__':
    main()
