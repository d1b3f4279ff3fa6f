"""The training step of an agent: a rollout in every lane and what is learned from it, in one program."""

from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax

from longmem_jax.agents import actor_critic
from longmem_jax.agents.acting import Lanes, Rollout, act, first_lanes, next_value
from longmem_jax.agents.actor_critic import Acted
from longmem_jax.agents.environments.interface import Environment
from longmem_jax.agents.model import Agent
from longmem_jax.agents.reading import learnable, most_starts, read
from longmem_jax.agents.returns import advantages
from longmem_jax.models.parameters import initial_parameters, unbox
from longmem_jax.training.optimizer import freeze, updates_made
from longmem_jax.training.step import all_finite, average_in, count, keep_finite

KEPT = 0.9  # share of what is known of episodes that a step keeps: metrics are of about ten steps

UNREAD = 'unread'  # share of steps of episodes for which there was no room

Episodes = dict[str, jax.Array]


class AgentState(flax.struct.PyTreeNode):
    """The whole state of a run; a checkpoint holds this.

    Attributes:
      step: int32 scalar, steps taken.
      params: float32 parameters.
      optimizer: optax state.
      lanes: environments and memories; every leaf [lanes, ...].
      recent: sums over the episodes that ended lately, see `ended_episodes`.
      key: the run's random key; folded with the step, never changed.
      skipped: int32 scalar, consecutive steps skipped because they were not finite.
      seen: float32 [2], steps of environments, (millions, remainder).
    """

    step: jax.Array
    params: Any
    optimizer: Any
    lanes: Lanes
    recent: Episodes
    key: jax.Array
    skipped: jax.Array
    seen: jax.Array


def ended_episodes(rollout: Rollout) -> Episodes:
    """Sums over the episodes that ended in a rollout: 'episodes', 'reward', 'length', and measures."""
    ended = rollout.ended.astype(jnp.float32)
    sums = {'reward': rollout.total, 'length': rollout.steps, **rollout.measures}
    sums = {name: (ended * values.astype(jnp.float32)).sum() for name, values in sums.items()}
    return {'episodes': ended.sum(), **sums}


def episode_means(sums: Episodes) -> Episodes:
    """Means per episode, from `ended_episodes`; 0 where none has ended."""
    number = jnp.maximum(sums['episodes'], 1e-6)
    return {name: value / number for name, value in sums.items() if name != 'episodes'}


def make_initial_state(
    model: Agent, optimizer: Any, environment: Environment, num_lanes: int, seed: int
) -> Callable[[], AgentState]:
    """A function without arguments that makes the `AgentState` of step 0."""

    def make() -> AgentState:
        key = jax.random.key(seed)
        params = unbox(initial_parameters(model, jax.random.fold_in(key, 0)))
        lanes = first_lanes(model, params, environment, num_lanes, jax.random.fold_in(key, 2))
        rollout = jax.eval_shape(lambda: act(model, params, environment, lanes, key, segments=1)[1])
        recent = jax.tree.map(
            lambda leaf: jnp.zeros((), jnp.float32), jax.eval_shape(ended_episodes, rollout)
        )
        return AgentState(
            step=jnp.zeros((), jnp.int32),
            params=params,
            optimizer=optimizer.init(params),
            lanes=lanes,
            recent=recent,
            key=jax.random.fold_in(key, 1),
            skipped=jnp.zeros((), jnp.int32),
            seen=jnp.zeros((2,), jnp.float32),
        )

    return make


def by_time(leaf: jax.Array) -> jax.Array:
    """[segments, lanes, length] to [steps, lanes]."""
    segments, lanes, length = leaf.shape
    return leaf.swapaxes(1, 2).reshape(segments * length, lanes)


def by_segment(leaf: jax.Array, like: jax.Array) -> jax.Array:
    """The inverse of `by_time`, to the shape of `like`."""
    segments, lanes, length = like.shape
    return leaf.reshape(segments, length, lanes).swapaxes(1, 2)


def room_for_starts(environment: Environment, config: Any) -> int:
    """Episodes that may start inside of a rollout's segments: as many as can, or those that are set."""
    train = config.train
    most = most_starts(train.segments_per_step * train.segment_length, environment.shortest)
    return min(most, config.reinforcement.starts or most)


def judged(rollout: Rollout, last_value: jax.Array, settings: Any, room: int) -> Acted:
    """Advantages, returns and mask of a rollout; leaves [segments, lanes, length, ...].

    `last_value` float32 [lanes], see `returns.advantages`; `room` see `reading.learnable`.
    """
    reward, value, terminated, truncated = map(
        by_time, (rollout.reward, rollout.value, rollout.terminated, rollout.truncated)
    )
    advantage = advantages(
        reward,
        value,
        terminated,
        truncated,
        last_value,
        discount=settings.discount,
        trace=settings.trace,
    )
    advantage = by_segment(advantage, rollout.value)
    return Acted(
        action=rollout.action,
        logits=rollout.logits,
        value=rollout.value,
        advantage=advantage,
        returned=advantage + rollout.value,
        counts=learnable(rollout.start, room).astype(jnp.float32),
    )


