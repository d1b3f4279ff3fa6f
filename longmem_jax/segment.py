"""Segments of documents on lanes, and the one scan that carries the memories from segment to segment."""

import functools
from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

State = Any
NOTHING = -1  # in a source text, a position without a token


@flax.struct.dataclass
class Segment:
    """What one forward call sees: `length` consecutive tokens of one document in every lane.

    Attributes:
      tokens: int32 [batch, length].
      valid: bool [batch, length]; False is padding: never attended to, never written.
      start: bool [batch]; a new document begins in this lane, its state is reset before reading.
      key: random key of this segment in training, the same for all layers: for draws that they
        share. The model sets it; None in evaluation.
    """

    tokens: jax.Array
    valid: jax.Array
    start: jax.Array
    key: jax.Array | None = None

    @property
    def num_valid(self) -> jax.Array:
        """Tokens of this segment that are no padding, int32 [batch]."""
        return self.valid.sum(axis=1, dtype=jnp.int32)


@flax.struct.dataclass
class Packing:
    """How the tokens of a segment are moved, so that every lane's valid ones come first.

    Attributes:
      order: int32 [batch, length], where the token of every packed position stands.
      inverse: int32 [batch, length], where the token of every position is packed.
    """

    order: jax.Array
    inverse: jax.Array

    def pack(self, leaf: jax.Array) -> jax.Array:
        """Moves `leaf` [batch, length, ...] as the tokens are moved."""
        return jnp.take_along_axis(leaf, per_lane_order(self.order, leaf), axis=1)

    def unpack(self, leaf: jax.Array) -> jax.Array:
        """Moves packed `leaf` [batch, length, ...] back."""
        return jnp.take_along_axis(leaf, per_lane_order(self.inverse, leaf), axis=1)


@flax.struct.dataclass
class Aux:
    """What a layer reports beside its output.

    Attributes:
      losses: name to scalar, already averaged, not yet weighted (the weights are in the config).
      metrics: name to scalar worth plotting.
      statistics: path of a parameter that is a running average to its value in this segment; the
        training step averages it in.
    """

    losses: dict[str, jax.Array]
    metrics: dict[str, jax.Array]
    statistics: dict[str, jax.Array] = flax.struct.field(default_factory=dict)


def no_aux() -> Aux:
    """An `Aux` that reports nothing."""
    return Aux(losses={}, metrics={})


def mean_count(count: jax.Array) -> jax.Array:
    """A metric of integer counts: their mean over the batch, a float32 scalar."""
    return count.astype(jnp.float32).mean()


def merge_aux(reports: list[Aux]) -> Aux:
    """Sums losses of the same name over layers and averages metrics of the same name."""
    losses: dict[str, jax.Array] = {}
    metrics: dict[str, list[jax.Array]] = {}
    for report in reports:
        for name, value in report.losses.items():
            losses[name] = losses[name] + value if name in losses else value
        for name, value in report.metrics.items():
            metrics.setdefault(name, []).append(value)
    means = {name: sum(values) / len(values) for name, values in metrics.items()}
    statistics = {path: part for report in reports for path, part in report.statistics.items()}
    return Aux(losses, means, statistics)


def per_lane(flags: jax.Array, leaf: jax.Array) -> jax.Array:
    """Reshapes `flags` [batch] so that it broadcasts against `leaf` [batch, ...]."""
    return flags.reshape(flags.shape + (1,) * (leaf.ndim - 1))


def select_lanes(chosen: jax.Array, new: State, old: State) -> State:
    """Takes `new` in the lanes where `chosen` (bool [batch]) is True, `old` in the others."""
    return jax.tree.map(lambda a, b: jnp.where(per_lane(chosen, a), a, b), new, old)


def per_lane_order(order: jax.Array, leaf: jax.Array) -> jax.Array:
    """Shapes `order` [batch, length] for `take_along_axis` on `leaf` [batch, length, ...]."""
    return order.reshape(order.shape + (1,) * (leaf.ndim - 2))


def pack(segment: Segment) -> tuple[Segment, Packing]:
    """Moves padding to the end of every lane; tokens keep their order.

    Padding then only ever follows the tokens, where causality hides it from them.

    Returns:
      The segment with valid tokens first, and the way back: `packing.unpack(result)`.
    """
    order = jnp.argsort(~segment.valid, axis=1, stable=True).astype(jnp.int32)
    packing = Packing(order, jnp.argsort(order, axis=1).astype(jnp.int32))
    tokens, valid = packing.pack(segment.tokens), packing.pack(segment.valid)
    return segment.replace(tokens=tokens, valid=valid), packing


def read_segments(
    read: Callable[[State, Any, jax.Array], tuple[State, Any]],
    state: State,
    segments: Any,
    key: jax.Array,
    *,
    remat: bool = False,
) -> tuple[State, Any]:
    """Reads segments in order, carrying the memories: the only loop over time of the library.

    The scan stays outside the linen modules: inside one it would leak tracers at `init` and draw
    the same dropout mask for every segment.

    Args:
      read: `(state, segment, key) -> (state, output)` for one segment.
      state: memories before the first segment.
      segments: pytree, every leaf [segments, batch, ...].
      key: random key, folded with the number of the segment.
      remat: keep only the states between segments for the backward pass, compute the rest again.

    Returns:
      The state after the last segment and the outputs, every leaf [segments, ...].
    """
    if remat:
        read = functools.partial(jax.checkpoint, prevent_cse=False)(read)

    def body(carry, inputs):
        segment, segment_key = inputs
        return read(carry, segment, segment_key)

    number = jax.tree.leaves(segments)[0].shape[0]
    return jax.lax.scan(body, state, (segments, jax.random.split(key, number)))
