"""The training step: several segments in one compiled program, memories in the train state."""

from collections.abc import Callable, Iterable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from longmem_jax.data.lanes import Batch, Cursor
from longmem_jax.devices.generators import step_key
from longmem_jax.devices.sharding import (
    lanes_sharding,
    like_parameters,
    memory_shardings,
    parameter_shardings,
    replicated,
)
from longmem_jax.errors import UsageError
from longmem_jax.in_place import is_in_place, keep_state, restore_state
from longmem_jax.models.language_model import LanguageModel
from longmem_jax.models.parameters import abstract_parameters, initial_parameters, unbox
from longmem_jax.models.stack import longest_of
from longmem_jax.segment import Aux, Leaf, Segment, Tree, mean_over_segments, read_segments
from longmem_jax.training import metrics
from longmem_jax.training.optimizer import freeze, parameter_path, updates_made

MOMENTUM = 0.1  # of running averages


class TrainState(flax.struct.PyTreeNode):
    """The whole state of a run; a checkpoint holds this.

    Attributes:
      step: int32 scalar, steps taken.
      params: float32 parameters.
      optimizer: optax state.
      memory: memories of all lanes after the last segment read; every leaf [lanes, ...].
      cursor: position of every lane in the data after the last segment read; [lanes].
      key: the run's random key; folded with the step, never changed.
      skipped: int32 scalar, consecutive steps skipped because they were not finite.
      tokens_seen: float32 [2], (millions, remainder); a single float32 would stop counting at 16 M.
      average: the average of the parameters over updates, with `config.train.ema_decay`; else None.
    """

    step: Leaf
    params: Any
    optimizer: Any
    memory: Any
    cursor: Cursor
    key: Leaf
    skipped: Leaf
    tokens_seen: Leaf
    average: Any = None

    @property
    def scored(self) -> Any:
        """The parameters that are evaluated: the average, if there is one."""
        return self.params if self.average is None else self.average

    def starting_from(self, params: Any) -> 'TrainState':
        """The state with other parameters, with which the average begins as well."""
        average = None if self.average is None else jax.tree.map(jnp.copy, params)
        return self.replace(params=params, average=average)


def make_initial_state(
    model: LanguageModel, optimizer: Any, num_lanes: int, seed: int, *, average: bool = False
) -> Callable[[], TrainState]:
    """A function without arguments that makes the `TrainState` of step 0, for `jit` or `eval_shape`.

    `average`: with one of the parameters.
    """

    def make() -> TrainState:
        key = jax.random.key(seed)
        params = unbox(initial_parameters(model, jax.random.fold_in(key, 0)))
        memory = model.apply({'params': params}, num_lanes, method='initial_state')
        zeros = jnp.zeros((num_lanes,), jnp.int32)
        return TrainState(
            step=jnp.zeros((), jnp.int32),
            params=params,
            optimizer=optimizer.init(params),
            memory=memory,
            cursor=Cursor(document=zeros, offset=zeros),
            key=jax.random.fold_in(key, 1),
            skipped=jnp.zeros((), jnp.int32),
            tokens_seen=jnp.zeros((2,), jnp.float32),
            average=jax.tree.map(jnp.copy, params) if average else None,
        )

    return make


def state_shardings(mesh: Mesh, model: LanguageModel, abstract: TrainState) -> TrainState:
    """The sharding of every leaf of the train state: parameters by axes, memories by lanes."""
    params = parameter_shardings(mesh, abstract_parameters(model))
    lanes, everywhere = lanes_sharding(mesh), replicated(mesh)
    return TrainState(
        step=everywhere,
        params=params,
        optimizer=like_parameters(abstract.optimizer, abstract.params, params, mesh),
        memory=memory_shardings(mesh, abstract.memory),
        cursor=jax.tree.map(lambda _: lanes, abstract.cursor),
        key=everywhere,
        skipped=everywhere,
        tokens_seen=everywhere,
        average=None if abstract.average is None else params,
    )


