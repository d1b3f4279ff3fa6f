"""Lifelong relation extraction on FewRel (Wang et al., 2019): which relation does a sentence state?

A row is a sentence with candidates, of which one is right. A line of the files is

  GOLD <tab> CANDIDATE CANDIDATE ... <tab> SENTENCE

with numbers that count the lines of `relation_name.txt` from 1. Relations are grouped into clusters,
which are the tasks, and their order is random. A learner is not asked about relations that no task so
far has had: they are removed from the candidates of rows to train on, and if no wrong candidate is left
the last two stay. The test sentences keep theirs.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.cluster import vq

from longmem_jax.data.stored_files import read_whole
from longmem_jax.data.tokenizers import Tokenizer
from longmem_jax.errors import UsageError
from longmem_jax.faults import of_section
from longmem_jax.lifelong import stream
from longmem_jax.lifelong.data.texts import Marked, choose
from longmem_jax.lifelong.rows import Rows
from longmem_jax.segment import NOTHING

NAMES = 'relation_name.txt'
FILES = {'train': ('training_data.txt', 'train.txt'), 'test': ('val_data.txt', 'test.txt')}
NO_ANSWER = 'noNegativeAnswer'  # in place of the candidates of lines that are skipped
KEPT = 2  # wrong candidates of a row that would have none
ATTEMPTS = 50  # of k-means, which may leave a cluster without relations
SETTINGS = dict(
    clusters='',  # file with the numbers of a cluster's relations per line; '' = by k-means
    vectors='',  # GloVe's text file for k-means; '' = the vectors of the pretrained encoder's tokens
    num_clusters=10,
    rows=0,  # to train on; 0 = all
    validation_rows=0,  # held out of the training file
    test_rows=0,  # at most; 0 = all
    max_length=64,  # tokens of a sentence with a relation, and their marks
    seed=0,  # of k-means and of which rows are taken
)
FIELDS = dict(
    clusters=str,
    vectors=str,
    num_clusters=(1, 10**6),
    rows=int,
    validation_rows=int,
    test_rows=int,
    max_length=(8, 2**15),
    seed=int,
)


class Examples(NamedTuple):
    """Sentences with candidates.

    Attributes:
      sentences: texts.
      candidates: relations from 0, int32 [sentences, most]: the right one, then the others; -1 = none.
    """

    sentences: list[str]
    candidates: np.ndarray

    def take(self, numbers: np.ndarray) -> 'Examples':
        """Some of them."""
        return Examples([self.sentences[i] for i in numbers], self.candidates[numbers])


class Relations(NamedTuple):
    """What the files say.

    Attributes:
      names: of the relations.
      train, validation, test: examples.
    """

    names: list[str]
    train: Examples
    validation: Examples
    test: Examples


class Encoded(NamedTuple):
    """Rows of all relations, before there are tasks.

    Attributes:
      names: tokens of the relations' names, each with a [SEP] after it, [relations, tokens] of the
        dtype of rows; `NOTHING` after them.
      train, validation, test: rows; a row is [CLS] SENTENCE [SEP], and leaves room for a name. Its
        answer is its candidates, int32 [rows, most], the right one first, -1 = none.
    """

    names: np.ndarray
    train: Rows
    validation: Rows
    test: Rows


def faults(settings: Mapping[str, Any]) -> list[str]:
    """Faults of the settings, each beginning with the name of a field."""
    return of_section(settings, FIELDS)


def _lines(file: Path) -> list[str]:
    lines = read_whole(file).decode('utf-8', 'replace').split('\n')
    return lines[:-1] if lines and not lines[-1] else lines


def _numbers(text: str, names: Sequence[str], where: str) -> list[int]:
    """Relations from 0."""
    found = []
    for word in text.split():
        if not word.isdecimal() or not 1 <= int(word) <= len(names):
            raise UsageError(
                f'{where}: the relation {word[:40]!r}: relations are 1 to {len(names)}, the lines of '
                f'{NAMES}.'
            )
        found.append(int(word) - 1)
    return found


def read_file(file: Path, names: Sequence[str]) -> Examples:
    """The examples of a file.

    Args:
      file: text, a line for each example.
      names: of the relations.

    Raises:
      UsageError: it cannot be read, has no examples, other columns, or an unknown relation; the
        message names the line.
    """
    sentences, found = [], []
    for number, line in enumerate(_lines(file), 1):
        where, columns = f'{file}:{number}', line.rstrip('\r').split('\t')
        if not line.strip() or NO_ANSWER in line:
            continue
        if len(columns) < 3:
            raise UsageError(
                f'{where}: has {len(columns)} columns; GOLD, CANDIDATES and SENTENCE are needed, with '
                'tabs between them.'
            )
        gold = _numbers(columns[0], names, where)
        wrong = [i for i in dict.fromkeys(_numbers(columns[1], names, where)) if i not in gold]
        if len(gold) != 1 or not wrong or not columns[2].strip():
            raise UsageError(
                f'{where}: one right relation, other candidates and a sentence are needed.'
            )
        sentences.append(columns[2].strip())
        found.append(gold + wrong)
    if not sentences:
        raise UsageError(f'{file}: has no examples.')
    candidates = np.full((len(found), max(map(len, found))), -1, np.int32)
    for row, numbers in enumerate(found):
        candidates[row, : len(numbers)] = numbers
    return Examples(sentences, candidates)


def read(path: str, settings: Mapping[str, Any]) -> Relations:
    """The files of a folder.

    Args:
      path: folder with `relation_name.txt`, `training_data.txt` and `val_data.txt`, or the last two as
        `train.txt` and `test.txt`.
      settings: like `SETTINGS`.

    Raises:
      UsageError: faulty settings, no such files, or too few rows; as `read_file`.
    """
    if problems := faults(settings):
        raise UsageError('; '.join(problems) + '.')
    root = Path(path).expanduser()
    files = {
        split: next((root / name for name in names if (root / name).is_file()), None)
        for split, names in FILES.items()
    }
    if not path or not (root / NAMES).is_file() or None in files.values():
        wanted = ', '.join(' or '.join(names) for names in FILES.values())
        raise UsageError(f'config.data.path = {path!r}: must have {NAMES}, {wanted}.')
    names = [line.strip() for line in _lines(root / NAMES)]
    given, asked = (read_file(files[split], names) for split in ('train', 'test'))
    train, held_out = choose(
        len(given.sentences), settings['rows'], settings['validation_rows'], str(files['train']),
        settings['seed'],
    )  # fmt: skip
    order = np.random.default_rng(settings['seed']).permutation(len(asked.sentences))
    test = order[: settings['test_rows'] or None]
    return Relations(names, given.take(train), given.take(held_out), asked.take(test))


def training_texts(relations: Relations) -> list[str]:
    """Sentences and names, to pretrain on and to learn a vocabulary from."""
    return [*relations.train.sentences, *relations.names]


def encode(relations: Relations, tokenizer: Tokenizer, max_length: int) -> Encoded:
    """Rows of tokens; long sentences lose their ends.

    Raises:
      UsageError: a tokenizer without [CLS] and [SEP], or names that leave no room for a sentence.
    """
    marked = Marked(tokenizer)
    ids = [np.append(marked.ids(name), marked.border) for name in relations.names]
    width = max(map(len, ids))
    if max_length - width < 4:
        raise UsageError(
            f'max_length = {max_length}: a relation has {width} tokens, which leaves no room for a '
            f'sentence; at least {width + 4} are needed.'
        )
    names = np.full((len(ids), width), np.asarray(NOTHING).astype(marked.dtype), marked.dtype)
    for row, tokens in enumerate(ids):
        names[row, : len(tokens)] = tokens

    def rows(given: Examples) -> Rows:
        room = max_length - width
        parts = [marked.join(marked.ids(text)[: room - 2]) for text in given.sentences]
        return marked.rows(parts, room, given.candidates)

    return Encoded(names, *map(rows, (relations.train, relations.validation, relations.test)))


def vectors_of_words(names: Sequence[str], file: str) -> np.ndarray:
    """Mean vectors of the words of names, float64 [names, width], from GloVe's text file.

    Raises:
      UsageError: it cannot be read, or has none of a name's words.
    """
    wanted = {word for name in names for word in name.lower().split()}
    found: dict[str, np.ndarray] = {}
    for number, line in enumerate(_lines(Path(file).expanduser()), 1):
        word, *numbers = line.rstrip().split(' ')
        if word in wanted:
            try:
                found[word] = np.asarray(numbers, np.float64)
            except ValueError as error:
                raise UsageError(f'{file}:{number}: not a word with its numbers.') from error
    if len({len(vector) for vector in found.values()}) > 1:
        raise UsageError(f'{file}: vectors are not all as long.')
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
    """Mean vectors of the tokens of names, float64 [names, width].

    Args:
      names: `Encoded.names`; the [SEP] counts too, which is the same in all.
      table: vectors of the tokens, [vocabulary, width].
    """
    there = names != np.asarray(NOTHING).astype(names.dtype)
    vectors = np.asarray(table, np.float64)[np.where(there, names, 0)] * there[..., None]
    return vectors.sum(axis=1) / there.sum(axis=1, keepdims=True)


def by_k_means(vectors: np.ndarray, num_clusters: int, seed: int) -> list[list[int]]:
    """Clusters of relations, numbers from 0, each of at least one.

    Args:
      vectors: of the relations, float64 [relations, width].
      num_clusters: at most the relations.
      seed: of the first centres.

    Raises:
      UsageError: more clusters than there are different vectors.
    """
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


def clusters_of(file: str, names: Sequence[str]) -> list[list[int]]:
    """Clusters from a file, a line of numbers for each; raises `UsageError` for faulty ones."""
    found = [
        numbers
        for number, line in enumerate(_lines(Path(file).expanduser()), 1)
        if (numbers := _numbers(line, names, f'{file}:{number}'))
    ]
    counts = np.bincount(sum(found, []), minlength=len(names))
    if (counts != 1).any():
        relation = int(np.flatnonzero(counts != 1)[0])
        raise UsageError(
            f'{file}: the relation {relation + 1} is in {counts[relation]} clusters; each must be in one.'
        )
    return found


def find_clusters(
    relations: Relations,
    names: np.ndarray,
    settings: Mapping[str, Any],
    table: np.ndarray | None = None,
    report: Callable[[str], None] = print,
) -> list[list[int]]:
    """The clusters that the settings ask for.

    Args:
      relations: from `read`.
      names: `Encoded.names`.
      settings: like `SETTINGS`.
      table: vectors of an encoder's tokens, [vocabulary, width], where no file is given.
      report: called with a line that says what the clusters are made of.

    Raises:
      UsageError: faulty files, or nothing to make clusters of.
    """
    if settings['clusters']:
        found, source = clusters_of(settings['clusters'], relations.names), settings['clusters']
    elif settings['vectors'] or table is not None:
        if settings['vectors']:
            vectors = vectors_of_words(relations.names, settings['vectors'])
            source = f'k-means of the mean word vectors of {settings["vectors"]}'
        else:
            vectors = vectors_of_tokens(names, table)
            source = "k-means of the mean vectors of the encoder's tokens"
        found = by_k_means(vectors, settings['num_clusters'], settings['seed'])
    else:
        raise UsageError(
            'clusters: give a file of clusters, or vectors of words (GloVe), or a pretrained encoder.'
        )
    report(f'{len(found)} clusters of {len(relations.names)} relations: {source}')
    return found


def only_seen(candidates: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Removes wrong candidates that no task so far has had; the last ones stay if none is left.

    Args:
      candidates: int32 [rows, most], the right one first, -1 = none.
      seen: bool [relations].

    Returns:
      The same shape, without gaps between candidates.
    """
    there = candidates >= 0
    kept = there & seen[np.where(there, candidates, 0)]
    kept[:, 0] = True
    rank = there.sum(axis=1, keepdims=True) - np.arange(candidates.shape[1])
    last = there & (rank <= KEPT)
    last[:, 0] = True
    kept = np.where(kept.sum(axis=1, keepdims=True) > 1, kept, last)
    order = np.argsort(~kept, axis=1, kind='stable')
    return np.take_along_axis(np.where(kept, candidates, -1), order, axis=1)


