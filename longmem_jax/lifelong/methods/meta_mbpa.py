"""Meta-MbPA: trained so that it adapts well, with a small memory (Wang et al., 2020).

Each row of the stream, and each row that is replayed, is trained at parameters that were adapted to its
K nearest stored rows (`adaptation.meta_gradient`). One row in a hundred is stored, rows far from the
memory rather than others (`selection.py`). At test time the model is adapted once for a whole test set.
The authors released no code. Replayed rows make a step of their own, as in MbPA++.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import optax

from longmem_jax.lifelong import adaptation, episodic, replays, selection, steps
from longmem_jax.lifelong import schedule as schedules
from longmem_jax.lifelong.learner import Learner, LearnerState, Method, Metrics
from longmem_jax.lifelong.methods.mbpa import local, neighbours_of, room_problem, start
from longmem_jax.lifelong.network import Network
from longmem_jax.lifelong.rows import Rows
from longmem_jax.problems import above, at_least, one_of

ORDERS = ('second', 'first')
TESTS = ('coarse', 'each', 'none')
SETTINGS: dict[str, Any] = dict(
    selection.SETTINGS,
    write='diverse',
    write_rate=0.01,
    capacity=5_750,  # rows that the memory holds, the oldest are overwritten; 0 = no memory
    key_type='float16',  # of stored keys
    replay_every=10_000,  # rows of the stream from one replay to the next
    replay_rate=0.01,  # rows replayed per row of the stream
    num_neighbours=32,  # K
    own_row=False,  # whether a replayed row may be a neighbour of its own; the paper does not say
    order='second',  # of the meta-gradient
    train_steps=1,  # of adaptation in training; 0 = no meta-learning
    train_rate=1e-5,  # alpha
    test='coarse',  # adaptation at test time: once per test set, for 'each' row, or 'none'
    redraw=True,  # coarse: new rows in every step, or the same K; the paper does not say
    adapt_steps=30,  # L
    adapt_rate=1e-5,  # at test time
    adapt_anchor=1e-3,  # lambda
    adapted='all',  # parameters that are adapted: 'all', 'head' or 'last:K'
    chunk=4,  # rows that are adapted side by side; does not change the result
)


def check(settings: Any) -> list[str]:
    """Problems of `config.lifelong.meta_mbpa`."""
    wrong = selection.check(settings)
    wrong += one_of(settings, order=ORDERS, test=TESTS, key_type=episodic.DTYPES)
    wrong += schedules.check(settings['replay_every'], settings['replay_rate'])
    wrong += at_least(settings, 0, 'capacity', 'train_steps', 'adapt_steps', 'adapt_anchor')
    wrong += at_least(settings, 1, 'num_neighbours', 'chunk')
    wrong += above(settings, 0, 'train_rate', 'adapt_rate')
    wrong += filter(None, [adaptation.adapted_problem(settings['adapted'])])
    return wrong + room_problem(settings['capacity'], settings['num_neighbours'])


def in_training(settings: Any) -> adaptation.Adaptation:
    """The adaptation through which is trained; without momentum."""
    return at_test(settings)._replace(
        steps=settings['train_steps'],
        rate=settings['train_rate'],
        first_order=settings['order'] == 'first',
    )


def at_test(settings: Any) -> adaptation.Adaptation:
    """The adaptation at test time; without momentum."""
    return local(_plain(settings))


def _plain(settings: Any) -> dict[str, Any]:
    """The settings with those of MbPA that have no other value here."""
    return dict(settings, adapt_momentum=0.0, neighbours='nearest')


def coarse_rows(
    memory: episodic.Memory, key: jax.Array, num_steps: int, k: int, redraw: bool
) -> tuple[jax.Array, jax.Array]:
    """`k` random rows of the memory, with replacement, for each step of the coarse adaptation.

    The same in all steps unless `redraw`. Returns row numbers int32 [L, k], and whether there are
    any, bool [L, k].
    """
    numbers, found = episodic.draw(memory, key, (num_steps if redraw else 1, k))
    shape = (num_steps, k)
    return jnp.broadcast_to(numbers, shape), jnp.broadcast_to(found, shape)


def make(
    network: Network, settings: Any, optimizer: optax.GradientTransformation, batch: int
) -> Learner:
    """The learner; arguments as in `learner.Method`.

    Raises:
      UsageError: nothing would be replayed.
    """
    sparse = schedules.Sparse(settings['replay_every'], settings['replay_rate'])
    plan = replays.plan(sparse, batch)
    training, testing = in_training(settings), at_test(settings)

    def meta(
        state: LearnerState, params: Any, stream: Rows, rows: steps.Batch, keys: jax.Array,
        dropout: jax.Array,
    ) -> steps.Gradient:  # fmt: skip
        own = None if settings['own_row'] else rows.numbers
        numbers, _, found = episodic.nearest(state.memory, keys, settings['num_neighbours'], own)
        return adaptation.meta_gradient(
            network, params, stream, rows.rows, rows.there, numbers, found, training, dropout
        )

    def observe(state: LearnerState, stream: Rows) -> tuple[LearnerState, Metrics]:
        rows, drawn = steps.next_batch(state, stream, batch), steps.keys_of(state)
        keys = network.keys(state.own['key_network'], rows.rows)
        result = meta(state, state.params, stream, rows, keys, drawn.dropout)
        moved = steps.update(
            optimizer, state.params, state.optimizer, result.gradient, result.loss, rows.any
        )

        def again(reads: jax.Array, moved: steps.Update) -> steps.Update:
            read = steps.batch_of(stream, reads.reshape(-1))
            keys = steps.keys_of_rows(network, state.own['key_network'], read.rows, batch)
            found = meta(state, moved.params, stream, read, keys, drawn.read_dropout)
            after = steps.update(
                optimizer, moved.params, moved.optimizer, found.gradient, found.loss
            )
            return after._replace(finite=after.finite & moved.finite, norm=moved.norm)

        moved, replayed = replays.if_due(plan, state, len(stream), batch, drawn.read, again, moved)
        memory, level = selection.write_chosen(
            state, rows, keys, result, moved, network, state.own['level'], settings
        )
        own = state.own | {'level': level}
        state, metrics = steps.after(network, state, rows, result, moved, memory=memory, own=own)
        return state, metrics | {'replayed': replayed, 'stored': memory.size}

    def predict(state: LearnerState, stream: Rows, rows: Rows, key: jax.Array) -> Any:
        params, num_steps = state.params, settings['adapt_steps']
        if settings['test'] == 'none' or not settings['capacity'] or not num_steps:
            return steps.predict_rows(network, params, rows, batch)
        if settings['test'] == 'each':
            numbers, found = neighbours_of(network, _plain(settings), state, rows, batch, key)
            return adaptation.predict_each(network, params, stream, rows, numbers, found, testing)
        numbers, found = coarse_rows(
            state.memory, key, num_steps, settings['num_neighbours'], settings['redraw']
        )
        params = adaptation.adapt_once(network, params, stream, numbers, found, testing)
        return steps.predict_rows(network, params, rows, batch)

    def schedule(num_rows: int) -> list[str]:
        how = {
            'coarse': f'Each test set: {settings["adapt_steps"]} steps on '
            f'{settings["num_neighbours"]} stored rows',
            'each': f'Each test row: {settings["adapt_steps"]} steps on '
            f'{settings["num_neighbours"]} stored rows',
            'none': 'No adaptation at test time',
        }[settings['test']]
        return [
            steps.schedule_line(num_rows, batch),
            *schedules.stream_lines(sparse, batch, math.prod(plan.shape), num_rows),
            f'{how}; adapted parameters: {settings["adapted"]}.',
        ]

    init = functools.partial(start, network, _plain(settings), optimizer)
    return Learner(init, observe, predict, batch, schedule)


METHOD = Method(SETTINGS, check, make)