def score_segment(
    model: LanguageModel, params: Any, memory: Any, inputs: Batch, key: jax.Array, *, train: bool
) -> tuple[Any, tuple[dict[str, jax.Array], jax.Array, Aux]]:
    """Reads one segment of every lane and scores its targets.

    Returns the memories after it, and a tuple of: `metrics.sums_of` the segment; bool [lanes,
    length], scored tokens that were wrong; the `Aux`.
    """
    segment = Segment(inputs.tokens, inputs.valid, inputs.start)
    dropout, sampling = jax.random.split(key)
    made: Any = model.apply(
        {'params': params},
        segment,
        inputs.targets,
        memory,
        train=train,
        method='nll',
        rngs={'dropout': dropout, 'memory': sampling},
    )
    scores, memory, aux = made
    wrong = (inputs.scored > 0) & ~scores.right
    return memory, (metrics.sums_of(scores, inputs), wrong, aux)


def count(seen: jax.Array, more: jax.Array | float) -> jax.Array:
    """Adds a number, float32 [], to float32 [millions, remainder], exact up to 10^13."""
    remainder = seen[1] + more
    millions = jnp.floor(remainder / 1e6)
    return jnp.stack([seen[0] + millions, remainder - millions * 1e6])


def average_in(params: Tree, statistics: dict[str, jax.Array]) -> Tree:
    """Updates parameters that are running averages.

    Path to [segments, ...] values in order.
    """

    def move(path: Any, leaf: jax.Array) -> jax.Array:
        values = statistics.get(parameter_path(path))
        if values is None:
            return leaf
        for segment in range(values.shape[0]):
            leaf = (1 - MOMENTUM) * leaf + MOMENTUM * values[segment].astype(leaf.dtype)
        return leaf

    return jax.tree_util.tree_map_with_path(move, params)


def average_over_updates(
    average: Tree, params: Tree, before: Any, after: Any, decay: float
) -> Tree:
    """The average of parameters after a step: `decay` times the old one, and the rest of the new ones.

    The first updates count more, `decay` is at most `(1 + n) / (10 + n)` after n of them, so that the
    initial values are soon forgotten. A step that only accumulates gradients does not count.

    Args:
      average, params: the average so far, and the new parameters.
      before, after: the states of the optimizer, which count updates.
    """
    made = updates_made(after)
    kept = jnp.minimum(decay, (1.0 + made) / (10.0 + made))
    share = jnp.where(made > updates_made(before), 1.0 - kept, 0.0)
    return jax.tree.map(lambda mean, new: mean + share * (new - mean), average, params)


def all_finite(params: Any, *others: Any) -> jax.Array:
    """Whether what a step is about to write is finite; bool scalar.

    The norm of the parameters must be finite: numbers near the largest ones are destroyed as well,
    and the next step would show it too late. Of the other pytrees, parts that are not copied
    (`in_place`) are left out: reading them as a whole takes longer than the step, and they are
    written from what is here.
    """
    leaves = [
        leaf
        for leaf in jax.tree.leaves(others, is_leaf=is_in_place)
        if not is_in_place(leaf) and jnp.issubdtype(leaf.dtype, jnp.inexact)
    ]
    # On CPUs sums take a third less time than `isfinite` of every number.
    sums = [jnp.abs(leaf).sum(dtype=jnp.promote_types(leaf.dtype, 'float32')) for leaf in leaves]
    return jnp.isfinite(jnp.stack([optax.global_norm(params), *sums])).all()


def keep_finite(finite: jax.Array, new: Tree, old: Tree) -> Tree:
    """The tree `new` if a step was `finite` (bool scalar), else `old`."""
    return jax.tree.map(lambda new, old: jnp.where(finite, new, old), new, old)


def _read(
    model: LanguageModel, params: Any, memory: Any, batch: Batch, key: jax.Array, settings: Any
) -> tuple[Any, Any]:
    """The memories after a batch, and `score_segment` of every segment; arguments as in `read_batch`.

    Only the last `settings.gradient_segments` have a gradient, if that is not 0.
    """

    def read(params: Any, memory: Any, batch: Batch, key: jax.Array) -> Any:
        def one(memory: Any, inputs: Batch, key: jax.Array) -> Any:
            return score_segment(model, params, memory, inputs, key, train=True)

        return read_segments(one, memory, batch, key, remat=settings.remat)

    without = len(batch.tokens) - settings.gradient_segments if settings.gradient_segments else 0
    if not without:
        return read(params, memory, batch, key)
    first = jax.tree.map(lambda leaf: leaf[:without], batch)
    last = jax.tree.map(lambda leaf: leaf[without:], batch)
    first_key, last_key = jax.random.split(key)
    memory, before = jax.lax.stop_gradient(
        read(jax.lax.stop_gradient(params), memory, first, first_key)
    )
    memory, after = read(params, memory, last, last_key)
    return memory, jax.tree.map(lambda *parts: jnp.concatenate(parts), before, after)


