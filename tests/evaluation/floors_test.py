"""Floors: they score what an evaluation scores, count what a run reads, and are shown beside results."""

import io
import json
import math

import numpy as np
import pytest

from longmem_jax.commands.floors import show_beside
from longmem_jax.config.base import base
from longmem_jax.data.corpus import TokenizedDocument
from longmem_jax.data.lanes import in_order
from longmem_jax.data.order import shared_out
from longmem_jax.data.tasks.registry import TASKS
from longmem_jax.data.tokenizers import Bytes
from longmem_jax.data.windows import Windows
from longmem_jax.errors import UsageError
from longmem_jax.evaluation import floors
from longmem_jax.evaluation.ngrams import NGrams, stream
from longmem_jax.evaluation.tables import show_floors
from longmem_jax.experiment import Experiment
from longmem_jax.reporting.progress import Progress
from tests.data.tasks_test import KEYS

LENGTH = 8


class Texts:
    """Random documents of the given lengths, one of them empty."""

    tokenizer = Bytes()

    def __init__(self, seed, lengths=(30, 0, 5, 17, 8, 64, 1, 22, 9)):
        self.sizes, random = lengths, np.random.default_rng(seed)
        self.texts = [random.integers(97, 101, size).astype(np.int32) for size in lengths]

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        return TokenizedDocument(self.texts[index], self.sizes[index])

    def lengths(self):
        return np.asarray(self.sizes, np.int64)


def configuration(**evaluate):
    config = base()
    config.evaluate.update(dict(num_lanes=3, segment_length=LENGTH) | evaluate)
    config.train.update(num_lanes=2, segment_length=LENGTH, segments_per_step=2, num_steps=1000)
    return config


def read_by_lanes(corpus, lanes, most):
    """Targets of the first `most` segments of every lane, sorted, and their bytes."""
    tokens, num_bytes = [], 0.0
    lanes, most = shared_out(len(corpus), lanes, most)
    for number, (batch, _) in enumerate(in_order(corpus, lanes, LENGTH), start=1):
        tokens.append(batch.targets[batch.valid])
        num_bytes += float(batch.num_bytes.sum())
        if number == most:
            break
    return np.sort(np.concatenate(tokens)), num_bytes


@pytest.mark.parametrize('lanes', [1, 3, 12])
@pytest.mark.parametrize('most', [0, 1, 2, 5])
def test_what_is_scored_is_what_an_evaluation_reads(lanes, most):
    corpus = Texts(0)
    wanted, num_bytes = read_by_lanes(corpus, lanes, most)
    parts = list(floors.parts_read(corpus, lanes, LENGTH, most))
    found = np.sort(np.concatenate([document.tokens[:read] for document, read in parts]))
    np.testing.assert_array_equal(found, wanted)
    config = configuration(num_lanes=lanes, max_test_segments=most)
    measured = floors.measure(config, 'test', corpus, lambda: Texts(1))
    assert measured.tokens == len(wanted)
    unigram = measured.scores['unigram']
    assert unigram['bits_per_byte'] == pytest.approx(unigram['loss'] / math.log(2))
    which = 'all' if len(wanted) == corpus.lengths().sum() else 'the first'
    assert f'{which} {len(wanted)} tokens ({round(num_bytes)} bytes) of test' in measured.protocol


@pytest.mark.parametrize('at_once', [1, 40, 10**6])
def test_scores_of_a_text_are_those_of_its_documents(at_once, monkeypatch):
    """Whatever is scored together."""
    monkeypatch.setattr(floors, 'AT_ONCE', at_once)
    corpus, train = Texts(0), Texts(1)
    measured = floors.measure(configuration(), 'test', corpus, lambda: train)
    begin = Bytes.begin
    texts = [(begin, text) for text in train.texts]
    nll = np.zeros(floors.ORDER)
    for order in range(1, floors.ORDER + 1):  # a model of this order alone
        ngrams = NGrams(*stream(texts, begin, order), Bytes.vocab_size, order)
        for text in corpus.texts:
            tokens, real = stream([(begin, text)], begin, order)
            nll[order - 1] -= np.log(ngrams.chances(tokens)[-1, real]).sum()
    found = [scores['loss'] for scores in measured.scores.values()]
    np.testing.assert_allclose(found, nll / corpus.lengths().sum())
    assert list(measured.scores) == ['unigram', 'bigram', 'trigram', '4-gram', '5-gram']


def test_overlapping_windows_score_the_same_tokens_with_the_same_contexts():
    """Four tokens of context are all that 5-grams need."""
    plain, windows = (
        floors.measure(configuration(context=context), 'test', Texts(0), lambda: Texts(1))
        for context in (0, 4)
    )
    assert (
        len(Windows(Texts(0), LENGTH, 4)) > 20 and 'after 4 tokens of context' in windows.protocol
    )
    assert windows.tokens == plain.tokens
    for name, scores in plain.scores.items():
        assert windows.scores[name]['loss'] == pytest.approx(scores['loss'])