def make_update(
    model: Agent, environment: Environment, optimizer: Any, config: Any
) -> Callable[..., tuple[Any, dict[str, jax.Array]]]:
    """One update: `((params, optimizer state), memory, rollout, acted, key) -> (the same, metrics)`.

    `memory` are the memories before the rollout.
    """
    settings, weights = config.reinforcement, config.train.loss_weights.to_dict()
    room = room_for_starts(environment, config)

    def update(learned: Any, memory: Any, rollout: Rollout, acted: Acted, key: jax.Array) -> Any:
        params, optimizer_state = learned

        def loss(params: Any) -> Any:
            params = freeze(config.optimizer.groups, params)
            (logits, value), aux = read(model, params, memory, rollout, key, room=room, train=True)
            total, metrics = actor_critic.objective(
                logits,
                value,
                acted,
                algorithm=settings.algorithm,
                clip=settings.clip,
                value_cost=settings.value_cost,
                entropy_cost=settings.entropy_cost,
                normalize=settings.normalize,
            )
            for name, of_memory in aux.losses.items():
                total = total + weights[name] * of_memory
            metrics |= {f'loss/{name}': value for name, value in aux.losses.items()}
            metrics |= {
                f'memory/{name}': value for name, value in (aux.metrics | aux.per_head).items()
            }
            return total, (metrics | {'loss': total}, aux.statistics)

        (_, (metrics, statistics)), gradients = jax.value_and_grad(loss, has_aux=True)(params)
        updates, optimizer_state = optimizer.update(gradients, optimizer_state, params)
        params = average_in(optax.apply_updates(params, updates), statistics)
        return (params, optimizer_state), metrics | {'grad_norm': optax.global_norm(gradients)}

    return update


def make_step(
    model: Agent, environment: Environment, optimizer: Any, schedule: Any, config: Any
) -> Callable[[AgentState], tuple[AgentState, dict[str, jax.Array]]]:
    """The step `state -> (state, metrics)`.

    `schedule` is for the metrics. A step whose losses or gradients are not finite changes neither
    parameters nor lanes; it is counted in `skipped`.
    """
    settings, train = config.reinforcement, config.train
    update = make_update(model, environment, optimizer, config)
    room = room_for_starts(environment, config)
    per_step = train.num_lanes * train.segments_per_step * train.segment_length

    def learn(
        learned: Any, memory: Any, rollout: Rollout, acted: Acted, key: jax.Array
    ) -> tuple[Any, dict[str, jax.Array]]:
        """All updates of a step; metrics are means over them."""
        if settings.epochs == settings.minibatches == 1:
            return update(learned, memory, rollout, acted, key)
        keys = jax.random.split(key, settings.epochs)
        orders = jax.vmap(lambda key: jax.random.permutation(key, train.num_lanes))(keys)
        parts = orders.reshape(settings.epochs * settings.minibatches, -1)

        def part(learned: Any, inputs: tuple[jax.Array, jax.Array]) -> Any:
            lanes, key = inputs
            take = lambda axis: lambda leaf: jnp.take(leaf, lanes, axis=axis)  # noqa: E731
            chosen = jax.tree.map(take(1), (rollout, acted))
            return update(learned, jax.tree.map(take(0), memory), *chosen, key)

        learned, metrics = jax.lax.scan(part, learned, (parts, jax.random.split(key, len(parts))))
        return learned, jax.tree.map(lambda values: values.mean(axis=0), metrics)

    def step(state: AgentState) -> tuple[AgentState, dict[str, jax.Array]]:
        acting, learning = jax.random.split(jax.random.fold_in(state.key, state.step))
        lanes, rollout = act(
            model, state.params, environment, state.lanes, acting, segments=train.segments_per_step
        )
        acted = judged(rollout, next_value(model, state.params, lanes), settings, room)
        before = (state.params, state.optimizer)
        learned, metrics = learn(before, state.lanes.memory, rollout, acted, learning)
        finite = jnp.isfinite(metrics['loss']) & jnp.isfinite(metrics['grad_norm'])
        finite &= all_finite(*learned, lanes.memory)
        (params, optimizer_state), lanes = keep_finite(
            finite, (learned, lanes), (before, state.lanes)
        )
        ended = ended_episodes(rollout)
        recent = jax.tree.map(lambda old, new: KEPT * old + new, state.recent, ended)
        new_state = state.replace(
            step=state.step + 1,
            params=params,
            optimizer=optimizer_state,
            lanes=lanes,
            recent=recent,
            skipped=jnp.where(finite, 0, state.skipped + 1).astype(jnp.int32),
            seen=count(state.seen, per_step),
        )
        return new_state, {
            **episode_means(recent),
            'episodes': ended['episodes'],
            **metrics,
            UNREAD: 1 - acted.counts.mean(),
            'skipped': new_state.skipped,
            'learning_rate': schedule(updates_made(state.optimizer)),
            'environment_steps_seen': new_state.seen,
        }

    return step
