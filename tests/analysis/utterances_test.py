"""What an utterance attended to: the tokens that were followed into the memory."""

import json
import types

import numpy as np
import pytest

from experiments.analysis import continuous_figures, memory_positions, utterances
from longmem_jax.errors import UsageError
from longmem_jax.hosts.data.cmu_dog import Dialogue
from tests.hosts.data.cmu_dog_test import SAID, dialogue, write
from tests.hosts.evaluation.dialogue_test import LETTERS, Letters
from tests.toys import LENGTH, toy

SPOKEN = Dialogue('one', 'some document', (('A', 'ab'), ('B', 'cdefg'), ('A', 'i')))


def test_attention_belongs_to_the_tokens_at_its_places():
    fields = memory_positions.fields_of(toy('infinity_former')[0])
    mass = np.full((6 * LENGTH, 128), 1e-9)
    owners, positions = memory_positions.follow(
        mass.reshape(6, LENGTH, 128).sum(1), fields, LENGTH, fields['sticky'] != 'none'
    )[5]
    at = np.abs((np.arange(128) + 0.5) / 128 - positions[-1]).argmin()
    mass[5 * LENGTH + 1, at] = 1.0
    during = utterances.places(mass, fields, LENGTH, 5 * LENGTH, 6 * LENGTH)
    assert during.argmax() == owners[-1] and during.max() > 0.99
    assert during.sum() == pytest.approx(1)
    # An utterance that ends before looks elsewhere, the first segment at nothing.
    assert utterances.places(mass, fields, LENGTH, 4 * LENGTH, 5 * LENGTH).max() < 0.99
    assert not utterances.places(mass, fields, LENGTH, 0, LENGTH).any()


def test_excerpts_have_the_largest_shares_and_do_not_overlap():
    shares = np.zeros(200)
    shares[50], shares[52], shares[120], shares[199] = 0.3, 0.3, 0.25, 0.15
    found = list(utterances.excerpts(shares))
    assert [share for *_, share in found] == pytest.approx([0.6, 0.25, 0.15])
    for (first, last, _), token in zip(found, (51, 120, 199), strict=True):
        assert first <= token < last <= 200 and last - first <= 2 * utterances.SIDE + 1
    assert not list(utterances.excerpts(np.zeros(200)))


def test_an_utterance_is_shown_with_its_excerpts(tmp_path):
    model, params = toy('infinity_former')
    found = utterances.attended(model, params, Letters(), LETTERS, SPOKEN, 2, 'no')
    text = 'some document\nA: ab\nB: cdefg\nA:'
    assert found.text == 'A: no' and found.document == len('some document\n') + 1
    assert found.shares.shape == (len(text),) and 0.9 < found.shares.sum() <= 1 + 1e-6
    known = Letters().decode(Letters().encode(text.encode())).decode()
    assert found.seen and all(excerpt.strip() in known for excerpt, _ in found.seen)
    figure = continuous_figures.draw_utterances([found], tmp_path / 'utterances.png')
    (axes,) = figure.axes
    assert sum(bar.get_height() for bar in axes.patches) == pytest.approx(found.shares.sum())
    assert 'A: no' in axes.get_title(loc='left')
    assert axes.lines[0].get_xdata()[0] == found.document


def test_utterances_are_those_that_the_run_wrote(tmp_path):
    config = types.SimpleNamespace(data=types.SimpleNamespace(path=str(tmp_path)))
    run = types.SimpleNamespace(workdir=tmp_path, config=config)
    with pytest.raises(UsageError, match=r'responses.test.jsonl is missing: .*respond=True'):
        list(utterances.chosen(run, 2))
    write(tmp_path, test_a=dialogue(*SAID), test_b=dialogue(*SAID))
    lines = [
        dict(dialogue=name, turn=turn, speaker='A', reference='', text=f'{name}{turn}')
        for name in 'ab'
        for turn in (1, 2)
    ]
    path = tmp_path / 'responses.test.jsonl'
    path.write_text(''.join(json.dumps(line) + '\n' for line in lines))
    (one,) = utterances.chosen(run, 1)
    assert (one[0].name, *one[1:]) == ('a', 2, 'a2')
    assert [text for *_, text in utterances.chosen(run, 5)] == ['a2', 'b2']
    for changes, message in (
        (dict(dialogue='gone'), "no utterance 1 of a conversation 'gone' is in the test split"),
        (dict(turn=99), "no utterance 99 of a conversation 'a' is in the test split"),
        (dict(turn='1'), "jsonl:1: turn = '1': must be int"),
    ):
        path.write_text(json.dumps(lines[0] | changes))
        with pytest.raises(UsageError, match=message):
            list(utterances.chosen(run, 1))
    path.write_text(json.dumps(lines[0])[:-9])
    with pytest.raises(UsageError, match='jsonl:1: not a line of JSON'):
        list(utterances.chosen(run, 1))