def tasks(
    encoded: Encoded, clusters: Sequence[Sequence[int]], order: Sequence[int]
) -> dict[str, stream.Task]:
    """A task for each cluster, in an order, by names such as 'cluster 3'.

    Args:
      encoded: from `encode`.
      clusters: relations of each.
      order: the clusters as they come; what has been seen depends on it.

    Raises:
      UsageError: a cluster without a row to train on.
    """
    seen, found = np.zeros(len(encoded.names), bool), {}
    for cluster in order:
        inside = np.zeros(len(encoded.names), bool)
        inside[list(clusters[cluster])] = True
        seen |= inside
        splits = []
        for rows, asked in (
            (encoded.train, False),
            (encoded.validation, True),
            (encoded.test, True),
        ):
            chosen = inside[rows.answer[:, 0]]
            candidates = rows.answer[chosen]
            candidates = candidates if asked else only_seen(candidates, seen)
            splits.append(Rows(rows.tokens[chosen], rows.types[chosen], candidates))
        if not len(splits[0]):
            raise UsageError(
                f'cluster {cluster}: no row of the training file has one of its relations; use more '
                'rows, or other clusters.'
            )
        found[f'cluster {cluster}'] = stream.Task(*splits)
    return found


def random_order(num_clusters: int, seed: int) -> tuple[int, ...]:
    """A random order of the clusters."""
    return stream.random_order(range(num_clusters), seed)
