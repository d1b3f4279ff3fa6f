"""Claims of the pages hold, and the pages say what the claims say."""

import json
import re
import subprocess

import numpy as np
import pytest

from experiments import claims, page_tables
from experiments.claim_language import Cells, number, true
from longmem_jax.errors import UsageError

ALL = claims.claims()
PAGES = sorted({page for claim in ALL for page in claim.pages})
CELLS = {
    'a': Cells(np.asarray([1.0, 2.0, 3.0]), ('0', '1', '2')),
    'b': Cells(np.asarray([2.0, 2.5, 5.0]), ('0', '1', '2')),
    'other': Cells(np.asarray([2.0, 2.5, 5.0]), ('0', '11', '23')),
}


@pytest.mark.parametrize('claim', ALL, ids=[claim.name for claim in ALL])
def test_a_claim_holds(claim):
    """If new numbers do not bear the sentence, change the sentence, not the predicate alone."""
    assert claims.holds(claim), f'{claim.text}: {claim.holds}'


@pytest.mark.parametrize('page', PAGES)
def test_a_page_says_what_its_claims_say(page):
    """After new numbers run `python -m experiments.claims --write`."""
    text = (claims.provenance.ROOT / page).read_text()
    assert claims.render(page, text) == text
    named = [found[1] for found in claims.SPAN.findall(text)]
    wanted = [claim.name for claim in ALL if page in claim.pages]
    assert sorted(named) == sorted([*wanted, claims.STALE])


@pytest.mark.parametrize(
    'file', sorted(claims.FILE.parent.glob('*/page.json')), ids=lambda file: file.parent.name
)
def test_numbers_from_a_page_are_those_of_the_page(file):
    """After a change of a table run `python -m experiments.claims --read_pages`."""
    content = json.loads(file.read_text())
    for name, _, _, rows in page_tables.on_pages(file):
        known = {row: {**cells} for row, cells in content[name]['rows'].items()}
        for row in known.values():
            assert re.fullmatch('[0-9a-f]{12}', row.pop('run')['commit'])
        assert known == rows, name
        assert content[name]['run'].keys() == {'from', 'date', 'seeds', 'device', 'command'}


def test_names_are_different_and_everything_named_is_there():
    assert len({claim.name for claim in ALL}) == len(ALL) > 60
    for claim in ALL:
        assert claim.memories and {*claim.memories} <= claims.code().keys(), claim.name
    for paths in claims.code().values():
        assert all((claims.provenance.ROOT / path).exists() for path in paths), paths


@pytest.mark.parametrize(
    'text, value',
    [
        ('min(b) > max(a) - 2', True), ('min(b - a) >= .5 and max(b - a) == 2', True),
        ('mean(a) < 2 or count(a) == 2', False), ('1 < min(b) < 2', False), ('sum(a) / 2 == 3', True),
        ('max(abs(-a)) == 3', True), ('max(a) > 1 and min(a) > 1', False),
    ],
)  # fmt: skip
def test_the_language(text, value):
    assert true(text, CELLS) is value


@pytest.mark.parametrize(
    'text, problem',
    [
        ('a > 1', 'several numbers'), ('a - other', 'cells of'), ('__import__("os")', 'language'),
        ('a.values', 'language'), ('min(a, b)', 'language'), ('[1][0]', 'language'), ('c', 'language'),
        ('a ** 2', 'language'), ('min(key=a)', 'language'), ('"a" == "a"', 'language'),
        ('max(a)', 'predicate'), ('max(a) and max(b) > 1', 'language'), ('max(a) != 1', 'language'),
    ],
)  # fmt: skip
def test_more_than_the_language_is_refused(text, problem):
    with pytest.raises(ValueError, match=problem):
        true(text, CELLS)


def test_numbers_of_a_sentence():
    assert number('100 * mean(b - a) / count(a)', CELLS) == pytest.approx(100 * 3.5 / 9)
    for several in ('a', 'a - b', 'max(a) > 1'):
        with pytest.raises(ValueError, match='several numbers'):
            number(several, CELLS)


