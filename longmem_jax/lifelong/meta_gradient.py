"""Gradients through inner steps: some parameters learn from one set of batches, all from another.

The inner loop changes the fast part of the parameters by plain SGD; the meta-gradient is that of other
batches after it. Of first order (Finn et al., 2017), it is taken where the inner loop ended; of second
order, it passes back through the inner steps.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp

from longmem_jax.lifelong.rows import Rows, take

Params = dict[str, Any]


class Batches(flax.struct.PyTreeNode):
    """Rows in batches of one size; every leaf has the batches as its first axis.

    Attributes:
      rows: leaves [batches, batch, ...].
      there: bool [batches, batch]; others count for nothing.
      divisor: float32 [batches], what the sum of the losses of a batch is divided by.
      key: random keys [batches], of dropout; None = no dropout.
    """

    rows: Rows
    there: jax.Array
    divisor: jax.Array
    key: jax.Array | None


class Read(flax.struct.PyTreeNode):
    """What batches gave.

    Attributes:
      loss: float32 [batches], sums of losses over the divisor.
      scores: of the head, leaves [batches, batch, ...].
    """

    loss: jax.Array
    scores: jax.Array


def batches(
    stream: Rows,
    numbers: jax.Array,
    there: jax.Array,
    *,
    as_one: bool = False,
    key: jax.Array | None = None,
) -> Batches:
    """The batches of some rows.

    Args:
      as_one: their losses are those of one large batch, read in parts: they add up to the mean over
        all rows. Else each is the mean of its own rows.
      key: of dropout; None = no dropout.
    """
    counts = jnp.where(as_one, there.sum(), there.sum(axis=1))
    return Batches(
        rows=take(stream, jnp.clip(numbers, 0, len(stream) - 1)),
        there=there,
        divisor=jnp.maximum(counts, 1).astype(jnp.float32),
        key=None if key is None else jax.random.split(key, len(numbers)),
    )


def _loss(network: Any, params: Params, batch: Batches) -> tuple[jax.Array, jax.Array]:
    """Loss of a batch (leaves without the first axis) and its scores."""
    scores = network.scores(params, batch.rows, batch.key)
    losses = jnp.where(batch.there, network.head.losses(scores, batch.rows), 0)
    return losses.sum() / batch.divisor, scores


def inner_steps(
    network: Any, fast: Params, rest: Params, support: Batches, rate: float
) -> tuple[Params, Read]:
    """One step of SGD per batch: `W <- W - rate * gradient` of its loss before the step.

    `fast` are the parts of the parameters that change, `rest` all others. Returns the fast part
    after them, and what each batch gave before its step.
    """

    @jax.checkpoint  # for second order; first order does not differentiate it
    def step(fast: Params, batch: Batches) -> tuple[Params, Read]:
        def loss(fast: Params) -> tuple[jax.Array, jax.Array]:
            return _loss(network, rest | fast, batch)

        (value, scores), gradient = jax.value_and_grad(loss, has_aux=True)(fast)
        return jax.tree.map(lambda w, g: w - rate * g, fast, gradient), Read(value, scores)

    return jax.lax.scan(step, fast, support)


def gradient(network: Any, params: Params, frozen: Params, query: Batches) -> tuple[Params, Read]:
    """The gradient of the sum of the losses of batches with respect to `params`, and what they
    gave; `frozen` are all other parameters. One batch at a time is in memory.
    """

    def add(total: Params, batch: Batches) -> tuple[Params, Read]:
        def loss(params: Params) -> tuple[jax.Array, jax.Array]:
            return _loss(network, frozen | params, batch)

        (value, scores), found = jax.value_and_grad(loss, has_aux=True)(params)
        return jax.tree.map(jnp.add, total, found), Read(value, scores)

    return jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), query)


class Inner(NamedTuple):
    """The inner loop.

    Attributes:
      fast: names of the parts of the parameters that it changes.
      rate: of its steps.
      second_order: whether the meta-gradient passes through its steps.
    """

    fast: tuple[str, ...]
    rate: float
    second_order: bool = False


def meta_gradient(
    network: Any,
    params: Params,
    frozen: Params,
    support: Batches,
    query: Callable[[Params], tuple[Params, Any]],
    inner: Inner,
) -> tuple[Params, Params, Read, Any]:
    """The gradient of the query's loss after the inner loop, with respect to all trained parameters.

    Args:
      query: `(params after the inner loop) -> (gradient at them, anything)`, such as `gradient`.

    Returns:
      The meta-gradient of `params`, their fast part after the inner loop, what the support gave, and
      what `query` returned with its gradient.
    """
    before, slow = split(params, inner.fast)

    def adapt(before: Params, slow: Params) -> tuple[Params, Read]:
        return inner_steps(network, before, frozen | slow, support, inner.rate)

    if not inner.second_order:
        fast, read = adapt(before, slow)
        found, rest = query(slow | fast)
        return found, fast, read, rest
    fast, back, read = jax.vjp(adapt, before, slow, has_aux=True)
    found, rest = query(slow | fast)
    at_fast, at_slow = split(found, inner.fast)
    through_fast, through_slow = back(at_fast)
    return jax.tree.map(jnp.add, at_slow, through_slow) | through_fast, fast, read, rest


def split(params: Params, names: tuple[str, ...]) -> tuple[Params, Params]:
    """The parts of parameters with these names, and the others."""
    return (
        {name: part for name, part in params.items() if name in names},
        {name: part for name, part in params.items() if name not in names},
    )
