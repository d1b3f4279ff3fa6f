"""Translation from training to BLEU, as a user sees it."""

import json

import jax
import numpy as np
import pytest

from longmem_jax.commands import translate
from longmem_jax.commands.train import train
from longmem_jax.config import checks
from longmem_jax.config.base import base, stack
from longmem_jax.devices import sharding
from longmem_jax.errors import UsageError
from longmem_jax.experiment import Experiment
from longmem_jax.generation.translator import Translator, bleu
from longmem_jax.workdir import prepare_workdir

pytestmark = pytest.mark.slow  # whole runs of the command

WORDS = {'one': 'eins', 'two': 'zwei', 'three': 'drei', 'four': 'vier'}


def write_pairs(folder):
    """Files of sentences, which are translated word by word."""
    random = np.random.default_rng(0)
    for split, count in (('train', 200), ('validation', 8), ('test', 10)):
        rows = [random.choice(list(WORDS), size=random.integers(1, 6)) for _ in range(count)]
        (folder / f'{split}.en').write_text(''.join(' '.join(row) + '\n' for row in rows))
        lines = (' '.join(WORDS[word] for word in row) + '\n' for row in rows)
        (folder / f'{split}.de').write_text(''.join(lines))


def small_config(data):
    """A small model that learns to translate the files in a folder."""
    config = base()
    model = config.model
    model.kind, model.position = 'seq2seq', 'sinusoidal'
    del model.transformer_xl
    stack(model, 1, 'local')
    model.local = dict(position='none')
    model.vocab_size, model.d_model, model.d_embed, model.d_feed_forward = 16, 32, 32, 64
    model.num_heads, model.head_dim, model.init_std = 2, 16, 0.1
    model.seq2seq = dict(
        max_source=6, encoder='plain', num_encoder_layers=1, num_tokens=2, shared_layers=False,
        cross='softmax', cross_slots=0,
    )  # fmt: skip
    config.data.source, config.data.path = 'parallel', str(data)
    config.data.tokenizer.kind = 'words'
    config.data.pairs = dict(languages=('en', 'de'), max_source=6, max_target=7)
    config.optimizer.learning_rate, config.optimizer.clip_norm = 1e-2, 1.0
    config.train.num_steps, config.train.num_lanes, config.train.segment_length = 150, 16, 13
    config.train.evaluate_every, config.train.loss_weights = 150, dict(label_smoothing=0.1)
    config.evaluate.segment_length, config.evaluate.num_lanes = 13, 4
    config.translate.num_lanes, config.checkpoint.every = 4, 150
    assert checks.find_problems(config, 1) == []
    return config


@pytest.fixture(scope='module')
def translated(tmp_path_factory):
    """A small model trained to translate four words, word by word."""
    data = tmp_path_factory.mktemp('pairs')
    write_pairs(data)
    config = small_config(data)
    workdir = prepare_workdir(str(tmp_path_factory.mktemp('run')))
    mesh = sharding.make_mesh(dict(data=1, fsdp=1, tensor=1, memory=1), jax.devices()[:1])
    found = Experiment(config, workdir, mesh)
    train(found)
    return found


def test_a_run_ends_with_bleu(translated):
    results = json.loads((translated.workdir / 'results.json').read_text())
    assert results['bleu'] > 50 and results['sentences'] == 10 and results['beams'] == 5
    assert 'tok:13a' in results['bleu_signature']
    assert list(results)[:4] == ['step', 'parameters', 'state_bytes_per_lane', 'test']
    assert results['state_bytes_per_lane'] == 0 and results['test']['tokens'] > 20


def test_evaluating_again_gives_the_same(translated):
    known = json.loads((translated.workdir / 'results.json').read_text())
    found = translate.evaluate(translated, 'test')
    assert found['bleu'] == pytest.approx(known['bleu'])
    lines = (translated.workdir / 'translations.test.txt').read_text().splitlines()
    assert len(lines) == 10
    translated.config.translate.max_sentences = 3
    try:
        assert translate.evaluate(translated, 'test')['sentences'] == 3
        path = translated.workdir / 'translations.test.txt'
        assert path.read_text().splitlines() == lines[:3]
    finally:
        translated.config.translate.max_sentences = 0


def test_a_prompt_is_translated_line_by_line(translated, capsys):
    found = translate.translate_prompt(translated, 'two two\n\n  \r\nfour\n')
    # Line i translates line i.
    assert [line.split() for line in found] == [['zwei', 'zwei'], [], [], ['vier']]
    assert capsys.readouterr().out.splitlines()[-4:] == found
    with pytest.raises(UsageError, match='text to translate'):
        translate.translate_prompt(translated, ' ')


def test_the_command_line_has_the_number_of_beams(translated, capsys, monkeypatch):
    found = []
    of_batch = Translator.__call__
    monkeypatch.setattr(
        Translator,
        '__call__',
        lambda self, *given: found.append(self.settings.beams) or of_batch(self, *given),
    )
    for beams in (None, 2):
        translate.from_flags(translated, prompt='two', beams=beams)
    assert found == [translated.config.translate.beams, 2] and found[0] != 2
    with pytest.raises(UsageError, match='--beams=0: a translator searches with 1 or more'):
        translate.from_flags(translated, prompt='two', beams=0)


def test_an_unknown_split_is_one_clear_error(translated):
    with pytest.raises(UsageError, match='allowed are train, validation, test'):
        translate.evaluate(translated, 'dev')


def test_bleu_is_sacrebleus():
    score, signature = bleu(['a b c d e'], ['a b c d e'])
    assert score == pytest.approx(100.0) and 'version:' in signature