@pytest.fixture
def one(tmp_path, monkeypatch):
    """A claim of two seeds and its page, in a folder of their own; a function that changes the cells."""
    monkeypatch.setattr(claims, 'FILE', tmp_path / 'claims.toml')
    monkeypatch.setattr(claims.provenance, 'ROOT', tmp_path)
    git = claims.provenance.git
    monkeypatch.setattr(claims.provenance, 'git', lambda *given: git(*given, folder=tmp_path))
    (tmp_path / 'page.md').write_text(
        'Text\n\n- First <span id="claim-one">old</span>.\n- Second\n\n<span id="claim-stale"></span>\n'
    )
    claims.FILE.write_text(
        '[files]\ncells = "cells.json"\n[code]\nlocal = ["local.py"]\n[[claim]]\nname = "one"\n'
        'text = "has {100*min(kept):.0f} %"\nmemories = ["local"]\npages = ["page.md"]\n'
        'cells.kept = "cells: local / * / kept"\nholds = "count(kept) == 2 and min(kept) > .5"\n'
    )

    def change(**seeds):
        run = {'commit': 'abc', 'command': 'python -m again'}
        cells = {seed: {'run': run, 'kept': kept} for seed, kept in seeds.items()}
        (tmp_path / 'cells.json').write_text(json.dumps({'local': cells}))
        forget()

    kept = (
        claims._content, claims._tree, claims.changed, claims.code_of_rows, claims._differs,
        claims._program,
    )  # fmt: skip

    def forget():
        for cached in kept:
            cached.cache_clear()

    forget()
    yield change
    forget()


def test_verdicts_and_exit_codes(one, monkeypatch, capsys):
    for later, age in ((None, ', age not known'), (False, ''), (True, ', stale')):
        monkeypatch.setattr(claims, '_differs', lambda *given, later=later: later)
        one(a=0.6, b=0.7)
        assert claims.main([]) == 0 and f'one holds{age}. has 60 %' in capsys.readouterr().out
    for cells, said in (
        (dict(a=0.4, b=0.7), 'one fails'),
        (dict(a=0.6), 'one fails'),
        ({}, 'one cells missing'),
    ):
        one(**cells)
        assert claims.main([]) == 1 and said in capsys.readouterr().out
    assert claims.main(['--stale']) == 0
    assert capsys.readouterr().out.startswith('# one: cells missing')


def test_a_change_after_which_cells_came_out_the_same_makes_none_older(one, monkeypatch):
    again = '[[again]]\ncode = "local"\ncells = ["cells: local / a"]\nbefore = "b"\nafter = "c"\n'
    claims.FILE.write_text(f'{claims.FILE.read_text()}{again}')
    one(a=0.6, b=0.7)

    def verdict(*versions):
        names = ('b', 'abc', 'c', 'd', 'HEAD') if versions[4:] else ('b', 'abc', 'c', 'HEAD')
        same = dict(zip(names, versions, strict=True))
        monkeypatch.setattr(claims, '_differs', lambda one, two, memory: same[one] != same[two])
        claims.changed.cache_clear()
        return claims.verdict(claims.claims()[0])

    assert verdict(1, 1, 2, 2) == 'holds'
    assert verdict(1, 1, 2, 3) == 'holds, stale', 'changed once more since'
    assert verdict(1, 0, 2, 2) == 'holds, stale', 'the cells are of other code'
    after = again.replace('"c"', '"d"').replace('"b"', '"c"')
    claims.FILE.write_text(f'{claims.FILE.read_text()}{after}')
    claims._content.cache_clear()
    assert verdict(1, 1, 2, 3, 3) == 'holds', 'two changes in a row that made nothing older'
    assert verdict(1, 1, 2, 3, 4) == 'holds, stale'


def test_comments_and_docstrings_are_no_code(one, tmp_path, monkeypatch):
    def commit(name, **files):
        for file, text in files.items():
            (tmp_path / f'{file}.py').write_text(text)
        for command in (['add', '.'], ['commit', '-qm', name, '--allow-empty'], ['tag', name]):
            who = ['-c', 'user.name=a', '-c', 'user.email=a@b.c']
            subprocess.run(['git', '-C', str(tmp_path), *who, *command], check=True)

    subprocess.run(['git', 'init', '-q', str(tmp_path)], check=True)
    a, b = "a = field(1, 'a')\n", "a = field(1, 'b')\n"
    commit('first', local=f'"One."\n{a}def f(x):\n    "Two."\n    return x\n')
    commit('words', local=f'{b}def f(x):\n    # Three.\n    return (x)\n', other='a = 1\n')
    commit('code', local=f'{b}def f(x):\n    return -x\n')
    commit('value', local="a = field(2, 'a')\ndef f(x):\n    return x\n")
    commit('rule', local="a = field(1, 'a', least=1)\ndef f(x):\n    return x\n")
    commit('name', local='a = field(1, f)\ndef f(x):\n    return x\n')
    commit('back', local=f'{a}def f(x):\n    return x\n')
    commit('broken', local='<<<<<<< a\n')
    assert claims._differs('first', 'broken', 'local') is True, (
        'what is no Python is compared as text'
    )
    (tmp_path / 'local.py').unlink()
    commit('gone')
    names = 'words', 'code', 'value', 'rule', 'name', 'back'
    found = {name: claims._differs('first', name, 'local') for name in names}
    assert found == dict(words=False, code=True, value=True, rule=True, name=True, back=False)
    assert claims._differs('first', 'gone', 'local') is True
    assert claims._differs('first', 'no_such_commit', 'local') is None
    git = claims.provenance.git
    claims._program.cache_clear()
    claims._differs.cache_clear()
    monkeypatch.setattr(
        claims.provenance, 'git', lambda *given: None if given[0] == 'cat-file' else git(*given)
    )
    assert claims._differs('first', 'code', 'local') is None, 'git does not have the files'


