"""The experiment with a real decoder: its rows, its numbers; and a whole run with a toy host."""

import json
import math
from pathlib import Path

import pytest

from experiments.smollm2 import __main__ as command
from experiments.smollm2 import inside, practice, questions, reading, report, windows

HOST = Path(__file__).parent / 'goldens/gguf/llama.gguf'


@pytest.fixture
def arguments(tmp_path):
    """A toy host, and books of a few hundred tokens."""
    for split in ('train', 'validation', 'test'):
        for book in range(2):
            path = tmp_path / 'books' / split / f'{book}.txt'
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(' '.join(f'the hat {book * i % 7} in an old inn' for i in range(40)))
    return [
        f'--path={HOST}', f'--books={tmp_path / "books"}', f'--output={tmp_path / "out"}',
        '--tokens=64', '--segments=2', '--seeds=2', '--tiny',
    ]  # fmt: skip


def test_every_row_is_a_configuration(arguments):
    options = command.parse(arguments)
    read = [*windows.rows(16, 64).values(), *inside.rows(16).values()]
    read += questions.rows(16, 48, 64).values()
    for row in practice.rows(16, 64, '1').values():
        read += [
            (f'practice,{row.variants}', row.fields | practice.TINY),
            *row.asked.values(),
        ]
    for variants, changes in read:
        config = reading.config_of(options, variants, **changes)
        assert config.evaluate.segment_length in (4, 8, 16)
    grafted = windows.grafts(16, '1')
    for name in ('memorizing', 'infini'):
        variants, changes = grafted[name]
        assert reading.config_of(options, variants, **changes).model.attention == ('sinks', name)


def test_unknown_parts_are_refused(arguments, capsys):
    with pytest.raises(SystemExit):
        command.parse([*arguments, '--parts=window'])
    assert "--parts: 'window': allowed are windows, far, inside" in capsys.readouterr().err


def test_bits_per_byte_by_position():
    nats = [[8.0 * math.log(2)] * 4, [4.0 * math.log(2)] * 4]
    found = {'nats': nats, 'bytes': [2.0, 2.0], 'segment': 512}
    assert reading.bits(found, 0, 2048) == pytest.approx(3.0)
    assert report.by_position(found) == {
        '0 - 512': 3.0, '512 - 2,048': 3.0, 'all': 3.0, 'book 0': 4.0, 'book 1': 2.0
    }  # fmt: skip
    assert math.isnan(reading.bits(found, 2048, 4096))


def test_keys_are_in_the_text_where_it_is_said(arguments):
    told = questions.keys(command.parse(arguments).books, 1, (3, 2, 1), 100)
    for number, (text, answer, end) in enumerate(told.questions):
        name = text.split()[-2]
        assert told.text[:end].endswith(f'{answer.strip()} is the pass key of {name}.\n\n')
        assert told.text.count(name) == 2 and len(told.text) - end >= 100 * (3 - number)


def test_questions_of_paragraphs_are_spread_over_the_text(tmp_path):
    paragraphs = []
    for i in range(40):
        answers = [{'text': f'{i * i} x'}, {'text': f'{i * i}'}]
        asked = {'question': f'What is fact {i}?', 'answers': answers}
        paragraphs.append({'context': f'Fact {i} is {i * i}.', 'qas': [asked]})
    path = tmp_path / 'squad.json'
    path.write_text(json.dumps({'data': [{'paragraphs': paragraphs}]}))
    told = questions.squad(path, 0, 60, 200, 4)
    assert len(told.questions) == 4 and 260 <= len(told.text) < 280
    assert told.questions[0].end > 60
    for text, answer, end in told.questions:
        assert text.endswith('?\nAnswer:') and told.text[:end].endswith(f'is{answer}.\n\n')


def test_answers_are_counted_by_distance():
    found = {
        'distance': [100.0, 600.0, 3000.0], 'right': [1.0, 0.0, 1.0], 'nats': [0.1, 2.0, 1.0],
        'right without': [0.0, 0.0, 0.0], 'nats without': [9.0, 8.0, 7.0], 'window': 512,
    }  # fmt: skip
    counted = report.of_answers(found)
    assert (counted['0 - 2: right'], counted['2 - 6: right']) == (50, 100)
    assert counted['beyond a window'] == 2 and counted['right'] == 50.0
    assert counted['nats'] == 1.5 and counted['nats without'] == 7.5


def test_heads_are_counted_by_the_sign_of_a_clear_derivative():
    found = {
        'slope': [[-3.0, 3.0], [0.1, -5.0]], 'error': [[1.0] * 2] * 2, 'read': [2.0, 4.0],
        'by_query': [[0.1, 0.2], [0.3, 0.2]], 'all': {'0.05': [1.0, 3.0]}, 'helpful': {},
    }  # fmt: skip
    counted = report.of_gates(found)
    assert (counted['help'], counted['harm'], counted['noise']) == (2, 1, 1)
    assert counted['size of what is read'] == 3.0 and counted['all at 0.05'] == 2.0


@pytest.mark.slow  # compiles a dozen programs
def test_a_run_is_kept_and_has_tables(arguments, tmp_path, capsys):
    command.main(arguments)
    made = json.loads((tmp_path / 'out/smollm2.json').read_text())
    practised = {'practice', 'practised_novels'}
    assert set(made) == {'windows', 'inside', 'grafts', 'learning', 'keys'} | practised
    assert made['keys']['all']['questions'] == 2
    asked = ('all', 'blocks', 'memorizing')
    assert {*made['practice']} == {f'{row}, seed {seed}' for row in asked for seed in (0, 1)}
    assert made['grafts']['memorizing shut'].keys() == {
        'run', '0 - 64', 'all', 'book 0', 'book 1'
    }  # fmt: skip
    assert {*made['learning']} == {'shut', 'seed 0', 'seed 1'}
    same = {key: made['grafts']['memorizing shut'][key] for key in ('all', 'book 0')}
    assert same.items() <= made['learning']['shut'].items()
    assert made['grafts']['memorizing'] != made['grafts']['memorizing shut']
    assert '## inside' in (tmp_path / 'out/smollm2.md').read_text()
    capsys.readouterr()
    command.main(arguments)
    assert 'Loaded' not in capsys.readouterr().out
    command.main([*arguments, '--parts=far_keys', '--rows=blocks'])
    made = json.loads((tmp_path / 'out/smollm2.json').read_text())
    assert {*made['far_keys']} == {'blocks'}
