"""Given texts: the loss of every token, and continuations of several prompts."""

import csv
import io
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from longmem_jax.commands import generate
from longmem_jax.commands.score import score, score_all
from longmem_jax.devices import sharding
from longmem_jax.errors import UsageError
from longmem_jax.experiment import Experiment
from longmem_jax.generation import memory_file
from longmem_jax.generation.reader import Reader, fresh_state
from longmem_jax.models.parameters import initial_parameters, unbox
from tests.commands.train_test import small_config

TEXT = 'alpha \u00e9\u65e5 beta\ngamma delta ' * 8  # 26 segments and a bit


@pytest.fixture(scope='module')
def experiment(tmp_path_factory):
    """A model of bytes that has learned nothing, as if it were a checkpoint of step 7."""
    folder = tmp_path_factory.mktemp('run')
    config = small_config(folder)
    made = Experiment(config, folder, sharding.make_mesh(config.mesh.to_dict(), jax.devices()[:1]))
    params = unbox(jax.jit(lambda: initial_parameters(made.model, jax.random.key(0)))())
    # Otherwise all losses are nearly the same.
    params = jax.tree.map(lambda leaf: 3 * leaf, params)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Experiment, 'restore_parameters', lambda self: (params, 7))
        yield made, params


def whole_loss(experiment, params, text):
    """The losses of a short text, read as one segment at a time by hand."""
    model, tokenizer = experiment.evaluation_model, experiment.tokenizer
    tokens = tokenizer.encode(text)
    inputs, losses = np.concatenate([[tokenizer.begin], tokens]), []
    reader = Reader(model, params, fresh_state(model, params, 1), np.zeros((1, 0), np.int32))
    for place, token in enumerate(tokens):
        reader.read(inputs[place : place + 1][None].astype(np.int32))
        losses.append(-float(jax.nn.log_softmax(reader.logits[0])[token]))
    return losses


def test_the_losses_are_those_of_reading_token_by_token(experiment, tmp_path, capsys):
    made, params = experiment
    (tmp_path / 'text').write_text(TEXT[:20])
    found = score(made, f'@{tmp_path / "text"}', output=str(tmp_path / 'out.jsonl'))
    wanted = whole_loss(made, params, TEXT[:20].encode())
    np.testing.assert_allclose(found.nats, wanted, atol=2e-4)
    rows = [json.loads(line) for line in (tmp_path / 'out.jsonl').read_text().splitlines()]
    assert ''.join(row['text'] for row in rows) == TEXT[:20]
    assert [row['position'] for row in rows] == list(range(len(wanted)))
    np.testing.assert_allclose([row['nats'] for row in rows], wanted, atol=2e-4)
    score(made, f'@{tmp_path / "text"}', output=str(tmp_path / 'out.csv'))
    with (tmp_path / 'out.csv').open(newline='') as file:
        of_csv = list(csv.DictReader(file))
    assert [row['text'] for row in of_csv] == [row['text'] for row in rows]
    assert [float(row['nats']) for row in of_csv] == [row['nats'] for row in rows]
    assert found.num_bytes == len(TEXT[:20].encode()) == found.scored
    assert found.bits_per_byte == pytest.approx(np.mean(wanted) / np.log(2), abs=1e-3)
    said = capsys.readouterr().err
    assert (
        f'[step 7: {len(wanted):,} tokens, {len(wanted):,} bytes: ' in said and 'bits/byte' in said
    )


def test_columns_are_printed(experiment):
    out = io.StringIO()
    found = score(experiment[0], 'a\x1b\t\u65e5', out=out)
    header, *lines = out.getvalue().splitlines()
    assert header.split('\t') == ['position', 'token', 'nats', 'text'] and len(lines) == 6
    texts = [json.loads(line.split('\t')[3]) for line in lines]
    assert texts == ['a', '\x1b', '\t', '', '', '\u65e5']
    np.testing.assert_allclose(
        [float(line.split('\t')[2]) for line in lines], found.nats, rtol=1e-6
    )


def test_a_loaded_memory_comes_before_the_text(experiment, tmp_path, capsys):
    """A text in two halves: the second after the memory of the first, as in one go."""
    made, params = experiment
    half, state = len(TEXT) // 2, str(tmp_path / 'memory')
    options = dict(length=0)
    generate.generate(made, TEXT[:half], options, save_state=state, out=io.StringIO())
    out = io.StringIO()
    whole, first = score(made, TEXT, out=out), score(made, TEXT[:half], out=out)
    second = score(made, TEXT[half:], load_state=state, out=out)
    np.testing.assert_allclose(np.concatenate([first.nats, second.nats]), whole.nats, atol=2e-4)
    model = made.evaluation_model
    plain = model.config.to_dict() | {'segment_length': model.segment_length}
    fresh = fresh_state(model, params, 1)
    memory_file.save(state, fresh, jnp.zeros((1, 0), jnp.int32), plain, params)
    assert 'not scored' not in capsys.readouterr().err
    nothing_before = score(made, 'abc', load_state=state, out=out)
    said = capsys.readouterr().err
    assert '2 tokens (the first of a text is not scored), 2 bytes: ' in said
    assert np.isnan(nothing_before.nats).tolist() == [True, False, False]
    assert nothing_before.scored == nothing_before.num_bytes == 2


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / 'prompts.jsonl'
    lines = [{'text': 'alpha', 'id': 3}, {'text': TEXT}, {'text': ' '}]
    path.write_text('\n'.join(map(json.dumps, lines)))
    return path, lines


