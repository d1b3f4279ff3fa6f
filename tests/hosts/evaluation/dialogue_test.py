"""Utterances written in batches are those of every conversation by itself; a whole run."""

import json

import jax
import numpy as np
import pytest

from configs import cmu_dog as config_file
from longmem_jax.commands import evaluate
from longmem_jax.commands.train import train
from longmem_jax.data.conventions import Conventions
from longmem_jax.devices.sharding import make_mesh
from longmem_jax.errors import UsageError
from longmem_jax.generation.contexts import ContextReader
from longmem_jax.generation.reader import Reader, fresh_state
from longmem_jax.hosts.commands.dialogue import asked, require
from longmem_jax.hosts.data.cmu_dog import Dialogue
from longmem_jax.hosts.evaluation.dialogue import contexts, respond
from tests.commands.train_test import experiment
from tests.hosts.data.cmu_dog_test import config_of, dialogue, write
from tests.toys import toy

GREEDY = dict(length=20, temperature=0.0, top_k=0, top_p=1.0, seed=0)


class Letters:
    """A vocabulary for the toy's 24 tokens; the rarest is the end of a line."""

    vocab_size, begin = 24, 23
    letters = 'abcdefghijklmnopqrst: \n'

    def encode(self, text):
        known = (self.letters.find(chr(byte).lower()) for byte in text)
        return np.asarray([max(place, 0) for place in known], np.int32)

    def decode(self, tokens):
        return ''.join(self.letters[t] for t in tokens if t < 23).encode()


LETTERS = Conventions((Letters.begin,), Letters.begin, ends=(Letters.begin,))
DIALOGUES = [
    Dialogue('one', 'some document', (('A', 'ab'), ('B', 'cdefg'), ('A', 'i'), ('B', 'no'))),
    Dialogue('two', '', (('B', 'q'), ('A', 'rst'))),
    Dialogue('three', 'abc', (('A', 'f'), ('A', 'gh'), ('B', 'c d'))),
]


def alone(model, params, tokens):
    """The line that the likeliest tokens make after `tokens`, read by themselves."""
    reader = Reader(model, params, fresh_state(model, params, 1), np.zeros((1, 0), np.int32))
    reader.read(tokens[None])
    drawn = np.concatenate([c[0] for c in reader.write(vocab_size=24, **GREEDY)])
    ends = np.flatnonzero(drawn == Letters.begin)
    drawn = drawn[: ends[0]] if len(ends) else drawn
    return Letters().decode(drawn).decode().partition('\n')[0].strip()


@pytest.mark.slow
@pytest.mark.parametrize('memory', ['transformer_xl', 'infini'])
def test_responses_are_those_of_every_context_by_itself(memory):
    model, params = toy(memory)
    mesh = make_mesh(dict(data=1), jax.devices()[:1])
    reader = ContextReader(model, params, mesh, 2)
    found = respond(reader, Letters(), LETTERS, DIALOGUES, min_history=1, settings=GREEDY)
    assert [(each.dialogue, each.turn) for each in found] == [
        ('one', 1), ('one', 2), ('one', 3), ('three', 1), ('three', 2), ('two', 1),
    ]  # fmt: skip
    for each in found:
        (source,) = [d for d in DIALOGUES if d.name == each.dialogue]
        assert (each.speaker, each.reference) == source.utterances[each.turn]
        assert each.text == alone(model, params, contexts(Letters(), LETTERS, source)[each.turn])
    # Every conversation is read once: its whole segments before the last utterance.
    most = [(len(contexts(Letters(), LETTERS, d)[-1]) - 1) // 5 * 5 for d in DIALOGUES]
    assert reader.tokens_read == sum(most)


def test_a_context_ends_with_the_speaker():
    found = [
        Letters().decode(tokens).decode() for tokens in contexts(Letters(), LETTERS, DIALOGUES[2])
    ]
    assert found == ['abc\na:', 'abc\na: f\na:', 'abc\na: f\na: gh\nb:']


def test_conversations_that_are_too_short_are_left_out_and_none_is_said_before_training(tmp_path):
    pytest.importorskip('rouge_score')
    said = [('user1', 'hello'), ('user2', 'hello you'), ('user1', 'bye')]
    write(
        tmp_path, test_empty=dialogue(), test_short=dialogue(*said[:2]), test_long=dialogue(*said)
    )
    config = config_of(tmp_path, respond=True, min_history=2)
    require(config)
    assert [each.name for each in asked(config, 'test')] == ['long']
    config.data.task.min_history = 3
    with pytest.raises(UsageError, match='= 3: none of the 3 conversations of test has more'):
        require(config)
    config.data.task.respond = False
    require(config)


@pytest.mark.slow  # a whole run
def test_a_run_ends_with_scores_of_responses(tmp_path, capsys):
    pytest.importorskip('rouge_score')
    data = tmp_path / 'data'
    data.mkdir()
    said = [('user1', 'hello'), ('user2', 'hello you'), ('user1', 'bye'), ('user2', 'bye you')]
    talks = {
        f'{split}_{i}': dialogue(*said, ('user1', split * (i + 1)))
        for split in ('train', 'valid', 'test')
        for i in range(4)
    }
    write(data, **talks)
    config = config_file.get_config('tiny,memory=transformer_xl')
    config.data.path = str(data)
    config.model.num_layers = 1
    config.model.attention, config.model.feed_forward = ('transformer_xl',), ('dense',)
    config.train.segment_length, config.train.num_lanes, config.train.num_steps = 32, 4, 30
    config.train.evaluate_every = config.checkpoint.every = 30
    config.evaluate.num_lanes, config.data.task.max_dialogues = 2, 3
    config.generate.length, config.mesh.data = 12, 1
    run = experiment(config, tmp_path / 'run')
    train(run)
    found = json.loads((run.workdir / 'results.json').read_text())
    assert found['test']['tokens'] == 4 * len(' hello\n hello you\n bye\n bye you\n') + sum(
        len(' test' * 1) + 4 * i + 1 for i in range(4)
    )
    assert found['dialogue']['responses'] == 3 * 3 and 'f1' in found['dialogue']
    lines = (run.workdir / 'responses.test.jsonl').read_text().splitlines()
    assert len(lines) == 9 and json.loads(lines[0])['reference'] == 'bye'
    assert '9 utterances of 3 conversations' in capsys.readouterr().out
    evaluate.evaluate(run, 'test')
    again = json.loads((run.workdir / 'dialogue.test.json').read_text())
    assert again == found['dialogue']
