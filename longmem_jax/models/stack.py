"""What every kind of model has: embedding, blocks and final norm, made from `config.model`.

A `Stack` is not a linen module, so its parts are at the top level of the owner's parameters:
`embedding`, `block_0`, ..., `final_norm`, `around_0` for what stands around blocks from 0 on,
and `shared_NAME` for what layers share.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from longmem_jax.around import Run
from longmem_jax.contract import ModelSettings, identity
from longmem_jax.layers.dropout import Dropout
from longmem_jax.layers.embedding import Embedding
from longmem_jax.layers.norms import Norm
from longmem_jax.layers.scores import Scores
from longmem_jax.memory.registry import LAYERS, used
from longmem_jax.models.block import Block, BlockState
from longmem_jax.segment import Aux, Segment, merge_aux


@dataclasses.dataclass(frozen=True)
class Stack:
    """Submodules of a model, made in its `setup` by `make_stack`.

    Attributes:
      embedding: embedding and softmax.
      runs: the blocks, first to last, and the memories around them.
      final_norm: norm after the last block, or None.
      drop: dropout of embeddings and of the last block's output.
    """

    embedding: Embedding
    runs: tuple[Run, ...]
    final_norm: Norm | None
    drop: Dropout

    @property
    def blocks(self) -> tuple[Block, ...]:
        """All blocks, first to last."""
        return tuple(block for run in self.runs for block in run.blocks)

    def _parts(self, *stacks: Sequence[Any] | None) -> Iterator[tuple[Any, ...]]:
        """Every run with its part of sequences that have an entry per block; of None, as many None."""
        for run in self.runs:
            size = len(run.blocks)
            parts = (
                (None,) * size if stack is None else stack[run.first : run.first + size]
                for stack in stacks
            )
            yield run, *parts

    def embed(self, tokens: jax.Array, *, train: bool, first: jax.Array | None = None) -> jax.Array:
        """Embeddings of a segment's tokens, with dropout.

        Args:
          tokens: int32 [batch, n].
          train: dropout on or off.
          first: int32 [batch], absolute position of the first token; None = 0.

        Returns:
          [batch, n, d_model].
        """
        first = jnp.zeros((tokens.shape[0],), jnp.int32) if first is None else first
        x = self.embedding.encode(tokens, first)
        return self.drop(x, deterministic=not train)

    def initial_state(self, batch_size: int) -> tuple[BlockState, ...]:
        """Memories at the start of a document, one entry per block."""
        return tuple(state for run in self.runs for state in run.initial_state(batch_size))

    def read(
        self,
        x: jax.Array,
        states: Sequence[BlockState],
        segment: Segment,
        *,
        train: bool,
        sources: Sequence[Any] | None = None,
    ) -> tuple[jax.Array, tuple[BlockState, ...], Aux]:
        """Passes a segment through the blocks and the final norm.

        Args:
          x: [batch, length, d_model].
          states: memories before the segment, one entry per block.
          segment: the packed segment that `x` was made from.
          train: dropout and training-only behaviour of memories on or off.
          sources: what every block's cross-attention reads; None for blocks without it.

        Returns:
          [batch, length, d_model], the memories after the segment, and `Aux`.
        """
        new: list[BlockState] = []
        auxes: list[Aux] = []
        carried: dict[str, Any] = {}
        for run, before, source in self._parts(states, sources):
            x, after, found, carried = run.read(x, before, segment, source, carried, train=train)
            new += after
            auxes += found
        return self._finish(x), tuple(new), merge_aux(auxes)

    def _finish(self, x: jax.Array) -> jax.Array:
        """Applies the final norm, if there is one."""
        return x if self.final_norm is None else self.final_norm(x)

    def logits(self, hidden: jax.Array, count: jax.Array | None) -> jax.Array:
        """Logits of the tokens that follow: of all, or of the last token alone.

        Args:
          hidden: [batch, n, d_model], after the final norm.
          count: int32 [batch]; None = all are tokens, and the logits of all are wanted.

        Returns:
          [batch, n, vocab_size]; with `count` [batch, 1, vocab_size], those after the first `count`.
        """
        if count is not None:
            last = jnp.maximum(count - 1, 0)[:, None, None]
            hidden = jnp.take_along_axis(hidden, last, axis=1)
        return self.embedding.logits(hidden)

    def nll(self, hidden: jax.Array, targets: jax.Array, valid: jax.Array) -> Scores:
        """Scores of the targets, int32 [batch, n], at valid positions, bool [batch, n], zeros
        elsewhere. `hidden` is [batch, n, d_model], after the final norm.
        """
        return self.embedding.nll(hidden, targets).where(valid)

    def open_segment(self, states: Sequence[BlockState], batch_size: int) -> tuple[BlockState, ...]:
        """Caches of a segment that begins with the memories `states`."""
        return tuple(
            cache
            for run, before in self._parts(states)
            for cache in run.open_segment(before, batch_size)
        )

    def extend(
        self,
        x: jax.Array,
        caches: Sequence[BlockState],
        index: int | jax.Array,
        sources: Sequence[Any] | None = None,
        *,
        count: jax.Array | None = None,
    ) -> tuple[jax.Array, tuple[BlockState, ...]]:
        """Passes the next positions of the open segment through the blocks.

        Args:
          x: [batch, n, d_model].
          caches: of the open segment, one entry per block.
          index: position of the first vector of `x` in the segment, an int or int32 [batch].
          sources: as in `read`.
          count: int32 [batch], vectors of `x` that are no padding, the first ones; None = all.

        Returns:
          [batch, n, d_model] after the final norm, and the caches with these positions in them.
        """
        if count is None:
            count = jnp.full(x.shape[:1], x.shape[1], jnp.int32)
        new: list[Any] = []
        carried: dict[str, Any] = {}
        for run, before, source in self._parts(caches, sources):
            first = index + run.settings.leading
            x, after, carried = run.extend(x, before, first, count, source, carried)
            new += after
        return self._finish(x), tuple(new)

    def close_segment(
        self, states: Sequence[BlockState], caches: Sequence[BlockState], count: jax.Array
    ) -> tuple[BlockState, ...]:
        """Writes the first `count` (int32 [batch]) positions of the open segment to the memories."""
        return tuple(
            state
            for run, before, opened in self._parts(states, caches)
            for state in run.close_segment(before, opened, count)
        )


# Values of `config.model.remat`: everything is kept; all products; those of kernels alone; nothing.
REMAT = ('', 'dots_saveable', 'dots_with_no_batch_dims_saveable', 'nothing_saveable')


def with_key(model: nn.Module, segment: Segment, train: bool) -> Segment:
    """The segment with a random key for draws that all layers share, in training."""
    draws = train and model.has_rng('memory')
    return segment.replace(key=model.make_rng('memory') if draws else None)


def rate(config: Any, name: str) -> float:
    """The dropout rate `config[name]`, or the general `config.dropout` where that is -1."""
    return config.dropout if config[name] < 0 else config[name]


def init_std(config: Any) -> float:
    """Standard deviation of kernels at the start: `config.init_std`; where that is 0, d_model**-0.5."""
    return config.init_std or config.d_model**-0.5


def token_std(config: Any) -> float:
    """Root mean square of the token vectors that enter the blocks, at the start."""
    scale = config.d_model**0.5 if config.scale_embedding else 1.0
    return (config.embedding_std or init_std(config)) * scale


def is_plain(config: Any) -> bool:
    """Whether the only memory of a `config.model` is the key-value cache of a pretrained decoder."""
    entries = [LAYERS.get(name) for name in used(config) if name not in config.feed_forward]
    return config.kind == 'language_model' and all(
        entry is not None and entry.layer.context is not None for entry in entries
    )


def has_table(config: Any) -> bool:
    """Whether absolute positions continue through a document, up to the end of their table."""
    return bool(config.num_positions) and not config.positions_restart


def takes_starts(config: Any) -> bool:
    """Whether a `config.model` reads documents that start at any position of a segment as they are.

    All its layers do, and there are no absolute positions, which begin with a segment.
    """
    return config.position == 'none' and not without_starts(config)


def without_starts(config: Any) -> list[str]:
    """Layers of a `config.model` for which documents can only start with a segment."""
    modules = {name: LAYERS[name].layer.module for name in used(config)}
    return [name for name, module in modules.items() if not getattr(module, 'takes_starts', False)]


def context_of(config: Any) -> int:
    """Tokens of the longest text that a plain decoder was made for; 0 = there is no longest."""
    if not is_plain(config):
        return 0
    contexts = ((LAYERS[name].layer.context, config[name]) for name in config.attention)
    longest = max(context(fields) if context else 0 for context, fields in contexts)
    positions = config.num_positions if has_table(config) else 0
    return min(longest, positions) if longest and positions else longest or positions


def make_settings(config: Any, segment_length: int) -> ModelSettings:
    """Model settings shared by all layers."""
    own = {field.name for field in dataclasses.fields(ModelSettings)} & {*config}
    found = dict(
        segment_length=segment_length,
        init_std=init_std(config),
        dtype=jnp.dtype(config.dtype),
        rotary_bands=tuple(config.rotary_bands),
        rotary_factors=tuple(config.rotary_factors),
        cache_dtype=jnp.dtype(config.cache_dtype) if config.cache_dtype else None,
        residual_dropout=rate(config, 'residual_dropout'),
        token_std=token_std(config),
    )
    return ModelSettings(**{name: config[name] for name in own} | found)


def make_stack(config: Any, num_tokens: int, *, cross: Any = None) -> Stack:
    """Makes the stack of a model, within its `setup`.

    Args:
      num_tokens: most tokens of a segment; also the number of absolute positions, unless
        `config.num_positions` sets it.
      cross: class of cross-attention for a decoder's blocks, with its own fields filled in.
    """
    final_norm = (
        Norm(config.norm, config.norm_epsilon, name='final_norm') if config.final_norm else None
    )
    drop = Dropout(rate(config, 'embedding_dropout'), name='drop')
    return Stack(
        embedding=make_embedding(config, config.num_positions or num_tokens),
        runs=_runs(config, make_settings(config, num_tokens), cross, final_norm or identity, drop),
        final_norm=final_norm,
        drop=drop,
    )


def make_embedding(config: Any, num_positions: int, softmax: bool = True) -> Embedding:
    """The embedding of a model, with a table of `num_positions` absolute positions if it has any.

    `softmax`: whether the model uses it for logits, too.
    """
    return Embedding(
        vocab_size=config.vocab_size,
        d_model=config.d_model,
        d_embed=config.d_embed,
        cutoffs=tuple(config.cutoffs),
        div_val=config.div_val,
        tie_weights=config.tie_weights,
        tie_projections=tuple(config.tie_projections),
        output_bias=config.output_bias,
        scale=config.scale_embedding,
        position=config.position,
        num_positions=num_positions,
        std=config.embedding_std or init_std(config),
        scheme=config.init,
        init_std=init_std(config),
        dtype=jnp.dtype(config.dtype),
        softmax=softmax,
        blocks=config.loss_blocks,
        name='embedding',
    )


def around_of(config: Any) -> list[tuple[str, range]]:
    """What stands around the blocks of a `config.model`, '' = nothing, and around which of them."""
    names = tuple(config.around) or ('',) * len(config.attention)
    runs = []
    for name, members in itertools.groupby(range(len(names)), names.__getitem__):
        numbers = list(members)
        runs.append((name, range(numbers[0], numbers[-1] + 1)))
    return runs


def extra_of(config: Any, name: str) -> tuple[int, int]:
    """The numbers of leading and of trailing extra tokens of what stands around blocks."""
    return LAYERS[name].layer.extra(config[name]) if name else (0, 0)


def longest_of(config: Any, length: int) -> int:
    """Positions of a segment of `length` tokens, with most extra tokens, in any block."""
    return length + max(sum(extra_of(config, name)) for name, _ in around_of(config))


def _runs(
    config: Any, settings: ModelSettings, cross: Any, final_norm: Any, drop: Any
) -> tuple[Run, ...]:
    """The blocks and what stands around them, with what layers of a type share."""
    fields = {name: dict(config[name]) for name in used(config)}
    longest = longest_of(config, settings.segment_length)
    shared = {}
    for name in sorted(fields):
        shared_of = LAYERS[name].layer.shared
        make_shared = shared_of and shared_of(fields[name])
        widest = dataclasses.replace(settings, segment_length=longest)
        shared[name] = make_shared(widest, name=f'shared_{name}') if make_shared else None
    runs = []
    for name, numbers in around_of(config):
        leading, trailing = extra_of(config, name)
        within = dataclasses.replace(
            settings,
            segment_length=settings.segment_length + leading + trailing,
            leading=leading,
            trailing=trailing,
        )
        around = name and LAYERS[name].layer.module(
            settings=settings,
            normalize=final_norm,
            shared=shared[name],
            depth=len(numbers),
            name=f'around_{numbers[0]}',
            **fields[name],
        )
        blocks = tuple(_block(config, i, within, fields, shared, cross, name) for i in numbers)
        runs.append(Run(numbers[0], blocks, around or None, within, drop, config.remat))
    return tuple(runs)


def rotated(config: Any, settings: ModelSettings, number: int) -> ModelSettings:
    """The settings of a layer, which may rotate by a base of its own, or not at all."""
    base = config.rotary_bases[number] if config.rotary_bases else -1
    if base < 0:
        return settings
    own: dict[str, Any] = dict(rotary_base=base) if base else dict(rotary_share=0.0)
    return dataclasses.replace(settings, rotary_scaling='none', rotary_gain=1.0, **own)


def _block(
    config: Any,
    number: int,
    settings: ModelSettings,
    fields: dict[str, Any],
    shared: dict[str, Any],
    cross: Any,
    around: str,
) -> Block:
    """One block."""
    parts = {
        place: (stack[number], fields[stack[number]], shared[stack[number]])
        for place in ('attention', 'feed_forward', 'beside')
        if (stack := config[place]) and stack[number]
    }
    return Block(
        settings=rotated(config, settings, number),
        parallel=config.parallel_residual,
        layer_drop=config.layer_drop,
        token_shift=config.token_shift,
        parts=parts,
        cross=cross,
        between=bool(around) and LAYERS[around].layer.between,
        output_norm=bool(config.output_norm) and config.output_norm[number],
        both_norms=config.both_norms,
        name=f'block_{number}',
    )