def test_several_texts_are_scored_each_by_itself(experiment, prompts, tmp_path, capsys):
    path, lines = prompts
    found = score_all(experiment[0], str(path), output=str(tmp_path / 'out'))
    nats = np.concatenate([each.nats for each in found])
    total = (
        f'3 texts: {nats.size} tokens, {nats.size} bytes: {nats.mean(dtype=float):.4f} nats/token'
    )
    assert f'[step 7, {total}' in capsys.readouterr().err, 'score_all says no total at its end'
    rows = [json.loads(line) for line in (tmp_path / 'out').read_text().splitlines()]
    assert [row['text'] for row in rows] == [line['text'] for line in lines] and rows[0]['id'] == 3
    alone = [score(experiment[0], line['text'], out=io.StringIO()) for line in lines]
    for row, one, each in zip(rows, alone, found, strict=True):
        np.testing.assert_array_equal(one.nats, each.nats)
        np.testing.assert_allclose(row['losses'], one.nats, rtol=1e-6)
        assert row['bits_per_byte'] == pytest.approx(one.bits_per_byte, rel=1e-6)


def test_several_prompts_are_continued_each_by_itself(experiment, prompts, tmp_path):
    path, lines = prompts
    options = dict(length=16, seed=5)
    found = generate.generate_all(experiment[0], str(path), options, output=str(tmp_path / 'out'))
    rows = [json.loads(line) for line in (tmp_path / 'out').read_text().splitlines()]
    alone = [
        generate.generate(experiment[0], line['text'], options, out=io.StringIO()) for line in lines
    ]
    assert found == alone == [row['continuation'] for row in rows] and rows[0]['id'] == 3


def test_what_was_read_and_where_it_goes_on_is_said(experiment, capsys):
    """Count the user's tokens, not the begin token, and show the word that is continued."""
    for prompt, said in (
        (
            'def ',
            "[step 7, 4 prompt tokens read after the begin token; the text goes on from 'def ']",
        ),
        (
            'x' * 50 + 'y\x1b\n',
            "53 prompt tokens read after the begin token; the text goes on from ...'x",
        ),
        ('', '[step 7, 0 prompt tokens read after the begin token]'),
    ):
        out = io.StringIO()
        text = generate.generate(experiment[0], prompt, dict(length=3), out=out)
        err = capsys.readouterr().err
        assert said in err and '\x1b' not in err and ("xy\\x1b\\n']" in err) == (len(prompt) > 9)
        assert out.getvalue() == f'{text}\n', 'nothing but the new text for a program that reads it'


def test_reading_a_prompt_in_parts_is_reading_it_at_once(experiment):
    made, params = experiment
    model = made.evaluation_model
    tokens = made.tokenizer.encode(TEXT.encode())[None]
    readers = [
        Reader(model, params, fresh_state(model, params, 1), np.zeros((1, 0), np.int32))
        for _ in range(2)
    ]
    readers[0].read(tokens)
    assert list(readers[1].read_in_parts(tokens, segments=3))[-1] == tokens.shape[1]
    np.testing.assert_array_equal(readers[0].logits, readers[1].logits)
    np.testing.assert_array_equal(readers[0].pending, readers[1].pending)


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self):
        return True


def test_a_terminal_gets_no_control_characters(experiment, monkeypatch):
    monkeypatch.setattr(generate.Writer, 'pieces', lambda self, reader: iter(['a\x1b[2J', '\nb']))
    terminal, pipe = Terminal(), io.StringIO()
    texts = [generate.generate(experiment[0], 'x', {}, out=out) for out in (terminal, pipe)]
    assert texts == ['a\x1b[2J\nb'] * 2 and pipe.getvalue() == 'a\x1b[2J\nb\n'
    assert terminal.getvalue() == 'a\\x1b[2J\nb\n'


@pytest.mark.parametrize('call', [
    lambda run, path: score(run, 'x', output=path),
    lambda run, path: score_all(run, 'x', output=path),
    lambda run, path: generate.generate_all(run, 'x', {}, output=path),
    lambda run, path: generate.generate(run, 'x', {}, save_state=path),
])  # fmt: skip
def test_files_are_proved_writable_before_anything_is_read(tmp_path, call):
    for path in (tmp_path, tmp_path / 'none' / 'out'):
        with pytest.raises(UsageError, match='cannot be written'):
            call(None, str(path))


@pytest.mark.parametrize('call', [
    lambda path: score_all(None, 'x', output=path),
    lambda path: generate.generate_all(None, 'x', {}, output=path),
])  # fmt: skip
def test_lines_of_json_are_not_written_to_a_file_of_columns(tmp_path, call):
    with pytest.raises(
        UsageError, match='.tsv with --prompts: JSON lines; end the name with .jsonl'
    ):
        call(str(tmp_path / 'out.tsv'))


def test_no_text_is_one_message(experiment, tmp_path):
    with pytest.raises(UsageError, match='the text to score is empty'):
        score(experiment[0], '')
    (tmp_path / 'b').write_text('{"text": "x"}\n\n{"text": ""}')
    (tmp_path / 'earlier').write_text('of before')
    with pytest.raises(UsageError, match='b: nothing to score in 1 of 2 texts, .* number 2;'):
        score_all(experiment[0], str(tmp_path / 'b'), output=str(tmp_path / 'earlier'))
    assert (tmp_path / 'earlier').read_text() == 'of before'
    (tmp_path / 'a').write_text('{"prompt": "x"}')
    with pytest.raises(UsageError, match=r"a:1: no field 'text'; it has \['prompt'\]"):
        score_all(experiment[0], str(tmp_path / 'a'))
