"""Capacity of associative memories: known results."""

import numpy as np
import pytest

from experiments.analysis import capacity


@pytest.mark.slow
def test_unit_keys_tell_more_pairs_apart(tmp_path, made_figures):
    sizes, pairs = (16, 32), (4, 32)
    found = capacity.study(sizes, pairs, 8)
    for width in sizes:
        few, many = ({kind: found[kind, width, n] for kind in capacity.KINDS} for n in pairs)
        for number in (few, many):
            for kind in ('linear, unit keys', 'delta per token, unit keys'):
                assert number[kind][0] > number['linear, elu'][0]
        # Far below its capacity the delta rule takes the others' part away, above it it forgets.
        cosines = [few[f'{rule}, unit keys'][1] for rule in ('delta per token', 'linear')]
        assert cosines[0] > cosines[1] > 0.9 and few['linear, unit keys'][0] > 0.9
        assert many['delta per token, unit keys'][0] < many['linear, unit keys'][0]
    for kind in capacity.KINDS:
        assert found[kind, 32, 32][0] >= found[kind, 16, 32][0] - 0.02
    right, cosine = found['delta, elu', 16, 32]
    assert capacity.as_json(found)['delta, elu']['16']['32'] == {'right': right, 'cosine': cosine}
    capacity.draw(found, sizes, pairs, tmp_path / 'capacity.png')
    (figure,) = made_figures
    assert [axes.get_title() for axes in figure.axes] == ['head_dim 16', 'head_dim 32']
    for axes, width in zip(figure.axes, sizes, strict=True):
        assert [line.get_label() for line in axes.lines] == list(capacity.KINDS)
        for line, kind in zip(axes.lines, capacity.KINDS, strict=True):
            shares = [100 * found[kind, width, count][0] for count in pairs]
            np.testing.assert_allclose(line.get_xydata().T, [pairs, shares])
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == list(capacity.KINDS)
    assert (tmp_path / 'capacity.png').exists()
