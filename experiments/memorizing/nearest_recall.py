"""How many of the k nearest rows searches for accelerators find, emulated on any machine.

python -m experiments.memorizing.nearest_recall [--workdir=RUN] [--k=32] [--rows 8192 65536]

'approximate' is `lax.approx_max_k`: on TPUs the rows are dealt into bins, of which the largest score is
kept. On other machines it is exact, so its bins are emulated here. 'fused' is the search of
`config.model.kernels = 'fused'`, which reads all of the k nearest and sometimes a row more. Scores are
those of random vectors, of three seeds, or, of a run with bytes as tokens, those of the memory layer on
three texts of Python's standard library.
"""

import argparse
import statistics
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments import markdown
from longmem_jax.kernels.tpu import fused_search

QUERIES, WIDTH, SEEDS = 256, 128, 3
LANES = 128  # of a vector register: rows are dealt into bins by whole registers
BLOCK = 8192  # `block_size`: rows that are searched at once


def bins_of(rows: int, k: int, recall: float) -> np.ndarray:
    """The bin of every row as `lax.approx_max_k` deals them on TPUs, int [rows].

    Rows of one lane of neighbouring registers share a bin. JAX says how many bins there are.
    """
    scores = jax.ShapeDtypeStruct((1, rows), jnp.float32)
    kept, _ = jax.eval_shape(
        lambda scores: jax.lax.approx_max_k(
            scores, k, recall_target=recall, aggregate_to_topk=False
        ),
        scores,
    )
    registers = -(-rows // kept.shape[1])
    row = np.arange(rows)
    return row // LANES // registers * LANES + row % LANES


def found_in_bins(scores: np.ndarray, k: int, recall: float) -> np.ndarray:
    """Whether the largest of its bin, bool [queries, rows], and among the k largest of these."""
    found = np.zeros(scores.shape, bool)
    block = min(BLOCK, scores.shape[1])
    bins = bins_of(block, k, recall)
    order = np.argsort(bins, kind='stable')
    for start in range(0, scores.shape[1], block):
        by_bin = scores[:, start : start + block][:, order]
        by_bin = by_bin.reshape(len(scores), bins.max() + 1, -1)
        best = by_bin.argmax(axis=2) + np.arange(by_bin.shape[1]) * by_bin.shape[2]
        np.put_along_axis(found, start + order[best], True, axis=1)
    return found & (scores >= limit_of(np.where(found, scores, -np.inf), k))


def limit_of(scores: np.ndarray, k: int) -> np.ndarray:
    """The k-th largest score of every query, [queries, 1]."""
    return -np.partition(-scores, k - 1, axis=1)[:, k - 1 : k]


def found_fused(scores: np.ndarray, k: int) -> np.ndarray:
    """The rows that reach the limit among the largest scores of the bins, bool [queries, rows]."""
    by_bin = scores.reshape(len(scores), -1, fused_search.BLOCK_ROWS)
    kept = -np.partition(-by_bin, fused_search.LEVELS - 1, axis=1)[:, : fused_search.LEVELS]
    return scores >= limit_of(kept.reshape(len(scores), -1), k)


def random_scores(rows: int) -> list[np.ndarray]:
    """Inner products of normal vectors, [queries, rows] for every seed."""
    numbers = [np.random.default_rng(seed) for seed in range(SEEDS)]
    return [
        np.float32(n.normal(size=(QUERIES, WIDTH))) @ np.float32(n.normal(size=(WIDTH, rows)))
        for n in numbers
    ]


def trained_scores(workdir: Path, most: int) -> list[np.ndarray]:
    """Scores of the last queries of texts with the `most` rows before them: [texts][queries, rows].

    All heads of a text are queries.
    """
    import longmem_jax
    from longmem_jax.config.saved import saved_config
    from longmem_jax.memory.memorizing.normalized_attention import NormalizedAttention
    from longmem_jax.segment import Segment

    model, params, _ = longmem_jax.load(workdir)
    length = saved_config(workdir).train.segment_length
    segments = (most + QUERIES) // length
    files = sorted(Path(statistics.__file__).parent.glob('*.py'))
    text = np.frombuffer(b'\n'.join(path.read_bytes() for path in files), np.uint8)
    tokens = text[: SEEDS * segments * length].reshape(SEEDS, segments, length)
    layer = f'block_{model.config.attention.index("memorizing")}'

    def is_vectors(module: Any, name: str) -> bool:
        return isinstance(module, NormalizedAttention) and name in ('queries', 'key_values')

    def read(state: Any, tokens: jax.Array) -> tuple[Any, tuple[jax.Array, jax.Array]]:
        starts = jnp.zeros((SEEDS,), bool)
        segment = Segment(tokens, jnp.ones(tokens.shape, bool), starts)
        (_, state, _), seen = model.apply(
            {'params': params},
            segment,
            state,
            train=False,
            capture_intermediates=is_vectors,
            mutable=['intermediates'],
        )
        own = seen['intermediates'][layer]['attention']['attention']
        return state, (own['queries'][0], own['key_values'][0][0])

    state = model.apply({'params': params}, SEEDS, method='initial_state')
    _, (queries, keys) = jax.jit(lambda tokens: jax.lax.scan(read, state, tokens))(
        jnp.swapaxes(jnp.asarray(tokens, jnp.int32), 0, 1)
    )
    # [segments, texts, heads, length, width] -> [texts, heads, tokens, width]
    queries, keys = (np.concatenate(np.asarray(vectors), axis=2) for vectors in (queries, keys))
    scores = np.einsum('bhnd,bhmd->bhnm', queries[:, :, -QUERIES:], keys[:, :, :-QUERIES])
    return list(scores.reshape(SEEDS, -1, scores.shape[3]))


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    parser.add_argument('--workdir', type=Path)
    parser.add_argument('--k', type=int, default=32)
    parser.add_argument('--rows', type=int, nargs='+', default=[8192, 65536])
    options = parser.parse_args()
    trained = trained_scores(options.workdir, max(options.rows)) if options.workdir else None
    lines = []
    for rows in options.rows:
        groups = [scores[:, -rows:] for scores in trained] if trained else random_scores(rows)
        searches = {
            f'approximate, target {target}': lambda scores, target=target: found_in_bins(
                scores, options.k, target
            )
            for target in (0.9, 0.95, 0.99)
        } | {'fused': lambda scores: found_fused(scores, options.k)}
        for name, search in searches.items():
            recalls, numbers = [], []
            for scores in groups:
                found = search(scores)
                nearest = scores >= limit_of(scores, options.k)
                recalls.append((found & nearest).sum() / nearest.sum())
                numbers.append(found.sum() / len(scores))
            shown = markdown.span(recalls, 4), markdown.span(numbers, 4)
            lines.append([f'{rows:,}', name, *shown])
    print(markdown.table(['rows', 'search', 'found of the nearest', 'rows read'], lines))


if __name__ == '__main__':
    main()
