"""All goldens agree with the authors' code to 1e-4 of the largest value."""

from pathlib import Path

import pytest

from tests.parity import compare

FILES = sorted(Path(__file__).parent.glob('goldens/*/*.npz'))


@pytest.mark.slow
@pytest.mark.parametrize('path', FILES, ids=lambda path: f'{path.parent.name}/{path.stem}')
def test_golden(path):
    checked = 0
    for name, error, tolerance in compare(path):
        assert error <= tolerance, name
        checked += 1
    assert checked


def test_a_wrong_number_fails(tmp_path, monkeypatch):
    """The comparison itself can fail."""
    from tests import parity

    def wrong(settings, arrays):
        for name, ours, reference in parity.transformer_xl.check(settings, arrays):
            yield name, ours * 1.001, reference

    monkeypatch.setitem(parity.SYSTEMS, 'transformer_xl', wrong)
    path = next(path for path in FILES if path.parent.name == 'transformer_xl')
    assert any(error > tolerance for _, error, tolerance in compare(path))
