"""Memories around blocks: extra tokens, and what happens before, within and after every block.

A memory stands around the consecutive blocks for which `config.model.around` names it, as one module for
all of them. It sees a segment before its first block, gives it extra tokens that pass through the blocks
like tokens, and writes what these have become. Its state is in the state of the first block.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from longmem_jax.contract import ModelSettings
from longmem_jax.segment import Aux, Packing, Segment, State, no_aux, pack, select_lanes

Opened = Any


class Around(nn.Module):
    """The interface of memories around blocks; each defines the methods that it needs.

    `opened` is a pytree with leaves [batch, ...]: what a segment reads of the memory and is going to
    write. It passes from block to block, and from token to token while a text is generated. A row
    without tokens keeps its state, whatever the methods return.

    Attributes:
      settings: of the model, for segments without extra tokens.
      normalize: norm of what the last block returns; the identity if the model has none.
      shared: what several such memories share, see `LayerType.shared`, or None.
      depth: number of blocks.
    """

    settings: ModelSettings
    normalize: Callable[[jax.Array], jax.Array]
    shared: Any
    depth: int

    def initial_state(self, batch_size: int) -> State:
        """The state before the first token: every leaf [batch, ...]; needs no parameters."""
        raise NotImplementedError

    def open_segment(self, state: State, batch_size: int, *, train: bool = False) -> Opened:
        """What the coming segment reads."""
        del batch_size, train
        return state

    def leading(self, opened: Opened) -> jax.Array | None:
        """Extra tokens before the segment, [batch, n, d_model]; None = none. See `LayerType.extra`."""
        return None

    def trailing(self, opened: Opened) -> jax.Array | None:
        """Extra tokens after the segment, which see it."""
        return None

    def before(
        self, block: int, x: jax.Array, opened: Opened, index: int | jax.Array
    ) -> tuple[jax.Array, Opened]:
        """Before a block reads `x`, extra tokens included.

        Args:
          block: its number, from 0.
          x: [batch, n, d_model], packed.
          opened: see above.
          index: position of the first of `x` in the segment, extra tokens counted; an int or int32
            [batch].

        Returns:
          What the block reads instead, and `opened`.
        """
        return x, opened

    def between(self, block: int, x: jax.Array, opened: Opened, *, train: bool) -> jax.Array:
        """What is added between attention and feed-forward layer, from `x` after the norm of a pre-norm
        model; only of memories with `LayerType.between`."""
        raise NotImplementedError

    def after(self, block: int, written: jax.Array, opened: Opened) -> Opened:
        """After a block, if there are trailing extra tokens: `written` [batch, n, d_model] is its output
        at these."""
        return opened

    def close_segment(self, state: State, opened: Opened, count: jax.Array) -> State:
        """The state after a segment of `count` (int32 [batch]) tokens."""
        raise NotImplementedError

    def report(self, opened: Opened) -> Aux:
        """Losses and metrics, after the last block."""
        return no_aux()


def surround(
    x: jax.Array, segment: Segment, leading: jax.Array | None, trailing: jax.Array | None
) -> tuple[jax.Array, Segment, Packing | None]:
    """Puts extra tokens around a segment.

    Args:
      x: [batch, length, d_model], packed: tokens first, padding after them.
      segment: its tokens.
      leading, trailing: [batch, n, d_model], None = none.

    Returns:
      x and segment with the extra tokens, padding last; and the packing whose `unpack` gives [leading,
      segment, trailing], None if they are in that order. In a row without tokens the extra tokens are
      padding too.
    """
    alive = segment.valid.any(axis=1)[:, None]
    parts = [(x, segment.tokens, segment.valid)]
    for vectors, at in ((leading, 0), (trailing, 1)):
        if vectors is not None:
            blank = jnp.zeros(vectors.shape[:2], segment.tokens.dtype)
            part = (vectors, blank, jnp.broadcast_to(alive, blank.shape))
            parts.insert(at * len(parts), part)
    x, tokens, valid = (jnp.concatenate(arrays, axis=1) for arrays in zip(*parts, strict=True))
    surrounded = segment.replace(tokens=tokens, valid=valid)
    if trailing is None:
        return x, surrounded, None
    surrounded, packing = pack(surrounded)
    return packing.pack(x), surrounded, packing


def with_carried(state: Any, carried: dict[str, Any]) -> Any:
    """A state, or cache, with what the attention layers of earlier blocks hand on, if it takes that."""
    if not hasattr(state.attention, 'carried'):
        return state
    return state.replace(attention=state.attention.replace(carried=carried))


def without_carried(state: Any, carried: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The state, or cache, without it, and what later blocks get."""
    carried = getattr(state.attention, 'carried', carried)
    return with_carried(state, {}), carried


