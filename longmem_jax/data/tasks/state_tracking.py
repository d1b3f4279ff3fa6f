"""State tracking: the product of all elements of a group so far (Merrill et al., 2024, Sec. 5).

At every position the model reads an element of a finite group, and the target there is x_1 x_2 ... x_t.
A group is named `S5` (all permutations of five things), `A5` (the even ones), `Z60` (sums modulo 60), or
a direct product such as `A4_x_Z5`. A5, A4_x_Z5 and Z60 have 60 elements each. By the paper, Transformers
and linear recurrences with diagonal decays need more layers for longer sequences of A5 and S5. With
`S5_swaps` the model reads permutations that move two things at most, each of which a delta rule
with negative eigenvalues is in one step (Grazzi et al., 2024, Unlocking State-Tracking in Linear RNNs).

An answer is a whole sequence, so exact match is the share of sequences without an error, and accuracy
the share of right positions. Sequences are drawn, so a short one of the test can also occur in training.
"""

import functools
import itertools
import math
import re
from typing import Any

import numpy as np

from longmem_jax.data.corpus import TokenizedDocument
from longmem_jax.data.tasks.drawn import Drawn
from longmem_jax.data.tasks.vocabulary import Vocabulary
from longmem_jax.problems import of_section, rising

FIELDS = dict(documents=(1, 10**9), eval_documents=(1, 10**9), group=str)
SWAPS = '_swaps'  # ends the name of a group of which only these are read
SERIES = 'lengths'  # `--mode=evaluate` scores each by itself
LONGEST = 10**7  # elements of a sequence, which is held whole
MOST_ELEMENTS = 1000  # there is a table of all products of two
MIXED = 256  # swaps after which all permutations are as likely


def check(settings: Any) -> list[str]:
    """Problems of `config.data.task`.

    `lengths`: numbers of elements, in rising order. Training draws between the least and the greatest.
    """
    problems = of_section({name: settings[name] for name in settings if name != 'lengths'}, FIELDS)
    if problems:
        return problems
    name = settings['group']
    of_swaps = name.endswith(SWAPS) and not re.fullmatch('S[2-6]', name.removesuffix(SWAPS))
    if of_swaps or not 2 <= _order(name.removesuffix(SWAPS)) <= MOST_ELEMENTS:
        problems.append(
            f"group = '{name}': must be Sn, An or Zn, or a product such as 'A4_x_Z5', of 2 to "
            f'{MOST_ELEMENTS:,} elements, such as S5, A5 or Z60; or the swaps of S2 to S6, such as '
            'S5_swaps'
        )
    problems += rising(settings, 'lengths', 1, 'elements of a sequence, such as (2, 32)', LONGEST)
    return problems


