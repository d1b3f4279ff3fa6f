"""The attention of one layer: our plain and fused one, and cuDNN with a mask where it has the rule."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.gpu import turns
from experiments.gpu.job import Place
from experiments.speed.bench import measure
from longmem_jax.attention import attend as plain
from longmem_jax.attention import fused_rules
from longmem_jax.attention.rules import RelativeTable, Rules

LANES = {512: 8, 2048: 2}  # by queries; twice as many keys are from before
HEADS, WIDTH = 16, 64
RULES = ('content', 'relative')  # by products of keys; with Transformer-XL's table as well


def cells(tiny: bool) -> list[str]:
    """Queries and rule."""
    found = [f'{queries}/{rule}' for queries in LANES for rule in RULES]
    return found[:2] if tiny else found


def attention(place: Place, cell: str, folder: Path) -> dict[str, Any]:
    """Milliseconds forwards, and with all derivatives; how far both are from float32."""
    length, rule = int(cell.split('/')[0]), cell.split('/')[1]
    lanes, heads, width = (1, 2, 16) if place.tiny else (LANES[length], HEADS, WIDTH)
    length = 16 if place.tiny else length
    memory, keys = 2 * length, iter(jax.random.split(jax.random.key(0), 6))

    def normal(*shape: int, scale: float = 1.0) -> jax.Array:
        return (scale * jax.random.normal(next(keys), shape)).astype(jnp.bfloat16)

    short = width**-0.5
    arrays = [normal(lanes, heads, length, width, scale=short)]
    arrays += [normal(lanes, heads, length + memory, width) for _ in range(2)]
    if rule == 'relative':
        arrays.append(normal(lanes, heads, length, width, scale=short))
        arrays.append(normal(heads, length + memory, width))

    def by(attend: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
        def function(queries: Any, keys: Any, values: Any, *table: Any) -> jax.Array:
            relative = RelativeTable(*table) if table else None
            rules = Rules(offset=memory, window=memory + 1, relative=relative)
            return attend(queries, keys, values, rules)

        return function

    kinds = {'plain': by(plain.attend)}
    if jax.default_backend() == 'gpu':
        kinds['fused'] = by(fused_rules.attend)
        kinds |= {'cudnn': _cudnn(length, memory)} if rule == 'content' else {}
    weights = normal(*arrays[0].shape).astype(jnp.float32)
    exact = [array.astype(jnp.float32) for array in arrays]
    with jax.default_matmul_precision('highest'):
        wanted = jax.jit(_with_slopes(kinds['plain'], weights))(*exact)
    found: dict[str, Any] = {}
    for kind, function in kinds.items():
        with turns.shared(place):
            forward = jax.jit(function).lower(*arrays).compile()
            both = jax.jit(_with_slopes(function, weights)).lower(*arrays).compile()
            errors = [_distance(*pair) for pair in zip(both(*arrays), wanted, strict=True)]
        found[kind] = {'error': max(errors)}
        with turns.alone(place) as free:
            for way, program in (('forward', forward), ('both', both)):
                times = measure(
                    lambda program=program: program(*arrays),
                    2 if place.tiny else 20,
                    lanes * length,
                )
                found[kind][way] = times['ms_median']
        found[kind]['alone'] = free
        print(kind, found[kind], flush=True)
    return found


def _with_slopes(function: Callable[..., jax.Array], weights: jax.Array) -> Callable[..., Any]:
    """The attention, and the derivatives of a weighted sum of it by all arrays."""

    def value(arrays: Any) -> Any:
        out = function(*arrays)
        return (out.astype(jnp.float32) * weights).sum(), out

    def call(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        (_, out), slopes = jax.value_and_grad(value, has_aux=True)(arrays)
        return out, *slopes

    return call


def _distance(found: jax.Array, wanted: jax.Array) -> float:
    """Length of the difference, relative to that of what is right."""
    ours, right = (np.asarray(array, np.float64) for array in (found, wanted))
    return float(np.linalg.norm(ours - right) / np.linalg.norm(right))


def _cudnn(length: int, memory: int) -> Callable[..., jax.Array]:
    """The same by cuDNN, through JAX."""
    distance = jnp.arange(length)[:, None] + memory - jnp.arange(length + memory)
    mask = ((distance >= 0) & (distance <= memory))[None, None]

    def function(*arrays: jax.Array) -> jax.Array:
        queries, keys, values = (jnp.swapaxes(array, 1, 2) for array in arrays)
        out = jax.nn.dot_product_attention(
            queries, keys, values, mask=mask, scale=1.0, implementation='cudnn'
        )
        return jnp.swapaxes(out, 1, 2)

    return function
