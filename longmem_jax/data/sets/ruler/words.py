"""The words of RULER: the lists of the package wonderwords (extra `[ruler]`), which is not imported."""

import bisect
import functools
import importlib.util
from collections.abc import Sequence
from pathlib import Path

from longmem_jax.errors import UsageError

KINDS = ('noun', 'adjective', 'verb')


@functools.cache
def listed() -> dict[str, tuple[str, ...]]:
    """The words of every kind, in the order of their file.

    Raises:
      UsageError: wonderwords is not installed, or is another version without these files.
    """
    found = importlib.util.find_spec('wonderwords')
    folders = [
        Path(place) / 'assets' for place in (found and found.submodule_search_locations) or ()
    ]
    try:
        return {kind: _lines(folders[0] / f'{kind}list.txt') for kind in KINDS}
    except (OSError, IndexError) as error:
        raise UsageError(
            "this task of RULER needs the word lists of wonderwords: pip install 'longmem_jax[ruler]', "
            'or choose vt or fwe, which need no words.'
        ) from error


def _lines(path: Path) -> tuple[str, ...]:
    return tuple(line.rstrip() for line in path.read_text('utf-8').splitlines())


class Pairs(Sequence[str]):
    """All words 'adjective-noun', sorted and each once; only those that are asked for are made.

    Words with different adjectives are in the order of the adjectives, unless one adjective with its
    hyphen begins another ('old-' and 'old-fashioned-'): these form a group, which is sorted as a whole.
    """

    def __init__(self, adjectives: Sequence[str], nouns: Sequence[str]):
        """Makes the words of groups with several adjectives."""
        self._nouns = sorted(set(nouns))
        groups: list[list[str]] = []
        for adjective in sorted({f'{adjective}-' for adjective in adjectives}):
            if groups and adjective.startswith(groups[-1][0]):
                groups[-1].append(adjective)
            else:
                groups.append([adjective])
        # The beginning of every word of a group, and what may follow.
        self._groups: list[tuple[str, list[str]]] = []
        self._ends = [0]  # words up to each group
        for first, *others in groups:
            rests = self._nouns
            if others:
                of_others = (other[len(first) :] + noun for other in others for noun in rests)
                rests = sorted({*rests, *of_others})
            self._groups.append((first, rests))
            self._ends.append(self._ends[-1] + len(rests))

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> str:  # type: ignore[override]  # no slices
        if not 0 <= index < len(self):
            raise IndexError(index)
        at = bisect.bisect_right(self._ends, index) - 1
        first, rests = self._groups[at]
        return first + rests[index - self._ends[at]]


@functools.cache
def pairs() -> Pairs:
    """The keys of needles; errors as in `listed`."""
    return Pairs(listed()['adjective'], listed()['noun'])
