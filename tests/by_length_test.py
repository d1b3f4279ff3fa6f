"""The table and the figure of sorting by length, and states of equal bytes; nothing is trained."""

import json
import math

import jax
import numpy as np
import pytest

from configs import sorting
from experiments.infinity_former import by_length
from longmem_jax.config import checks
from longmem_jax.models.kinds import make_model


def test_runs_and_rules_stand_side_by_side(tmp_path, monkeypatch, made_figures):
    shares = {
        'infinity_former': ((0.9, 0.8), (0.7, 0.6)),
        'transformer_xl': ((0.6, 0.6), (0.5, 0.4)),
    }
    for memory, by_seed in shares.items():
        for length, seeds in zip((256, 512), by_seed, strict=True):
            for seed, share in enumerate(seeds):
                folder = tmp_path / memory / str(length) / str(seed)
                folder.mkdir(parents=True)
                numbers = dict(
                    test=dict(accuracy=share), reset=dict(accuracy=0.25), state_bytes=1000 * length,
                    parameters=7, run=dict(seeds=[seed]),
                )  # fmt: skip
                (folder / 'numbers.json').write_text(json.dumps(numbers))
    for length, seen in ((256, (0.4, 1.0)), (512, (0.4, 0.5, 1.0))):
        names = ('the question', '64 tokens more', 'everything')
        names = names[:1] + names[3 - len(seen) + 1 :]
        scores = {f'counts: {n}': dict(accuracy=s) for n, s in zip(names, seen, strict=True)}
        folder = tmp_path / 'floors' / str(length)
        folder.mkdir(parents=True)
        (folder / 'floors.json').write_text(json.dumps(dict(scores=scores)))
    printed = []
    monkeypatch.setattr('builtins.print', lambda text, **_: printed.append(text))
    by_length.main([f'--output={tmp_path}', '--seeds=2', '--lengths=256,512', *shares])
    rows = [
        [cell.strip() for cell in line.strip('|').split('|')] for line in printed[-1].splitlines()
    ]
    assert rows[0] == ['', '256', '512', 'kB per lane']
    assert rows[2] == ['`infinity_former`', '85.0 (80.0 - 90.0)', '65.0 (60.0 - 70.0)', '256 / 512']
    assert rows[3][:2] == ['... reset', '25.0']
    assert [row[:3] for row in rows[6:]] == [
        ['counts: the question', '40.0', '40.0'],
        ['counts: 64 tokens more', '', '50.0'],
        ['counts: everything', '100.0', '100.0'],
    ]
    (axes,) = made_figures[0].axes
    bars = {bar.get_label(): bar for bar in axes.containers}
    for memory, by_seed in shares.items():
        line, _, (ends,) = bars[memory]
        np.testing.assert_allclose(line.get_xydata(), [[256, 100 * np.mean(by_seed[0])],
                                                       [512, 100 * np.mean(by_seed[1])]])  # fmt: skip
        for (low, high), values in zip(ends.get_segments(), by_seed, strict=True):
            np.testing.assert_allclose([low[1], high[1]], [100 * min(values), 100 * max(values)])
    dashed = {line.get_label(): line for line in axes.lines if line.get_linestyle() == '--'}
    np.testing.assert_allclose(dashed['counts: the question'].get_ydata(), [40, 40])
    assert 'counts: everything' not in dashed
    saved = json.loads((tmp_path / 'by_length.json').read_text())
    assert saved['transformer_xl']['512'][1] == dict(
        run=dict(seeds=[1]), parameters=7, state_bytes=512_000, test=0.4, reset=0.25
    )
    assert saved['rules']['counts: the question'] == {'256': 0.4, '512': 0.4}


@pytest.mark.parametrize('length', [256, 512, 1024])
def test_states_are_equal_if_asked_for(length):
    def state_bytes(memory):
        config = sorting.get_config(f'tiny,length={length},memory={memory}')
        checks.require_runnable(config, 1)
        model = make_model(config.model, config.train.segment_length)
        state = jax.eval_shape(lambda: model.apply({}, 1, method='initial_state'))
        return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))

    functions = state_bytes('infinity_former')
    for memory in ('transformer_xl', 'compressive', 'compressive,no_reconstruction'):
        windows = state_bytes(f'{memory},equal_state')
        assert abs(windows / functions - 1) < 0.02, f'{memory}: {windows}, not {functions}'
        assert state_bytes(memory) < 0.6 * functions
