"""Scores of players without a learned memory, on the tokens that an evaluation scores.

For texts: n-grams of one to five tokens, counted on the training text (`evaluation.ngrams`). For tasks:
their rules (`data.tasks.registry.Task`), which see the question and a given number of tokens before
it; the one that sees everything is a ceiling. Rules may guess at random, and have the expected scores.
"""

import itertools
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from longmem_jax.data import lanes
from longmem_jax.data.corpus import AnyCorpus, TokenizedDocument
from longmem_jax.data.order import circles, shared_out
from longmem_jax.data.sources import SOURCES
from longmem_jax.data.tasks.registry import TASKS, Players, Task
from longmem_jax.data.tokenizers import Tokenizer
from longmem_jax.data.windows import Windows
from longmem_jax.errors import UsageError, number_of
from longmem_jax.evaluation.ngrams import NGrams, stream
from longmem_jax.evaluation.result import scored_text, segment_text
from longmem_jax.files import checksum, write_json
from longmem_jax.training.metrics import METRICS, TEXT
from longmem_jax.untrusted import json_file
from longmem_jax.untrusted.library import library_errors

FILE = 'floors.json'
NAMES = ('unigram', 'bigram', 'trigram', '4-gram', '5-gram')
ORDER = len(NAMES)  # of the longest n-grams
MOST_COUNTED = 1 << 24  # tokens of the training text: some GB of tables
AT_ONCE = 1 << 20  # tokens scored together
SHORTEST = 64  # tokens before the question; then twice as many, and so on


class Floors(NamedTuple):
    """The scores of all players.

    Attributes:
      split: 'train', 'validation' or 'test'.
      tokens, answers: how many were scored.
      protocol: what was scored, and on what n-grams were counted.
      settings: checksum of the settings that the scores depend on, `settings_of`.
      scores: name to 'exact_match' and 'accuracy' for tasks, to 'bits_per_byte', 'loss' (nats per
        token) and 'perplexity' for texts.
    """

    split: str
    tokens: int
    answers: int
    protocol: str
    settings: str
    scores: dict[str, dict[str, float]]


def measure(config: Any, split: str, corpus: AnyCorpus, train: Callable[[], AnyCorpus]) -> Floors:
    """The scores of all players on a split.

    `train` makes the training corpus; it is called for texts only.

    Raises:
      UsageError: a split whose questions no rule answers, or a source without floors of this kind.
    """
    evaluate, where = config.evaluate, f'--mode=floors: config.data.source = {config.data.source!r}'
    if not has_floors(config.data):
        advice = 'Compare with a model without a memory.'
        if SOURCES[config.data.source].scores:
            advice = 'Its floor, the most frequent class, is printed by --mode=evaluate of a run.'
        raise UsageError(
            f'{where} has answers only, no text that n-grams could predict, and no rules. {advice}'
        )
    if evaluate.context:
        corpus = Windows(corpus, evaluate.segment_length, evaluate.context)
    total = dict.fromkeys(('scored', 'tokens', 'num_bytes', 'answers'), 0.0)
    parts = _counted(
        parts_read(corpus, evaluate.num_lanes, evaluate.segment_length, evaluate.max_test_segments),
        total,
    )
    lengths = corpus.lengths()
    task = _players(config.data, corpus.tokenizer)
    if task is not None:
        scores = _of_task(
            task,
            config.data.task.to_dict(),
            corpus.tokenizer.begin,
            evaluate.segment_length,
            int(lengths.max()),
            parts,
        )
        counted = ''
    else:
        tokens, real, counted = _training_text(config, train())
        ngrams = NGrams(tokens, real, corpus.tokenizer.vocab_size, ORDER)
        nll = _of_text(ngrams, corpus.tokenizer.begin, parts)
        if total['scored'] and not total['num_bytes']:
            raise UsageError(
                f'{where}: the documents of {split} have no bytes, so that n-grams have no bits per '
                'byte; give texts, a task, or a source with rules (DataSource.players).'
            )
        scores = {
            NAMES[order - 1]: _text_scores(sum_of_order, total)
            for order, sum_of_order in enumerate(nll, start=1)
        }
    complete = total['tokens'] == lengths.sum()
    first = None if complete else evaluate.max_test_segments
    protocol = (
        f'{segment_text(evaluate)}, {number_of(min(evaluate.num_lanes, len(corpus)), "lane")}, '
        f'{scored_text(total, split, first)}'
    )
    return Floors(
        split,
        int(total['scored']),
        int(total['answers']),
        protocol + counted,
        settings_of(config, split),
        scores,
    )


