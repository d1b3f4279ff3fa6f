"""A text is read once into a memory, and questions about it are asked, each from that memory.

`keys`: a novel in which names get numbers, at several distances from its end; each is asked for.
`squad`: paragraphs of SQuAD one after the other, and their questions.
"""

import gc
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments import provenance
from experiments.short_trainings import Trainer
from experiments.smollm2 import reading
from experiments.smollm2.reading import CONTEXT, WINDOW
from experiments.smollm2.windows import true_distances
from longmem_jax.data import lanes
from longmem_jax.data.corpus import TokenizedDocument
from longmem_jax.data.sets.passkey import ASKED, GIVEN, NAMES, digits
from longmem_jax.data.sets.pieces import ANSWER, READ, Piece, PieceCorpus
from longmem_jax.devices import sharding

DISTANCES = (15, 8, 4, 1)  # windows, of `keys`
FAR = (63, 31, 15)  # windows, of `far_keys`


class Question(NamedTuple):
    """Attributes: `text`; its `answer`; `end`: characters of the document up to what answers it."""

    text: str
    answer: str
    end: int


class Told(NamedTuple):
    """A text, and questions about it."""

    text: str
    questions: list[Question]


def rows(window: int, context: int, held: int) -> dict[str, tuple[str, dict[str, Any]]]:
    """Names to variants of `configs/host.py` and changed fields; the last one sees the whole text.

    Args:
      window: tokens that a token sees at most.
      context: of the host.
      held: tokens that all but `sinks` hold, at least as many as a text has.
    """
    half, whole = window // 2, f'segment={window}'
    blocks, true = f'memory=moba,{whole}', true_distances(held)
    return {
        'sinks': (f'memory=sinks,segment={half}', {'model.sinks.memory_length': half}),
        'last blocks': (blocks, true | {'model.chunk_retrieval.near': 6}),
        'blocks': (blocks, {'model.chunk_retrieval.memory_length': held}),
        'true distances': (blocks, true),
        'blocks by means': (blocks, true | {'model.chunk_retrieval.gate': 'mean'}),
        'all': (f'memory=none,{whole},context={context}', {'model.full.window': held}),
    }


def keys(books: Path, number: int, distances: tuple[int, ...], characters: int) -> Told:
    """A part of a novel of the test split, in which names get numbers.

    Args:
      number: of the text; it chooses novel, names and numbers.
      distances: windows of `characters` from each of them to the end of the text, falling.
    """
    novels = [path.read_text('utf-8') for path in sorted((books / 'test').glob('*.txt'))]
    random = np.random.default_rng([18, number])
    novel, parts, questions = novels[number % len(novels)], [], []
    at = int(random.integers(len(novel) - (distances[0] + 1) * characters))
    borders = (distances[0] + 1, *distances, 0)  # a window before the first one too
    names = random.permutation(NAMES)
    for i, (before, after) in enumerate(zip(borders, borders[1:], strict=False)):
        parts.append(novel[at : at + (before - after) * characters])
        at += (before - after) * characters
        if after:
            key, name = digits(random, 5), f' of {names[i]}'
            parts.append(GIVEN.format(key, name))
            questions.append(Question(ASKED.format(name), f' {key}', sum(map(len, parts))))
    return Told(''.join(parts), questions)


