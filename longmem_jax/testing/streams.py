"""Promises of streams: tokens one by one, or several at once, give the numbers of whole segments."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from longmem_jax.generation.reader import Reader
from longmem_jax.generation.stream import read_open_segment
from longmem_jax.testing import toys
from longmem_jax.testing.assertions import assert_close, assert_differs
from longmem_jax.testing.programs import ROWS, Entry, at, rounding, segments_of
from longmem_jax.testing.toys import LENGTH, SEGMENTS, VOCAB

STREAM = (
    '`open_segment`, `extend` and `close_segment` must give the numbers of `__call__`; '
    '`extend` and `close_segment` read and write the first `count` tokens only.'
)
ROW = np.arange(ROWS)


def decode(entry: Entry) -> None:
    """Token by token, logits and states are those of whole segments."""
    segments = segments_of()
    start = np.zeros(segments.tokens.shape, bool)
    start[0, :, 0] = True
    found, before = entry.read_tokens(segments.replace(start=start))
    broken = 'token by token, other {} than whole segments give'
    axes = ('segment', 'row', 'position')
    wanted = entry.plain.logits
    assert_close(found, wanted, broken.format('logits'), STREAM, axes=axes, atol=rounding(entry))
    for number in range(1, SEGMENTS):
        assert_close(
            before[number],
            at(entry.plain.states, number - 1),
            broken.format(f'states after segment {number - 1}'),
            STREAM,
            axes=('row',),
            atol=rounding(entry),
        )


def texts(first: int) -> np.ndarray:
    """The tokens of the segments from `first` on, [rows, tokens]."""
    return np.asarray(segments_of().tokens)[first:].swapaxes(0, 1).reshape(ROWS, -1)


def following(entry: Entry, first: int) -> np.ndarray:
    """The logits of `texts`, [rows, tokens, vocabulary]."""
    return entry.plain.logits[first:].swapaxes(0, 1).reshape(ROWS, -1, VOCAB)


def open_at_once(entry: Entry, room: int = LENGTH - 1) -> None:
    """The first tokens of a segment at once, then token by token over its border.

    Some rows get all `room` tokens, others fewer or none, and padding.
    """
    text, wanted = texts(1), following(entry, 1)
    before = at(entry.plain.states, 0)
    for counts in ((room, 0, 1, 2), (1, room, room - 1, 0)):
        where, found = np.asarray(counts, np.int32), []
        broken = f'{counts} of {room} tokens at once, then token by token, give other logits'
        state = jax.tree.map(jnp.asarray, before)  # is donated
        logits, stream = read_open_segment(entry.model, entry.params, state, text[:, :room], where)
        some = where > 0
        then = wanted[ROW, where - 1][some]
        assert_close(np.asarray(logits)[some], then, broken, STREAM, axes=('row',), atol=2e-5)
        for step in range(LENGTH + 1):
            one, stream = entry.read_token(text[ROW, where + step], stream)
            found.append(one)
        then = wanted[ROW[:, None], where[:, None] + np.arange(LENGTH + 1)]
        axes = ('row', 'position')
        assert_close(np.stack(found, 1), then, broken, STREAM, axes=axes, atol=2e-5)


def segment_at_once(entry: Entry) -> None:
    """As `open_at_once`, with room for a whole segment."""
    open_at_once(entry, LENGTH)


def extended_with_padding(entry: Entry) -> None:
    """Rows at different positions get different numbers; padding may pass the segment's end."""
    text, wanted = texts(0), following(entry, 0)
    begin, size = np.asarray([LENGTH - 2, 1, 2, 1], np.int32), LENGTH - 2

    @jax.jit
    def extend(params: Any, stream: Any, tokens: Any, counts: Any) -> Any:
        variables, inputs = {'params': params}, (stream.cache, stream.index, counts)
        logits, cache = entry.model.apply(variables, tokens, *inputs, method='extend')
        return logits[:, 0], stream.replace(cache=cache, index=stream.index + counts)

    for numbers in ((2, size, 1, 0), (1, 2, 3, 2), (0, 1, 2, 3)):
        counts = np.asarray(numbers, np.int32)
        # All rows read their first token, which opens the segment; then each what it lacks, and padding.
        _, stream = entry.read_token(text[:, 0], entry.stream, np.ones((ROWS,), bool))
        where = np.ones_like(begin)
        for more in (begin - where, counts):
            tokens = text[ROW[:, None], where[:, None] + np.arange(size)]
            logits, stream = extend(entry.params, stream, tokens, more)
            where = where + more
        some = counts > 0
        broken = (
            f'{tuple(counts)} tokens at positions {tuple(begin)} and padding after them give other '
            'logits'
        )
        then = wanted[ROW, where - 1][some]
        assert_close(np.asarray(logits)[some], then, broken, STREAM, axes=('row',), atol=2e-5)
        for step in range(LENGTH + 1):
            found, stream = entry.read_token(text[ROW, where + step], stream)
            then = wanted[ROW, where + step]
            assert_close(found, then, f'later, {broken}', STREAM, axes=('row',), atol=2e-5)


def whole_prompt(entry: Entry) -> None:
    """The first tokens of a long prompt change what follows, if there is a memory."""
    model, params = toys.moved(entry.name, 2)  # two windows together reach the first tokens
    if not jax.tree.leaves(entry.begin):
        return
    prompts = np.random.default_rng(5).integers(0, VOCAB, (1, 2 * LENGTH + 2)).astype(np.int32)
    other = prompts.copy()
    other[:, 3:LENGTH] = (other[:, 3:LENGTH] + 1) % VOCAB
    state = jax.jit(lambda: model.apply({'params': params}, 1, method='initial_state'))()
    logits = []
    for prompt in (prompts, other):
        reader = Reader(model, params, state, np.zeros((1, 0), np.int32))
        reader.read(prompt)
        logits.append(np.asarray(reader.logits))
    first, second = logits
    assert_differs(
        first,
        second,
        'the first segment of a prompt, when changed, leaves the logits after it as they were',
        'The state must keep earlier segments of a prompt, and queries must read it.',
        by=1e-4,
    )
