"""Logs of a run: exact numbers, the same file as an uninterrupted run, readable figures."""

import json
import math

import jax
import numpy as np
import pytest
from PIL import Image
from tensorboardX.proto import event_pb2

from longmem_jax.errors import UsageError
from longmem_jax.reporting import writers


def read_events(folder):
    """The values of the event files in `folder` that TensorBoard shows: name to list of values."""
    found = {}
    for path in sorted(folder.glob('events*')):
        data, place = path.read_bytes(), 0
        while place < len(data):  # length (8 bytes), checksum (4), event, checksum (4)
            size = int.from_bytes(data[place : place + 8], 'little')
            event = event_pb2.Event.FromString(data[place + 12 : place + 12 + size])
            place += 16 + size
            if event.session_log.status == event_pb2.SessionLog.START:
                found = {
                    name: [value for value in values if value[0] < event.step]
                    for name, values in found.items()
                }
            for value in event.summary.value:
                found.setdefault(value.tag, []).append((event.step, value))
    return found


def test_numbers_come_back_exactly(tmp_path):
    values = {'loss': np.float32(1 / 3), 'tiny': 5e-324, 'large': 1.7976931348623157e308}
    with writers.Writer(tmp_path) as writer:
        writer.scalars(3, 'train', values)
        (line,) = writers.read_metrics(tmp_path / 'metrics.jsonl')  # flushed, though still open
    assert line == {'step': 3, 'group': 'train', **{k: float(v) for k, v in values.items()}}
    assert np.float32(line['loss']) == values['loss']


def test_lines_are_json_even_where_numbers_are_not_finite(tmp_path):
    with writers.Writer(tmp_path) as writer:
        writer.scalars(1, 'train', {'loss': math.nan, 'norm': math.inf})

    def refuse(name):
        raise AssertionError(f'{name} is not JSON')

    text = (tmp_path / 'metrics.jsonl').read_text()
    row = json.loads(text, parse_constant=refuse)
    assert len(row.pop('crc32')) == 8 and row.pop('after') == '00000000'
    assert row == {'step': 1, 'group': 'train', 'loss': 'nan', 'norm': 'inf'}
    assert writers.read_metrics(tmp_path / 'metrics.jsonl') == [row]


def test_no_changed_digit_is_believed(tmp_path):
    """Whichever byte of a line changes: the line is left out."""
    path = tmp_path / 'metrics.jsonl'
    with writers.Writer(tmp_path) as writer:
        for step in (1, 2, 3):
            writer.scalars(step, 'train', {'loss': 1 / step, 'norm': math.inf})
    content = path.read_bytes()
    begin = content.index(b'\n') + 1
    for place in range(begin, content.index(b'\n', begin)):
        for bit in range(8):
            changed = bytearray(content)
            changed[place] ^= 1 << bit
            path.write_bytes(changed)
            steps = [line['step'] for line in writers.read_metrics(path)]
            assert steps == [1, 3], f'{bytes(changed[begin:])!r} was read: compare the checksum'


@pytest.mark.parametrize('torn', ['', '{"step": 5, "gro', '{"step": 5, "group": "train"'])
def test_truncated_file_is_that_of_an_uninterrupted_run(tmp_path, torn):
    def write(folder, steps):
        with writers.Writer(folder) as writer:
            for step in steps:
                writer.scalars(step, 'train', {'loss': 1 / step})

    whole, resumed = tmp_path / 'whole', tmp_path / 'resumed'
    whole.mkdir(), resumed.mkdir()
    write(whole, range(1, 9))
    write(resumed, range(1, 6))
    path = resumed / 'metrics.jsonl'
    path.write_text(path.read_text() + torn)
    with writers.Writer(resumed) as writer:
        assert writer.resume(3) == '', 'a line cut short by a kill is no damage'
    assert [line['step'] for line in writers.read_metrics(path)] == [1, 2, 3]
    write(resumed, range(4, 9))
    assert path.read_bytes() == (whole / 'metrics.jsonl').read_bytes()
    assert not list(resumed.glob('*.partial'))


