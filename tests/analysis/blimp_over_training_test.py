"""BLiMP over the training of several runs."""

import json

import pytest

from experiments.analysis.blimp_over_training import draw, scores
from longmem_jax.errors import UsageError


def scored(folder, *overall):
    rows = [
        {'step': 10 * i, 'overall': {'paradigms': value, 'phenomena': 0.1},
         'field': {'syntax': value / 2}, 'phenomenon': {'binding': value / 4}}
        for i, value in enumerate(overall, 1)
    ]  # fmt: skip
    folder.mkdir()
    (folder / 'blimp.json').write_text(json.dumps({'protocol': '', 'checkpoints': rows}))
    return folder


def test_one_line_per_run(tmp_path, made_figures):
    short, long = scored(tmp_path / 'a', 0.5, 0.6), scored(tmp_path / 'b', 0.7)
    runs = {'32': scores(short), '256': scores(long)}
    assert runs == {'32': [(10, 0.5), (20, 0.6)], '256': [(10, 0.7)]}
    assert scores(short, 'syntax') == [(10, 0.25), (20, 0.3)]
    assert scores(short, 'binding') == [(10, 0.125), (20, 0.15)]
    draw(runs, 'overall', tmp_path / 'figure.png')
    (axes,) = made_figures[-1].axes
    first = axes.lines[0]
    assert first.get_label() == '32' and first.get_xydata().tolist() == [[10, 50], [20, 60]]
    assert (tmp_path / 'figure.png').exists()


def test_what_is_not_there_is_one_clear_error(tmp_path):
    with pytest.raises(UsageError, match='score the run first: python -m experiments.hosts.blimp'):
        scores(tmp_path)
    with pytest.raises(UsageError, match="did you mean 'syntax'"):
        scores(scored(tmp_path / 'a', 0.5), 'syntaxx')
