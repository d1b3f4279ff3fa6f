"""Scores of a model on generated stories: words that repeat a fact, and pairs of sentences.

Earlier segments alone tell a word if none of the tokens that its own segment reads before it is the
same word.
"""

import functools
import random
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from longmem_jax.data.sets import stories
from longmem_jax.data.tokenizers import Tokenizer
from longmem_jax.models.language_model import LanguageModel
from longmem_jax.segment import Segment, read_segments, select_lanes

FAR = (32, 64, 128, 256)  # tokens since the word was last read: borders of the bins
KINDS = ('number', 'gender')  # of pairs of sentences
SENTENCE = 32  # room for one, in tokens
LANES = 25


class Texts(NamedTuple):
    """Documents of equal room.

    Attributes:
      tokens: int32 [documents, room], targets; 0 after the end.
      others: the same with wrong words where a fact is repeated.
      valid: bool [documents, room].
      since: int32 [documents, room], tokens since a word that repeats a fact was last read; 0 = no fact.
    """

    tokens: np.ndarray
    others: np.ndarray
    valid: np.ndarray
    since: np.ndarray


def _rows(parts: list[np.ndarray], room: int) -> np.ndarray:
    return np.stack([np.pad(part, (0, room - len(part))) for part in parts])


def told_texts(source: stories.Stories, tokenizer: Tokenizer, length: int) -> Texts:
    """The stories of a source, as tokens of words; the room is a multiple of `length`."""
    rows: list[list[np.ndarray]] = [[], [], [], []]
    for index in range(len(source)):
        story = source.story(index)
        tokens = tokenizer.encode(story.text.encode())
        if len(tokens) != len(story.words) + 1:
            raise ValueError('a word is not a token: the vocabulary must be one of words')
        others, since, last = tokens.copy(), np.zeros_like(tokens), dict[str, int]()
        for at, (word, fact, other) in enumerate(zip(*story, strict=True)):
            if fact:
                others[at] = tokenizer.encode(other.encode())[0]
                since[at] = at - last[word]
            last[word] = at
        for row, values in zip(rows, (tokens, others, np.ones_like(tokens), since), strict=True):
            row.append(values)
    room = -(-max(map(len, rows[0])) // length) * length
    tokens, others, valid, since = (_rows(row, room) for row in rows)
    return Texts(tokens, others, valid.astype(bool), since)


def sentence_texts(kind: str, count: int, tokenizer: Tokenizer) -> Texts:
    """Pairs of sentences of a kind, right and wrong ones in turn; the room is `SENTENCE`."""
    draw = random.Random(kind)
    sentences = [text for _ in range(count) for text in stories.pairs(draw, kind)]
    tokens = [tokenizer.encode(text.encode()) for text in sentences]
    rows = _rows(tokens, SENTENCE)
    valid = _rows([np.ones_like(row) for row in tokens], SENTENCE).astype(bool)
    return Texts(rows, rows, valid, np.zeros_like(rows))


class Losses(NamedTuple):
    """Of every token, [documents, room].

    Attributes:
      nats, others: float32, negative log-likelihood of the target and of the other word.
      right: bool, the target is the most likely word.
    """

    nats: np.ndarray
    others: np.ndarray
    right: np.ndarray


@functools.partial(jax.jit, static_argnums=0)
def _read(
    model: LanguageModel, params: Any, rows: tuple[jax.Array, ...], reset: jax.Array
) -> Losses:
    """Reads segments, leading axes [segments, documents]."""
    documents = rows[0].shape[1]
    fresh = model.apply({'params': params}, documents, method='initial_state')

    def read(state: Any, row: tuple[jax.Array, ...], key: jax.Array) -> tuple[Any, Losses]:
        inputs, targets, others, valid = row
        begins = jnp.full((documents,), reset)
        state = select_lanes(begins, fresh, state)
        segment = Segment(inputs, valid, jnp.zeros_like(begins))
        logits, state, _ = model.apply({'params': params}, segment, state, train=False)
        chances = jax.nn.log_softmax(logits.astype(jnp.float32))

        def of(words: jax.Array) -> jax.Array:
            return -jnp.take_along_axis(chances, words[..., None], -1)[..., 0]

        return state, Losses(of(targets), of(others), logits.argmax(-1) == targets)

    return read_segments(read, fresh, rows, jax.random.key(0))[1]


def losses(model: LanguageModel, params: Any, texts: Texts, begin: int, reset: bool) -> Losses:
    """Reads texts in segments of the model, or one shorter one, `LANES` texts at a time.

    `LANES` must divide them. `reset`: the memory is empty before every segment.
    """
    length, parts = min(model.segment_length, texts.tokens.shape[1]), []
    inputs = np.concatenate([np.full_like(texts.tokens[:, :1], begin), texts.tokens[:, :-1]], 1)
    for first in range(0, len(inputs), LANES):
        rows = tuple(
            each[first : first + LANES].reshape(LANES, -1, length).swapaxes(0, 1)
            for each in (inputs, texts.tokens, texts.others, texts.valid)
        )
        found = _read(model, params, rows, reset)
        parts.append([np.asarray(each).swapaxes(0, 1).reshape(LANES, -1) for each in found])
    return Losses(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def beyond(texts: Texts, length: int) -> np.ndarray:
    """Whether only earlier segments tell a word, bool [documents, room]."""
    place = np.arange(texts.tokens.shape[1]) % length
    return texts.since > place[None] + 1


def scores(texts: Texts, found: Losses, length: int) -> dict[str, Any]:
    """Numbers of stories.

    Returns:
      'bits' per token of all words, 'bits_facts' of those that repeat a fact, 'bits_rest'; 'accuracy'
      and 'pairs' (the right word is likelier than the other), in %, of words that repeat a fact:
      'facts' all of them, 'beyond' those that only earlier segments tell, by tokens since; and 'share'
      of such words among them.
    """
    facts = texts.since > 0
    sets = {'facts': facts, 'beyond': facts & beyond(texts, length)}
    for low, high in zip((0, *FAR), (*FAR, 10**9), strict=True):
        sets[f'from {low + 1}'] = facts & (texts.since > low) & (texts.since <= high)
    bits = found.nats / np.log(2)
    prefers = found.nats < found.others

    def mean(values: np.ndarray, where: np.ndarray) -> float | None:
        return round(float(values[where].mean(dtype=np.float64)), 5) if where.any() else None

    return {
        'bits': mean(bits, texts.valid),
        'bits_facts': mean(bits, facts),
        'bits_rest': mean(bits, texts.valid & ~facts),
        'accuracy': {name: mean(100.0 * found.right, where) for name, where in sets.items()},
        'pairs': {name: mean(100.0 * prefers, where) for name, where in sets.items()},
        'share': {name: mean(100.0 * where, facts) for name, where in sets.items()},
    }


def preferred(texts: Texts, found: Losses) -> float:
    """Share of pairs of sentences whose right one is likelier, in %."""
    sums = np.where(texts.valid, found.nats, 0).sum(1, dtype=np.float64)
    return 100 * float((sums[::2] < sums[1::2]).mean())
