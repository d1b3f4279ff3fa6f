"""The structure of a saved state, compared with the one that is asked for before anything is read."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from etils import epath

Shapes = dict[str, tuple[tuple[int, ...], str]]


def pad_empty(leaf: Any) -> Any:
    """Pads an empty array, which Orbax cannot store, to one element along its empty axes."""
    if leaf.size:
        return leaf
    shape = tuple(max(size, 1) for size in leaf.shape)
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(shape, leaf.dtype, sharding=leaf.sharding)
    return jnp.zeros(shape, leaf.dtype, device=leaf.sharding)


def unpad_empty(leaf: Any, abstract: Any) -> Any:
    """The array as it was before `pad_empty`."""
    if abstract.size:
        return leaf
    return jnp.zeros(abstract.shape, abstract.dtype, device=abstract.sharding)


def asked_for(abstract: Any) -> Shapes:
    """Shape and dtype of every leaf of an abstract state, by its path, as a checkpoint has them."""
    stored = jax.eval_shape(
        lambda tree: jax.tree.map(
            lambda leaf: (
                jax.random.key_data(leaf)
                if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
                else leaf
            ),
            tree,
        ),
        jax.tree.map(pad_empty, abstract),
    )
    return _by_path(stored)


def saved_in(checkpoint: Path) -> Shapes:
    """The same of the state in a checkpoint, from its metadata; any exception: it is damaged."""
    folder = checkpoint.resolve() / 'state'  # Orbax takes absolute paths only
    return _by_path(ocp.StandardCheckpointHandler().metadata(epath.Path(folder)).tree)


def _by_path(tree: Any) -> Shapes:
    # By simple names: a metadata tree has dictionaries and lists where a state has classes.
    return {
        jax.tree_util.keystr(path, simple=True, separator='/'): (
            tuple(leaf.shape),
            str(jnp.dtype(leaf.dtype)),
        )
        for path, leaf in jax.tree.leaves_with_path(tree)
    }


def differences(saved: Shapes, asked: Shapes, *, part: bool) -> list[str]:
    """A line for every leaf that differs; with `part` less may be asked for than there is."""
    names = sorted({*asked} if part else {*saved, *asked})
    return [
        f'{name}: {_words(saved.get(name))} in the checkpoint, {_words(asked.get(name))} asked for'
        for name in names
        if saved.get(name) != asked.get(name)
    ]


def _words(leaf: tuple[tuple[int, ...], str] | None) -> str:
    return 'nothing' if leaf is None else f'{leaf[1]} {list(leaf[0])}'