def squad(path: Path, number: int, before: int, characters: int, most: int) -> Told:
    """Paragraphs of many articles, `before` characters and `characters` more.

    Of the latter, `most` first questions of paragraphs, evenly from first to last.
    """
    articles = json.loads(path.read_text('utf-8'))['data']
    paragraphs = [paragraph for article in articles for paragraph in article['paragraphs']]
    random = np.random.default_rng([19, number])
    text, questions = '', []
    for i in random.permutation(len(paragraphs)):
        if len(text) >= before + characters:
            break
        context = paragraphs[i]['context'].strip()
        text += context + '\n\n'
        if len(text) - len(context) < before:
            continue
        first = paragraphs[i]['qas'][0]
        answer = ' ' + min((given['text'] for given in first['answers']), key=len)
        questions.append(Question(f'Question: {first["question"]}\nAnswer:', answer, len(text)))
    step = max(len(questions) // most, 1)
    return Told(text, questions[::step][:most])


def last_tokens(tokenizer: Any, told: Told, segment: int) -> tuple[np.ndarray, list[int]]:
    """The tokens of a text, in whole segments: the first ones are left out; and where questions end.

    Returns:
      Tokens; for every question its distance, the tokens from `Question.end` to the end of the text.
    """
    tokens = tokenizer.encode(told.text.encode())
    after = [
        len(tokenizer.encode(told.text[question.end :].encode())) for question in told.questions
    ]
    return tokens[len(tokens) % segment :], after


def _continued(tokenizer: Any, tokens: np.ndarray, pieces: list[Piece]) -> reading.OneDocument:
    """A document of these tokens, which goes on with pieces."""
    (more,) = PieceCorpus([pieces], tokenizer)
    scored = np.concatenate([np.zeros(len(tokens), np.uint8), more.scored])
    document = TokenizedDocument(np.concatenate([tokens, more.tokens]), 0, scored=scored)
    return reading.OneDocument(tokenizer, document)


def _batches(trainer: Any, corpus: Any, first: int) -> Iterator[Any]:
    """Segments of the evaluation, from token `first` on."""
    length = trainer.shared.config.evaluate.segment_length
    for number, (batch, _) in enumerate(lanes.in_order(corpus, 1, length)):
        if number * length >= first:
            yield sharding.from_processes(trainer.shared.mesh, batch, 1)


def asked(reader: Any, answerer: Any, params: Any, told: Told) -> dict[str, list[float]]:
    """Reads a text, and answers every question from the memory after it.

    Args:
      reader, answerer: trainers of the same model; the second has short segments.

    Returns:
      For every question: 'distance' in tokens, 'right' (1 = every token of the answer was the likeliest)
      and 'nats' of its answer; and the same without the text: 'right without', 'nats without'.
    """
    tokenizer = reader.shared.corpus('test').tokenizer
    segment = reader.shared.config.evaluate.segment_length
    tokens, distances = last_tokens(tokenizer, told, segment)
    initial = reader.evaluator.initial_state(params, 1)
    memory = jax.tree.map(lambda leaf: leaf.copy(), initial)
    plain = reading.OneDocument(tokenizer, TokenizedDocument(tokens, 0))
    for batch in _batches(reader, plain, 0):
        memory, _ = reader.evaluator.step(params, initial, memory, batch)
    found: dict[str, list[float]] = {'distance': [float(distance) for distance in distances]}
    for question in told.questions:
        pieces = [Piece(question.text, READ), Piece(question.answer, ANSWER)]
        document = _continued(tokenizer, tokens, pieces)
        for name, begin in (('', memory), (' without', initial)):
            state, sums = jax.tree.map(lambda leaf: leaf.copy(), begin), []
            for batch in _batches(answerer, document, len(tokens)):
                state, more = answerer.evaluator.step(params, initial, state, batch)
                sums.append(more)
            right, scored = (sum(float(more[key]) for more in sums) for key in ('right', 'scored'))
            found.setdefault('right' + name, []).append(float(right == scored))
            nats = sum(float(more['nll']) for more in sums)
            found.setdefault('nats' + name, []).append(round(nats, 3))
    return found


def texts(options: Any, part: str) -> list[Told]:
    """The texts of a part, with their questions."""
    characters, distances = (64, (2, 1)) if options.tiny else (2000, distances_of(part))
    number = 1 if options.tiny else options.documents
    if part != 'squad':
        return [keys(options.books, i, distances, characters) for i in range(number)]
    length = distances[0] * characters
    return [squad(options.squad, i, 2 * characters, length, 24) for i in range(number)]


def distances_of(part: str) -> tuple[int, ...]:
    """Windows from a key to the end of the text; a question of `squad` has no longer one."""
    return FAR if part == 'far_keys' else DISTANCES


def answers(
    options: Any, variants: str, changes: dict[str, Any], given: list[Told], params: Any = None
) -> dict[str, list[float]]:
    """`asked` of all texts, by the host as it is, or with parameters that have learned."""
    config = reading.config_of(options, variants, **changes)
    reader, params = reading.begun(config) if params is None else (Trainer(config), params)
    short = {'evaluate.segment_length': 8 if options.tiny else 64}
    answerer = Trainer(reading.config_of(options, variants, **changes | short))
    found = [asked(reader, answerer, params, told) for told in given]
    return {key: sum((one[key] for one in found), []) for key in found[0]}


def _run(options: Any, part: str) -> None:
    window, context = (16, 64) if options.tiny else (WINDOW, CONTEXT)
    held = context + window
    if part == 'far_keys' and not options.tiny:
        held = (FAR[0] + 2) * window * 9 // 8  # a window of characters may have more tokens
    for name, (variants, changes) in rows(window, context, held).items():
        path = options.output / part / f'{name}.json'
        if provenance.saved(path) or (options.rows and name not in options.rows):
            continue
        found = answers(options, variants, changes, texts(options, part))
        provenance.save(path, found | {'window': window}, [0])
        print(f'{part}, {name}: finished', flush=True)
        gc.collect()


def run_keys(options: Any) -> None:
    """Numbers of names, asked for at the end of a novel."""
    _run(options, 'keys')


def run_far_keys(options: Any) -> None:
    """The same in texts of 64 windows; blocks hold all of them."""
    _run(options, 'far_keys')


def run_squad(options: Any) -> None:
    """Questions about paragraphs, at the end of all of them."""
    if options.squad:
        _run(options, 'squad')
