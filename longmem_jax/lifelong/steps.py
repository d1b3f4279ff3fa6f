"""What learners that read one batch after another share: the next rows, gradients, updates, answers."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from longmem_jax.lifelong.chunks import in_chunks
from longmem_jax.lifelong.learner import LearnerState, Metrics
from longmem_jax.lifelong.network import Network
from longmem_jax.lifelong.rows import Rows, take
from longmem_jax.training.step import all_finite, keep_finite


class Batch(NamedTuple):
    """Rows of a stream.

    Attributes:
      rows: of length n.
      there: bool [n]; the others are after the end of the stream and count for nothing.
      numbers: int32 [n], inside of the stream.
    """

    rows: Rows
    there: jax.Array
    numbers: jax.Array

    @property
    def any(self) -> jax.Array:
        """Whether there is a row, bool scalar."""
        return self.there.any()


def batch_of(stream: Rows, numbers: jax.Array, there: jax.Array | bool = True) -> Batch:
    """Rows by their numbers, int32 [n]; `there`: a bool for all of them, or one each."""
    numbers = jnp.clip(numbers, 0, len(stream) - 1)
    return Batch(take(stream, numbers), jnp.broadcast_to(there, numbers.shape), numbers)


def next_batch(state: LearnerState, stream: Rows, size: int) -> Batch:
    """The `size` rows after the position of the state."""
    numbers = state.position + jnp.arange(size, dtype=jnp.int32)
    return batch_of(stream, numbers, numbers < len(stream))


class Keys(NamedTuple):
    """Random keys of one call of `observe`, by what is drawn with them."""

    dropout: jax.Array
    read: jax.Array
    read_dropout: jax.Array


def keys_of(state: LearnerState) -> Keys:
    """The keys of this step of the state."""
    return Keys(*jax.random.split(jax.random.fold_in(state.key, state.step), 3))


def write_key(state: LearnerState) -> jax.Array:
    """The key of writes, the same in every step: it is folded with the numbers of rows."""
    return jax.random.fold_in(state.key, jnp.iinfo(jnp.int32).max)


class Gradient(NamedTuple):
    """Of the mean loss of a batch.

    Attributes:
      loss: mean over the rows that are there, nats, scalar.
      losses: of the rows, float32 [n].
      scores: of the head, leaves [n, ...].
      gradient: of `loss`, in the structure of the parameters.
    """

    loss: jax.Array
    losses: jax.Array
    scores: Any
    gradient: Any


def gradient_of(network: Network, params: Any, batch: Batch, key: jax.Array | None) -> Gradient:
    """The gradient of the mean loss of a batch; `key` is of dropout, None = no dropout."""

    def mean(params: Any) -> tuple[jax.Array, Any]:
        scores = network.scores(params, batch.rows, key)
        losses = network.head.losses(scores, batch.rows)
        total = jnp.where(batch.there, losses, 0).sum()
        return total / jnp.maximum(batch.there.sum(), 1), (losses, scores)

    (loss, (losses, scores)), gradient = jax.value_and_grad(mean, has_aux=True)(params)
    return Gradient(loss, losses, scores, gradient)


class Update(NamedTuple):
    """One step of an optimizer.

    Attributes:
      params, optimizer: after it; as before it, if it was not finite or not wanted.
      finite: bool scalar.
      norm: of the gradient, float32 scalar.
    """

    params: Any
    optimizer: Any
    finite: jax.Array
    norm: jax.Array


def update(
    optimizer: optax.GradientTransformation,
    params: Any,
    optimizer_state: Any,
    gradient: Any,
    loss: jax.Array,
    wanted: jax.Array | bool = True,
) -> Update:
    """One step, unless the loss or the gradient is not finite.

    `wanted` is False for a batch without rows, which must not move anything: momentum would.
    """
    norm = optax.global_norm(gradient)
    finite = jnp.isfinite(loss) & jnp.isfinite(norm)
    updates, new_state = optimizer.update(gradient, optimizer_state, params)
    new = (optax.apply_updates(params, updates), new_state)
    finite &= all_finite(*new)
    kept, kept_state = keep_finite(finite & wanted, new, (params, optimizer_state))
    return Update(kept, kept_state, finite, norm)


def new_state(
    key: jax.Array, network: Network, optimizer: optax.GradientTransformation
) -> LearnerState:
    """The state of a learner without memory, at the start of a stream."""
    first, second = jax.random.split(key)
    params = network.init(first)
    # Three arrays: a buffer can be donated once.
    step, position, skipped = (jnp.zeros((), jnp.int32) for _ in range(3))
    return LearnerState(
        step=step,
        position=position,
        params=params,
        optimizer=optimizer.init(params),
        memory=(),
        own=(),
        key=second,
        skipped=skipped,
    )


def after(
    network: Network, state: LearnerState, batch: Batch, result: Any, moved: Update, **changes: Any
) -> tuple[LearnerState, Metrics]:
    """The state after a batch, with its parameters as they were moved, and the scalars of the step.

    A step that was not finite is counted in `skipped`. `right` is that of the answers before the rows
    were learned, of which `result` has loss and scores.
    """
    state = state.replace(
        step=state.step + 1,
        position=state.position + batch.there.sum().astype(jnp.int32),
        skipped=jnp.where(moved.finite, 0, state.skipped + 1).astype(jnp.int32),
        params=moved.params,
        optimizer=moved.optimizer,
        **changes,
    )
    count = jnp.maximum(batch.there.sum(), 1)
    right = network.head.right(result.scores, batch.rows)
    return state, {
        'loss': result.loss,
        'right': jnp.where(batch.there, right, 0).sum() / count,
        'rows': batch.there.sum(),
        'grad_norm': moved.norm,
        'skipped': state.skipped,
    }


def predict_rows(network: Network, params: Any, rows: Rows, size: int) -> Any:
    """Scores of any number of rows, leaves [rows, ...], `size` rows at a time, without dropout."""
    return in_chunks(lambda part: network.scores(params, part), size, rows)


def as_learned(network: Network, size: int) -> Callable[..., Any]:
    """`Learner.predict` by the parameters as they are."""
    return lambda state, stream, rows, key: predict_rows(network, state.params, rows, size)


def keys_of_rows(network: Network, params: Any, rows: Rows, size: int) -> jax.Array:
    """Keys of any number of rows by the key network, float32 [rows, width], `size` at a time."""
    return in_chunks(lambda part: network.keys(params, part), size, rows)


def schedule_line(num_rows: int, batch: int) -> str:
    """How many steps a stream takes, for the user."""
    return f'{-(-num_rows // batch)} steps of {batch} rows.'
