"""The console: plain lines in a file, a bar on a terminal, silence on other processes."""

import io
import re

import jax
import pytest

from longmem_jax.reporting.progress import Progress

TEXT = 'loss 1.2500 nats/token, 1.8030 bits/byte, 12,345 tokens/s'


def test_plain_lines_at_every_interval_without_escape_codes():
    out = io.StringIO()
    progress = Progress(1000, log_every=10, out=out)
    for step in range(1, 31):
        progress.update(step, TEXT)
    progress.say('saved [step 30] in /tmp/a[b]')
    progress.close()
    text = out.getvalue()
    assert '\x1b' not in text and '\r' not in text
    lines = text.splitlines()
    assert [line.split(':')[0] for line in lines[:3]] == [f'step {n}/1,000' for n in (10, 20, 30)]
    wanted = rf'step 10/1,000: {TEXT}, \d+:\d\d:\d\d left'
    assert re.fullmatch(wanted, lines[0])
    assert lines[3:] == ['saved [step 30] in /tmp/a[b]']


def test_long_lines_are_not_wrapped_in_a_file():
    out = io.StringIO()
    Progress(0, log_every=0, out=out).say('word ' * 100)
    assert len(out.getvalue().splitlines()) == 1


def test_a_resumed_run_begins_where_it_stands():
    out = io.StringIO()
    progress = Progress(100, log_every=1, out=out)
    progress.update(50, TEXT)
    assert '? left' in out.getvalue()
    progress.update(51, f'{TEXT}, 2 bad steps')
    assert '2 bad steps' in out.getvalue()


def test_bar_on_a_terminal_and_lines_above_it(monkeypatch):
    monkeypatch.setenv('COLUMNS', '140')
    monkeypatch.setenv('TERM', 'xterm')
    out = io.StringIO()
    progress = Progress(40, log_every=10, out=out, terminal=True)
    for step in range(1, 41):
        progress.update(step, TEXT)
    progress.say('above the bar')
    progress.close()
    progress.close()
    text = out.getvalue()
    assert '\x1b[' in text
    plain = re.sub(r'\x1b\[[0-9;?]*[a-zA-Z]', '', text)
    assert 'step 40/40' in plain and 'loss 1.2500' in plain and '12,345 tokens/s' in plain
    assert any(line.strip() == 'above the bar' for line in re.split(r'[\r\n]', plain))


def test_table_is_whole_and_in_order():
    out = io.StringIO()
    progress = Progress(0, log_every=0, out=out)
    progress.table('Results', ('evaluation', 'bits/byte'), [('test', '1.80'), ('reset', '2.10')])
    text = out.getvalue()
    places = [text.index(word) for word in ('Results', 'evaluation', 'test', 'reset')]
    assert places == sorted(places) and '\x1b' not in text


@pytest.mark.parametrize('terminal', [False, True])
def test_only_process_0_speaks(monkeypatch, terminal):
    monkeypatch.setattr(jax, 'process_index', lambda: 3)
    out = io.StringIO()
    progress = Progress(10, log_every=1, out=out, terminal=terminal)
    progress.update(1, TEXT)
    progress.say('hello')
    progress.table('Results', ('a',), [('b',)])
    progress.close()
    assert out.getvalue() == ''
