"""Files of arrays that are damaged: `python -m tests.parity` says so in one line each."""

import io
import types
import zipfile

import numpy as np
import pytest

from tests import parity


def npz(**arrays):
    content = io.BytesIO()
    np.savez(content, **arrays)
    return content.getvalue()


WHOLE = npz(x=np.arange(99.0), config_json=np.asarray('{"system": "none"}'))


def objects():
    content = io.BytesIO()
    np.savez(content, x=np.asarray([{}], object))
    return content.getvalue()


def bomb():
    content = io.BytesIO()
    with zipfile.ZipFile(content, 'w', zipfile.ZIP_DEFLATED) as archive:
        archive.writestr('x.npy', bytes(1 << 20))
    whole = bytearray(content.getvalue())
    at = whole.index(b'PK\x01\x02') + 24  # size when unpacked, in the list at the end
    whole[at : at + 4] = (0xFFFFFFFE).to_bytes(4, 'little')
    return bytes(whole)


@pytest.mark.parametrize(
    'content, message',
    [
        (b'', 'not a whole npz file'),
        (WHOLE[:-9], 'not a whole npz file'),
        (WHOLE[: len(WHOLE) // 2], 'not a whole npz file'),
        (WHOLE[:200] + b'\xff' + WHOLE[201:], 'not a whole npz file'),
        (b'not an archive', 'not a whole npz file'),
        (objects(), 'allow_pickle'),
        (bomb(), 'when unpacked'),
        (npz(config_json=np.asarray('[' * 99999)), 'more than 64 levels'),
        (npz(config_json=np.asarray('[]')), 'must be an object'),
        (npz(config_json=np.asarray('{"system": []}')), 'system = '),
        (WHOLE, "system 'none'; there are checks for"),
    ],
    ids=lambda value: value if isinstance(value, str) else '',
)
def test_a_damaged_file_is_one_line(content, message, tmp_path, monkeypatch, capsys):
    path = tmp_path / 'case.npz'
    path.write_bytes(content)
    monkeypatch.setattr('sys.argv', ['parity', str(path)])
    assert parity.main() == 1
    said = capsys.readouterr().err
    assert message in said and len(said.splitlines()) == 1, said


@pytest.mark.parametrize(
    'ours, reference, code, line',
    [
        ('a text', 'a text', 0, 'sample 0.000e+00 0.000e+00 ok'),
        ('a text', 'a test', 1, 'sample 2.000e+00 0.000e+00 FAIL'),
        ('a te', 'a text', 1, 'sample 2.000e+00 0.000e+00 FAIL'),
        (np.ones(2), np.ones(2), 0, 'sample 0.000e+00 1.000e-04 ok'),
    ],
)
def test_a_benchmark_knows_its_files(ours, reference, code, line, tmp_path, monkeypatch, capsys):
    path = tmp_path / 'case.mine'
    path.write_text('')
    mine = types.SimpleNamespace(
        knows=lambda path: path.suffix == '.mine', check=lambda path: [('sample', ours, reference)]
    )
    monkeypatch.setitem(parity.BENCHMARKS, 'mine', mine)
    monkeypatch.setattr('sys.argv', ['parity', str(path)])
    assert parity.main() == code
    assert capsys.readouterr().out.strip() == line