def test_nothing_to_truncate(tmp_path):
    with writers.Writer(tmp_path) as writer:
        assert writer.resume(3) == ''
    assert not (tmp_path / 'metrics.jsonl').exists()
    assert writers.read_metrics(tmp_path / 'metrics.jsonl') == []


DAMAGES = [
    b'{"st\xffep": 4, "group": "train", "loss": 0.25}',
    b'{"step"\0 4, "group": "train", "loss": 0.25}',
    b'{}',
    b'[4]',
    b'{"step": "4", "group": "train"}',
    b'{"step": true, "group": "train"}',
    b'{"step": 4}',
    b'[' * 200_000,
    b'',
]


@pytest.mark.parametrize('damage', DAMAGES, ids=lambda damage: repr(damage[:12]))
def test_a_damaged_line_costs_nothing_but_itself(tmp_path, damage):
    path = tmp_path / 'metrics.jsonl'
    with writers.Writer(tmp_path) as writer:
        for step in range(1, 8):
            writer.scalars(step, 'train', {'loss': 1 / step})
    lines = path.read_bytes().split(b'\n')
    lines[3] = damage
    path.write_bytes(b'\n'.join(lines))
    assert [line['step'] for line in writers.read_metrics(path)] == [1, 2, 3, 5, 6, 7]
    for copy in ('metrics.jsonl.old', 'metrics.jsonl.old-1'):
        path.write_bytes(b'\n'.join(lines))
        with writers.Writer(tmp_path) as writer:
            said = writer.resume(6)
        assert f'left out 1 damaged lines (4); the file as it was is {copy}.' in said
        assert (tmp_path / copy).read_bytes() == b'\n'.join(lines)
        with writers.Writer(tmp_path) as writer:
            assert writer.resume(6) == '', 'it is said once'
    kept = path.read_bytes().split(b'\n')
    assert kept[:3] == lines[:3] and kept[5:] == [b'']
    for row, wanted in zip(kept[3:5], lines[4:6], strict=True):  # chained again
        checksums = {'after': 0, 'crc32': 0}
        assert json.loads(row) | checksums == json.loads(wanted) | checksums


@pytest.mark.parametrize(
    ('left', 'said'),
    [
        ([0, 4, 5, 6], 'lines are missing before line 2; the file as it was is metrics.jsonl.old.'),
        ([3, 4, 5, 6], 'lines are missing before line 1;'),
        ([0, 2, 3, 5, 6], 'lines are missing before line 2, 4;'),
        ([1, 0, 2, 3, 4, 5, 6], 'lines are missing before line 1, 2, 3;'),
        ([0, 1, 2, 3], 'ends at step 40, and the run is at step 70: lines are missing.'),
        ([], 'ends at step 0, and the run is at step 70: lines are missing.'),
        ([0, 1, 2, 3, 4, 5], ''),  # another step was not a tenth
        (range(7), ''),
    ],
)
def test_lines_that_were_taken_out_are_noticed(tmp_path, left, said):
    """Each line is whole by itself: name the one before in it."""
    path = tmp_path / 'metrics.jsonl'
    with writers.Writer(tmp_path) as writer:
        for step in range(1, 8):
            writer.scalars(10 * step, 'train', {'loss': 1 / step})
    lines = path.read_bytes().split(b'\n')
    path.write_bytes(b''.join(lines[number] + b'\n' for number in left))
    with writers.Writer(tmp_path) as writer:
        found = writer.resume(70, every=10)
        assert (said in found and found.startswith(str(path))) if said else not found
    steps = [row['step'] for row in writers.read_metrics(path)]
    assert steps == [10 * (number + 1) for number in left]
    with writers.Writer(tmp_path) as writer:
        assert 'before line' not in writer.resume(70, every=10), 'it is said once'


