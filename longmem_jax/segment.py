"""Segments of documents in lanes (batch rows), and the scan that carries memories across segments."""

import functools
import operator
from collections.abc import Callable
from typing import Any, TypeVar

import flax.struct
import jax
import jax.numpy as jnp

from longmem_jax.errors import UsageError

Tree = TypeVar('Tree')  # a pytree of arrays
Item = TypeVar('Item')
Output = TypeVar('Output')
State = Any
# An array of a record that is also filled with numpy's arrays, and with shapes or shardings of its own.
Leaf = Any
NOTHING = -1  # in a source text, a position without a token


def of_second(tokens: Any) -> Any:
    """Tokens of the second of two texts in one segment: numbers below `NOTHING`. Its own inverse."""
    return NOTHING - 1 - tokens


class Segment(flax.struct.PyTreeNode):
    """The input of one forward call: `length` consecutive tokens of one document per lane.

    Attributes:
      tokens: int32 [batch, length].
      valid: bool [batch, length]; False is padding: never attended to, never written.
      start: bool [batch]; a new document begins in this lane: its state is reset before reading.
        Models all of whose layers have `takes_starts`, and `split_at_starts`, also take bool
        [batch, length]: documents that start at any position.
      key: random key of this segment in training, for draws that all layers share. Set by the
        model; None in evaluation.
    """

    tokens: jax.Array
    valid: jax.Array
    start: jax.Array
    key: jax.Array | None = None

    @property
    def num_valid(self) -> jax.Array:
        """Number of tokens of this segment that are not padding, int32 [batch]."""
        return self.valid.sum(axis=1, dtype=jnp.int32)


class Packing(flax.struct.PyTreeNode):
    """The permutation of a segment that moves the valid tokens of every lane to the front.

    Attributes:
      order: int32 [batch, length], original position of the token at every packed position.
      inverse: int32 [batch, length], packed position of the token at every original position.
    """

    order: jax.Array
    inverse: jax.Array

    def pack(self, leaf: jax.Array) -> jax.Array:
        """Moves `leaf` [batch, length, ...] into packed order."""
        return jnp.take_along_axis(leaf, per_lane_order(self.order, leaf), axis=1)

    def unpack(self, leaf: jax.Array) -> jax.Array:
        """Moves packed `leaf` [batch, length, ...] back into original order."""
        return jnp.take_along_axis(leaf, per_lane_order(self.inverse, leaf), axis=1)


class Aux(flax.struct.PyTreeNode):
    """What a layer reports in addition to its output.

    Attributes:
      losses: name to scalar, already averaged, not yet weighted (the weights are in the config).
      metrics: name to scalar worth plotting.
      per_head: name to float32 [heads], numbers of one layer worth plotting head by head, such as gates;
        a model adds the layer to the name: 'gate/block_3'.
      counts: name of a loss or metric to the number of queries, float32 scalar, that it is the mean of,
        where that differs between segments; the mean over segments is then weighted by it.
      statistics: path of a parameter that is a running average to its value in this segment; the
        training step averages it in.
    """

    losses: dict[str, jax.Array]
    metrics: dict[str, jax.Array]
    per_head: dict[str, jax.Array] = flax.struct.field(default_factory=dict)
    counts: dict[str, jax.Array] = flax.struct.field(default_factory=dict)
    statistics: dict[str, jax.Array] = flax.struct.field(default_factory=dict)


def no_aux() -> Aux:
    """An `Aux` that reports nothing."""
    return Aux(losses={}, metrics={})


def count_on(count: jax.Array, more: jax.Array | int) -> jax.Array:
    """`count + more` (int32, not negative); a count that reaches 2^31 - 1 stays there."""
    most = jnp.iinfo(jnp.int32).max
    return jnp.where(count > most - more, most, count + more)


def count_round(count: jax.Array, more: jax.Array | int) -> jax.Array:
    """`count + more` modulo 2^31, int32: for numbers of which only differences are read."""
    return (count + more) & jnp.iinfo(jnp.int32).max