@dataclasses.dataclass(frozen=True)
class Run:
    """Consecutive blocks, and the memory around them if there is one.

    Attributes:
      first: number of the first block in its model.
      blocks: modules with the interface of `models.block.Block`; the states and caches of the first have
        the memory's as `around`.
      around: the memory, or None.
      settings: of the blocks.
      drop: dropout of embeddings, for extra tokens as for tokens.
      remat: name of a policy of `jax.checkpoint_policies`: what a block keeps for the backward pass,
        which computes the rest again. '' = everything. Not with a memory that is read in between.
    """

    first: int
    blocks: tuple[Any, ...]
    around: Around | None
    settings: ModelSettings
    drop: Callable[..., jax.Array]
    remat: str = ''

    def initial_state(self, batch_size: int) -> tuple[Any, ...]:
        """States of the blocks at the start of a document."""
        states = tuple(block.initial_state(batch_size) for block in self.blocks)
        return self._with(states, self.around and self.around.initial_state(batch_size))

    def read(
        self,
        x: jax.Array,
        states: Sequence[Any],
        segment: Segment,
        sources: Sequence[Any],
        carried: dict[str, Any],
        *,
        train: bool,
    ) -> tuple[jax.Array, tuple[Any, ...], list[Aux], dict[str, Any]]:
        """Passes a packed segment, `x` [batch, length, d_model], through the blocks.

        `carried`: what attention layers hand on to those of later blocks; it is returned too.
        """
        around, longer, (batch, length) = self.around, segment, x.shape[:2]
        opened, extra, packing = None, self.settings.leading + self.settings.trailing, None
        if around is not None:
            opened = around.open_segment(states[0].around, batch, train=train)
        if around is not None and extra:
            leading, trailing = (
                vectors if vectors is None else self.drop(vectors, deterministic=not train)
                for vectors in (around.leading(opened), around.trailing(opened))
            )
            x, longer, packing = surround(x, segment, leading, trailing)
        new, auxes = [], []
        for i, (block, state, source) in enumerate(zip(self.blocks, states, sources, strict=True)):
            with jax.named_scope(f'block_{self.first + i}'):
                x, opened = self._before(i, x, opened, 0)
                given = with_carried(state, carried)
                between = None if self.remat else self._between(i, opened, train)

                def read(
                    block: Any, x: Any, state: Any, source: Any, between: Any = between
                ) -> Any:
                    return block(x, state, longer, train=train, source=source, between=between)

                if self.remat:
                    policy = getattr(jax.checkpoint_policies, self.remat)
                    read = nn.remat(read, policy=policy)
                x, state, aux = read(block, x, given, source)
                state, carried = without_carried(state, carried)
                if around is not None and packing is not None:
                    written = packing.unpack(x)[:, -self.settings.trailing :]
                    opened = around.after(i, written, opened)
            new.append(state)
            by_layer = {
                f'{name}/block_{self.first + i}': values for name, values in aux.per_head.items()
            }
            auxes.append(aux.replace(per_head=by_layer))
        if extra:
            first = self.settings.leading
            x = (packing.unpack(x) if packing else x)[:, first : first + length]
        if around is None:
            return x, tuple(new), auxes, carried
        auxes.append(around.report(opened))
        closed = self._closed(around, new, states, opened, segment.num_valid)
        return x, closed, auxes, carried

    def open_segment(self, states: Sequence[Any], batch_size: int) -> tuple[Any, ...]:
        """Caches of a segment, with the leading extra tokens in them."""
        caches = tuple(
            block.open_segment(state, batch_size)
            for block, state in zip(self.blocks, states, strict=True)
        )
        if self.around is None:
            return caches
        opened = self.around.open_segment(states[0].around, batch_size)
        caches = self._with(caches, opened)
        if (leading := self.around.leading(opened)) is not None:
            caches = self._extend_by(leading, caches, 0, False)
        return caches

    def extend(
        self,
        x: jax.Array,
        caches: Sequence[Any],
        index: int | jax.Array,
        count: jax.Array,
        sources: Sequence[Any],
        carried: dict[str, Any],
        *,
        writes: bool = False,
    ) -> tuple[jax.Array, tuple[Any, ...], dict[str, Any]]:
        """Reads the first `count` of `x`, from `index` on, extra tokens counted; see `MemoryLayer`.

        `writes`: they are the trailing extra tokens.
        """
        new, opened = [], None if self.around is None else caches[0].around
        for i, (block, cache, source) in enumerate(zip(self.blocks, caches, sources, strict=True)):
            x, opened = self._before(i, x, opened, index)
            between = self._between(i, opened, False)
            given = with_carried(cache, carried)
            x, cache = block.extend(x, given, index, count, source, between=between)
            cache, carried = without_carried(cache, carried)
            if writes and self.around is not None:
                opened = self.around.after(i, x, opened)
            new.append(cache)
        return x, self._with(new, opened), carried

    def close_segment(
        self, states: Sequence[Any], caches: Sequence[Any], count: jax.Array
    ) -> tuple[Any, ...]:
        """Writes the first `count` (int32 [batch]) tokens of the open segment, and the extra tokens.

        The trailing ones are read after these tokens.
        """
        end = count
        if self.settings.leading or self.settings.trailing:
            first = count + self.settings.leading
            end = first + self.settings.trailing
            around = self.around
            if around and (trailing := around.trailing(caches[0].around)) is not None:
                caches = tuple(
                    block.before_trailing(cache, end)
                    for block, cache in zip(self.blocks, caches, strict=True)
                )
                caches = self._extend_by(trailing, caches, first, True)
            end = jnp.where(count > 0, end, jnp.zeros_like(end))
        closed = tuple(
            block.close_segment(state, cache, end)
            for block, state, cache in zip(self.blocks, states, caches, strict=True)
        )
        if self.around is None:
            return closed
        return self._closed(self.around, closed, states, caches[0].around, count)

    def _extend_by(
        self, vectors: jax.Array, caches: Sequence[Any], index: int | jax.Array, writes: bool
    ) -> tuple[Any, ...]:
        """Caches with extra tokens, [batch, n, d_model], in them."""
        count = jnp.full(vectors.shape[:1], vectors.shape[1], jnp.int32)
        none = (None,) * len(self.blocks)
        return self.extend(vectors, caches, index, count, none, {}, writes=writes)[1]

    def _closed(
        self,
        around: Around,
        closed: Sequence[Any],
        states: Sequence[Any],
        opened: Opened,
        count: jax.Array,
    ) -> tuple[Any, ...]:
        """States of the blocks, with the memory's after the segment where there were tokens."""
        old = states[0].around
        new = around.close_segment(old, opened, count)
        return self._with(closed, select_lanes(count > 0, new, old))

    def _with(self, states: Sequence[Any], around: Any) -> tuple[Any, ...]:
        """`states` with that of the memory in the first."""
        first, *others = states
        return (first.replace(around=around), *others)

    def _before(
        self, block: int, x: jax.Array, opened: Opened, index: int | jax.Array
    ) -> tuple[jax.Array, Opened]:
        return (x, opened) if self.around is None else self.around.before(block, x, opened, index)

    def _between(
        self, block: int, opened: Opened, train: bool
    ) -> Callable[[jax.Array], jax.Array] | None:
        """`Around.between` as a function of the block's x."""
        around = self.around
        if around is None:
            return None
        return lambda x: around.between(block, x, opened, train=train)