def _order(name: str) -> int:
    """The number of elements of a group; 0 if there is no such group."""
    orders = []
    for part in name.split('_x_'):
        if not re.fullmatch('[SAZ][1-9][0-9]{0,3}', part):
            return 0
        kind, number = part[0], int(part[1:])
        if kind != 'Z' and number > 6:
            return 0
        permutations = math.factorial(min(number, 6))
        orders.append(dict(S=permutations, A=max(permutations // 2, 1), Z=number)[kind])
    return math.prod(orders)


@functools.lru_cache(maxsize=8)
def group(name: str) -> tuple[tuple[str, ...], np.ndarray]:
    """The elements of a group as words, the neutral one first, and the index of x y, int32 [x, y].

    A permutation is written as what its things become, and x y applies y first.
    """
    if name.endswith(SWAPS):
        return group(name.removesuffix(SWAPS))
    words: tuple[str, ...] = ('',)
    table = np.zeros((1, 1), np.int32)
    for part in name.split('_x_'):
        of_part, product = _simple(part[0], int(part[1:]))
        count = len(of_part)
        words = tuple('x'.join(filter(None, pair)) for pair in itertools.product(words, of_part))
        # Pairs are numbered with the last part fastest.
        table = np.kron(table * count, np.ones_like(product)) + np.tile(product, table.shape)
    return words, table.astype(np.int32)


def _simple(kind: str, number: int) -> tuple[tuple[str, ...], np.ndarray]:
    """`group` without products."""
    if kind == 'Z':
        numbers = np.arange(number)
        return tuple(map(str, numbers)), (numbers[:, None] + numbers) % number
    things = np.asarray(list(itertools.permutations(range(number))))
    swapped = sum(
        things[:, i] > things[:, j] for i, j in itertools.combinations(range(number), 2)
    ) + np.zeros(len(things), int)
    things = things[swapped % 2 == 0] if kind == 'A' else things
    digits = number ** np.arange(number)[::-1]  # permutations as rising numbers
    product = np.searchsorted(things @ digits, things[:, things] @ digits)
    return tuple(''.join(str(1 + thing) for thing in row) for row in things), product


def products(table: np.ndarray, elements: np.ndarray) -> np.ndarray:
    """x_1 ... x_t for every t, int32 [n]: spans of doubled length are joined until they begin at 1."""
    found, span = elements.astype(np.int32), 1
    while span < len(found):
        found = np.concatenate([found[:span], table[found[:-span], found[span:]]])
        span *= 2
    return found


@functools.lru_cache(maxsize=8)
def read(name: str) -> np.ndarray:
    """The indices of the elements that are read: of all, or of those that move two things at most."""
    words, _ = group(name)
    if not name.endswith(SWAPS):
        return np.arange(len(words))
    moved = [sum(a != b for a, b in zip(word, words[0], strict=True)) for word in words]
    return np.flatnonzero(np.asarray(moved) <= 2)


@functools.lru_cache(maxsize=1024)
def after(name: str, count: int) -> np.ndarray:
    """Chances of the product of `count` elements nobody has seen, [elements of the group]."""
    _, table = group(name)
    if not count:
        return np.eye(len(table))[0]
    before, drawn = after(name, count - 1), read(name)
    return np.bincount(
        table[:, drawn].ravel(), np.repeat(before / len(drawn), len(drawn)), len(table)
    )


def vocabulary(settings: Any) -> Vocabulary:
    """The elements and the begin word."""
    return Vocabulary((*group(settings['group'])[0], '<begin>'), '<begin>')


def questions(settings: Any, inputs: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """Where a question begins: at the element, where the product is due; see `registry.Task`."""
    return asked


def _product(settings: Any, inputs: np.ndarray, asked: np.ndarray, begin: np.ndarray) -> np.ndarray:
    """The product of what was seen and the likeliest of what was before it; of equals any."""
    words, table = group(settings['group'])
    chances = np.zeros((len(asked), len(words) + 1))
    order = np.argsort(begin, kind='stable')
    firsts, places = np.unique(begin[order], return_index=True)
    for first, rows in zip(firsts, np.split(order, places)[1:], strict=True):
        seen = products(table, inputs[first : asked[rows].max() + 1])[asked[rows] - first]
        before = after(settings['group'], min(int(first), MIXED))
        likeliest = before > before.max() * (1 - 1e-9)
        chances[rows[:, None], table[:, seen].T] = likeliest / likeliest.sum()
    return chances


RULES = {'product': _product}


class StateTracking(Drawn):
    """The sequences of a split as a corpus; see `data.corpus.Corpus`.

    Training draws lengths uniformly between the least and the greatest of `lengths`; evaluation cycles
    through them.
    """

    vocabulary = staticmethod(vocabulary)

    def _draw(self, index: int) -> tuple[np.random.Generator, int]:
        """Generator and length of a sequence."""
        random, lengths = self._random(index), self._settings['lengths']
        if self._split == 'train':
            return random, int(random.integers(lengths[0], lengths[-1], endpoint=True))
        return random, lengths[index % len(lengths)]

    def __getitem__(self, index: int) -> TokenizedDocument:
        random, length = self._draw(index)
        _, table = group(self._settings['group'])
        drawn = read(self._settings['group'])
        inputs = drawn[random.integers(0, len(drawn), length)].astype(np.int32)
        scored = np.ones(length, np.uint8)
        scored[-1] = 2
        tokens = products(table, inputs)
        return TokenizedDocument(tokens=tokens, num_bytes=0, inputs=inputs, scored=scored)

    def lengths(self) -> np.ndarray:
        """Tokens of every sequence, int64 [documents]."""
        return np.asarray([self._draw(index)[1] for index in range(self._count)], np.int64)
