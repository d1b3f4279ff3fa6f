"""Scores that belong to one source of data."""

import sys
import types

import jax
import pytest

from longmem_jax.commands import by_source
from longmem_jax.config.base import base
from longmem_jax.errors import UsageError


def scored(monkeypatch, source):
    """What is returned and said for a source whose scores are a number."""
    said, config = [], base()
    config.data.source = source
    scores = 'longmem_jax.hosts.commands.superglue.answer_split'
    monkeypatch.setattr(scores, lambda *given: {'superglue': given[2]})
    experiment = types.SimpleNamespace(config=config)
    return by_source.score(experiment, {}, 'test', types.SimpleNamespace(say=said.append)), said


def test_a_source_has_its_scores_and_others_have_none(monkeypatch):
    assert scored(monkeypatch, 'superglue') == ({'superglue': 'test'}, [])
    assert scored(monkeypatch, 'text') == ({}, [])


@pytest.mark.parametrize('source, lines', [('superglue', 1), ('text', 0)])
def test_several_processes_write_no_answers_and_say_so(monkeypatch, source, lines):
    """The loss that they have measured is still reported."""
    monkeypatch.setattr(jax, 'process_count', lambda: 2)
    found, said = scored(monkeypatch, source)
    assert found == {} and len(said) == lines
    assert all('one process; use --mode=evaluate without --distributed' in line for line in said)


def test_translations_need_sacrebleu_before_they_are_trained(monkeypatch):
    config = base()
    config.model.kind = 'seq2seq'
    by_source.require(config)
    monkeypatch.setitem(sys.modules, 'sacrebleu.metrics', None)
    with pytest.raises(
        UsageError, match=r"sacrebleu .*: pip install 'longmem_jax\[translate\]'\.$"
    ):
        by_source.require(config)
    config.model.kind = 'language_model'
    by_source.require(config)
