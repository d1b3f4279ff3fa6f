"""Texts of others, shown."""

import numpy as np

from longmem_jax.data.tokenizers import Bytes
from longmem_jax.reporting.control_characters import visible
from longmem_jax.reporting.gained import Gained, Read, shown_text, write


def test_what_a_terminal_would_obey_is_shown():
    assert visible('a\x1b[31mb\rc\x9bd\u202ee\ud800') == 'a\\x1b[31mb\\rc\\x9bd\\u202ee\\ud800'
    assert visible('na\u00efve \u2603\t\n\U0001f642') == 'na\u00efve \u2603\t\n\U0001f642'


def test_reports_send_no_escape_codes(tmp_path):
    tokens = Bytes().encode(b'the \x1b]0;title\x07 cat\x1b[2J\r')
    text = shown_text(Bytes(), tokens)
    read = Read(1.0, 'document 0', text, shown_text(Bytes(), np.asarray([27])), True)
    for path in write([Gained(text, 'x', -2.0, -1.0, [read])], tmp_path, 'report', 'Report'):
        content = path.read_bytes()
        assert b'\x1b' not in content and b'\r' not in content, f'{path.name} has escape codes'
        assert b'\\x1b[2J' in content
