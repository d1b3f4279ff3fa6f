"""Continuations of several texts: where they end, and on several devices."""

import jax
import numpy as np
import pytest

from longmem_jax.data.conventions import Conventions
from longmem_jax.data.tokenizers import Bytes
from longmem_jax.devices.sharding import make_mesh
from longmem_jax.generation import contexts, continuations, lanes
from tests.toys import LENGTH, VOCAB, toy

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


@pytest.mark.parametrize('memory', ['memorizing', 'rwkv7'])
def test_devices_share_the_texts(memory):
    """What is drawn is the same, and programs know the mesh: no device waits for all lanes."""
    model, params = toy(memory)
    tokens = np.random.default_rng(0).integers(0, VOCAB, (4, LENGTH + 3)).astype(np.int32)
    found = []
    for devices in (1, 2):
        mesh = make_mesh(dict(data=devices), jax.devices()[:devices])
        reader = contexts.ContextReader(model, params, mesh, 4)
        assert reader.run(lambda *_: lanes.one_by_one()) == (devices == 1)
        states = reader.read([row[:LENGTH] for row in tokens])
        chunks = continuations.continue_texts(
            reader, states, [row[LENGTH:] for row in tokens], 9, vocab_size=VOCAB
        )
        found.append(np.concatenate(list(chunks), axis=1))
    np.testing.assert_array_equal(*found)