def read_batch(
    model: LanguageModel, params: Any, memory: Any, batch: Batch, key: jax.Array, settings: Any
) -> tuple[jax.Array, tuple[Any, dict[str, jax.Array], dict[str, jax.Array]]]:
    """Reads the segments of a batch one after another and computes the objective.

    Nats per scored token plus `z_loss` and the weighted losses of the layers. Returns it, and a
    tuple of the memories after the batch, metrics, and statistics for `average_in`.
    """

    memory, (sums, _, aux) = _read(model, params, memory, batch, key, settings)
    total = jax.tree.map(lambda values: values.sum(), sums)
    aux = mean_over_segments(aux)
    losses = aux.losses
    weights = settings.loss_weights.to_dict()
    require_weights(losses, weights)
    tokens = jnp.maximum(total['scored'], 1.0)
    loss = total['nll'] / tokens
    objective = loss + settings.z_loss * total['log_z_squared'] / tokens
    for name, layer_loss in losses.items():
        objective = objective + weights[name] * layer_loss
    numbers = metrics.of_step(total) | {
        'tokens': total['tokens'],
        **{f'loss/{name}': layer_loss for name, layer_loss in losses.items()},
        **{f'memory/{name}': value for name, value in (aux.metrics | aux.per_head).items()},
    }
    return objective, (memory, numbers, aux.statistics)


def require_weights(losses: Iterable[str], weights: Iterable[str]) -> None:
    """Raises `UsageError` if a loss of `Aux.losses` has no weight in the config."""
    if missing := sorted({*losses} - {*weights}):
        raise UsageError(
            f'config.train.loss_weights has no weight for {", ".join(missing)}, which Aux.losses of a '
            'layer have: a memory names its losses in LayerType.losses, and its recipe gives their '
            'weights (Recipe.loss_weights)'
        )


def make_train_step(
    model: LanguageModel, optimizer: Any, schedule: Any, config: Any
) -> Callable[[TrainState, Batch, Cursor], tuple[TrainState, dict[str, jax.Array]]]:
    """The step `(state, batch, cursor) -> (state, metrics)`.

    `schedule` is for the metrics, None = not known; the optimizer has its own. The cursor is the
    position after the batch. A step whose loss, gradient, new parameters, optimizer state or memory
    is not finite changes none of the last three; it is counted in `skipped`.
    """

    def step(
        state: TrainState, batch: Batch, cursor: Cursor
    ) -> tuple[TrainState, dict[str, jax.Array]]:
        key = step_key(jax.random.fold_in(state.key, state.step), config.train.prng)
        segments, _, length = batch.tokens.shape
        before, kept = keep_state(state.memory, segments * longest_of(config.model, length))

        def loss(params: Any) -> Any:
            params = freeze(config.optimizer.groups, params)
            return read_batch(model, params, before, batch, key, config.train)

        (objective, aux), gradients = jax.value_and_grad(loss, has_aux=True)(state.params)
        memory, numbers, statistics = aux
        norm = optax.global_norm(gradients)
        finite = jnp.isfinite(objective) & jnp.isfinite(norm)
        updates, optimizer_state = optimizer.update(gradients, state.optimizer, state.params)
        params = average_in(optax.apply_updates(state.params, updates), statistics)
        finite &= all_finite(params, optimizer_state, memory)
        params, optimizer_state = keep_finite(
            finite, (params, optimizer_state), (state.params, state.optimizer)
        )
        memory = restore_state(finite, memory, kept)
        average = state.average
        if average is not None:  # after `keep_finite`: a step that was skipped is no update
            average = average_over_updates(
                average, params, state.optimizer, optimizer_state, config.train.ema_decay
            )
        new_state = state.replace(
            step=state.step + 1,
            params=params,
            optimizer=optimizer_state,
            memory=memory,
            cursor=cursor,
            skipped=jnp.where(finite, 0, state.skipped + 1).astype(jnp.int32),
            tokens_seen=count(state.tokens_seen, numbers['tokens']),
            average=average,
        )
        return new_state, numbers | {
            'grad_norm': norm,
            'skipped': new_state.skipped,
            **({'learning_rate': schedule(updates_made(state.optimizer))} if schedule else {}),
            'tokens_seen': new_state.tokens_seen,
        }

    return step