def mean_count(count: jax.Array) -> jax.Array:
    """A metric of integer counts: their mean over the batch, a float32 scalar."""
    return count.astype(jnp.float32).mean()


def merge_aux(reports: list[Aux]) -> Aux:
    """Sums losses of the same name over layers; averages metrics and counts."""
    losses: dict[str, jax.Array] = {}
    metrics: dict[str, list[jax.Array]] = {}
    counts: dict[str, list[jax.Array]] = {}
    for report in reports:
        for name, value in report.losses.items():
            losses[name] = losses[name] + value if name in losses else value
        for name, value in report.metrics.items():
            metrics.setdefault(name, []).append(value)
        for name, value in report.counts.items():
            counts.setdefault(name, []).append(value)
    means, mean_counts = (
        {
            name: functools.reduce(operator.add, values) / len(values)
            for name, values in found.items()
        }
        for found in (metrics, counts)
    )
    per_head = {name: value for report in reports for name, value in report.per_head.items()}
    statistics = {path: value for report in reports for path, value in report.statistics.items()}
    return Aux(losses, means, per_head, mean_counts, statistics)


def mean_over_segments(aux: Aux) -> Aux:
    """The means of the numbers of several segments, weighted by `counts`.

    Args:
      aux: every leaf [segments, ...]; `counts` of 'gate' also weigh 'gate/block_3'.

    Returns:
      The same without the axis of segments, and without `counts`; `statistics` as they were.
    """

    def mean(name: str, values: jax.Array) -> jax.Array:
        counts = aux.counts.get(name.partition('/')[0])
        if counts is None:
            return values.mean(axis=0)
        weights = counts / jnp.maximum(counts.sum(), 1.0)
        return (values * weights.reshape((-1,) + (1,) * (values.ndim - 1))).sum(axis=0)

    losses, metrics, per_head = (
        {name: mean(name, values) for name, values in found.items()}
        for found in (aux.losses, aux.metrics, aux.per_head)
    )
    return Aux(losses, metrics, per_head, statistics=aux.statistics)


def per_lane(flags: jax.Array, leaf: jax.Array) -> jax.Array:
    """Reshapes `flags` [batch] so that it broadcasts against `leaf` [batch, ...]."""
    return flags.reshape(flags.shape + (1,) * (leaf.ndim - 1))


def select_lanes(mask: jax.Array, new: Tree, old: Tree) -> Tree:
    """Takes `new` in the lanes where `mask` (bool [batch]) is True, `old` in the others."""
    return jax.tree.map(lambda a, b: jnp.where(per_lane(mask, a), a, b), new, old)


def per_lane_order(order: jax.Array, leaf: jax.Array) -> jax.Array:
    """Shapes `order` [batch, length] for `take_along_axis` on `leaf` [batch, length, ...]."""
    return order.reshape(order.shape + (1,) * (leaf.ndim - 2))


def pack(segment: Segment, *, takes_starts: bool = False) -> tuple[Segment, Packing]:
    """Moves padding to the end of every lane; tokens keep their order.

    Padding then only ever follows the tokens, where causality hides it from them. A start at padding
    moves to the next token of the lane; after the last token it moves to the first padding.

    Args:
      segment: as given to a model.
      takes_starts: the model reads `start` of the shape [batch, length].

    Returns:
      The segment with valid tokens first, and the way back: `packing.unpack(result)`.

    Raises:
      UsageError: `start` is given per position, and the model does not take it.
    """
    if segment.start.ndim != 1 and not takes_starts:
        raise UsageError(
            f'start has shape {segment.start.shape}: not every layer of this model takes documents that '
            'start inside segments, allowed is bool [batch]; call split_at_starts first.'
        )
    order = jnp.argsort(~segment.valid, axis=1, stable=True).astype(jnp.int32)
    packing = Packing(order, jnp.argsort(order, axis=1).astype(jnp.int32))
    tokens, valid = packing.pack(segment.tokens), packing.pack(segment.valid)
    if segment.start.ndim == 1:
        return segment.replace(tokens=tokens, valid=valid), packing
    number = jnp.cumsum(segment.start, axis=1, dtype=jnp.int32)
    number = jnp.where(valid, packing.pack(number), number[:, -1:])
    start = number > jnp.pad(number[:, :-1], ((0, 0), (1, 0)))
    return segment.replace(tokens=tokens, valid=valid, start=start), packing


