"""Where continuations of several texts end."""

import numpy as np

from longmem_jax.data.conventions import Conventions
from longmem_jax.data.tokenizers import Bytes
from longmem_jax.generation import continuations

END = chr(256)
ENDS = Conventions(begin=(), first=7, ends=(8, 256))


def test_texts_end_at_any_end_token_or_at_a_stop_text(monkeypatch):
    written = [f'ab{END}cd---', 'abcdef!?', 'a--b!?--', 'abcd\bfgh', '--------']

    def chunks(*_, **__):
        for start in range(0, 8, 3):
            yield np.asarray([[ord(c) for c in text[start : start + 3]] for text in written])

    monkeypatch.setattr(continuations, 'continue_texts', chunks)
    pending = [np.ones((1,), np.int32)] * 4 + [np.zeros((0,), np.int32)]
    found = continuations.complete_texts(None, None, pending, 8, Bytes(), ENDS, ('!?', '--'))
    assert found == ['ab', 'abcdef', 'a', 'abcd', '']


def test_nothing_is_drawn_after_the_last_end(monkeypatch):
    def chunks(*_, **__):
        yield np.asarray([[97, 256], [98, 10]])
        raise AssertionError('asked for more')

    monkeypatch.setattr(continuations, 'continue_texts', chunks)
    pending = [np.ones((1,), np.int32)] * 2
    assert continuations.complete_texts(None, None, pending, 9, Bytes(), ENDS, ('\n',)) == [
        'a',
        'b',
    ]
