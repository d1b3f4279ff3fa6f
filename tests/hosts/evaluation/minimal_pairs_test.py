"""BLiMP: reading the original files, comparing sentences, averaging."""

import json

import numpy as np
import pytest

from experiments.hosts.minimal_pairs import Paradigm, means, prefer, read_paradigms
from longmem_jax.data.conventions import of_training
from longmem_jax.data.tokenizers import Bytes
from longmem_jax.errors import UsageError
from longmem_jax.evaluation.likelihood import Score

LINE = {
    'sentence_good': 'Cats sleep.',
    'sentence_bad': 'Cats sleeps.',
    'field': 'morphology',
    'linguistics_term': 'subject_verb_agreement',
    'UID': 'agreement_1',
    'pairID': '0',
}


def write(folder, name, *lines):
    text = '\n'.join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    (folder / f'{name}.jsonl').write_text(text + '\n')


def test_the_original_files_are_read(tmp_path):
    write(tmp_path, 'b', LINE, LINE | {'sentence_good': 'It is so.'})
    other = {'UID': 'a', 'field': 'syntax', 'linguistics_term': 's-selection'}
    write(tmp_path, 'a', LINE | other)
    mixed = {'UID': 'c', 'linguistics_term': 'binding'}
    fields = ('syntax/semantics', 'syntax_semantics')
    write(tmp_path, 'c', *(LINE | mixed | {'field': field} for field in fields))
    first, second, third = read_paradigms(str(tmp_path))
    assert first == Paradigm(
        'a', 'syntax', 'argument_structure', (('Cats sleep.', 'Cats sleeps.'),)
    )
    assert second.pairs[1] == ('It is so.', 'Cats sleeps.')
    assert third.field == 'syntax_semantics' and len(third.pairs) == 2


@pytest.mark.parametrize(
    'lines, message',
    [
        ([], 'has no examples'),
        (['{"UID": '], r'a.jsonl:1: not a line of JSON'),
        ([LINE, '[1]'], r'a.jsonl:2: not an object'),
        (
            [{k: v for k, v in LINE.items() if k != 'sentence_bad'}],
            "no field 'sentence_bad'; it has",
        ),
        ([LINE | {'sentence_good': 3}], 'sentence_good = 3: must be str'),
        ([LINE | {'sentence_bad': ' '}], 'pair 1 has an empty sentence'),
        (
            [LINE, LINE | {'UID': 'other'}],
            'UID is agreement_1, other; a file must have one paradigm',
        ),
    ],
)
def test_other_files_are_one_clear_error(tmp_path, lines, message):
    write(tmp_path, 'a', *lines)
    with pytest.raises(UsageError, match=message):
        read_paradigms(str(tmp_path))


def test_a_folder_without_files_says_what_is_needed(tmp_path):
    for folder in (str(tmp_path), ''):
        with pytest.raises(UsageError, match=r'has no .jsonl files; give the folder `data`'):
            read_paradigms(folder)


def test_a_paradigm_in_two_files_would_count_twice(tmp_path):
    for name in ('a', 'a (1)'):
        write(tmp_path, name, LINE)
    with pytest.raises(UsageError, match=r'a.jsonl: has the paradigm .*, as a \(1\).jsonl has'):
        read_paradigms(str(tmp_path))


def paradigm(name, field, phenomenon, *pairs):
    return Paradigm(name, field, phenomenon, pairs)


def test_the_likelier_sentence_wins_and_ties_count_a_half():
    asked = []

    def shorter_is_likelier(pairs):
        asked.extend(pairs)
        return [Score(-float(len(tokens)), False) for _, tokens in pairs]

    found = prefer(
        shorter_is_likelier,
        Bytes(),
        of_training(Bytes()),
        [
            paradigm('p', 'syntax', 'x', ('ab', 'abc'), ('abc', 'ab'), ('ab', 'cd'), ('a', 'bc')),
            paradigm('q', 'syntax', 'x', ('a', 'bc')),
            paradigm('r', 'semantics', 'y', ('abc', 'ab')),
        ],
        before=' ',
        num_pairs=3,
    )
    assert [(each.right, each.pairs, each.ties) for each in found] == [
        (1.5, 3, 1),
        (1, 1, 0),
        (0, 1, 0),
    ]
    assert [text.tolist() for text, _ in asked] == [[256]] * 10  # an empty memory before each
    assert bytes(asked[1][1].tolist()) == b' abc'
    averages = means(found)
    assert averages['field'] == {'semantics': 0.0, 'syntax': 0.75}
    assert averages['phenomenon'] == {'x': 0.75, 'y': 0.0}
    assert averages['overall']['paradigms'] == pytest.approx(0.5)
    assert averages['overall']['phenomena'] == pytest.approx(np.mean([2.5 / 4, 0]))
