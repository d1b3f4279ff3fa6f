"""How many earlier steps the memory of an agent holds, counted in the same way for all memories.

At every step of an episode: the earlier steps of this episode that a query still sees, at the border of
a segment or not. For a fixed span these are the last ones, as many as it is long; for learned spans
those whose mask (Eq. 5 of Expire-Span) is above 0, ramp included, which is |C_t| of Eq. 6. The number is
a mean over all steps of the first episodes of many lanes, and over layers.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from longmem_jax.agents.acting import act, first_lanes
from longmem_jax.agents.environments.interface import Environment
from longmem_jax.agents.model import Agent
from longmem_jax.agents.playing import attention_layers, keepers
from longmem_jax.models.inspect import capture

LANES = 64


@dataclasses.dataclass(frozen=True)
class Kept:
    """Steps that are held.

    Attributes:
      mean: over the steps of all episodes.
      last: at the last step of an episode.
      before: steps of the episode before a step, the mean over steps: what a memory of everything holds.
      layers: `mean` of every layer.
    """

    mean: float
    last: float
    before: float
    layers: list[float]


def program(model: Agent, environment: Environment) -> Callable[[Any, jax.Array], Kept | None]:
    """A function of parameters and a random key that measures an agent; None if layers do not tell."""
    length, keeps = model.segment_length, keepers(model)
    if None in keeps:
        return lambda params, key: None
    segments = math.ceil(environment.longest / length)

    @jax.jit
    def measure(params: Any, key: jax.Array) -> tuple[jax.Array, ...]:
        lanes = first_lanes(model, params, environment, LANES, jax.random.fold_in(key, 0))
        memory = lanes.memory
        _, seen = act(
            model, params, environment, lanes, jax.random.fold_in(key, 1), segments=segments
        )
        ended = seen.ended.swapaxes(0, 1).reshape(LANES, -1)
        steps = ended.argmax(axis=1) + 1  # every episode ends in time
        queries = jnp.arange(segments * length)

        def one(memory: Any, inputs: Any) -> tuple[Any, jax.Array]:
            rollout, part = inputs
            x = model.apply(
                {'params': params}, rollout.observation, rollout.action_before, rollout.reward_before,
                method='encode',
            )  # fmt: skip
            place = part * length + jnp.arange(length)
            age = queries[:, None] - place[None]
            inside = (place < steps[:, None])[:, None] & (age >= 1)

            layers = iter(keeps)

            def count(layer: Any, x: jax.Array, *_: Any) -> jax.Array:
                return ((next(layers)(layer, x, age) > 0) & inside).sum(axis=-1)

            valid = place[None] < steps[:, None]
            with capture(attention_layers(model), count) as counts:
                _, memory, _ = model.apply(
                    {'params': params}, x, valid, jnp.zeros((LANES,), bool), memory, train=False
                )
                return memory, jnp.stack(counts).astype(jnp.float32)

        parts = (seen.replace(measures={}), jnp.arange(segments))
        _, counts = jax.lax.scan(one, memory, parts)
        counts = counts.sum(axis=0)  # over the segments that steps were written in
        inside = queries < steps[:, None]
        by_layer = jnp.where(inside, counts, 0).sum(axis=(1, 2)) / inside.sum()
        last = jnp.take_along_axis(counts.mean(axis=0), steps[:, None] - 1, axis=1).mean()
        before = jnp.where(inside, queries, 0).sum() / inside.sum()
        return by_layer, last, before

    def kept(params: Any, key: jax.Array) -> Kept:
        by_layer, last, before = jax.device_get(measure(params, key))
        return Kept(float(by_layer.mean()), float(last), float(before), by_layer.tolist())

    return kept