class Pieces(flax.struct.PyTreeNode):
    """Segments cut into pieces where documents start inside them; see `split_at_starts`.

    Attributes:
      segments: the pieces, every leaf [pieces, batch, ...]; `start` is bool [pieces, batch].
      used: bool [pieces]; False where no lane has a token or a start.
      piece: int32 [segments, batch, length], the piece with the token at this position.
      dropped: int32 [batch], starts for which there was no room: their documents continue the
        ones before. Callers must refuse the batch or count them, never ignore them.
    """

    segments: Any
    used: jax.Array
    piece: jax.Array
    dropped: jax.Array


def split_at_starts(segments: Any, max_starts: int) -> Pieces:
    """Cuts segments in which documents start at any position into pieces that start with a document.

    A piece is a copy of the segment, valid only at the tokens of one document. The first piece is read
    with the old state, the next ones with a state that was reset. As layers never see padding, this is
    exact for every memory. Borders between segments stay where they are: a document that starts at
    position p writes its first `length - p` tokens, then whole segments.

    Every lane reads its own pieces in order and does not wait for the other lanes at the borders.
    So there are `segments + max_starts` pieces, not `segments * (1 + max_starts)`, and
    pieces that no lane uses come last. Without starts inside, the pieces are the segments.

    Cost, as ratios to the same segments without starts inside (Transformer-XL, 4 segments of 8
    lanes, CPU): with `used` in `read_segments` 1.0 when nothing starts inside, whatever
    `max_starts` is, and 1.2 to 1.3 with one start per lane; if lanes waited for each other at the
    borders, 1.5 to 1.9. Each of `max_starts` keeps one more state for the backward pass. A mask
    inside attention would cost 1.0, but every memory would need its own, and a sum over the tokens
    of a segment, such as `M` of Infini-attention, cannot be masked.

    Args:
      segments: a `Segment` or another dataclass with `valid` and `start`, both bool
        [segments, batch, length]; other leaves are [segments, batch, ...], and those without
        positions are repeated in all pieces of their segment. A start at padding applies to the next
        token of the lane; after the last token it still resets the state.
      max_starts: room for starts after the first token of a segment, in all segments of a lane
        together. Starts beyond it are in `dropped`; `segments * (length - 1)` is always enough.

    Raises:
      UsageError: `start` does not have the shape of `valid`, or `max_starts` is negative.
    """
    start, valid = segments.start, segments.valid
    if start.shape != valid.shape:
        raise UsageError(
            f'split_at_starts: start has shape {start.shape}, valid {valid.shape}; allowed is '
            'bool [segments, batch, length] for both. Starts that are [segments, batch] need no '
            'splitting: give the segments to read_segments as they are.'
        )
    if max_starts < 0:
        raise UsageError(f'split_at_starts: max_starts = {max_starts}, allowed are 0 and more.')
    num_segments, batch, length = valid.shape
    before = jnp.cumsum(valid, axis=2, dtype=jnp.int32) - valid.astype(jnp.int32)
    # Starts without a token between them, or between them and the border, are one start.
    last = jax.lax.cummax(jnp.where(start, before, 0), axis=2)
    last = jnp.pad(last[..., :-1], ((0, 0), (0, 0), (1, 0)))
    first, inside = start & (before == 0), start & (before > last)

    in_lanes = inside.swapaxes(0, 1).reshape(batch, num_segments * length)
    accepted = in_lanes & (jnp.cumsum(in_lanes, axis=1, dtype=jnp.int32) <= max_starts)
    cuts = jnp.cumsum(accepted, axis=1, dtype=jnp.int32).reshape(batch, num_segments, length)
    piece = cuts.swapaxes(0, 1) + jnp.arange(num_segments, dtype=jnp.int32)[:, None, None]
    begins = first | accepted.reshape(batch, num_segments, length).swapaxes(0, 1)

    pieces = jnp.arange(num_segments + max_starts, dtype=jnp.int32)[:, None]
    source = (piece[None, :, :, -1] < pieces[:, None]).sum(axis=1, dtype=jnp.int32)
    # Pieces that a lane does not use are its last ones.
    source = jnp.minimum(source, num_segments - 1)

    def take(leaf: jax.Array) -> jax.Array:
        return jnp.take_along_axis(leaf, per_lane_order(source, leaf), axis=0)

    in_piece = take(piece) == pieces[..., None]
    cut = jax.tree.map(take, segments.replace(start=begins))
    cut = cut.replace(valid=cut.valid & in_piece, start=(cut.start & in_piece).any(axis=2))
    used = (cut.valid.any(axis=2) | cut.start).any(axis=1)
    dropped = (in_lanes & ~accepted).sum(axis=1, dtype=jnp.int32)
    return Pieces(cut, used, piece, dropped)


