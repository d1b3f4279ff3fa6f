"""Sorting and the fit by the number of basis functions."""

import json

import numpy as np
import pytest

from configs import sorting
from experiments.infinity_former import by_functions
from longmem_jax.config import checks, overrides

FIELDS = dict(
    write_length=64, num_samples=64, tau=2 / 3, ridge=1.0, widths=(0.02, 0.05), padding=True
)


def test_degrees_of_freedom_are_functions_until_they_overlap():
    found = [by_functions.posed(FIELDS | dict(num_basis=n)) for n in (8, 16, 32, 64, 128, 256)]
    degrees = [each['degrees_of_freedom'] for each in found]
    assert degrees == sorted(degrees) and degrees[-1] < 64
    # Those at the borders also serve to pull the signal to zero outside of [0, 1].
    assert all(n - 3 < found < n for n, found in zip((8, 16), degrees[:2], strict=True))
    # A coefficient never grows beyond the penalty's bound, 1 / (2 sqrt(ridge)).
    assert all(each['gain'] <= 0.5 for each in found)
    without = by_functions.posed(FIELDS | dict(num_basis=256, ridge=1e-6))
    assert without['gain'] > 100


@pytest.mark.parametrize('functions', by_functions.FUNCTIONS)
def test_every_number_of_functions_can_run(functions):
    config = sorting.get_config('tiny')
    flags = [f'--config.model.infinity_former.num_basis={functions}', *by_functions.few(functions)]
    overrides.apply(config, overrides.split_arguments(flags)[1])
    checks.require_runnable(config, 1)


def test_table_and_figure_have_accuracy_and_error(tmp_path):
    inside = {'first write': 0.25, 'later writes': 0.5, 'degrees_of_freedom': 8.2, 'gain': 0.1}
    row = dict(test=0.5, reset=0.25, whole=0.1, state_bytes=2000) | inside
    found = {'8': [row, row | {'test': 0.7}], '16': [row]}
    lines = by_functions.table(found).splitlines()
    cells = [cell.strip() for cell in lines[2].strip('|').split('|')]
    assert cells == ['8', '60.0 (50.0 - 70.0)', '25.0', '10.0', '0.25', '0.50', '8', '0.10', '2']
    figure = by_functions.draw(found, tmp_path / 'functions.png')
    accuracy, errors = figure.axes
    (bars,) = accuracy.containers
    np.testing.assert_allclose(bars[0].get_xydata(), [[8, 60], [16, 50]])
    heights = [list(bars[0].get_ydata()) for bars in errors.containers]
    assert heights == [[0.25, 0.25], [0.5, 0.5]]


@pytest.mark.slow
def test_a_run_is_trained_and_looked_into(tmp_path):
    tiny = ('train.num_steps=2', 'data.task.eval_documents=16')
    given = [f'--output={tmp_path}', '--seeds=7,', '--functions=8', '--']
    found = by_functions.main([*given, *(f'--config.{change}' for change in tiny)])
    (row,) = found['8']
    assert 0 < row['first write'] < 1 and 0 < row['later writes'] < 1 and row['run']['seeds'] == [7]
    assert row['test'] != row['reset'] or row['whole'] == 0
    saved = json.loads((tmp_path / 'by_functions.json').read_text())
    assert saved['8'] == found['8'] and (tmp_path / 'functions.png').exists()
