"""BLiMP: pairs of sentences, one of them acceptable (Warstadt et al., 2020), from the original files.

A file `NAME.jsonl` is a paradigm: a thousand pairs that differ in the same way. Paradigms belong to one
of 12 phenomena, and these to one of four fields.
"""

import dataclasses
from pathlib import Path

from longmem_jax.data.json_lines import read_examples
from longmem_jax.errors import UsageError

NUM_PARADIGMS = 67
FIELDS = {
    'UID': str,
    'field': str,
    'linguistics_term': str,
    'sentence_good': str,
    'sentence_bad': str,
}
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
      UsageError: no such files, a line without a field that is needed, or a file with the pairs of
        several paradigms.
    """
    path = Path(folder).expanduser()
    files = sorted(path.glob('*.jsonl'))
    if not files:
        raise UsageError(
            f'{folder or "(no folder)"}: has no .jsonl files; give the folder `data` of '
            'github.com/alexwarstadt/blimp, with a file per paradigm.'
        )
    return [_paradigm(file) for file in files]


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
