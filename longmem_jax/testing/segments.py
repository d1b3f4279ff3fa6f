"""Promises of whole segments: causality, rows apart, resets, padding, documents that start anywhere."""

import itertools
from typing import Any

import jax
import numpy as np

from longmem_jax.segment import Segment, join_pieces, split_at_starts
from longmem_jax.testing.assertions import assert_close, assert_differs, assert_equal
from longmem_jax.testing.programs import ROWS, Entry, at, of_row, rounding, segments_of
from longmem_jax.testing.streams import STREAM
from longmem_jax.testing.toys import LENGTH, SEGMENTS, VOCAB

# Axes of logits, and of states after each segment.
LOGITS, STATES = ('segment', 'row', 'position'), ('segment', 'row')
MASK = 'Mask with `segment.valid` (valid tokens come first) before anything is written or summed.'
APART = 'No sum, mean, sort or reshape may mix rows: axis 0 of every array is the batch.'
READ = 'The layer must read its input `x`.'


def change_tokens(segments: Segment, where: np.ndarray) -> Segment:
    """Other tokens wherever `where` (bool [segments, rows, length]) is True."""
    tokens = np.asarray(segments.tokens)
    other = (tokens + 1 + np.arange(LENGTH, dtype=np.int32) % 7) % VOCAB
    return segments.replace(tokens=np.where(where, other, tokens))


def causal(entry: Entry) -> None:
    """No logit depends on a later token."""
    segments, logits = segments_of(), entry.plain.logits
    for segment, position in ((0, LENGTH - 1), (1, 0), (1, 2), (SEGMENTS - 1, 1)):
        later = np.zeros(segments.tokens.shape, bool)
        later[segment, :, position:] = True
        later[segment + 1 :] = True
        changed = entry.read(change_tokens(segments, later)).logits
        what = f'tokens from position {position} of segment {segment} on, when changed,'
        assert_equal(
            np.where(later[..., None], 0, changed),
            np.where(later[..., None], 0, logits),
            f'{what} changed earlier logits',
            'A query may see keys up to its own position only, and the memory as it was before '
            'the segment: return what is written as the new state, do not read it.',
            axes=LOGITS,
        )
        assert_differs(
            np.where(later[..., None], changed, 0),
            np.where(later[..., None], logits, 0),
            f'{what} left all logits as they were',
            READ,
        )


def rows_apart(entry: Entry) -> None:
    """A row of the batch depends on its own tokens only."""
    segments, plain = segments_of(), entry.plain
    first = np.zeros(segments.tokens.shape, bool)
    first[:, 0] = True
    changed = entry.read(change_tokens(segments, first))
    broken = 'the tokens of row 0, when changed, changed the {} of row {} and those after it'
    # To rounding: how much of a buffer is read may depend on the other rows.
    for what, found, wanted, axes in (
        ('logits', changed.logits, plain.logits, LOGITS),
        ('state', changed.states, plain.states, STATES),
    ):
        found, wanted = (jax.tree.map(lambda leaf: leaf[:, 1:], part) for part in (found, wanted))
        assert_close(found, wanted, broken.format(what, 1), APART, axes=axes, atol=2e-6)
    what = 'the tokens of row 0, when changed, left its logits as they were'
    assert_differs(plain.logits[:, 0], changed.logits[:, 0], what, READ)


def apart_in_training(entry: Entry) -> None:
    """In training, too, a logit depends on no later token and on no other row.

    Not of layers with `aux.statistics`: a mean over the batch mixes all its tokens.
    """
    segments = segments_of()
    read = entry.read_training(segments)
    if read.aux.statistics:
        return
    later = np.zeros(segments.tokens.shape, bool)
    later[1, :, 2:] = later[2:] = True
    row = np.zeros_like(later)
    row[:, 0] = True
    for other, what, fix in (
        (later, 'tokens from position 2 of segment 1 on', 'No token may be read before its turn.'),
        (row, 'the tokens of row 0', APART),
    ):
        changed = entry.read_training(change_tokens(segments, other)).logits
        assert_close(
            np.where(other[..., None], 0, changed),
            np.where(other[..., None], 0, read.logits),
            f'with train=True, {what}, when changed, changed other logits',
            f'{fix} What is done with train=True alone counts, too.',
            axes=LOGITS,
            atol=2e-6,
        )


def reset(entry: Entry) -> None:
    """A start is a fresh state, in its row only."""
    segments = segments_of()
    start = segments.start.copy()
    start[2, 1] = True
    found = entry.read(segments.replace(start=start))
    turned = jax.tree.map(lambda leaf: np.roll(leaf, -2, axis=0), segments)
    turned = turned.replace(start=segments.start)  # the last two segments first
    fresh = entry.read(turned)
    broken = 'a start in segment 2 of row 1 gives other {} than a fresh state'
    fix = (
        '`initial_state` must be all that a document begins with, and the state all that the '
        'layer remembers: every leaf [batch, ...]. A kind of model resets the rows with '
        '`segment.start` before it reads them: `in_place.reset_lanes`.'
    )
    axes = ('segment after the start', 'position')
    new, wanted = found.logits[2:, 1], fresh.logits[:2, 1]
    assert_close(new, wanted, broken.format('logits'), fix, axes=axes, atol=2e-6)
    new, wanted = of_row(at(found.states, 3), 1), of_row(at(fresh.states, 1), 1)
    assert_close(new, wanted, broken.format('states'), fix, atol=2e-6)
    if jax.tree.leaves(found.states) and carries(entry):
        assert_differs(
            found.logits[2:, 0],
            fresh.logits[:2, 0],
            'row 0, which was not reset, gives the logits of a fresh state',
            'The layer has a state but does not read it: use `state` in `__call__`.',
        )