def join_pieces(pieces: Pieces, outputs: Tree) -> Tree:
    """Joins the outputs of pieces: the inverse of `split_at_starts`.

    Args:
      pieces: the pieces that were read.
      outputs: pytree, every leaf [pieces, batch, length, ...].

    Returns:
      The same with leaves [segments, batch, length, ...].
    """

    def join(leaf: jax.Array) -> jax.Array:
        index = pieces.piece.reshape(pieces.piece.shape + (1,) * (leaf.ndim - 3))
        return jnp.take_along_axis(leaf, index, axis=0)

    return jax.tree.map(join, outputs)


def read_segments(
    read: Callable[[Tree, Item, jax.Array], tuple[Tree, Output]],
    state: Tree,
    segments: Item,
    key: jax.Array,
    *,
    remat: bool = False,
    used: jax.Array | None = None,
) -> tuple[Tree, Output]:
    """Reads segments in order, carrying the memories: the only loop over time in the library.

    The scan stays outside the linen modules: inside one it would leak tracers at `init` and draw
    the same dropout mask for every segment.

    Documents that start inside segments are read in pieces, if not all layers take such starts:

        pieces = split_at_starts(segments, max_starts)
        state, outputs = read_segments(read, state, pieces.segments, key, used=pieces.used)
        outputs = join_pieces(pieces, outputs)

    Args:
      read: `(state, segment, key) -> (state, output)` for one segment.
      state: memories before the first segment.
      segments: pytree, every leaf [segments, batch, ...].
      key: random key, folded with the number of the segment.
      remat: keep only the states between segments for the backward pass, recompute the rest.
      used: bool [segments]; False = skipped: the state stays, outputs are zeros. It implies
        `remat`, or residuals of skipped segments would be stored too, at half the cost of reading.

    Returns:
      The state after the last segment and the outputs, every leaf [segments, ...].
    """
    if remat or used is not None:
        read = functools.partial(jax.checkpoint, prevent_cse=False)(read)

    def skip(state: Tree, segment: Item, key: jax.Array) -> tuple[Tree, Any]:
        _, output = jax.eval_shape(read, state, segment, key)
        return state, jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), output)

    def body(carry: Tree, inputs: Any) -> tuple[Tree, Any]:
        segment, segment_key, is_used = inputs
        if is_used is None:
            return read(carry, segment, segment_key)
        return jax.lax.cond(is_used, read, skip, carry, segment, segment_key)

    num_segments = jax.tree.leaves(segments)[0].shape[0]
    return jax.lax.scan(body, state, (segments, jax.random.split(key, num_segments), used))
