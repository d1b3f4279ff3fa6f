"""What `--mode=inspect` shows of a memory: what it holds, what is read, what changes over time.

A memory with something to show fills the functions of a `View` in its own file; the page, see
`longmem_jax.microscope`, names no memory. They are pure functions of a bound layer and of arrays, called
in a program of their own: nothing of them is in training, evaluation or generation.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from longmem_jax.segment import Segment

NOWHERE = -(2**30)  # the place of a key that is no token of the text


class Held(flax.struct.PyTreeNode):
    """Entries of one kind that a memory holds at a segment border.

    Attributes:
      weights: float32 [batch, n], at least 0: how much of an entry is there; 1 = all, 0 = it is empty.
      ages: int32 [batch | 1, n], tokens since the newest token of an entry; 1 = the last token read. Any
        value where the weight is 0.
      tokens: number of tokens that an entry stands for.
    """

    weights: jax.Array
    ages: jax.Array
    tokens: int = flax.struct.field(pytree_node=False, default=1)


class Read(flax.struct.PyTreeNode):
    """What the tokens of a segment read in one place.

    Attributes:
      weights: float32 [batch, heads, length, keys]; the sum over keys is at most 1.
      places: int32, broadcastable to the weights: the newest token that a key stands for, counted from
        the first token of the segment (-1 = the token before it), or `NOWHERE`. Of `slots` their
        numbers, from 0.
      tokens: number of tokens that a key stands for.
      slots: keys are numbered slots, which stand for no tokens.
    """

    weights: jax.Array
    places: jax.Array
    tokens: int = flax.struct.field(pytree_node=False, default=1)
    slots: bool = flax.struct.field(pytree_node=False, default=False)


class Series(flax.struct.PyTreeNode):
    """Numbers worth a line over time, in addition to `Aux.metrics` and `Aux.per_head`.

    Attributes:
      by_token: name to float32 [batch, length, lines].
      by_segment: name to float32 [batch, lines].
    """

    by_token: dict[str, jax.Array] = flax.struct.field(default_factory=dict)
    by_segment: dict[str, jax.Array] = flax.struct.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Seen:
    """A layer, or a model, that has just read a segment.

    Attributes:
      layer: the bound module.
      x: its input, [batch, length, d_model]; None of a model.
      state: the memory that it read.
      new: the memory after the segment.
      segment: the packed segment.
      looks: what its softmax attentions looked at, by their paths in the layer; see
        `attention.attend.Look`.
    """

    layer: Any
    x: Any
    state: Any
    new: Any
    segment: Segment
    looks: Mapping[str, Any]

    def look(self, path: str | None = None) -> Any:
        """The look of the attention at this path, '' = the layer itself; None = the only one."""
        if path is not None:
            return self.looks[path]
        (look,) = self.looks.values()
        return look


@dataclasses.dataclass(frozen=True)
class View:
    """The functions of one memory, each of them optional.

    Attributes:
      held: `(layer, state) -> name to Held`; nothing is held at the start of a document.
      read: `(seen) -> name to Read`.
      series: `(seen) -> Series`.
      lengths: fields for the lengths of the memory, each with a word for tables of results.
      kept: `(layer, x, age) -> [batch, queries, n]` in [0, 1]: how much a query still has of each of n
        earlier tokens, from the layer's inputs x [batch, n, d_model] and the tokens since then, age
        [queries, n] (0 = the query itself); for pictures. None = all of those within
        `LayerType.reach`.
    """

    held: Callable[[Any, Any], dict[str, Held]] | None = None
    read: Callable[[Seen], dict[str, Read]] | None = None
    series: Callable[[Seen], Series] | None = None
    lengths: dict[str, str] = dataclasses.field(default_factory=dict)
    kept: Callable[[Any, jax.Array, jax.Array], jax.Array] | None = None


def held_window(
    count: jax.Array, capacity: int, newer: jax.Array | int = 0, sinks: int = 0
) -> Held:
    """The entries of a right-aligned window, see `attention.window.push`.

    `count`, int32 [batch], are filled, the last ones, or all if it is more than `capacity`. If the first
    `sinks` are kept, it counts all tokens of the document. `newer`, int or int32 [batch], is the number
    of tokens that are newer than all entries.
    """
    place, count = jnp.arange(capacity, dtype=jnp.int32)[None], count[:, None]
    ages = capacity - place
    filled = (ages <= count).astype(jnp.float32)
    ages = jnp.where((count > capacity) & (place < sinks), count - place, ages)
    return Held(filled, ages + jnp.reshape(jnp.asarray(newer, jnp.int32), (-1, 1)))


def read_window(
    look: Any, share: jax.Array | float = 1.0, ages: jax.Array | None = None
) -> dict[str, Read]:
    """Reads of an attention whose keys are the tokens before the segment, then those of the
    segment. `share` is its weight where a gate mixes it with something else, broadcastable to
    [batch, heads, 1, 1]. `ages` are those of the tokens before, int32 [batch, n]; None = n .. 1.
    """
    (*_, (_, length)) = look.parts
    before = look.weights.shape[-1] - length
    places = jnp.arange(before + length, dtype=jnp.int32)[None, None, None] - before
    if ages is not None:
        places = jnp.where(places < 0, jnp.pad(-ages, [(0, 0), (0, length)])[:, None, None], places)
    return {'attention': Read((look.weights * share).astype(jnp.float32), places)}


def norms(matrix: jax.Array) -> jax.Array:
    """Frobenius norms of [batch, heads, rows, columns]: float32 [batch, heads]."""
    return jnp.sqrt(jnp.square(matrix.astype(jnp.float32)).sum(axis=(2, 3)))


def changes_of_sums(old: Any, new: Any) -> Series:
    """Size and change of `M`, and the mass of `z`, of `layers.associative.Pairs`, by head."""
    return Series(
        by_segment={
            'size of M': norms(new.matrix),
            'change of M': norms(new.matrix - old.matrix),
            'mass of z': new.normalizer.astype(jnp.float32).sum(axis=2),
        }
    )