def pad(segments: Segment, kept: tuple[int, ...], token: int) -> Segment:
    """The first tokens of every segment at the positions `kept`; elsewhere padding, which is `token`."""
    tokens, valid = np.full_like(segments.tokens, token), np.zeros_like(segments.valid)
    tokens[..., kept], valid[..., kept] = segments.tokens[..., : len(kept)], True
    return segments.replace(tokens=tokens, valid=valid)


def padding(entry: Entry) -> None:
    """Padding changes nothing, wherever it is: the tokens alone, one by one, give the same numbers."""
    segments = segments_of()
    wanted, states = entry.read_tokens(started(segments), tokens=3)
    for kept, token in itertools.product(((0, 1, 2), (2, 3, 4), (0, 2, 3)), (0, 3)):
        found = entry.read(pad(segments, kept, token))
        places = sorted({*range(LENGTH)} - {*kept})
        broken = f'padding at positions {places} of all segments, of token {token}, changed the'
        logits = found.logits[:, :, kept]
        assert_close(logits, wanted, f'{broken} logits', MASK, axes=LOGITS, atol=2e-5)
        if token:  # what a state keeps of padding is never read, and zero in a stream
            continue
        for number in range(1, SEGMENTS):
            assert_close(
                at(found.states, number - 1),
                states[number],
                f'{broken} state after segment {number - 1}',
                MASK,
                axes=('row',),
                atol=2e-5,
            )


def padded_row(entry: Entry) -> None:
    """A segment of padding leaves the state of its row, and the other rows, as they were."""
    segments, plain = segments_of(), entry.plain
    valid = segments.valid.copy()
    valid[2, 1] = False
    padded = entry.read(segments.replace(valid=valid))
    assert_equal(
        of_row(at(padded.states, 2), 1),
        of_row(at(plain.states, 1), 1),
        'segment 2 of row 1 is all padding and changed its state',
        'What is written follows from the number of valid tokens of each row by itself, '
        '`segment.num_valid[:, None]`: not of the batch, and not of row 0. A state that is made again '
        'as a whole keeps the old one where a row has no tokens: `select_lanes`.',
    )
    others = [row for row in range(ROWS) if row != 1]
    found, wanted = (
        jax.tree.map(lambda leaf: leaf[:, others], part.states) for part in (padded, plain)
    )
    broken = 'padding in row 1 changed the state of another row'
    assert_close(found, wanted, broken, APART, axes=STATES, atol=2e-6)


split = jax.jit(split_at_starts, static_argnums=1)
join = jax.jit(join_pieces)


def started(segments: Segment, places: tuple[int, ...] = ()) -> Segment:
    """Starts [segments, rows, length]: of the first token, and in the second segment one per row."""
    start = np.zeros(segments.tokens.shape, bool)
    start[0, :, 0] = True
    if places:
        start[1, range(ROWS), places] = True
    return segments.replace(start=start)


def apart(segments: Segment, places: tuple[int, ...]) -> list[Segment]:
    """The two documents in every row of `started`, each with its own first segment.

    Tokens come first, padding after them; two segments of tokens, the rest of `SEGMENTS` padding.
    """
    tokens = np.zeros((2, SEGMENTS, ROWS, LENGTH), np.int32)
    valid = np.zeros(tokens.shape, bool)
    tokens[0, 0], tokens[1, 1] = segments.tokens[0], segments.tokens[2]
    valid[0, 0] = valid[1, 1] = True
    for row, place in enumerate(places):
        tokens[0, 1, row, :place] = segments.tokens[1, row, :place]
        valid[0, 1, row, :place] = True
        tokens[1, 0, row, : LENGTH - place] = segments.tokens[1, row, place:]
        valid[1, 0, row, : LENGTH - place] = True
    start: Any = np.zeros((SEGMENTS, ROWS), bool)
    start[0] = True
    return [Segment(tokens[i], valid[i], start) for i in range(2)]


def start_anywhere(entry: Entry) -> None:
    """A document that starts inside a segment reads like two separate documents, whole and streamed."""
    most = rounding(entry)
    segments = segments_of(SEGMENTS - 1)
    for place in (0, 3):  # with four rows: every position
        places = tuple((place + 2 * row) % LENGTH for row in range(ROWS))
        inside = started(segments, places)
        pieces = jax.device_get(split(inside, 1))  # as many pieces as a program reads segments
        found = entry.read(pieces.segments)
        early, late = (entry.read(document) for document in apart(segments, places))
        wanted = np.stack([early.logits[0], early.logits[1], late.logits[1]])
        for row, own in enumerate(places):
            wanted[1, row, own:] = late.logits[0, row, : LENGTH - own]
        broken = f'starts at positions {places} of segment 1 give other {{}} than documents apart'
        fix = (
            'A row without tokens in a piece must keep its state, and `initial_state` must be all '
            'that a document begins with.'
        )
        logits = join(pieces, found.logits)
        assert_close(logits, wanted, broken.format('logits'), fix, axes=LOGITS, atol=most)
        last = at(late.states, 1)
        states, axes = at(found.states, -1), ('row',)
        assert_close(states, last, broken.format('states'), fix, axes=axes, atol=most)
        logits, before = entry.read_tokens(inside)
        broken = f'token by token, {broken}'
        assert_close(logits, wanted, broken.format('logits'), STREAM, axes=LOGITS, atol=most)
        border = at(late.states, 0)
        assert_close(before[2], border, broken.format('states'), STREAM, axes=axes, atol=most)


def carries(entry: Entry) -> bool:
    """Whether any layer remembers earlier segments, as far as a field `carry` says so.

    What stands around the blocks has no state if it carries nothing.
    """
    config: Any = entry.model.config
    return all(config[layer].get('carry', True) for layer in config.attention)
