"""How much of a split is scored, and what is said about it."""

import io
import json
import math
import os
import signal

import jax
import numpy as np
import pytest

from longmem_jax import stopping
from longmem_jax.config.base import base
from longmem_jax.data.corpus import TokenizedDocument
from longmem_jax.data.tokenizers import Bytes
from longmem_jax.devices.sharding import make_mesh
from longmem_jax.evaluation.evaluator import Evaluator
from longmem_jax.evaluation.tables import in_short, show, write_results
from longmem_jax.reporting.progress import Progress
from tests.toys import LENGTH, VOCAB, toy

LANES, SEGMENTS = 2, 21


class Texts:
    """One document per lane, of random tokens, as a corpus."""

    tokenizer = Bytes()
    tokenizer.begin = 0

    def __init__(self, segments=SEGMENTS, scored=1, documents=LANES):
        self.size, self.scored, self.documents = segments * LENGTH, scored, documents

    def __len__(self):
        return self.documents

    def __getitem__(self, index):
        tokens = np.random.default_rng(index).integers(0, VOCAB, SEGMENTS * LENGTH)
        scored = np.full((self.size,), self.scored, np.uint8)
        return TokenizedDocument(tokens[: self.size].astype(np.int32), self.size, None, scored)


@pytest.fixture(scope='module')
def evaluate():
    """`(corpus, max_segments) -> Result`."""
    model, params = toy('transformer_xl')
    config = base()
    config.evaluate.num_lanes, config.evaluate.segment_length = LANES, LENGTH
    evaluator = Evaluator(model, make_mesh(dict(data=1), jax.devices()[:1]), config)
    return lambda corpus, most, **how: evaluator.evaluate(
        params, corpus, 'test', max_segments=most, **how
    )[0]


@pytest.mark.parametrize('most', [3, 12, 16])
def test_exactly_the_first_segments_are_scored(evaluate, most):
    found, wanted = evaluate(Texts(), most), evaluate(Texts(segments=most), 0)
    assert found.tokens == wanted.tokens == most * LENGTH * LANES
    np.testing.assert_allclose(found.nll, wanted.nll, rtol=1e-5)
    assert f'the first {found.tokens} tokens' in found.protocol
    assert f'all {found.tokens} tokens' in wanted.protocol


def test_one_document_is_read_by_one_lane_as_far_as_was_asked_of_all(evaluate):
    """Share out the segments of lanes that have no document: half of them were never read."""
    found = evaluate(Texts(documents=1), 4)
    assert found.tokens == 4 * LENGTH * LANES and '1 lane,' in found.protocol
    wanted = evaluate(Texts(documents=1, segments=4 * LANES), 0)
    np.testing.assert_allclose(found.nll, wanted.nll, rtol=1e-5)


def test_a_signal_is_obeyed_between_batches(evaluate):
    read = []

    def report(segments, scored):
        if not read:
            os.kill(os.getpid(), signal.SIGTERM)
        read.append(segments)

    with stopping.deferred(), pytest.raises(stopping.Stopped) as caught:
        evaluate(Texts(), 0, report=report)
    assert read == [8] and caught.value.code == 143


@pytest.mark.parametrize('most', [0, SEGMENTS, SEGMENTS + 1, 24, 80])
def test_a_split_that_was_read_whole_is_not_called_its_first_part(evaluate, most):
    found = evaluate(Texts(), most)
    assert f'all {SEGMENTS * LENGTH * LANES} tokens' in found.protocol


def test_nothing_scored_has_no_loss_and_says_so(evaluate, tmp_path):
    found = evaluate(Texts(scored=0), 4)
    assert math.isnan(found.loss) and math.isnan(found.perplexity) and math.isnan(found.accuracy)
    assert math.isnan(found.bits_per_byte) and math.isnan(found.exact_match)
    assert 'nothing can be scored in the first 4 segments of every lane of test' in found.protocol
    assert 'raise config.evaluate.max_segments' in found.protocol
    assert in_short(found) == 'nothing scored'
    out = io.StringIO()
    show(Progress(0, log_every=0, out=out), {'test': found, 'test, memory reset': found}, {})
    text = out.getvalue()
    assert text.count('nothing scored') == 2 and 'gain' not in text and 'nan' not in text
    path = tmp_path / 'results.json'
    write_results(path, 1, {}, (), {'test': found})
    written = json.loads(path.read_text())['test']
    assert written['tokens'] == 0 and {'loss', 'perplexity', 'accuracy'}.isdisjoint(written)
    assert 'nothing of test' in evaluate(Texts(scored=0), 0).protocol
