"""Texts of others, shown: whatever a file holds, no message is a command for the terminal."""

import io
import json
import shutil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longmem_jax.commands import entry
from longmem_jax.config.base import base
from longmem_jax.config.recipes import recipes
from longmem_jax.config.saved import saved_config
from longmem_jax.data.load import load_source
from longmem_jax.data.tokenizer_files import load_tokenizer
from longmem_jax.data.tokenizers import Bytes
from longmem_jax.errors import ELSEWHERE, MESSAGE, UsageError, nearest, say, visible
from longmem_jax.hosts import hosts
from longmem_jax.hosts.chat import ChatTemplate
from longmem_jax.reporting.gained import Gained, Read, shown_text, write
from longmem_jax.reporting.progress import Progress
from tests.hosts.hosts_test import folder_of

ESC = '\x1b]0;title\x07'


def test_what_a_terminal_would_obey_is_shown():
    assert visible('a\x1b[31mb\rc\x9bd\u202ee\ud800') == 'a\\x1b[31mb\\rc\\x9bd\\u202ee\\ud800'
    assert visible('na\u00efve \u2603\t\n\U0001f642') == 'na\u00efve \u2603\t\n\U0001f642'
    assert visible('abcd', 2) == 'ab ... (2 more characters)' and visible('abcd', 4) == 'abcd'


def test_names_of_other_libraries_are_known():
    config = base()
    ours = {*config.model, *config.train, *config.optimizer, *recipes()}
    assert not set(ELSEWHERE.values()) - ours, 'a name that is gone here'
    assert not ELSEWHERE.keys() & ours, 'a name that is used here'
    assert nearest('max_steps', ['max_bad_steps', 'num_steps']) == "did you mean 'num_steps'? "
    assert nearest('lr', ['b1']) == ''


@given(st.text())
def test_nothing_but_control_characters_changes(text):
    assert all(c in '\n\t' or c.isprintable() or ord(c) >= 160 for c in visible(text))
    if text.isprintable():
        assert visible(text) == text


def test_reports_send_no_escape_codes(tmp_path):
    tokens = Bytes().encode(b'the \x1b]0;title\x07 cat\x1b[2J\r')
    text = shown_text(Bytes(), tokens)
    read = Read(1.0, 'document 0', text, shown_text(Bytes(), np.asarray([27])), True)
    for path in write([Gained(text, 'x', -2.0, -1.0, [read])], tmp_path, 'report', 'Report'):
        content = path.read_bytes()
        assert b'\x1b' not in content and b'\r' not in content, f'{path.name} has escape codes'
        assert b'\\x1b[2J' in content


def test_every_way_to_the_terminal_shows_them(capsys):
    """Errors of libraries too, which quote the file that they cannot read; and no message has no end."""
    out = io.StringIO()
    progress = Progress(1, log_every=1, out=out, terminal=False)
    progress.say(ESC)
    progress.table('title', ('name',), [(ESC,)])
    say(ESC)
    for error in (
        UsageError(ESC),
        ValueError(ESC),
        OSError(2, 'none', ESC),
        UsageError('x' * 10**6),
    ):
        entry.fail(error)
    shown = out.getvalue() + ''.join(capsys.readouterr())
    assert '\x1b' not in shown and '\x07' not in shown and shown.count('x1b]0;title') == 6
    assert len(shown) < 2 * MESSAGE


def section(folder, **longmem):
    """A host whose `config.json` has a section of ours."""
    shutil.copytree(folder_of('llama'), folder / 'host')
    path = folder / 'host' / 'config.json'
    path.write_text(json.dumps(json.loads(path.read_text()) | {'longmem': longmem}))
    return hosts.find(str(folder / 'host'))


def data(folder, name, content=b'{"x": 1}\n'):
    (folder / name).write_bytes(content)
    settings = base().data.copy_and_resolve_references()
    settings.source, settings.path, settings.text_field = 'text', str(folder / name), 'text'
    source = load_source(settings, 'train')
    return [source[i] for i in range(len(source))]


def file(folder, name, content):
    (folder / name).write_text(json.dumps(content) if not isinstance(content, str) else content)
    return folder / name


READ = {
    'chat template': lambda f: ChatTemplate(
        '{{ raise_exception(messages[0].content) }}', 'x', {}
    ).render([dict(role='user', content=ESC)]),
    'syntax of a chat template': lambda f: ChatTemplate('{% ' + ESC + ' %}', 'x', {}),
    'name of a corpus file': lambda f: data(f, f'a{ESC}.jsonl'),
    'field of a line': lambda f: data(f, 'a.jsonl', json.dumps({ESC: 1}).encode()),
    'row of a table': lambda f: data(f, 'a.csv', f'text\na\nb,{ESC}\n'.encode()),
    'column of a table': lambda f: data(f, 'a.csv', f'{ESC}\na\n'.encode()),
    'name in a section': lambda f: section(f, model={ESC: 1}, segment_length=8),
    'value in a section': lambda f: section(f, model={'num_layers': ESC}, segment_length=8),
    'kind in a section': lambda f: section(f, model={'kind': ESC, 'norm': ESC}, segment_length=8),
    'layer in a section': lambda f: section(f, model={'attention': [ESC]}, segment_length=8),
    'value of a run': lambda f: saved_config(file(f, 'config.json', {'model': {'norm': [ESC]}})),
    'name of a run': lambda f: saved_config(file(f, 'config.json', {'model': {ESC: 1}})),
    'tokenizer': lambda f: load_tokenizer('bpe', file(f, 'a.json', {'model': {'type': ESC}})),
    'characters': lambda f: load_tokenizer('characters', file(f, 'a.json', [ESC])),
    'words': lambda f: load_tokenizer('words', file(f, 'a.txt', f'a\n{ESC} b\n')),
}  # fmt: skip


@pytest.mark.parametrize('name', READ)
def test_no_field_of_a_file_is_a_command(name, tmp_path, capfd):
    with pytest.raises(UsageError) as caught:
        READ[name](tmp_path)
    entry.fail(caught.value)
    shown = str(caught.value) + ''.join(capfd.readouterr())
    assert '\x1b' not in shown and '\x07' not in shown, shown
