"""Lifelong relation extraction on FewRel (Wang et al., 2019): which relation does a sentence state?

A row is a sentence with candidates, of which one is right. A line of the files is

  GOLD <tab> CANDIDATE CANDIDATE ... <tab> SENTENCE

with numbers that count the lines of `relation_name.txt` from 1. Relations are grouped into clusters,
see `clusters`; these are the tasks, and come in random order. A learner is not asked about relations
that no task so far has had: they are removed from the candidates of rows to train on, and if no wrong
candidate is left the last two stay. The test sentences keep theirs.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from longmem_jax.data.stored_files import read_whole
from longmem_jax.data.tokenizers import Tokenizer
from longmem_jax.errors import UsageError
from longmem_jax.files import looked_for
from longmem_jax.lifelong import stream
from longmem_jax.lifelong.data.texts import Marked, choose
from longmem_jax.lifelong.heads import choose_from
from longmem_jax.lifelong.rows import Rows
from longmem_jax.problems import defaults_and_rules, of_section
from longmem_jax.segment import NOTHING

NAMES = 'relation_name.txt'
FILES = {'train': ('training_data.txt', 'train.txt'), 'test': ('val_data.txt', 'test.txt')}
NO_ANSWER = 'noNegativeAnswer'  # in place of the candidates of lines that are skipped
KEPT = 2  # wrong candidates of a row that would have none
SETTINGS, FIELDS = defaults_and_rules(
    # File with the numbers of a cluster's relations per line; '' = by k-means.
    clusters=('', str),
    # GloVe's text file for k-means; '' = the vectors of the pretrained encoder's tokens.
    vectors=('', str),
    num_clusters=(10, (1, 10**6)),
    rows=(0, int),  # to train on; 0 = all
    test_rows=(0, int),  # at most; 0 = all
    max_length=(64, (8, 2**15)),  # tokens of a sentence with a relation, and their marks
    # Candidates to train on: those that a task so far has had, as published; or all.
    only_seen=(True, bool),
    seed=(0, int),  # of k-means and of which rows are taken
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
    """The content of the files: names of the relations, and examples."""

    names: list[str]
    train: Examples
    test: Examples


class Encoded(NamedTuple):
    """Rows of all relations, before there are tasks.

    Attributes:
      names: tokens of the relations' names, each with a [SEP] after it, [relations, tokens] of the
        dtype of rows; `NOTHING` after them. For `heads.Candidates`.
      train, test: rows; a row is [CLS] SENTENCE [SEP], and leaves room for a name. Its
        answer is its candidates, int32 [rows, most], the right one first, -1 = none.
    """

    names: np.ndarray
    train: Rows
    test: Rows


def check(settings: Mapping[str, Any]) -> list[str]:
    """Problems of the settings, each beginning with the name of a field."""
    return of_section(settings, FIELDS)


def lines_of(file: Path) -> list[str]:
    """The lines of a text; raises `UsageError` if it cannot be read."""
    lines = read_whole(file).decode('utf-8', 'replace').split('\n')
    return lines[:-1] if lines and not lines[-1] else lines


def numbers_of(text: str, names: Sequence[str], where: str) -> list[int]:
    """Relations from 0, of a text that counts them from 1; raises `UsageError` for others."""
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
    """The examples of a text file, a line for each.

    Raises:
      UsageError: it cannot be read, has no examples, other columns, or an unknown relation; the
        message names the line.
    """
    sentences, found = [], []
    for number, line in enumerate(lines_of(file), 1):
        where, columns = f'{file}:{number}', line.rstrip('\r').split('\t')
        if not line.strip() or NO_ANSWER in line:
            continue
        if len(columns) < 3:
            raise UsageError(
                f'{where}: has {len(columns)} columns; GOLD, CANDIDATES and SENTENCE are needed, with '
                'tabs between them.'
            )
        gold = numbers_of(columns[0], names, where)
        wrong = [i for i in dict.fromkeys(numbers_of(columns[1], names, where)) if i not in gold]
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

    Raises:
      UsageError: wrong settings, no such files, or too few rows; as `read_file`.
    """
    if problems := check(settings):
        raise UsageError('; '.join(problems) + '.')
    root = Path(path).expanduser()
    files = {
        split: file
        for split, names in FILES.items()
        for file in [root / name for name in names if (root / name).is_file()][:1]
    }
    if not path or not (root / NAMES).is_file() or len(files) < len(FILES):
        wanted = ', '.join(' or '.join(names) for names in FILES.values())
        raise UsageError(
            f'config.data.path = {path!r}{looked_for(path)}: must have {NAMES}, {wanted}.'
        )
    names = [line.strip() for line in lines_of(root / NAMES)]
    given, asked = (read_file(files[split], names) for split in ('train', 'test'))
    train = choose(len(given.sentences), settings['rows'], str(files['train']), settings['seed'])
    order = np.random.default_rng(settings['seed']).permutation(len(asked.sentences))
    test = order[: settings['test_rows'] or None]
    return Relations(names, given.take(train), asked.take(test))


def training_texts(relations: Relations) -> list[str]:
    """Sentences and names, to pretrain on and to learn a vocabulary from."""
    return [*relations.train.sentences, *relations.names]


def encode(relations: Relations, tokenizer: Tokenizer, max_length: int) -> Encoded:
    """Rows of tokens; long sentences lose their ends.

    Raises:
      UsageError: a tokenizer without [CLS] and [SEP], or names that leave no room for a sentence.
    """
    marked = Marked(tokenizer)
    ids = [np.append(name, marked.border) for name in marked.all_ids(relations.names)]
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
        parts = [marked.join(ids[: room - 2]) for ids in marked.all_ids(given.sentences)]
        return marked.rows(parts, room, given.candidates)

    return Encoded(names, *map(rows, (relations.train, relations.test)))


def only_seen(candidates: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Removes wrong candidates that no task so far has had; the last ones stay if none is left.

    `candidates`, int32 [rows, most], have the right one first, -1 = none; `seen` is bool
    [relations]. Returns the same shape, without gaps between candidates.
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
    encoded: Encoded,
    clusters: Sequence[Sequence[int]],
    order: Sequence[int],
    all_candidates: bool = False,
) -> dict[str, stream.Task]:
    """A task for each cluster, in an order, by names such as 'cluster 3'; answers are `heads.Choice`.

    Args:
      order: the clusters as they come, such as `stream.random_order(range(10), seed)`; what has been
        seen depends on it.
      all_candidates: none is removed; of tasks that are shuffled together none should be.

    Raises:
      UsageError: a cluster without a row to train on, or to test.
    """
    seen, found = np.zeros(len(encoded.names), bool), {}
    for cluster in order:
        inside = np.zeros(len(encoded.names), bool)
        inside[list(clusters[cluster])] = True
        seen |= inside
        splits = []
        for rows, asked in ((encoded.train, False), (encoded.test, True)):
            chosen = inside[rows.answer[:, 0]]
            candidates = rows.answer[chosen]
            candidates = candidates if asked or all_candidates else only_seen(candidates, seen)
            answer = choose_from(candidates[:, 0], candidates[:, 1:])
            splits.append(Rows(rows.tokens[chosen], rows.types[chosen], answer))
        for rows, name in zip(splits, ('training', 'test'), strict=True):
            if not len(rows):
                raise UsageError(
                    f'cluster {cluster}: no row of the {name} file has one of its relations; use more '
                    'rows, or other clusters.'
                )
        found[f'cluster {cluster}'] = stream.Task(*splits)
    return found
