"""How often the acceptable sentence of a minimal pair is the more likely one (BLiMP)."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from longmem_jax.data.conventions import Conventions
from longmem_jax.data.tokenizers import Tokenizer
from longmem_jax.evaluation.likelihood import Likelihood
from longmem_jax.hosts.data.minimal_pairs import Paradigm


@dataclasses.dataclass(frozen=True)
class Preference:
    """How many pairs of a paradigm were scored, right (their acceptable sentence is the more likely
    one) and ties, which count as a half.
    """

    name: str
    field: str
    phenomenon: str
    pairs: int
    right: float
    ties: int

    @property
    def accuracy(self) -> float:
        """Share of the pairs that are right."""
        return self.right / self.pairs


def prefer(
    likelihood: Likelihood,
    tokenizer: Tokenizer,
    conventions: Conventions,
    paradigms: Sequence[Paradigm],
    *,
    before: str = '',
    num_pairs: int = 0,
) -> list[Preference]:
    """Compares the sums of the log-probabilities of all tokens of both sentences of every pair.

    Every sentence is a text of its own, after the begin token: the memory is empty before it.
    `before` is put before every sentence, and scored with it; `num_pairs`: the first pairs of every
    paradigm, 0 = all.
    """
    begin = conventions.before()
    paradigms = [
        dataclasses.replace(paradigm, pairs=paradigm.pairs[: num_pairs or None])
        for paradigm in paradigms
    ]
    sentences = [
        (begin, tokenizer.encode((before + sentence).encode()))
        for paradigm in paradigms
        for pair in paradigm.pairs
        for sentence in pair
    ]
    sums = np.asarray([score.log_likelihood for score in likelihood(sentences)]).reshape(-1, 2)
    results, at = [], 0
    for paradigm in paradigms:
        good, bad = sums[at : at + len(paradigm.pairs)].T
        at += len(paradigm.pairs)
        ties = int((good == bad).sum())
        right = float((good > bad).sum()) + ties / 2
        results.append(
            Preference(paradigm.name, paradigm.field, paradigm.phenomenon, len(good), right, ties)
        )
    return results


def means(preferences: Sequence[Preference]) -> dict[str, dict[str, float]]:
    """Mean accuracies over paradigms.

    Returns:
      'field' and 'phenomenon' to the mean of every one of them; 'overall' to: 'paradigms', the mean of
      all paradigms, as in the paper; 'phenomena', the mean of the phenomena, each the share of all its
      pairs, as evaluation suites report it.
    """
    found: dict[str, dict[str, float]] = {}
    for kind in ('field', 'phenomenon'):
        groups: dict[str, list[float]] = {}
        for each in preferences:
            groups.setdefault(getattr(each, kind), []).append(each.accuracy)
        found[kind] = {name: float(np.mean(values)) for name, values in sorted(groups.items())}
    pooled: dict[str, list[tuple[float, int]]] = {}
    for each in preferences:
        pooled.setdefault(each.phenomenon, []).append((each.right, each.pairs))
    found['overall'] = {
        'paradigms': float(np.mean([each.accuracy for each in preferences])),
        'phenomena': float(
            np.mean([sum(r for r, _ in rows) / sum(n for _, n in rows) for rows in pooled.values()])
        ),
    }
    return found
