"""Sparse replay: when a learner reads its memory again, and how many rows.

Per interval of R_I rows of the stream, r R_I rows are replayed (Holla et al., 2020). Methods that take
one step per batch replay after a number of steps; those that learn in episodes, after a number of them.
"""

import math
from typing import NamedTuple

from longmem_jax.errors import UsageError
from longmem_jax.problems import at_least, between


class Sparse(NamedTuple):
    """How much is replayed.

    Attributes:
      every: R_I, rows of the stream between two replays; 9,600 in the paper, 1,600 for relations.
      rate: r, rows replayed per row of the stream, in (0, 1].
    """

    every: int
    rate: float


def check(every: int, rate: float) -> list[str]:
    """Problems of the fields `replay_every` and `replay_rate` of a method's settings."""
    fields = dict(replay_every=every, replay_rate=rate)
    return at_least(fields, 1, 'replay_every') + between(fields, 0, 1, 'replay_rate', ends='(]')


def rows(sparse: Sparse) -> int:
    """Rows of one replay: floor(r R_I), the paper's.

    Raises:
      UsageError: there would be none.
    """
    # 0.29 * 100 is 28.999999999999996.
    found = math.floor(round(sparse.every * sparse.rate, 6))
    if not found:
        raise UsageError(
            f'replay_rate {sparse.rate} of replay_every {sparse.every} rows is less than one row, so '
            f'nothing would be replayed: raise replay_every to at least {math.ceil(1 / sparse.rate)}, '
            'or the rate.'
        )
    return found


def batches(sparse: Sparse, batch: int) -> int:
    """Batches of one replay: S = int(R_I r / b), as the release has it.

    Raises:
      UsageError: there would be none.
    """
    # The order of the release, whose rounding decides where the quotient is nearly whole.
    found = int(sparse.every * sparse.rate / batch)
    if not found:
        least = math.ceil(batch / sparse.rate)
        raise UsageError(
            f'replay_rate {sparse.rate} of replay_every {sparse.every} rows is less than one batch '
            f'of {batch} rows, so nothing would be replayed: raise replay_every to at least {least}, '
            'raise the rate, or take smaller batches.'
        )
    return found


def stream_steps(sparse: Sparse, batch: int) -> int:
    """Steps of one batch from one replay to the next: R = R_I // b.

    Raises:
      UsageError: a batch is longer than the interval.
    """
    if sparse.every < batch:
        raise UsageError(
            f'replay_every = {sparse.every}: at least one batch of {batch} rows must lie between two '
            'replays. Raise it, or take smaller batches.'
        )
    return sparse.every // batch


def episodes(sparse: Sparse, batch: int, updates: int) -> int:
    """Episodes from one replay to the next: R_F = ceil((R_I // b + 1) / (m + 1)).

    The paper writes R_I / b, its release the whole number R_I // b, which this is. They are the same
    where b divides R_I, as it does in all of its experiments.
    """
    # One batch of the interval is not read: the query of the episode that replays.
    return -(-(sparse.every // batch + 1) // (updates + 1))


def stream_replays(sparse: Sparse, batch: int, stream: int) -> int:
    """Replays in a stream of that many rows, of a method that takes one step per batch."""
    return -(-stream // batch) // stream_steps(sparse, batch)


def episode_replays(sparse: Sparse, batch: int, updates: int, stream: int) -> int:
    """Replays in a stream of that many rows, of a method that learns in episodes.

    An episode that replays reads m batches of the stream, any other m + 1.
    """
    return -(-stream // batch) // (episodes(sparse, batch, updates) * (updates + 1) - 1)


def require(replays: int, sparse: Sparse, stream: int) -> int:
    """The number of replays in a stream.

    Raises:
      UsageError: there are none.
    """
    if not replays:
        raise UsageError(
            f'With replay_every = {sparse.every}, nothing is replayed in a stream of {stream} rows: '
            'lower it (config.lifelong.METHOD.replay_every). Without a replay it is another method.'
        )
    return replays


def stream_lines(sparse: Sparse, batch: int, replayed: int, stream: int) -> list[str]:
    """What a method that takes one step per batch will replay, in words.

    `replayed` rows at a time.

    Raises:
      UsageError: nothing would be replayed.
    """
    count = require(stream_replays(sparse, batch, stream), sparse, stream)
    return [
        f'After every {stream_steps(sparse, batch)} batches of {batch} rows, {replayed} rows are '
        f'replayed: {count} times in {stream} rows.'
    ]


def episode_lines(
    sparse: Sparse, batch: int, updates: int, replayed: int, stream: int
) -> list[str]:
    """What a method that learns in episodes of `updates` batches will replay, in words.

    Raises:
      UsageError: nothing would be replayed.
    """
    count = require(episode_replays(sparse, batch, updates, stream), sparse, stream)
    frequency = episodes(sparse, batch, updates)
    read = (frequency * (updates + 1) - 1) * batch
    return [
        f'The query of every episode number {frequency} is {replayed} rows of the memory '
        f'(R_F = {frequency}, once per {read} rows): {count} times in {stream} rows.'
    ]
