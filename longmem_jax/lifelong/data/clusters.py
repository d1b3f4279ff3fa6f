"""Clusters of relations, the tasks of lifelong relation extraction: from a file, or by k-means.

Wang et al. (2019) cluster mean word vectors of the relations' names (GloVe). If these vectors are
missing, the vectors of a pretrained encoder's tokens are used; a message says which.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from longmem_jax.errors import UsageError, say
from longmem_jax.lifelong.data.relations import Relations, lines_of, numbers_of
from longmem_jax.segment import NOTHING

ATTEMPTS = 50  # of k-means, which may leave a cluster without relations


def vectors_of_words(names: Sequence[str], file: str) -> np.ndarray:
    """Mean vectors of the words of names, float64 [names, width], from GloVe's text file.

    Raises:
      UsageError: it cannot be read, or has none of a name's words.
    """
    wanted = {word for name in names for word in name.lower().split()}
    found: dict[str, np.ndarray] = {}
    try:
        with open(Path(file).expanduser(), encoding='utf-8', errors='replace') as lines:
            for line in lines:
                word, *numbers = line.rstrip().split(' ')
                if word in wanted:
                    found[word] = np.asarray(numbers, np.float64)
    except (OSError, ValueError) as error:
        raise UsageError(
            f'{file}: cannot be read as lines of a word and its numbers ({error}).'
        ) from error
    if len({len(vector) for vector in found.values()}) > 1:
        raise UsageError(f'{file}: vectors have different lengths.')
    means = []
    for name in names:
        known = [found[word] for word in name.lower().split() if word in found]
        if not known:
            raise UsageError(
                f'{file}: has none of the words of the relation {name!r}; use other vectors, or give '
                'the clusters as a file.'
            )
        means.append(np.mean(known, axis=0))
    return np.stack(means)


def vectors_of_tokens(names: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Mean vectors of the tokens of names, float64 [names, width], from a table [vocabulary,
    width]. The [SEP] counts too, which is the same in all.
    """
    there = names != np.asarray(NOTHING).astype(names.dtype)
    vectors = np.asarray(table, np.float64)[np.where(there, names, 0)] * there[..., None]
    return vectors.sum(axis=1) / there.sum(axis=1, keepdims=True)


def by_k_means(vectors: np.ndarray, num_clusters: int, seed: int) -> list[list[int]]:
    """Clusters of relations, float64 [relations, width]: numbers from 0, each of at least one.

    `seed` is of the first centres.

    Raises:
      UsageError: more clusters than there are different vectors.
    """
    from scipy.cluster import vq  # here, so that commands that cluster nothing start sooner

    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        for attempt in range(ATTEMPTS):
            if num_clusters > len(vectors):
                break
            _, labels = vq.kmeans2(
                vectors,
                num_clusters,
                iter=100,
                minit='++',
                rng=np.random.default_rng([seed, attempt]),
            )
            if len(np.unique(labels)) == num_clusters:
                return [np.flatnonzero(labels == i).tolist() for i in range(num_clusters)]
    raise UsageError(
        f'num_clusters = {num_clusters}: {len(vectors)} relations cannot be grouped into as many '
        'clusters; use fewer, or give the clusters as a file.'
    )


def from_file(file: str, names: Sequence[str]) -> list[list[int]]:
    """Clusters from a file, a line of numbers for each; raises `UsageError` for wrong ones."""
    found = [
        numbers
        for number, line in enumerate(lines_of(Path(file).expanduser()), 1)
        if (numbers := numbers_of(line, names, f'{file}:{number}'))
    ]
    counts = np.bincount(sum(found, []), minlength=len(names))
    if (counts != 1).any():
        relation = int(np.flatnonzero(counts != 1)[0])
        raise UsageError(
            f'{file}: the relation {relation + 1} is in {counts[relation]} clusters; every one must be '
            'in one.'
        )
    return found


def find(
    relations: Relations,
    names: np.ndarray,
    settings: Mapping[str, Any],
    table: np.ndarray | None = None,
    report: Callable[[str], None] = say,
) -> list[list[int]]:
    """The clusters that the settings ask for.

    Where no file is given, `table` has vectors of an encoder's tokens, [vocabulary, width].
    `report` gets a line that says what the clusters are made of.

    Raises:
      UsageError: wrong files, or nothing to make clusters of.
    """
    if settings['clusters']:
        found, source = from_file(settings['clusters'], relations.names), settings['clusters']
    elif settings['vectors'] or table is not None:
        if settings['vectors']:
            vectors = vectors_of_words(relations.names, settings['vectors'])
            source = f'k-means of the mean word vectors of {settings["vectors"]}'
        elif table is not None:
            vectors = vectors_of_tokens(names, table)
            source = "k-means of the mean vectors of the encoder's tokens"
        found = by_k_means(vectors, settings['num_clusters'], settings['seed'])
    else:
        raise UsageError(
            'clusters: give a file of clusters, or vectors of words (GloVe), or a pretrained encoder.'
        )
    report(f'{len(found)} clusters of {len(relations.names)} relations: {source}')
    return found