def _players(data: Any, tokenizer: Tokenizer) -> Task | Players | None:
    """What has the rules; None for texts."""
    if data.source in TASKS:
        return TASKS[data.source]
    make = SOURCES[data.source].players
    return make(data, tokenizer) if make else None


def has_floors(data: Any) -> bool:
    """Whether rules or n-grams can be compared with models on a `config.data`."""
    if data.source in TASKS or data.source not in SOURCES:
        return True
    return SOURCES[data.source].players is not None or SOURCES[data.source].ngrams


def settings_of(config: Any, split: str) -> str:
    """Checksum of the settings that the floors of a split depend on."""
    evaluate, train = config.evaluate, config.train
    used = [split, config.data.to_dict(), evaluate.num_lanes, evaluate.segment_length]
    used += [evaluate.context, evaluate.max_test_segments]
    if config.data.source not in TASKS:
        used += [train.num_lanes, train.segment_length, train.segments_per_step, train.num_steps]
        used += ['packed'] if train.packed else []
    return checksum(json.dumps(used, sort_keys=True).encode())


def parts_read(
    corpus: AnyCorpus, num_lanes: int, segment_length: int, max_segments: int
) -> Iterator[tuple[TokenizedDocument, int]]:
    """The documents that an evaluation reads, each with the number of its tokens that are read.

    Document k belongs to lane k % num_lanes (`data.lanes`). `max_segments` per lane, 0 = all; fewer
    documents than lanes share them out.
    """
    num_lanes, max_segments = shared_out(len(corpus), num_lanes, max_segments)
    left = np.full((num_lanes,), max_segments or np.iinfo(np.int64).max)
    for index in range(len(corpus)):
        lane = index % num_lanes
        if not left.any():
            return
        if not left[lane]:
            continue
        document = corpus[index]
        segments = min(-(-len(document.tokens) // segment_length), left[lane])
        left[lane] -= segments
        if segments:
            yield document, min(len(document.tokens), int(segments) * segment_length)


def _counted(
    parts: Iterator[tuple[TokenizedDocument, int]], total: dict[str, float]
) -> Iterator[tuple[TokenizedDocument, int]]:
    """The same parts; adds what they hold to `total`."""
    for document, read in parts:
        scored = document.scored
        total['tokens'] += read
        total['scored'] += read if scored is None else int((scored[:read] > 0).sum())
        total['answers'] += 0 if scored is None else int((scored[:read] == 2).sum())
        total['num_bytes'] += document.num_bytes * read / len(document.tokens)
        yield document, read


def _of_task(
    task: Task | Players,
    settings: Any,
    begin: int,
    segment: int,
    longest: int,
    parts: Iterator[tuple[TokenizedDocument, int]],
) -> dict[str, dict[str, float]]:
    """Exact match and accuracy of every rule by what it sees before the question.

    `longest` is the number of tokens of the longest document.
    """
    sums: dict[tuple[str, str], np.ndarray] = {}  # answers and tokens that are right
    counts = np.zeros(2)
    for document, read in parts:
        assert document.scored is not None  # of a task
        asked = np.flatnonzero(document.scored[:read])
        if not len(asked):
            continue
        inputs, targets, ends = document.read(begin), document.tokens[asked], document.scored[asked]
        # The first place of every answer; what follows the last end is not a whole answer.
        last = np.flatnonzero(ends == 2)
        first = np.concatenate([[0], last + 1])[: len(last)]
        counts += len(last), len(asked)
        question = task.questions(settings, inputs, asked)
        for seen, since in _seen(question, segment, longest).items():
            for name, rule in task.rules.items():
                chances = rule(settings, inputs, asked, since)
                chance = chances[np.arange(len(asked)), targets]
                exact = np.multiply.reduceat(chance[: last[-1] + 1], first) if len(last) else 0.0
                label = name, seen
                sums[label] = sums.get(label, np.zeros(2)) + [np.sum(exact), chance.sum()]
    return {
        f'{name}: {seen}': {
            'exact_match': float(found[0] / counts[0]) if counts[0] else math.nan,
            'accuracy': float(found[1] / counts[1]),
        }
        for rule in task.rules
        for (name, seen), found in sums.items()
        if name == rule
    }


def _seen(question: np.ndarray, segment: int, longest: int) -> dict[str, np.ndarray]:
    """What is seen, in words, to the first place seen for every question, int [m]."""
    found = {'the question': question, f'its segment of {segment}': question // segment * segment}
    before = SHORTEST
    while before < longest:
        found[f'{before:,} tokens more'] = np.maximum(question - before, 0)
        before *= 2
    return found | {'everything': np.zeros_like(question)}


def _of_text(
    ngrams: NGrams, begin: int, parts: Iterator[tuple[TokenizedDocument, int]]
) -> np.ndarray:
    """Sums of negative log-likelihoods of the scored tokens by order, float64 [order]."""
    nll, waiting, size = np.zeros(ngrams.order), [], 0
    for document, read in itertools.chain(parts, [(None, 0)]):
        if document is not None:
            waiting.append((document, read))
            size += read
        if waiting and (document is None or size >= AT_ONCE):
            texts = [(d.read(begin)[0], d.tokens[:read]) for d, read in waiting]
            tokens, real = stream(texts, begin, ngrams.order)
            scored = np.concatenate(
                [
                    np.ones((read,), bool) if d.scored is None else d.scored[:read] > 0
                    for d, read in waiting
                ]
            )
            nll -= np.log(ngrams.chances(tokens)[:, real][:, scored]).sum(axis=1)
            waiting, size = [], 0
    return nll


def _text_scores(nll: float, total: dict[str, float]) -> dict[str, float]:
    """Scores of a text by the sum of its negative log-likelihoods."""
    sums = dict(nll=nll, scored=total['scored'], num_bytes=total['num_bytes'])
    return {name: metric.value(sums) for name, metric in METRICS.items() if TEXT in metric.tables}


def _training_text(config: Any, corpus: AnyCorpus) -> tuple[np.ndarray, np.ndarray, str]:
    """Tokens that a run of this configuration reads of the first epoch, up to a segment per lane.

    Also which are of a document, as from `ngrams.stream`; and how many, in words.
    """
    train, begin = config.train, corpus.tokenizer.begin
    source = lanes.batches(
        corpus,
        lanes=range(train.num_lanes),
        num_lanes=train.num_lanes,
        segment_length=train.segment_length,
        segments_per_batch=train.segments_per_step,
        seed=config.data.seed,
        shuffle=True,
        num_epochs=None if circles(corpus, train.num_lanes) else 1,
        packed=train.packed,
    )
    texts: list[list[list[np.ndarray]]] = [[] for _ in range(train.num_lanes)]
    size, steps, most = 0, 0, min(MOST_COUNTED, int(corpus.lengths().sum()))
    for batch, _ in source:
        for segment, lane in np.ndindex(*batch.tokens.shape[:2]):
            tokens = batch.targets[segment, lane][batch.valid[segment, lane]]
            begins = np.flatnonzero(batch.start[segment, lane])
            rest, *documents_here = np.split(tokens, begins)
            if len(rest):
                texts[lane][-1].append(rest)
            texts[lane] += [[document] for document in documents_here]
            size += len(tokens)
        steps += 1
        if steps == train.num_steps or size >= most:
            break
    documents = (
        (begin, np.concatenate(document)) for lane in texts for document in lane if document
    )
    tokens, real = stream(documents, begin, ORDER)
    whole = size >= corpus.lengths().sum()
    which = 'all' if whole else 'the first'
    said = f'; n-grams counted on {which} {size:,} tokens of train'
    if not whole:
        said += f', those of {steps:,} of {train.num_steps:,} steps, each once'
    return tokens, real, said


def save(floors: Floors, workdir: Path) -> Path:
    """Writes `floors.json`; returns its path."""
    path = workdir / FILE
    write_json(path, floors._asdict())
    return path


def saved(workdir: Path) -> Floors | None:
    """What `save` wrote, or None; raises `UsageError` if the file is something else."""
    path = workdir / FILE
    if not path.exists():
        return None
    with library_errors(f'{path}: not what --mode=floors writes; delete it'):
        return Floors(**json_file.read(path))
