"""The final table and `results.json`, with the gain from the memory."""

import io
import json

import numpy as np
import pytest

from longmem_jax.evaluation.result import Result
from longmem_jax.evaluation.tables import show, write_results
from longmem_jax.reporting.progress import Progress
from longmem_jax.training import metrics


def result(bits, memory='kept'):
    sums = dict(nll=bits * np.log(2), scored=1, num_bytes=1.0)
    return Result('test', sums, 'protocol', memory)


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
    assert line.split()[-2:] == ['0.5000', '(20.0%)']  # one column of the table


def test_a_gain_that_is_none_has_no_sign():
    out, results = io.StringIO(), {'test': result(2.000001), 'without': result(2.0, 'reset')}
    show(Progress(0, log_every=0, out=out), results, {})
    assert '0.0000 (0.0%)' in out.getvalue() and '-0.0' not in out.getvalue()


def test_results_are_written_with_sizes_and_what_they_depend_on(tmp_path):
    params, one_lane = {'a': np.zeros((3, 2))}, (np.zeros((1, 5), np.float32),)
    path = tmp_path / 'results.json'
    write_results(path, 7, params, one_lane, {'test': result(2.0), 'bleu': 12.5})
    found = json.loads(path.read_text())
    assert (found['step'], found['parameters'], found['state_bytes_per_lane']) == (7, 6, 20)
    assert found['test']['memory'] == 'kept' and found['test']['protocol'] == 'protocol'
    assert found['bleu'] == 12.5 and 'cpu' in found['device']


def test_a_metric_is_a_row_of_one_table(tmp_path, monkeypatch):
    """What a sum and a row of `METRICS` give: columns, files, and numbers of training steps."""
    row = metrics.Metric('nll', 'tokens', 'nats/read', '{:.1f}', (metrics.TEXT,))
    monkeypatch.setitem(metrics.METRICS, 'nats_per_read', row)
    found = Result('test', dict(nll=3.0, scored=2.0, tokens=6.0, num_bytes=2.0), 'protocol')
    out = io.StringIO()
    show(Progress(0, log_every=0, out=out), {'test': found, 'b': found}, {})
    assert 'nats/read' in out.getvalue() and '0.5' in out.getvalue()
    assert found.as_json()['nats_per_read'] == found['nats_per_read'] == 0.5
    sums = {name: np.float32(value) for name, value in found.sums.items()}
    step = metrics.of_step(sums | {'right': np.float32(1)})
    assert step['nats_per_read'] == 0.5 and step['accuracy'] == 0.5 and 'perplexity' not in step


def test_metrics_that_were_not_measured_or_have_nothing_to_count_are_left_out():
    task = Result('test', dict(nll=3.0, scored=2, num_bytes=0.0, answers=2, exact=1), '')
    assert task.scalars().keys() == {
        'exact_match', 'bits_per_byte', 'loss', 'perplexity', 'tokens', 'num_bytes', 'answers',
    }  # fmt: skip
    assert task.bits_per_byte == 0 and task.exact_match == 0.5 and np.isnan(task.accuracy)
    nothing = Result('test', dict(nll=0.0, scored=0, num_bytes=0.0), '')
    assert nothing.scalars() == {'tokens': 0.0, 'num_bytes': 0.0} and np.isnan(nothing.loss)