def test_what_is_no_file_is_refused(tmp_path):
    (tmp_path / 'metrics.jsonl').mkdir()
    with pytest.raises(UsageError, match='metrics.jsonl: is not a file'):
        writers.Writer(tmp_path)
    (tmp_path / 'metrics.jsonl').rmdir()
    (tmp_path / 'tensorboard').write_text('')
    with pytest.raises(UsageError, match='tensorboard: is not a folder'):
        writers.Writer(tmp_path)


def test_a_test_that_comes_again_is_there_once(tmp_path):
    """A finished run that is started again, twice; earlier tests of a run that was made longer stay."""
    with writers.Writer(tmp_path) as writer:
        for step, group in ((2, 'train'), (2, 'test'), (3, 'train'), (3, 'validation')):
            writer.scalars(step, group, {'loss': 1 / step})
    for _ in range(3):
        with writers.Writer(tmp_path) as writer:
            writer.resume(3, again=True)
            assert writer.has(3, 'validation') and not writer.has(3, 'test')
            for group in ('test', 'test_reset'):
                writer.scalars(3, group, {'loss': 0.25})
    rows = [(row['step'], row['group']) for row in writers.read_metrics(tmp_path / 'metrics.jsonl')]
    assert rows == [
        (2, 'train'), (2, 'test'), (3, 'train'), (3, 'validation'), (3, 'test'), (3, 'test_reset'),
    ]  # fmt: skip
    events = read_events(tmp_path / 'tensorboard')
    shown = {name: [step for step, _ in values] for name, values in events.items()}
    assert shown == {
        'train/loss': [2, 3], 'test/loss': [2, 3], 'validation/loss': [3], 'test_reset/loss': [3],
    }, 'TensorBoard forgets the step that is done again, and gets the rest of it again'  # fmt: skip


def test_tensorboard_holds_scalars_texts_and_figures(tmp_path):
    with writers.Writer(tmp_path) as writer:
        for step in (1, 2):
            writer.scalars(step, 'train', {'loss': 0.5 * step, 'bits_per_byte': 1.0})
        writer.text('config', 'a = 1', 0)
        figure = writers.learning_curve(tmp_path / 'metrics.jsonl', tmp_path / 'empty.png')
        writer.figure('curve', figure, 2)
    events = read_events(tmp_path / 'tensorboard')
    assert [(step, value.simple_value) for step, value in events['train/loss']] == [
        (1, 0.5),
        (2, 1.0),
    ]
    assert b'a = 1' in events['config/text_summary'][0][1].tensor.string_val[0]
    image = events['curve'][0][1].image
    assert (image.height, image.width) == (504, 840)


def test_other_processes_write_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(jax, 'process_index', lambda: 1)
    with writers.Writer(tmp_path) as writer:
        writer.resume(0)
        writer.scalars(1, 'train', {'loss': 1.0})
        writer.text('config', 'a = 1', 0)
        writer.figure('curve', None, 1)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('number', [0, 1, 3000])
def test_learning_curve_of_few_and_many_points(tmp_path, number):
    path, lines = tmp_path / 'metrics.jsonl', []
    for step in range(1, number + 1):
        value = 1.5 + 6 * math.exp(-step / 100)
        lines.append({'step': step, 'group': 'train', 'bits_per_byte': value})
        if step % 1000 == 0:
            lines.append({'step': step, 'group': 'validation', 'bits_per_byte': value + 0.1})
    lines.append({'step': number + 1, 'group': 'train', 'bits_per_byte': 'nan'})
    sealed = [b'']
    for line in lines:
        sealed.append(writers._line(line, writers._checksum(sealed[-1])))
    path.write_bytes(b'\n'.join(sealed[1:]))
    figure = writers.learning_curve(path, tmp_path / 'curve.png')
    axes = figure.axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ('step', 'bits per byte')
    assert len(axes.lines) == (number > 0) + (number >= 1000)
    if number:
        assert axes.get_ylim()[0] < 1.5 + 6 * math.exp(-number / 100) <= axes.get_ylim()[1]
    with Image.open(tmp_path / 'curve.png') as image:
        assert image.size == (840, 504)
