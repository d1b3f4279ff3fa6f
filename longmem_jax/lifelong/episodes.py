"""Learning a stream in episodes, with sparse replay: OML-, ANML- and MAML-ER (Holla et al., 2020).

An episode is m batches of the stream, the support, and a query. Inner steps learn the support; all
parameters then take one step that makes the query's loss after those lower. The query is the next batch
of the stream, in every R_F-th episode rows of the memory. Before a test, inner steps learn batches of
the memory.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from longmem_jax.errors import UsageError
from longmem_jax.lifelong import episodic, schedule, steps
from longmem_jax.lifelong.learner import Learner, LearnerState, Metrics
from longmem_jax.lifelong.meta_gradient import (
    Batches,
    Inner,
    Params,
    Read,
    batches,
    gradient,
    inner_steps,
    meta_gradient,
    split,
)
from longmem_jax.lifelong.network import Network
from longmem_jax.lifelong.rows import Rows, take
from longmem_jax.problems import above, at_least, between
from longmem_jax.training.step import keep_finite

# The paper's values for text classification; for relations, a batch is 4 rows, `replay_every` 1,600.
SETTINGS = dict(
    updates=5,  # m, batches of the support of an episode
    inner_rate=1e-3,  # of the inner steps, in training and before a test
    second_order=False,  # whether the meta-gradient passes through the inner steps
    write_rate=1.0,  # probability of a row to be written to the memory
    capacity=575_000,  # rows of the memory, the oldest is overwritten; 4 bytes each
    replay=True,  # False = the query is always of the stream
    replay_every=9_600,  # R_I, rows of the stream between two replays
    replay_rate=0.01,  # r, rows replayed per row of the stream
    # A replay is one batch of floor(r R_I) rows; if True, int(R_I r / b) batches, gradients added up.
    replay_summed=False,
    # Batches of the memory that are learned before a test: -1 = `updates`, as in training; 0 = none.
    adapt_steps=-1,
    dropout=True,  # the encoder's, while it learns the stream
)


def released() -> dict[str, dict[str, Any]]:
    """What the authors' release does otherwise than the paper.

    Returns:
      'method': fields of the method's settings; 'optimizer': fields of `config.optimizer`; 'head':
      fields of `heads.Candidates`. Its accuracy of relations
      leaves the last row of every batch out, unless that is the only one; ours does not.
    """
    return dict(
        method=dict(replay_summed=True, dropout=False),
        optimizer=dict(name='adamw_hf', eps=1e-6, weight_decay=0.0),
        head=dict(over_inputs=True),
    )


def check(settings: Any) -> list[str]:
    """Problems of settings that have the fields of `SETTINGS`."""
    found = at_least(settings, 1, 'updates') + above(settings, 0, 'inner_rate')
    found += between(settings, 0, 1, 'write_rate') + at_least(settings, 0, 'capacity')
    found += at_least(settings, -1, 'adapt_steps')
    if settings['replay']:
        found += schedule.check(settings['replay_every'], settings['replay_rate'])
    return found


class Plan(NamedTuple):
    """An episode learner.

    Attributes:
      network: with `init`, `scores` and `head`.
      fast: names of the parts of its parameters that inner steps change.
      frozen: names of those that never change; they have no moments.
      settings: with the fields of `SETTINGS`.
      optimizer: of the other parameters.
      batch: b, rows of a batch.
    """

    network: Any
    fast: tuple[str, ...]
    frozen: tuple[str, ...]
    settings: Any
    optimizer: optax.GradientTransformation
    batch: int

    @property
    def sparse(self) -> schedule.Sparse:
        """The schedule of the replay."""
        return schedule.Sparse(self.settings.replay_every, self.settings.replay_rate)

    @property
    def inner(self) -> Inner:
        """The inner loop."""
        return Inner(self.fast, self.settings.inner_rate, self.settings.second_order)

    @property
    def adapt_steps(self) -> int:
        """Inner steps before a test."""
        given = self.settings.adapt_steps
        return self.settings.updates if given < 0 else given

    @property
    def replayed(self) -> int:
        """Rows of one replay.

        Raises:
          UsageError: there would be none.
        """
        if self.settings.replay_summed:
            return schedule.batches(self.sparse, self.batch) * self.batch
        return schedule.rows(self.sparse)


def make(plan: Plan) -> Learner:
    """The learner of a plan.

    Raises:
      UsageError: a replay would have no rows.
    """
    if plan.settings.replay:
        _ = plan.replayed
    return Learner(
        init=functools.partial(init, plan),
        observe=jax.jit(functools.partial(observe, plan)),
        predict=jax.jit(functools.partial(predict, plan)),
        most_rows=(plan.settings.updates + 1) * plan.batch,
        schedule=functools.partial(lines, plan),
    )


def of_network(fast: tuple[str, ...]) -> Callable[..., Plan]:
    """`(network, settings, optimizer, batch) -> Plan` of a method that adds no parameters."""

    def plan(
        network: Network, settings: Any, optimizer: optax.GradientTransformation, batch: int
    ) -> Plan:
        return Plan(network, fast, (), settings, optimizer, batch)

    return plan


def made_by(plan: Callable[..., Plan]) -> Callable[..., Learner]:
    """`Method.make` of a method with such plans."""
    return lambda *given: make(plan(*given))


def lines(plan: Plan, stream: int) -> list[str]:
    """What it will do with a stream of that many rows.

    Raises:
      UsageError: it is to replay, and would not.
    """
    settings = plan.settings
    found = [
        f'An episode is {settings.updates} batches of {plan.batch} rows, on each of which SGD with the '
        f'rate {settings.inner_rate:g} changes {" and ".join(plan.fast)}, and a query.'
    ]
    if not settings.replay:
        found.append('Nothing is replayed.')
    elif not settings.capacity * settings.write_rate:
        raise UsageError(
            f'capacity = {settings.capacity}, write_rate = {settings.write_rate}: nothing is stored, so '
            'nothing can be replayed. Raise them, or set replay to False, which is another method.'
        )
    else:
        found += schedule.episode_lines(
            plan.sparse, plan.batch, settings.updates, plan.replayed, stream
        )
    if plan.adapt_steps:
        found.append(
            f'Before each test set it learns {plan.adapt_steps} batches of the memory in the same way, '
            'for that set alone.'
        )
    if plan.adapt_steps not in (0, settings.updates):
        found.append(
            f'Note: it is trained to answer after {settings.updates} inner steps, and tested after '
            f'{plan.adapt_steps}; adapt_steps=-1 takes as many.'
        )
    return found


def init(plan: Plan, key: jax.Array) -> LearnerState:
    """The state at the start of a stream."""
    frozen, params = split(plan.network.init(jax.random.fold_in(key, 0)), plan.frozen)
    zero = jnp.zeros((), jnp.int32)
    return LearnerState(
        step=zero,
        position=zero,
        params=params,
        optimizer=plan.optimizer.init(params),
        memory=episodic.empty(plan.settings.capacity),
        own=frozen,
        key=jax.random.fold_in(key, 1),
        skipped=zero,
    )


def observe(plan: Plan, state: LearnerState, stream: Rows) -> tuple[LearnerState, Metrics]:
    """Learns one episode; see `learner.Learner.observe`.

    At the end of the stream, an episode that lacks a batch of its support is left out. One that lacks
    its query alone is written to the memory, and learned no more than that.
    """
    write_key, read_key, dropout = jax.random.split(jax.random.fold_in(state.key, state.step), 3)
    shape = (plan.settings.updates + 1, plan.batch)
    chosen = jax.random.bernoulli(write_key, plan.settings.write_rate, shape)
    memory = write_support(plan, state, len(stream), chosen)
    drawn, found = episodic.draw(memory, read_key, _replay_shape(plan))
    dropout = dropout if plan.settings.dropout else None
    return learn(plan, state, stream, chosen, memory, drawn, found, dropout)


def write_support(
    plan: Plan, state: LearnerState, stream: int, chosen: jax.Array
) -> episodic.Memory:
    """The memory with the support of the next episode, which a replay of this episode may draw.

    `chosen`, bool [m + 1, b], are the rows of support and query that are to be written.
    """
    support, _ = _numbers(plan, state)
    there = (support < stream) & _complete(support, stream)
    return _write(state.memory, support, chosen[:-1] & there)


def _write(memory: episodic.Memory, numbers: jax.Array, chosen: jax.Array) -> episodic.Memory:
    """Writes rows of batches, [n, b] each."""
    keys = jnp.zeros((numbers.size, 0))
    return episodic.write(memory, numbers.reshape(-1), keys, chosen.reshape(-1))


def learn(
    plan: Plan,
    state: LearnerState,
    stream: Rows,
    chosen: jax.Array,
    memory: episodic.Memory,
    drawn: jax.Array,
    found: jax.Array,
    dropout: jax.Array | None = None,
) -> tuple[LearnerState, Metrics]:
    """Learns one episode, with the rows that it would replay given.

    Args:
      memory: with the support, see `write_support`.
      drawn: rows of the replay, int32 [batches, b], if this is an episode that replays.
      found: bool scalar, whether they are there. If not, the query is of the stream.
      dropout: key of dropout, None = no dropout.
    """
    support, query = _numbers(plan, state)
    complete, replays = _complete(support, len(stream)), _due(plan, state) & found
    keys = (None,) * 3 if dropout is None else jax.random.split(dropout, 3)

    def read(params: Params, queries: Batches) -> tuple[Params, jax.Array]:
        found, given = gradient(plan.network, params, state.own, queries)
        return found, given.loss

    def of_stream(params: Params) -> tuple[Params, jax.Array]:
        found, loss = read(params, batches(stream, query, query < len(stream), key=keys[1]))
        return found, loss.sum()

    def of_memory(params: Params) -> tuple[Params, jax.Array]:
        found, loss = read(params, replay_batches(plan, stream, drawn, keys[2]))
        return found, loss.mean() if plan.settings.replay_summed else loss.sum()

    def of_either(params: Params) -> tuple[Params, jax.Array]:
        return jax.lax.cond(replays, of_memory, of_stream, params)

    found_gradient, _, given, loss = meta_gradient(
        plan.network,
        state.params,
        state.own,
        batches(stream, support, support < len(stream), key=keys[0]),
        of_either if plan.settings.replay else of_stream,
        plan.inner,
    )
    there = (query < len(stream)) & complete & ~replays
    memory = _write(memory, query, chosen[-1:] & there)
    taken = complete & (replays | (query[0, 0] < len(stream)))
    moved = steps.update(plan.optimizer, state.params, state.optimizer, found_gradient, loss, taken)
    finite = moved.finite | ~taken
    read_rows = support.size + jnp.where(replays, 0, query.size)
    new = state.replace(
        step=state.step + 1,
        position=jnp.minimum(state.position + read_rows, len(stream)).astype(jnp.int32),
        params=moved.params,
        optimizer=moved.optimizer,
        memory=keep_finite(finite, memory, state.memory),
        skipped=jnp.where(finite, 0, state.skipped + 1).astype(jnp.int32),
    )
    return new, {
        'loss': jnp.where(taken, loss, 0),
        'inner_loss': jnp.where(complete, given.loss.mean(), 0),
        'grad_norm': jnp.where(taken, moved.norm, 0),
        'replayed': jnp.where(replays & complete, plan.replayed if plan.settings.replay else 0, 0),
        'updates': (taken & finite).astype(jnp.int32),
        'skipped': new.skipped,
        'stored': new.memory.size,
        'rows': new.position - state.position,
    }


def replay_batches(
    plan: Plan, stream: Rows, drawn: jax.Array, dropout: jax.Array | None = None
) -> Batches:
    """The query of an episode that replays, of rows int32 [batches, b]."""
    there = (jnp.arange(drawn.size) < plan.replayed).reshape(drawn.shape)
    return batches(stream, drawn, there, as_one=not plan.settings.replay_summed, key=dropout)


def predict(plan: Plan, state: LearnerState, stream: Rows, rows: Rows, key: jax.Array) -> jax.Array:
    """Scores of the rows of a test set; see `learner.Learner.predict`."""
    if not plan.adapt_steps:
        return scores(plan, state.own | state.params, rows)
    drawn, found = episodic.draw(state.memory, key, (plan.adapt_steps, plan.batch))
    params, _ = adapt(plan, state, stream, drawn, found)
    return scores(plan, state.own | params, rows)


def adapt(
    plan: Plan, state: LearnerState, stream: Rows, drawn: jax.Array, found: jax.Array
) -> tuple[Params, Read]:
    """Inner steps on rows of the memory, int32 [batches, b].

    If there are none (`found`), parameters stay. Returns the trained parameters, and what each
    batch gave before its step.
    """
    support = batches(stream, drawn, jnp.broadcast_to(found, drawn.shape))
    fast, rest = split(state.params, plan.fast)
    fast, read = inner_steps(
        plan.network, fast, state.own | rest, support, plan.settings.inner_rate
    )
    return rest | fast, read


def scores(plan: Plan, params: Params, rows: Rows) -> jax.Array:
    """Scores of rows, read b at a time."""
    numbers = jnp.arange(-(-len(rows) // plan.batch) * plan.batch).reshape(-1, plan.batch)
    numbers = jnp.minimum(numbers, len(rows) - 1)
    read = jax.lax.map(lambda these: plan.network.scores(params, take(rows, these)), numbers)
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[: len(rows)], read)


def _replay_shape(plan: Plan) -> tuple[int, int]:
    """Shape of the rows of a replay; of those after the last, nothing is read."""
    rows = plan.replayed if plan.settings.replay else 1
    return -(-rows // plan.batch), plan.batch


def _numbers(plan: Plan, state: LearnerState) -> tuple[jax.Array, jax.Array]:
    """Rows of the next support, int32 [m, b], and of the batch after it, [1, b]."""
    ahead = jnp.arange((plan.settings.updates + 1) * plan.batch, dtype=jnp.int32)
    numbers = (state.position + ahead).reshape(-1, plan.batch)
    return numbers[:-1], numbers[-1:]


def _complete(support: jax.Array, stream: int) -> jax.Array:
    """Whether every batch of a support has a row, bool scalar."""
    return support[-1, 0] < stream


def _due(plan: Plan, state: LearnerState) -> jax.Array:
    """Whether the next episode is one that replays, bool scalar."""
    if not plan.settings.replay:
        return jnp.zeros((), bool)
    every = schedule.episodes(plan.sparse, plan.batch, plan.settings.updates)
    return (state.step + 1) % every == 0
