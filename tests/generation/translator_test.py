"""Translations of a model with more ids than its tokenizer."""

import numpy as np
import pytest

from longmem_jax.config.base import base
from longmem_jax.data.tasks.vocabulary import Vocabulary
from longmem_jax.generation.translator import Translator
from tests.models.seq2seq_test import TARGET, VOCAB, make, parameters


def test_a_source_that_is_cut_is_said(monkeypatch):
    model, said = make('transformer'), []
    words = Vocabulary(['end', 'a', 'b'], 'end')
    settings = base().translate
    settings.num_lanes = 2
    translator = Translator(model, words, settings, TARGET)
    monkeypatch.setattr(translator, '_search', lambda params, padded, *given: padded[:, :1])
    most = model.config.seq2seq.max_source
    assert translator({}, ['a ' * most, 'b'], said.append) == ['a', 'b'] and not said
    assert translator({}, ['a ' * (most + 1), 'b'], said.append) == ['a', 'b']
    assert said[0].startswith(f'Of 1 text only the first {most} tokens are translated')


@pytest.mark.slow
def test_ids_that_the_tokenizer_lacks_are_never_drawn():
    model = make('transformer')
    params = parameters(model)
    bias = np.where(np.arange(VOCAB) < 5, 0.0, 100.0)  # the others are preferred
    params['embedding']['out_bias_0'] = bias.astype(np.float32)
    settings = base().translate
    settings.num_lanes, settings.beams = 2, 3
    words = Vocabulary(['end', 'a', 'b', 'c', 'd'], 'end')
    found = Translator(model, words, settings, TARGET)(params, ['a b', 'c d', 'a'])
    assert len(found) == 3
    assert {word for text in found for word in text.split()} <= {'a', 'b', 'c', 'd'}
