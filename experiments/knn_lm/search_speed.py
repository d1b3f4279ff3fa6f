"""Queries per second and recall of the neighbour search on the host.

python -m experiments.knn_lm.search_speed --output=DIR

Writes a datastore of random keys near a curved surface of few dimensions (as hidden vectors are; with
isotropic keys only an exhaustive search would find anything), searches it exactly and with FAISS, and
prints a Markdown table.
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


def random_keys(random: np.random.Generator, directions: np.ndarray, count: int) -> np.ndarray:
    """Keys near a curved surface, float32 [count, width]; `directions` [dimensions, width]."""
    curved = np.tanh(random.normal(size=(count, len(directions))) @ directions)
    return (curved + 0.05 * random.normal(size=curved.shape)).astype(np.float32)


def write_store(
    folder: Path, random: np.random.Generator, directions: np.ndarray, count: int
) -> None:
    """Writes a datastore of one shard with `count` random keys."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {
        'keys': random_keys(random, directions, count).astype(np.float16),
        'values': np.zeros((count,), np.int32),
        'documents': np.zeros((count,), np.int32),
        'contexts': np.zeros((count, datastore.CONTEXT), np.int32),
    }
    for name, array in arrays.items():
        array.tofile(folder / f'{name}.00000.bin')
    manifest = {
        'format': datastore.FORMAT,
        'identity': {'width': directions.shape[1]},
        'dtype': 'float16',
        'shards': [{'count': count, 'sha256': {}}],
        'complete': True,
    }
    (folder / 'manifest.json').write_text(json.dumps(manifest))


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--output', type=Path, required=True)
    parser.add_argument('--keys', type=int, default=1_000_000)
    parser.add_argument('--width', type=int, default=256)
    parser.add_argument('--queries', type=int, default=1024)
    parser.add_argument('--k', type=int, default=1024)
    parser.add_argument('--exact_only', action='store_true', help='leave FAISS out')
    options = parser.parse_args()
    random = np.random.default_rng(0)
    directions = random.normal(size=(12, options.width)) / 12**0.5
    if not (options.output / 'manifest.json').exists():
        write_store(options.output, random, directions, options.keys)
    queries = random_keys(random, directions, options.queries)
    store = datastore.Datastore(options.output, None, False)
    settings = base('retrieval').retrieval
    settings.train_keys = 200_000
    exact = None
    print('| search | queries/s | recall | seconds to build |')
    print('|---|---|---|---|')
    rows = (
        ('exact', 0, 0),
        ('exact, keys sent for every search', 0, 0),
        ('FAISS, probe 8', 8, 2),
        ('FAISS, probe 32', 32, 2),
        ('FAISS, probe 128', 128, 2),
    )
    for name, probe, rerank in rows[:2] if options.exact_only else rows:
        settings.resident_gib = 0.0 if 'sent' in name else 2.0
        settings.index = name.split(',')[0].lower()
        settings.probe, settings.rerank = max(probe, 1), float(max(rerank, 1))
        start = time.perf_counter()
        index = make_index(settings, store, make_mesh(dict(data=-1)))
        seconds = time.perf_counter() - start
        index.search(queries[:64], options.k)  # compiles, and reads the pages
        index.search(queries, options.k)
        start = time.perf_counter()
        neighbours = index.search(queries, options.k).numbers
        rate = len(queries) / (time.perf_counter() - start)
        if exact is None:
            exact = neighbours
        pairs = zip(neighbours, exact, strict=True)
        recall = np.mean([len(np.intersect1d(a, b)) / options.k for a, b in pairs])
        print(f'| {name} | {rate:,.0f} | {recall:.3f} | {seconds:.0f} |', flush=True)


if __name__ == '__main__':
    main()
