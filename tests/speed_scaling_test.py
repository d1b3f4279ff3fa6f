"""The tables of speed by text, lanes and devices: who takes turns, and every part as a toy."""

import json

import jax.numpy as jnp
import pytest

from experiments.speed import host, scaling
from longmem_jax.data.documents import Document


def test_calls_take_turns():
    log = []

    def call(name):
        log.append(name)
        return jnp.zeros(())

    times = scaling.in_turns({name: lambda name=name: call(name) for name in 'ab'}, 2, untimed=1)
    assert log == ['a', 'b'] * 3 and set(times) == {'a', 'b'}
    assert set(times['a']) == {'wall', 'cpu'}


def test_times_are_per_token():
    times = {'wall': {'median': 30.0, 'least': 20.0}, 'cpu': {'median': 60.0, 'least': 20.0}}
    assert scaling.shown(times, 60, 2) == '0.50 (1.00)'
    assert scaling.shown(times, 60, 0, unit=1e3) == '500 (1000)'


@pytest.mark.slow
@pytest.mark.parametrize(
    ('part', 'lines'),
    [
        ('contexts', ['transformer_xl']),
        ('lanes', ['transformer_xl']),
        ('compiling', ['transformer_xl 1024']),
        ('devices', ['`:memory=infini`']),
    ],
)
def test_a_toy(part, lines):
    heads, rows = scaling.PARTS[part](['transformer_xl'], 1, True)
    assert [row[0] for row in rows] == lines
    for row in rows:
        assert len(row) == len(heads) and all(float(cell.split(' ')[0]) >= 0 for cell in row[1:])


def test_the_toy_of_the_host_reads_the_same_tokens(capsys):
    """The command, as JSON for the one that collects the parts."""
    scaling.main(['--part=host', '--toy', '--rounds=1', '--json'])
    heads, rows = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert heads[0] == 'host' and all(len(row) == len(heads) for row in rows)
    assert [row[0] for row in rows][-1] == 'first batch of 2 lanes, from tokens'


def test_books_have_one_size():
    found = host.books(2, 3000)
    assert [type(book) for book in found] == [Document] * 2
    assert [len(book.text) for book in found] == [3000] * 2 and found[0] != found[1]


def test_an_unknown_memory_is_named(capsys):
    with pytest.raises(SystemExit):
        scaling.main(['--memories=infinni'])
    assert "memory = 'infinni': did you mean 'infini'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ('arguments', 'problem'),
    [
        (['--rounds=0'], '--rounds=0: at least one'),
        (['--json'], '--json: needs --part'),
        (['--json', '--part=host', '--output=a.json'], '--json: prints'),
        (['--output=no/such/folder/a.json'], 'its folder does not exist'),
    ],
    ids=['rounds', 'part', 'json', 'folder'],
)
def test_problems_are_named_before_anything_is_timed(arguments, problem, capsys, monkeypatch):
    monkeypatch.setattr(scaling, 'run_part', None)
    monkeypatch.setattr(scaling, 'PARTS', dict.fromkeys(scaling.PARTS))
    with pytest.raises(SystemExit):
        scaling.main(arguments)
    assert problem in capsys.readouterr().err
