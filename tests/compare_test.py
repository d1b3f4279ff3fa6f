"""The table and the figure of compared runs, and the updates whose speed is compared."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import compare
from experiments.layer_memories import speed
from longmem_jax.evaluation.result import Result


def numbers(seed: int, **changes):
    """The numbers of one run."""
    result = {'bits_per_byte': 2.0 + seed, 'perplexity': 4.0, 'num_bytes': 10.0, 'answers': 0.0}
    return {
        'test': result,
        'reset': {**result, 'bits_per_byte': 3.0},
        'bleu': None,
        'parameters': 1000,
        'state_bytes': 2000,
        'memory_size': 5.0,
        'ms_per_step': 10.0,
        'peak_mb': 100.0,
        'validation': [{'step': 1, 'bits_per_byte': 2.0}, {'step': 2, 'bits_per_byte': 1.0 + seed}],
        **changes,
    }


def cells(table: str) -> list[list[str]]:
    """Cells by line, without the line below the headings."""
    lines = table.splitlines()
    return [[cell.strip() for cell in line.strip('|').split('|')] for line in lines[:1] + lines[2:]]


def test_seeds_are_joined():
    rows = cells(compare.table({'one': [numbers(0), numbers(1)]}))
    assert rows[0][:3] == ['run', 'bits/byte', 'bits/byte, reset']
    assert rows[1][:3] == ['one', '2.500 (2.000 - 3.000)', '3.000 (3.000 - 3.000)']
    assert len(rows[0]) == len(rows[1])


def test_the_result_without_memory_is_found_by_its_field():
    kept, reset = (Result('test', 2.0, 1, 1.0, '', 1, 0, 0, memory) for memory in ('kept', 'reset'))
    written = {'step': 3, 'test': kept.as_json(), 'whatever': reset.as_json(), 'bleu': 3.0}
    assert compare.without_memory(written) == reset.as_json()
    assert compare.without_memory({'test': kept.as_json(), 'bleu': 3.0}) is None


def test_translations_have_bleu():
    rows = cells(compare.table({'one': [numbers(0, reset=None, bleu=17.25)]}))
    assert rows[0][:3] == ['run', 'bits/byte', 'BLEU'] and rows[1][:3] == ['one', '2.000', '17.250']
    assert len(rows[0]) == len(rows[1])


@pytest.mark.parametrize('speeds', [{}, {'tokens_per_s': {'512': 1000.0, '4096': 10.0}}])
def test_every_run_has_a_look_of_its_own(tmp_path, monkeypatch, speeds):
    """More runs than colours; generation is drawn where it was measured."""
    runs = {f'run {n}': [numbers(0, **speeds), numbers(1, **speeds)] for n in range(14)}
    seen = []
    figure = compare.figures.figure
    monkeypatch.setattr(
        compare.figures, 'figure', lambda *size: seen.append(figure(*size)) or seen[-1]
    )
    compare.draw(runs, tmp_path / 'figure.png')
    assert (tmp_path / 'figure.png').stat().st_size
    panels = seen[0].axes
    assert len(panels) == 1 + bool(speeds)
    for panel in panels:
        looks = [(line.get_color(), line.get_linestyle()) for line in panel.lines]
        assert len(looks) == 14
        assert all(one != other for one, other in itertools.combinations(looks, 2))
    heads = cells(compare.table(runs))[0]
    assert ('tokens/s after 4,096' in heads) == bool(speeds)


@pytest.mark.parametrize('text', ['512,x', '', '0', '512,-4'])
def test_contexts_are_refused_before_anything_runs(text, tmp_path, monkeypatch, capsys):
    given = ['compare', 'a', '--config=c', f'--output={tmp_path}', f'--contexts={text}']
    monkeypatch.setattr(compare.sys, 'argv', given)
    monkeypatch.setattr(compare, 'run', lambda *given: pytest.fail('a run began'))
    with pytest.raises(SystemExit):
        compare.main()
    assert '--contexts' in capsys.readouterr().err


def test_updates_of_rows_are_those_of_the_table():
    """Moments and values of unread rows do not change."""
    random = np.random.default_rng(0)
    tables = [random.random((50, 4)).astype(np.float32) for _ in range(3)]
    slots = jnp.asarray(random.integers(0, 30, (40,)), jnp.int32)
    rows = jnp.asarray(random.normal(size=(40, 4)), jnp.float32)
    dense, some = (
        update(tuple(jnp.asarray(table) for table in tables), slots, rows)
        for update in (speed.dense_update, speed.rows_update)
    )
    read = np.isin(np.arange(50), slots)
    for old, whole, part in zip(tables, dense, some, strict=True):
        np.testing.assert_allclose(part[read], whole[read], rtol=1e-5, atol=1e-7)
        np.testing.assert_array_equal(part[~read], old[~read])
    assert jax.tree.all(jax.tree.map(lambda a: np.isfinite(a).all(), some))
