"""MbPA, MbPA++ and MbPA++rand: a memory that is read to adapt the model to each question.

Sprechmann et al. (2018); de Masson d'Autume et al. (2019). The keys of rows come from a key network: the
encoder as it was at the start, which is never trained. Before a row is answered, the model is adapted
to its K nearest stored rows by L steps from the trained parameters, and reset afterwards
(`adaptation.py`). MbPA++ also replays 100 rows per 10,000 of the stream. MbPA++rand has no key network
and adapts to random rows.
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
from longmem_jax.lifelong.methods.replay import learn
from longmem_jax.lifelong.network import Network
from longmem_jax.lifelong.rows import Rows
from longmem_jax.problems import above, at_least, between, one_of

NEIGHBOURS = ('nearest', 'random')
SETTINGS: dict[str, Any] = dict(
    **selection.SETTINGS,
    capacity=575_000,  # rows that the memory holds, the oldest are overwritten; 0 = no memory
    key_type='float16',  # of stored keys
    replay=False,  # sparse replay: MbPA++
    replay_every=10_000,  # rows of the stream from one replay to the next
    replay_rate=0.01,  # rows replayed per row of the stream
    clip=0.0,  # global norm of the gradient of a replay, 0 = not clipped
    neighbours='nearest',  # 'random': MbPA++rand, without a key network
    num_neighbours=32,  # K
    adapt_steps=30,  # L
    adapt_rate=1e-3,  # of SGD; 1e-3 or 5e-3 are quoted
    adapt_momentum=0.0,
    adapt_anchor=1e-3,  # lambda
    adapted='all',  # parameters that are adapted: 'all', 'head' or 'last:K'
    chunk=4,  # rows that are adapted side by side; does not change the result
)


def released() -> dict[str, Any]:
    """Local adaptation of the best-known public code (of a third party: the authors released none)."""
    return dict(adapt_steps=20, adapt_rate=2e-3, adapt_momentum=0.9)


def check(settings: Any) -> list[str]:
    """Problems of `config.lifelong.mbpa` and its relatives."""
    wrong = selection.check(settings)
    wrong += one_of(settings, neighbours=NEIGHBOURS, key_type=episodic.DTYPES)
    wrong += at_least(
        settings, 0, 'capacity', 'clip', 'adapt_steps', 'adapt_anchor', 'adapt_momentum'
    )
    wrong += above(settings, 0, 'adapt_rate')
    wrong += at_least(settings, 1, 'num_neighbours', 'chunk')
    wrong += between(settings, 0, 1, 'adapt_momentum', ends='[)')
    wrong += room_problem(settings['capacity'], settings['num_neighbours'])
    wrong += filter(None, [adaptation.adapted_problem(settings['adapted'])])
    if settings['replay']:
        wrong += schedules.check(settings['replay_every'], settings['replay_rate'])
    if settings['neighbours'] == 'random' and settings['write'] == 'diverse':
        wrong.append("write = 'diverse': it compares keys, which neighbours = 'random' has not")
    return wrong


def room_problem(capacity: int, k: int) -> list[str]:
    """The problem of K neighbours in a memory of fewer rows; a memory of none is allowed."""
    if not 0 < capacity < k:
        return []
    return [
        f'num_neighbours = {k}: the memory holds at most capacity = {capacity} rows; raise capacity '
        'or lower num_neighbours'
    ]


def local(settings: Any) -> adaptation.Adaptation:
    """The adaptation of the settings at test time."""
    return adaptation.Adaptation(
        steps=settings['adapt_steps'],
        rate=settings['adapt_rate'],
        momentum=settings['adapt_momentum'],
        anchor=settings['adapt_anchor'],
        adapted=settings['adapted'],
        chunk=settings['chunk'],
    )


def neighbours_of(
    network: Network,
    settings: Any,
    state: LearnerState,
    rows: Rows,
    batch: int,
    key: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Rows of the memory that each of n rows is adapted to.

    Row numbers of the stream int32 [n, K], and bool [n, K], which were found. `batch` rows are read
    at a time.
    """
    shape = (len(rows), settings['num_neighbours'])
    if settings['neighbours'] == 'random':
        numbers, found = episodic.draw(state.memory, key, shape)
        return numbers, jnp.broadcast_to(found, shape)
    keys = steps.keys_of_rows(network, state.own['key_network'], rows, batch)
    numbers, _, found = episodic.nearest(state.memory, keys, shape[1])
    return numbers, found


def start(
    network: Network, settings: Any, optimizer: optax.GradientTransformation, key: jax.Array
) -> LearnerState:
    """The state at the start of a stream, with a key network unless neighbours are random.

    Raises:
      UsageError: an encoder with fewer blocks than are to be adapted.
    """
    state = steps.new_state(key, network, optimizer)
    adaptation.part_of(state.params, settings['adapted'])  # raises early
    own, keyed = {'level': selection.start()}, settings['neighbours'] == 'nearest'
    if keyed:
        own['key_network'] = jax.tree.map(jnp.copy, state.params['encoder'])
    width = network.encoder.width if keyed else 0
    memory = episodic.empty(settings['capacity'], width, settings['key_type'])
    return state.replace(memory=memory, own=own)


def make(
    network: Network, settings: Any, optimizer: optax.GradientTransformation, batch: int
) -> Learner:
    """The learner; arguments as in `learner.Method`.

    Raises:
      UsageError: replay is on, but nothing would be replayed.
    """
    sparse = schedules.Sparse(settings['replay_every'], settings['replay_rate'])
    plan = replays.plan(sparse, batch) if settings['replay'] else None
    keyed = settings['neighbours'] == 'nearest'

    def observe(state: LearnerState, stream: Rows) -> tuple[LearnerState, Metrics]:
        rows, result, moved, replayed = learn(
            network, settings, optimizer, plan, batch, state, stream
        )
        keys = jnp.zeros((batch, 0))
        if keyed:
            keys = network.keys(state.own['key_network'], rows.rows)
        memory, level = selection.write_chosen(
            state, rows, keys, result, moved, network, state.own['level'], settings
        )
        own = state.own | {'level': level}
        state, metrics = steps.after(network, state, rows, result, moved, memory=memory, own=own)
        return state, metrics | {'replayed': replayed, 'stored': memory.size}

    def predict(state: LearnerState, stream: Rows, rows: Rows, key: jax.Array) -> Any:
        if not settings['capacity'] or not settings['adapt_steps']:
            return steps.predict_rows(network, state.params, rows, batch)
        numbers, found = neighbours_of(network, settings, state, rows, batch, key)
        return adaptation.predict_each(
            network, state.params, stream, rows, numbers, found, local(settings)
        )

    def schedule(num_rows: int) -> list[str]:
        size = math.prod(plan.shape) if plan else 0
        replayed = schedules.stream_lines(sparse, batch, size, num_rows) if plan else []
        return [
            steps.schedule_line(num_rows, batch),
            *replayed,
            f'Each test row: {settings["adapt_steps"]} steps on {settings["num_neighbours"]} '
            f'{settings["neighbours"]} stored rows; '
            f'adapted parameters: {settings["adapted"]}.',
        ]

    init = functools.partial(start, network, settings, optimizer)
    return Learner(init, observe, predict, batch, schedule)


METHOD = Method(SETTINGS, check, make)
PLUS = Method(SETTINGS | dict(replay=True), check, make)
RANDOM = Method(SETTINGS | dict(replay=True, neighbours='random'), check, make)
