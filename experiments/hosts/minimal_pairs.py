"""BLiMP: pairs of sentences, one of them acceptable (Warstadt et al., 2020): which is the likelier one?

A file `NAME.jsonl` is a paradigm: a thousand pairs that differ in the same way. Paradigms belong to one
of 12 phenomena, and these to one of four fields.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from longmem_jax.data.conventions import Conventions
from longmem_jax.data.json_lines import read_examples
from longmem_jax.data.tokenizers import Tokenizer
from longmem_jax.errors import UsageError
from longmem_jax.evaluation.likelihood import Likelihood

NUM_PARADIGMS = 67
FIELDS = dict.fromkeys(('UID', 'field', 'linguistics_term', 'sentence_good', 'sentence_bad'), str)
# Two spellings of the original files. S-selection counts as argument structure in the paper's table.
SPELLINGS = {'syntax/semantics': 'syntax_semantics', 's-selection': 'argument_structure'}


@dataclasses.dataclass(frozen=True)
class Paradigm:
    """The pairs of a paradigm.

    Attributes:
      name: such as 'anaphor_gender_agreement'.
      field: 'morphology', 'semantics', 'syntax' or 'syntax_semantics'.
      phenomenon: one of 12, such as 'anaphor_agreement'.
      pairs: (acceptable, unacceptable) sentences.
    """

    name: str
    field: str
    phenomenon: str
    pairs: tuple[tuple[str, str], ...]


def read_paradigms(folder: str) -> list[Paradigm]:
    """The paradigms of a folder of `*.jsonl` files, by name.

    Raises:
      UsageError: no such files, a line without a field that is needed, a file with the pairs of
        several paradigms, or two with the same one.
    """
    path = Path(folder).expanduser()
    files = sorted(path.glob('*.jsonl'))
    if not files:
        raise UsageError(
            f'{folder or "(no folder)"}: has no .jsonl files; give the folder `data` of '
            'github.com/alexwarstadt/blimp, with a file per paradigm.'
        )
    found: dict[str, tuple[Path, Paradigm]] = {}
    for file in files:
        paradigm = _paradigm(file)
        if paradigm.name in found:
            raise UsageError(
                f'{file}: has the paradigm {paradigm.name}, as {found[paradigm.name][0].name} has; it '
                'would count twice: leave one of them.'
            )
        found[paradigm.name] = file, paradigm
    return [paradigm for _, paradigm in found.values()]


def _paradigm(file: Path) -> Paradigm:
    """The paradigm of a file."""
    examples = read_examples(file, FIELDS)
    first = examples[0]
    for name in ('UID', 'field', 'linguistics_term'):
        # One original file spells its field in two ways.
        values = {SPELLINGS.get(example[name], example[name]) for example in examples}
        if len(values) > 1:
            raise UsageError(
                f'{file}: {name} is {", ".join(sorted(values))[:300]}; a file must have one paradigm.'
            )
    for number, example in enumerate(examples, 1):
        if not example['sentence_good'].strip() or not example['sentence_bad'].strip():
            raise UsageError(f'{file}: pair {number} has an empty sentence.')
    return Paradigm(
        first['UID'],
        SPELLINGS.get(first['field'], first['field']),
        SPELLINGS.get(first['linguistics_term'], first['linguistics_term']),
        tuple((example['sentence_good'], example['sentence_bad']) for example in examples),
    )


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
