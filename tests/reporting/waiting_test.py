"""Long things say how far they are: rarely in a file, at once on a terminal, only in process 0."""

import io
import re

import jax
import pytest

from longmem_jax.reporting import waiting as waiting_module
from longmem_jax.reporting.waiting import EVERY, FIRST, Waiting, busy


class Clock:
    """A clock that a test moves."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def test_a_file_gets_a_line_now_and_then():
    out, clock = io.StringIO(), Clock()
    waiting = Waiting('Reading the prompt', 1000, 'tokens', out=out, clock=clock)
    for done in range(0, 1001, 10):
        waiting.update(done)
        clock.now += 1
    waiting.close()
    lines = out.getvalue().splitlines()
    assert lines[0] == f'Reading the prompt: {10 * int(FIRST)} of 1,000 tokens, 0:01:30 left'
    assert len(lines) == 1 + int((100 - FIRST) / EVERY)
    assert '\x1b' not in out.getvalue()


def test_what_is_soon_over_says_nothing_in_a_file():
    out, clock = io.StringIO(), Clock()
    waiting = Waiting('Reading', 10, 'tokens', out=out, clock=clock)
    for done in range(10):
        waiting.update(done)
    waiting.close()
    assert out.getvalue() == ''


def test_what_compiles_for_long_says_so_once(monkeypatch):
    monkeypatch.setattr(waiting_module, 'FIRST', 0)
    out = io.StringIO()
    waiting = Waiting('Reading', 1000, 'tokens', out=out)
    waiting._compiling.join()
    assert out.getvalue() == 'Reading: 1,000 tokens, compiling ...\n'
    waiting.close()


def test_without_a_total_it_is_a_rate():
    out, clock = io.StringIO(), Clock()
    waiting = Waiting('Writing', 0, 'keys', out=out, clock=clock)
    waiting.update(0)
    clock.now += 20
    waiting.update(4000)
    assert out.getvalue() == 'Writing: 4,000 keys, 200 keys/s\n'


def test_a_terminal_gets_a_bar_that_goes(monkeypatch):
    monkeypatch.setenv('TERM', 'xterm')
    out = io.StringIO()
    waiting = Waiting('Reading', 10, 'tokens', out=out, terminal=True)
    waiting.update(3)
    waiting.close()
    waiting.close()
    assert 'Reading: 3 of 10 tokens' in out.getvalue() and '\x1b[' in out.getvalue()


def test_compiling_gives_signs_of_life():
    out, answers = io.StringIO(), iter([False, False, True])
    with busy('Compiling', out=out, wait=lambda event, seconds: next(answers)):
        pass
    lines = out.getvalue().splitlines()
    assert lines[0] == 'Compiling ...' and len(lines) == 3
    assert all(re.fullmatch(r'Compiling: 0:00:\d\d so far', line) for line in lines[1:])


def test_a_problem_while_busy_is_not_hidden():
    with pytest.raises(KeyError), busy('Compiling', out=io.StringIO()):
        raise KeyError


def test_other_processes_are_silent(monkeypatch):
    monkeypatch.setattr(jax, 'process_index', lambda: 1)
    out, clock = io.StringIO(), Clock()
    waiting = Waiting('Reading', 0, 'tokens', out=out, clock=clock)
    clock.now += 99
    waiting.update(1)
    with busy('Compiling', out=out):
        pass
    assert out.getvalue() == ''
