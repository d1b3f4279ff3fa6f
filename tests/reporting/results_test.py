"""The final table and `results.json`, with the gain from the memory."""

import io
import json

import numpy as np
import pytest

from longmem_jax.evaluation.result import Result
from longmem_jax.reporting.progress import Progress
from longmem_jax.reporting.results import show, write_results


def result(bits, memory='kept'):
    return Result('test', bits * np.log(2), 1, 1.0, 'protocol', 0, 0, 0, memory)


@pytest.mark.parametrize(
    'results',
    [
        {'test': result(2.0), 'without': result(2.5, 'reset')},
        {'without': result(2.5, 'reset'), 'test': result(2.0)},
        {'test': result(2.5), 'test, kNN-LM': result(2.0)},  # retrieval: the model alone is first
    ],
)
def test_the_gain_is_that_over_no_memory_whatever_the_names(results):
    out = io.StringIO()
    show(Progress(0, log_every=0, out=out), results, {})
    (line,) = (line for line in out.getvalue().splitlines() if 'gain by memory' in line)
    assert line.split()[-2:] == ['0.5000', '20.0%']


def test_results_are_written_with_sizes_and_what_they_depend_on(tmp_path):
    params, one_lane = {'a': np.zeros((3, 2))}, (np.zeros((1, 5), np.float32),)
    path = tmp_path / 'results.json'
    write_results(path, 7, params, one_lane, {'test': result(2.0), 'bleu': 12.5})
    found = json.loads(path.read_text())
    assert (found['step'], found['parameters'], found['state_bytes_per_lane']) == (7, 6, 20)
    assert found['test']['memory'] == 'kept' and found['test']['protocol'] == 'protocol'
    assert found['bleu'] == 12.5