def test_n_grams_are_counted_on_what_a_run_reads():
    train, config = Texts(1, (500,) * 6), configuration()
    tokens, real, text = floors._training_text(config, train)
    assert sorted(tokens[real].tolist()) == sorted(np.concatenate(train.texts).tolist())
    assert 'on all 3,000 tokens of train' in text
    config.train.num_steps = 3
    tokens, real, text = floors._training_text(config, train)
    assert real.sum() == 3 * 2 * 2 * LENGTH
    assert 'the first 96 tokens of train, those of 3 of 3 steps, each once' in text
    starts = np.flatnonzero(np.diff(real.astype(int)) == 1) + 1
    assert len(starts) == 2  # one document in every lane
    for start in starts:
        assert any((tokens[start : start + 48] == whole[:48]).all() for whole in train.texts)


def test_answers_are_right_if_all_their_tokens_are():
    config = configuration(num_lanes=2, segment_length=16)
    config.data.source, config.data.task = 'recall', KEYS | dict(kind='passkey')
    corpus = TASKS['recall'].corpus(config.data.task.to_dict(), 'test', 0)
    measured = floors.measure(config, 'test', corpus, pytest.fail)
    assert (measured.answers, measured.tokens) == (9, 27)
    scores = measured.scores['look up: the question']
    assert scores['exact_match'] == pytest.approx(1e-3) and scores['accuracy'] == pytest.approx(0.1)
    # Five of the nine keys begin 40 + 3 tokens before the question.
    near = measured.scores['look up: 64 tokens more']
    assert near['exact_match'] == pytest.approx((5 + 4e-3) / 9)
    assert measured.scores['look up: everything'] == {'exact_match': 1.0, 'accuracy': 1.0}
    assert list(measured.scores)[1] == 'look up: its segment of 16'


def test_answers_that_are_not_read_are_not_scored():
    config = configuration(num_lanes=9, segment_length=4)
    config.data.source = 'recall'
    config.data.task = KEYS | dict(kind='passkey', before=0, distances=(40,))
    corpus = TASKS['recall'].corpus(config.data.task.to_dict(), 'test', 0)
    assert set(corpus.lengths()) == {12 * 4}
    for most, answers in ((12, 9), (11, 0)):
        config.evaluate.max_test_segments = most
        measured = floors.measure(config, 'test', corpus, pytest.fail)
        assert (measured.answers, measured.tokens) == (answers, 3 * answers)
        assert bool(measured.scores) == bool(answers)
    assert 'nothing can be scored in the first 11 segments' in measured.protocol
    out = io.StringIO()
    show_floors(Progress(0, log_every=0, out=out), measured)
    assert 'nothing can be scored' in out.getvalue()


def shown(workdir, config):
    out = io.StringIO()
    experiment = Experiment(config, workdir, None)
    show_beside(Progress(0, log_every=0, out=out), experiment, 'test')
    return out.getvalue()


def test_classes_have_their_floor_elsewhere_and_nothing_has_bits_without_bytes(tmp_path):
    """Refused before anything is read; an evaluation does not send there."""
    config = configuration()
    for source, message in (
        ('superglue', 'the most frequent class, is printed by --mode=evaluate'),
        ('passkey', 'Compare with a model without a memory'),
    ):
        config.data.source = source
        with pytest.raises(UsageError, match=f"'{source}' has answers only.*{message}"):
            floors.measure(config, 'test', None, pytest.fail)
        assert shown(tmp_path, config) == ''
    corpus = Texts(0)
    corpus.sizes = [0] * len(corpus.sizes)  # the bytes
    config = configuration()
    corpus.lengths = Texts(0).lengths
    with pytest.raises(UsageError, match='documents of test have no bytes'):
        floors.measure(config, 'test', corpus, lambda: Texts(1))


def test_floors_are_shown_beside_results_of_the_same_settings(tmp_path):
    config = configuration()
    assert '--mode=floors' in shown(tmp_path, config)
    measured = floors.measure(config, 'test', Texts(0), lambda: Texts(1))
    path = floors.save(measured, tmp_path)
    assert json.loads(path.read_text())['scores'] == measured.scores
    assert floors.saved(tmp_path) == measured
    text = shown(tmp_path, config)
    assert 'unigram' in text and measured.protocol in text
    config.model.num_layers = 7
    assert shown(tmp_path, config) == text
    for section, changes in (
        ('data', dict(seed=3)),
        ('evaluate', dict(max_test_segments=2)),
        ('train', dict(num_steps=3)),
        ('train', dict(packed=True)),
    ):
        other = configuration()
        other[section].update(changes)
        text = shown(tmp_path, other)
        assert 'unigram' not in text and f'is for other settings ({measured.protocol})' in text
