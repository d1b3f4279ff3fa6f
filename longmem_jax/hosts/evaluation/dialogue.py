"""Writes the utterances of conversations, each after the real ones before it."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from longmem_jax.data.conventions import Conventions
from longmem_jax.data.tokenizers import Tokenizer
from longmem_jax.generation.contexts import ContextReader, num_full
from longmem_jax.generation.continuations import complete_texts
from longmem_jax.hosts.data.cmu_dog import Dialogue


@dataclasses.dataclass(frozen=True)
class Response:
    """What was written as utterance number `turn` of a conversation, and what was said there."""

    dialogue: str
    turn: int
    speaker: str
    reference: str
    text: str


def respond(
    reader: ContextReader,
    tokenizer: Tokenizer,
    conventions: Conventions,
    dialogues: Sequence[Dialogue],
    *,
    min_history: int,
    settings: dict[str, Any],
) -> list[Response]:
    """Writes every utterance after the first `min_history`; each conversation is read once.

    `settings` is `config.generate`.
    """
    responses = []
    # Conversations of like length are read together.
    order = sorted(dialogues, key=lambda dialogue: -len(dialogue.utterances))
    for begin in range(0, len(order), reader.num_lanes):
        part = order[begin : begin + reader.num_lanes]
        responses += _respond(reader, tokenizer, conventions, part, min_history, settings, begin)
    return sorted(responses, key=lambda response: (response.dialogue, response.turn))


def contexts(
    tokenizer: Tokenizer, conventions: Conventions, dialogue: Dialogue
) -> list[np.ndarray]:
    """For every utterance the tokens before its text, int32 [n], up to its speaker."""
    tokens, found = [], []
    pieces = [tokenizer.encode(piece.text.encode()) for piece in dialogue.pieces()]
    first = len(pieces) - 2 * len(dialogue.utterances)
    for place, piece in enumerate(pieces):
        tokens.append(piece)
        if place >= first and (place - first) % 2 == 0:
            found.append(conventions.read(np.concatenate(tokens)))
    return found


def _respond(
    reader: ContextReader,
    tokenizer: Tokenizer,
    conventions: Conventions,
    dialogues: Sequence[Dialogue],
    min_history: int,
    settings: dict[str, Any],
    seed: int,
) -> list[Response]:
    """As `respond`, for at most as many conversations as there are lanes."""
    texts = [contexts(tokenizer, conventions, dialogue) for dialogue in dialogues]
    reader.fit(max(len(text[-1]) for text in texts) + settings['length'])
    length, states = reader.model.segment_length, reader.start()
    read, responses = [0] * len(dialogues), []
    key = jax.random.fold_in(jax.random.key(settings['seed']), seed)
    for turn in range(min_history, max(map(len, texts))):
        # A conversation that has ended waits for the others.
        open_texts = [text[turn] if turn < len(text) else None for text in texts]
        full = [
            at if text is None else num_full(len(text), length)
            for at, text in zip(read, open_texts, strict=True)
        ]
        nothing = np.zeros((0,), np.int32)
        whole, pending = [], []
        for at, end, text in zip(read, full, open_texts, strict=True):
            whole.append(nothing if text is None else text[at:end])
            pending.append(nothing if text is None else text[end:])
        states, read = reader.read(whole, states), full
        drawn = complete_texts(
            reader,
            states,
            pending,
            settings['length'],
            tokenizer,
            conventions,
            ('\n',),
            temperature=settings['temperature'],
            top_k=settings['top_k'],
            top_p=settings['top_p'],
            keys=jax.random.split(jax.random.fold_in(key, turn), reader.num_lanes),
        )
        for dialogue, text, line in zip(dialogues, open_texts, drawn, strict=True):
            if text is not None:
                speaker, reference = dialogue.utterances[turn]
                responses.append(Response(dialogue.name, turn, speaker, reference, line.strip()))
    return responses
