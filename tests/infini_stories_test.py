"""The thesis at small size: rows, scores of words and pairs, what is given back; a whole, small run."""

import json

import numpy as np
import pytest

from experiments.infini_attention import stories as command
from experiments.infini_attention import story_report, story_scores
from longmem_jax.config import checks
from longmem_jax.data.sets.stories import Stories
from longmem_jax.data.tokenizers import Words
from longmem_jax.errors import UsageError


def test_every_row_can_be_trained_and_reads_as_many_tokens_per_step():
    for name in command.ROWS:
        config = command.config_of(name, [])
        checks.require_runnable(config, 1)
        train = config.train
        assert train.segment_length == int(name.split('_')[1])
        assert train.segment_length * train.segments_per_step == 512
        assert train.num_steps == (1000 if command.ROWS[name].tuned else 3000)


def told(length=32, count=4):
    config = command.config_of('local_64', [f'--config.data.task.eval_documents={count}'])
    source = Stories(config.data, 'test')
    words = sorted({word for i in range(count) for word in source.story(i).words})
    others = {word for i in range(count) for word in source.story(i).others if word}
    tokenizer = Words([*words, *sorted(others - {*words})])
    return source, tokenizer, story_scores.told_texts(source, tokenizer, length)


def test_words_that_only_earlier_segments_tell_are_named_in_none_of_the_segments_inputs():
    source, tokenizer, texts = told()
    beyond, seen = story_scores.beyond(texts, 32), 0
    for index in range(len(source)):
        words = [*source.story(index).words, '<eos>']
        assert tokenizer.decode(texts.tokens[index][: len(words)]).decode().split() == words[:-1]
        for at, fact in enumerate(source.story(index).facts):
            assert bool(fact) == (texts.since[index, at] > 0)
            if fact:
                first = at // 32 * 32
                inputs = words[max(first - 1, 0) : at]
                assert beyond[index, at] == (words[at] not in inputs)
                assert texts.others[index, at] != texts.tokens[index, at]
                seen += beyond[index, at]
    assert seen > 10


def test_scores_are_those_of_the_words_that_they_name():
    _, _, texts = told()
    facts, beyond = texts.since > 0, story_scores.beyond(texts, 32)
    nats = np.where(facts, 2.0, 1.0).astype(np.float32) * np.log(2)
    found = story_scores.Losses(nats, np.where(beyond, 0, 9), ~beyond)
    scores = story_scores.scores(texts, found, 32)
    assert scores['bits_facts'] == pytest.approx(2) and scores['bits_rest'] == pytest.approx(1)
    share = 100 * (facts & beyond).sum() / facts.sum()
    assert scores['share']['beyond'] == pytest.approx(share, abs=1e-4)
    for name in ('accuracy', 'pairs'):
        assert scores[name]['beyond'] == 0
        assert scores[name]['facts'] == pytest.approx(100 - share, abs=1e-4)
    assert scores['accuracy']['from 1'] > scores['accuracy']['from 257']


def cell(facts, betas=()):
    found = {'accuracy': {'facts': facts, 'beyond': None}, 'bits': 1.0, 'pairs': {'facts': 50.0}}
    course = [
        {'step': 25 * i, 'betas': {'block_0': [beta], 'block_1': [0.0]}}
        for i, beta in enumerate(betas)
    ]
    sentences = {kind: 90.0 for kind in story_scores.KINDS}
    return {
        'scores': {'kept': found, 'reset': found},
        'sentences': sentences,
        'course': course or [{'step': 0, 'betas': {}}],
    }


def test_what_is_given_back_is_a_share_of_what_the_shorter_segment_lost():
    found = {
        'local_64': {'0': cell(40.0)},
        'local_512': {'0': cell(80.0)},
        'tuned_64': {'0': cell(70.0, [0.0, 0.5, 0.95, 1.0]), '1': cell(9.0)},
    }
    assert story_report.given_back(found) == {'tuned_64': {'0': 75.0}}
    assert '| `local_64` | 1 | 1.000 | 40.0 |' in story_report.table(found)


def test_how_betas_went_is_kept_and_most_looks_are_not(tmp_path):
    betas = [0.0, 0.5, 0.95, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    path = tmp_path / 'tuned_64' / '0.json'
    path.parent.mkdir()
    path.write_text(json.dumps(cell(70.0, betas)))
    found = story_report.collect(tmp_path)['tuned_64']['0']
    assert [look['step'] for look in found['course']] == [0, 200]
    went = {
        'before': 0.0,
        'layer 1': 1.0,
        'layer 2': 0.0,
        'moved': 0.5,
        'settled': 50,
        'steps': 200,
    }
    assert found['betas'] == went
    assert '| `tuned_64` | 0.00 | 1.00 | 0.00 | 0.50 | 50 | 200 |' in story_report.betas_table(
        {'tuned_64': {'0': found}}
    )


def test_unknown_rows_are_refused(capsys, tmp_path):
    with pytest.raises(SystemExit):
        command.parse([f'--output={tmp_path}', '--rows=tuned_512'])
    assert "'tuned_512': allowed are" in capsys.readouterr().err


@pytest.mark.slow  # compiles two trainings and their readings
def test_a_run_is_kept_and_fine_tuning_begins_with_it(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(command, 'TESTED', 25)
    monkeypatch.setattr(command, 'PAIRS', 25)
    flags = ['--', '--config.train.num_steps=2', '--config.data.task.documents=40']
    with pytest.raises(UsageError, match='run --rows=local_512'):
        command.main([f'--output={tmp_path}', '--rows=tuned_256', '--seeds=7,', *flags])
    command.main([f'--output={tmp_path}', '--rows=local_512,tuned_256', '--seeds=7,', *flags])
    assert 'tuned_256, seed 7' in capsys.readouterr().out
    tuned = json.loads((tmp_path / 'tuned_256' / '7.json').read_text())
    assert tuned['run']['seeds'] == [7] and len(tuned['course'][0]['betas']['block_1']) == 2
    base = json.loads((tmp_path / 'local_512' / '7.json').read_text())
    assert tuned['parameters'] == base['parameters'] + 4
    command.main([f'--output={tmp_path}', '--rows=tuned_256', '--seeds=7,', *flags])
    assert 'tuned_256, seed 7' not in capsys.readouterr().out
    with pytest.raises(UsageError, match='choose another --output'):
        flags[1] = '--config.train.num_steps=3'
        command.main([f'--output={tmp_path}', '--rows=local_512', '--seeds=7,', *flags])
