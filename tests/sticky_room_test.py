"""What the figure of sticky memories claims."""

import json
import math

import numpy as np
import pytest

from experiments.infinity_former import sticky_room


def test_only_attention_keeps_a_vector():
    """Writes 8 and 32 later, without attention, with little and with an eighth of it."""
    at = [sticky_room.WRITES.index(number) for number in (8, 32)]
    even, little, enough = (
        np.asarray(sticky_room.left(kind, share, 0.05, 0.5))[at]
        for kind, share in (('none', 0.0), ('quantile', 0.02), ('quantile', 0.125))
    )
    assert even.max() < 0.01 and little.max() < 0.05 and enough.min() > 0.5
    # Even contraction keeps tau of the room per write.
    np.testing.assert_allclose(sticky_room.left('none', 0.0, 0.05, 0.5)[:2], [0.5, 0.25], atol=0.01)


def widest(share, tau):
    """The widest Gaussian that keeps a vector for good, if `share` of the attention has it.

    A vector with the small room r of [0, 1] gets r share / (width sqrt(2 pi)) of that attention and
    r (1 - share) of the rest. With sticky memories its next room is tau times the sum.
    """
    return share / (math.sqrt(2 * math.pi) * (1 / tau - 1 + share))


@pytest.mark.parametrize('share', [0.125, 0.25, 0.5])
def test_a_vector_lasts_where_attention_is_narrower_than_said(share):
    limit = widest(share, 0.5)
    at = [sticky_room.WRITES.index(number) for number in (1, 16)]
    for factor, lasts in ((0.7, True), (1.5, False)):
        once, later = np.asarray(sticky_room.left('quantile', share, factor * limit, 0.5))[at]
        assert (later > once) == lasts, f'{factor} times the widest: {once} left, then {later}'


@pytest.mark.parametrize('kind', ['sampled', 'sampled_inside'])
def test_random_positions_keep_it_on_average_for_a_while(kind):
    runs = [sticky_room.left(kind, 0.125, 0.05, 0.5, seed) for seed in range(4)]
    assert np.mean(runs, axis=0)[sticky_room.WRITES.index(8)] > 0.2
    assert runs[0] != runs[1]


def test_the_table_and_the_figure_have_the_same_numbers(tmp_path):
    rows = [('none', 0.0, 0.05), ('quantile', 0.125, 0.05)]
    lines = sticky_room.table(rows, 0.5, [11, 23]).splitlines()[2:]
    figure = sticky_room.draw(rows, 0.5, [11, 23], tmp_path / 'room.png')
    for row, line, drawn in zip(rows, lines, figure.axes[0].lines, strict=True):
        values = sticky_room.left(*row, 0.5)
        np.testing.assert_allclose(drawn.get_ydata(), values)
        assert [float(cell) for cell in line.strip('| ').split(' | ')[2:]] == [
            pytest.approx(value, abs=6e-4) for value in values
        ]


def test_numbers_are_written_by_row_write_and_seed(tmp_path, monkeypatch):
    monkeypatch.setattr(
        'sys.argv', ['sticky_room', f'--output={tmp_path / "room.png"}', '--seeds=11,']
    )
    monkeypatch.setattr(sticky_room, 'left', lambda *given: tuple(range(len(sticky_room.WRITES))))
    sticky_room.main()
    found = json.loads((tmp_path / 'room.json').read_text())
    assert found['run']['seeds'] == [11] and found['none, any']['8'] == {'0': 3}
    assert found['sampled, 12.5 %, 0.05 wide']['32'] == {'11': 5}
