"""One episode of an agent, with what its memory held in every step."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from longmem_jax.agents.acting import Rollout, act, first_lanes
from longmem_jax.agents.environments.drawing import Episode
from longmem_jax.agents.environments.interface import Environment
from longmem_jax.agents.model import Agent
from longmem_jax.memory.registry import LAYERS
from longmem_jax.models.inspect import capture

STATE = 'state'


@dataclasses.dataclass(frozen=True)
class Held:
    """What a memory held.

    Attributes:
      layers: index of a layer to float32 [steps, steps]: how much step i still has of step j, in [0, 1];
        only of layers that forget whole steps.
      per_head: name, such as 'gate/block_0', to float32 [heads], the mean over the episode.
    """

    layers: dict[int, np.ndarray]
    per_head: dict[str, np.ndarray]


def _recorded(environment: Environment) -> Environment:
    """The environment, which tells its state before a step as a measure."""

    def step(key: jax.Array, state: Any, action: jax.Array, params: Any = None) -> Any:
        *found, info = environment.step(key, state, action, params)
        return *found, info | {'measures': {STATE: state}}

    return dataclasses.replace(environment, step=step)


def play(
    model: Agent, params: Any, environment: Environment, key: jax.Array, *, greedy: bool
) -> tuple[Episode, Rollout]:
    """Acts until an episode ends.

    Returns:
      The episode without what was held, and all that was seen in its segments, whose last one may hold
      steps of the next episode; leaves [segments, 1, length, ...].
    """
    environment = _recorded(environment)
    lanes = first_lanes(model, params, environment, 1, jax.random.fold_in(key, 0))

    @jax.jit
    def further(lanes: Any, key: jax.Array) -> Any:
        return act(model, params, environment, lanes, key, segments=1, greedy=greedy)

    parts: list[Any] = []
    while not parts or not parts[-1].ended.any():
        lanes, rollout = further(lanes, jax.random.fold_in(key, len(parts) + 1))
        parts.append(jax.device_get(rollout))
    rollout = jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
    in_time = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[3:]), rollout)
    steps = int(np.argmax(in_time.ended)) + 1
    first = jax.tree.map(lambda leaf: leaf[:steps], in_time)
    episode = Episode(first.measures[STATE], first.observation, first.action, first.reward)
    return episode, rollout


def keepers(model: Agent) -> list[Callable[[Any, jax.Array, jax.Array], jax.Array] | None]:
    """`views.View.kept` of every layer; None where nothing can be said of single steps."""
    found = []
    for name in _called(model):
        entry, reach = LAYERS[name], None
        if entry.layer.reach is not None:
            reach = entry.layer.reach(model.config[name], model.segment_length)
        within = None if reach is None else functools.partial(_within, reach)
        found.append(entry.view.kept or within)
    return found


def _within(reach: int, layer: Any, x: jax.Array, age: jax.Array) -> jax.Array:
    """`views.View.kept` of a layer that holds its last `reach` steps."""
    del layer
    return jnp.broadcast_to(age <= reach, (x.shape[0], *age.shape)).astype(jnp.float32)


def attention_layers(model: Agent) -> tuple[type, ...]:
    """The classes of the attention layers, for `inspect.capture`."""
    return tuple({LAYERS[name].layer.module for name in _called(model)})


def _called(model: Agent) -> list[str]:
    """The attention layers of all blocks, in the order of their calls."""
    config = model.config
    beside = tuple(config.beside) or ('',) * len(config.attention)
    return [name for pair in zip(config.attention, beside, strict=True) for name in pair if name]


def held(model: Agent, params: Any, rollout: Rollout, steps: int) -> Held:
    """What the memory held in the first episode, of `steps`, of a rollout of one lane from `play`."""
    length, keeps = model.segment_length, keepers(model)

    @jax.jit
    def read(memory: Any, seen: Rollout, part: int) -> Any:
        x = model.apply(
            {'params': params}, seen.observation, seen.action_before, seen.reward_before,
            method='encode',
        )  # fmt: skip
        place = part * length + jnp.arange(length)
        age = jnp.arange(steps)[:, None] - place[None]
        layers = iter(keeps)

        def keep(layer: Any, x: jax.Array, *_: Any) -> Any:
            kept, first = next(layers), layer.settings.leading
            x = x[:, first : first + length]  # without extra tokens
            return None if kept is None else kept(layer, x, age)[0] * (age >= 0)

        with capture(attention_layers(model), keep) as kept:
            _, memory, aux = model.apply(
                {'params': params}, x, (place < steps)[None], jnp.zeros((1,), bool), memory,
                train=False,
            )  # fmt: skip
        return memory, list(kept), aux.per_head

    memory = model.apply({'params': params}, 1, method='initial_state')
    columns, per_head = [], []
    for part in range(-(-steps // length)):
        seen = jax.tree.map(lambda leaf, part=part: leaf[part], rollout.replace(measures={}))
        memory, kept, gates = jax.device_get(read(memory, seen, part))
        columns.append(kept)
        per_head.append(gates)
    layers = {
        layer: np.concatenate([kept[layer] for kept in columns], axis=1)[:, :steps]
        for layer in range(len(keeps))
        if keeps[layer] is not None
    }
    names = per_head[0]
    return Held(layers, {name: np.mean([part[name] for part in per_head], 0) for name in names})


def as_text(found: Held) -> str:
    """Steps that each layer held, and numbers by head, as lines."""
    lines = []
    for layer, kept in found.layers.items():
        before = np.tril(kept, -1)
        number = before.sum(axis=1)
        last = before[-1].nonzero()[0]
        of = ', '.join(map(str, last[:20])) + (' ...' if len(last) > 20 else '')
        lines.append(
            f'layer {layer}: holds {number.mean():.1f} of the steps before, at most {number.max():.1f}; '
            f'at the end steps {of or "none"}'
        )
    for name, values in found.per_head.items():
        lines.append(f'{name}: ' + ' '.join(f'{value:.3f}' for value in values))
    return '\n'.join(lines)
