"""Rows in chunks: what does not fit on the devices at once is done in equal parts, one by one."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from longmem_jax.segment import Tree


def split(tree: Tree, size: int) -> Tree:
    """Leaves [n, ...] as [chunks, size, ...]; the last chunk is filled with copies of the first row.

    `size` is at least 1; n is at least 1.
    """
    number = jax.tree.leaves(tree)[0].shape[0]
    chunks = -(-number // size)

    def cut(leaf: jax.Array) -> jax.Array:
        filling = jnp.broadcast_to(leaf[:1], (chunks * size - number, *leaf.shape[1:]))
        return jnp.concatenate([leaf, filling]).reshape(chunks, size, *leaf.shape[1:])

    return jax.tree.map(cut, tree)


def unsplit(tree: Tree, number: int) -> Tree:
    """Leaves [chunks, size, ...] as [number, ...]: undoes `split`."""
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:number], tree)


def in_chunks(function: Callable[..., Any], size: int, *arrays: Any) -> Any:
    """`function(*arrays)`, pytrees with leaves [n, ...], of `size` rows at a time, one chunk at a
    time. Every row of what `function` returns must depend on that row alone.
    """
    number = jax.tree.leaves(arrays)[0].shape[0]
    if number <= size:
        return function(*arrays)
    parts = jax.lax.map(lambda chunk: function(*chunk), split(arrays, size))
    return unsplit(parts, number)
