"""Small models and segments of equal shapes, so that tests share compiled programs."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from longmem_jax.config.base import base, stack
from longmem_jax.contract import Entry
from longmem_jax.memory.registry import AROUND, ATTENTION, FEED_FORWARD, LAYERS, used
from longmem_jax.models.kinds import make_model
from longmem_jax.models.parameters import initial_parameters, unbox
from longmem_jax.segment import Segment

BATCH, LENGTH, SEGMENTS, VOCAB = 2, 5, 4, 24


def own_code() -> dict[str, Entry]:
    """The entries with code of their own: one of a pair that differs in defaults is enough."""
    return {name: entry for name, entry in LAYERS.items() if not entry.same_as}


def every_layer() -> Iterator[str]:
    """Names for `toy`: layers, and 'NAME:VARIANT' for their further settings.

    Attention that is made for what stands around the blocks is tested with it.
    """
    inside = {entry.layer.inside[0] for entry in AROUND.values()} - {'local'}
    for name, entry in sorted(own_code().items()):
        if name not in inside:
            yield name
            yield from (f'{name}:{variant}' for variant in entry.variants)


def model_config(name: str, layers: int = 2, **changes: Any) -> Any:
    """`config.model` of a toy with layers of type `name`, where they stand in a block."""
    name, _, variant = name.partition(':')
    model = base().model
    model.vocab_size, model.d_model, model.d_embed = VOCAB, 16, 16
    model.num_heads, model.head_dim, model.d_feed_forward = 2, 8, 24
    attention = name if name in ATTENTION else LAYERS[name].layer.inside[0]
    feed_forward = name if name in FEED_FORWARD else 'dense'
    if name in AROUND:
        model.around = (name,) * layers
    stack(model, layers, attention, feed_forward)
    for layer in {attention, feed_forward, name}:
        entry = LAYERS[layer]
        # Attention that was made for what stands around has variants of the same names.
        model[layer] = entry.small(variant if layer == name or variant in entry.variants else '')
    model.init_std = 0.2
    for field, value in changes.items():
        model[field] = value
    return model


def names_of_losses(config: Any) -> list[str]:
    """Names of all auxiliary losses that a model of `config.model` declares."""
    declared = [LAYERS[layer].layer.losses(config[layer]) for layer in sorted(used(config))]
    return sorted({*sum(declared, ())})


def with_config(name: str, layers: int = 2, **changes: Any) -> Any:
    """The toy's model with other fields of `config.model`, for the same parameters."""
    return make_model(model_config(name, layers, **changes), LENGTH)


def drawn(make: Callable[[], Any]) -> Any:
    """What `make()` returns, array by array, so that models share programs for equal shapes.

    One program that draws all takes thrice as long to compile. Operations whose results `make` does
    not return are left out: `initial_parameters` also reads a segment.
    """
    made, shapes = jax.make_jaxpr(make, return_shape=True)()
    wanted, used = {id(variable) for variable in made.jaxpr.outvars}, []
    for operation in reversed(made.jaxpr.eqns):
        if wanted & {id(variable) for variable in operation.outvars}:
            used.append(operation)
            wanted |= {id(variable) for variable in operation.invars}
    arrays = jax.core.eval_jaxpr(made.jaxpr.replace(eqns=used[::-1]), made.consts)
    # Constants of the program are no arrays yet.
    return jax.tree.unflatten(jax.tree.structure(shapes), map(jnp.asarray, arrays))


def parameters(model: Any, seed: int = 0) -> Any:
    """Initial parameters."""
    return unbox(drawn(lambda: initial_parameters(model, jax.random.key(seed))))


@functools.cache
def toy(name: str, layers: int = 2) -> tuple[Any, Any]:
    """(model, parameters) of the toy; cached."""
    model = with_config(name, layers)
    return model, parameters(model, 1)


@functools.cache
def moved(name: str, layers: int = 1) -> tuple[Any, Any]:
    """`toy` with every parameter moved from its initial value, as training does.

    Many papers begin with zeros: such a map leaves a memory unwritten or unread.
    """
    model, params = toy(name, layers)
    bounded = {each for entry in LAYERS.values() for each in entry.layer.bounded}
    random = np.random.default_rng(layers)

    def move(path: Any, leaf: jax.Array) -> jax.Array:
        step = 0.1 * random.normal(size=leaf.shape)
        new = np.asarray(leaf) + step.astype(leaf.dtype)
        return jnp.asarray(np.clip(new, 0, 1) if path[-1].key in bounded else new)

    return model, jax.tree_util.tree_map_with_path(move, params)


def random_segments(segments: int = SEGMENTS, batch: int = BATCH) -> Segment:
    """Full segments of random tokens [segments, batch, LENGTH]; documents start in the first."""
    tokens = np.random.default_rng(0).integers(0, VOCAB, (segments, batch, LENGTH))
    start = np.zeros((segments, batch), bool)
    start[0] = True
    return Segment(jnp.asarray(tokens, jnp.int32), jnp.ones(tokens.shape, bool), jnp.asarray(start))