def test_commands_that_measure_stale_cells_again(one, monkeypatch, capsys):
    one(a=0.6, b=0.7)
    monkeypatch.setattr(claims, '_differs', lambda *given: True)
    assert claims.main(['--stale']) == 0 and capsys.readouterr().out == 'python -m again  # one\n'
    monkeypatch.setattr(claims.provenance, 'COMMIT', None)
    claims.main(['--stale'])
    assert 'no git checkout' in capsys.readouterr().out


def test_cells_are_as_old_as_the_code_of_their_own_row(monkeypatch):
    """What changed one memory of a claim makes no other memory's cells older."""
    assert claims.code_of_rows()['gated_delta_net'] == ['delta']
    (claim,) = [each for each in claims.claims() if each.name == 'second_window']
    both = claim.cells | {'other': 'second_reading: rwkv7|linear / 0 / bits / 256 / first'}
    claim = claim._replace(memories=['transformer_xl', 'rwkv7'], cells=both)
    monkeypatch.setattr(claims, 'changed', lambda commit, memory: memory == 'rwkv7')
    found = {(memory, age) for memory, _, age in claims.aged(claim)}
    assert found == {('transformer_xl', False), ('rwkv7', True), ('linear_attention', False)}


def test_sentences_are_written_into_pages(one, monkeypatch, tmp_path):
    one(a=0.6, b=0.7)
    monkeypatch.setattr(claims.provenance, 'COMMIT', 'abc')
    monkeypatch.setattr(claims, '_differs', lambda *given: True)
    claims.main(['--write'])
    text = (tmp_path / 'page.md').read_text()
    assert '- First <span id="claim-one">has 60 %</span>.\n- Second\n' in text
    assert 'were measured: `local`' in text
    claims.main(['--write'])
    assert (tmp_path / 'page.md').read_text() == text
    assert claims.render('page.md', text.replace('60', '61')) == text
    monkeypatch.setattr(claims.provenance, 'COMMIT', None)
    monkeypatch.setattr(claims, '_differs', lambda *given: None)
    claims.changed.cache_clear()
    assert claims.render('page.md', text, ages=True) == text, 'outside of a checkout an age is kept'


def test_tables_of_pages_are_read():
    page = '# One\n\n| name | x | ... y |\n|---|---|---|\n'
    page += '| `a` | 1.5 (1 - 2) | 3, 4 |\n| ... b |  | 1,000 (few) |\n'
    ((heading, line, table),) = page_tables.tables(page)
    assert (heading, line) == ('One', 3)
    assert page_tables.rows(table, 1) == {
        'a': {'x': {'mean': 1.5, 'min': 1, 'max': 2}, 'x, y': [3, 4]},
        'a, b': {'x, y': 1000},
    }
    assert [page_tables.cell(text) for text in ('no', '-.5', '2 + 3: 4', '+1 / -2')] == [
        None,
        -0.5,
        None,
        [1, -2],
    ]


def test_rows_keep_their_commit_until_their_numbers_change(tmp_path, monkeypatch):
    (tmp_path / 'README.md').write_text('# None\n\nThe numbers: more.md\n')
    (tmp_path / 'more.md').write_text('# One\n\n| n | x |\n|---|---|\n| a | 1 |\n| b | 2 |\n')
    file = tmp_path / 'page.json'
    about = {'heading': 'One', 'run': {'seeds': [0]}}
    file.write_text(json.dumps({'t': about | {'rows': {'a': {'run': {'commit': 'old'}, 'x': 1}}}}))
    blame = '\n'.join(f'{line}abc {line}) text' for line in range(1, 7))
    monkeypatch.setattr(page_tables.provenance, 'git', lambda *given: blame)
    page_tables.read(file)
    expected = {'a': {'run': {'commit': 'old'}, 'x': 1}, 'b': {'run': {'commit': '6abc'}, 'x': 2}}
    assert json.loads(file.read_text()) == {'t': about | {'rows': expected}}
    monkeypatch.setattr(page_tables.provenance, 'git', lambda *given: None)
    with pytest.raises(UsageError, match='use a checkout'):
        page_tables.read(file)
