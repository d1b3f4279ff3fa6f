"""Learning reads a rollout in parallel over its positions, wherever episodes end in it.

Segments are cut where episodes start, and every piece is read from the memories before it or from those
of a new document; see `segment.split_at_starts`. So every memory works unchanged, and the numbers are
those of acting. Models whose layers take starts at any position read whole segments.
"""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from longmem_jax.agents.acting import Rollout
from longmem_jax.agents.model import Agent
from longmem_jax.models.stack import takes_starts
from longmem_jax.segment import Aux, join_pieces, read_segments, split_at_starts


class _Steps(flax.struct.PyTreeNode):
    """What is cut into pieces: vectors of steps, [segments, lanes, length, d_model], and flags."""

    x: jax.Array
    valid: jax.Array
    start: jax.Array


def learnable(start: jax.Array, room: int) -> jax.Array:
    """Steps before which no more than `room` episodes have started inside of a segment of their
    lane. An episode that starts with a segment needs no room. `start`, bool [segments, lanes,
    length], says whether an episode starts with a step. Returns the same shape; all True if there
    is room for `most_starts`.
    """
    segments, lanes, length = start.shape
    inside = start & (jnp.arange(length) > 0)
    in_lanes = inside.swapaxes(0, 1).reshape(lanes, segments * length)
    number = jnp.cumsum(in_lanes, axis=1, dtype=jnp.int32)
    return (number <= room).reshape(lanes, segments, length).swapaxes(0, 1)


def most_starts(steps: int, shortest: int) -> int:
    """The most episodes, of at least `shortest` steps, that can start within `steps` after the
    first of these.
    """
    return -(-(steps - 1) // shortest)


def read(
    model: Agent,
    params: Any,
    memory: Any,
    rollout: Rollout,
    key: jax.Array,
    *,
    room: int,
    train: bool,
) -> tuple[tuple[jax.Array, jax.Array], Aux]:
    """The outputs of policy and critic at every step of a rollout.

    Args:
      room: episodes that may start inside of the segments of a lane; steps of those beyond are not read,
        and what is returned for them means nothing, see `learnable`.

    Returns:
      logits [segments, lanes, length, actions] and values [segments, lanes, length]; `Aux` with losses
      as sums over pieces per segment, and metrics as means over steps.
    """
    segments, lanes, length = rollout.start.shape
    flat = jax.tree.map(
        lambda leaf: leaf.reshape(segments * lanes, *leaf.shape[2:]),
        (rollout.observation, rollout.action_before, rollout.reward_before),
    )
    x = model.apply({'params': params}, *flat, method='encode')
    readable = learnable(rollout.start, room)
    steps = _Steps(x.reshape(segments, lanes, length, -1), readable, rollout.start & readable)
    pieces = None if takes_starts(model.config) else split_at_starts(steps, room)

    def one(memory: Any, piece: _Steps, key: jax.Array) -> tuple[Any, Any]:
        outputs, memory, aux = model.apply(
            {'params': params},
            piece.x,
            piece.valid,
            piece.start,
            memory,
            train=train,
            rngs={'memory': key},
        )
        return memory, (outputs, aux, piece.valid.sum(dtype=jnp.float32))

    if pieces is None:
        _, (outputs, aux, counts) = read_segments(one, memory, steps, key, remat=True)
        return outputs, _merged(aux, counts, segments)
    _, (outputs, aux, counts) = read_segments(one, memory, pieces.segments, key, used=pieces.used)
    return join_pieces(pieces, outputs), _merged(aux, counts, segments)


def _merged(aux: Aux, counts: jax.Array, segments: int) -> Aux:
    """Losses and metrics of pieces (leaves [pieces, ...]) with `counts` steps each, [pieces].

    Layers average losses over the lanes, and a piece has no steps in some of them: the sum over pieces
    is the sum over segments.
    """
    weights = counts / jnp.maximum(counts.sum(), 1.0)

    def mean(values: jax.Array) -> jax.Array:
        return jnp.tensordot(weights, values, axes=1)

    return Aux(
        losses={name: values.sum(axis=0) / segments for name, values in aux.losses.items()},
        metrics={name: mean(values) for name, values in aux.metrics.items()},
        per_head={name: mean(values) for name, values in aux.per_head.items()},
        statistics=aux.statistics,
    )
