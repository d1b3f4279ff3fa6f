"""The one attention of the library: heads first, whole segments, streams, and blocks of keys.

`Rules` (attention/rules.py) define which keys are seen and how they are scored.
"""

from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from longmem_jax.attention import fused_rules, weight_dropout
from longmem_jax.attention.online import Sums, no_sums
from longmem_jax.attention.rules import NEVER, Rules
from longmem_jax.attention.weight_dropout import WeightDropout
from longmem_jax.errors import UsageError
from longmem_jax.kernels.attention_products import mix, weights_of

INSPECTED = 'intermediates'  # the collection that holds a `Look` per attention while it is mutable


class Look(flax.struct.PyTreeNode):
    """What one attention of a layer looked at; see `models.inspect.looks`.

    Attributes:
      weights: [batch, heads, queries, keys], float32 at least, without dropout; 0 where masked.
      values: [batch, kv_heads, keys, head_dim]; None if every query has keys of its own (`entries`).
      out: [batch, heads, queries, head_dim], the values mixed by the weights.
      entries: int32 [batch, heads, queries, keys], the memory entry that is key j of each query; None
        if all queries have the same keys.
      parts: what the keys are, in order: names with the number of keys.
    """

    weights: jax.Array
    values: jax.Array | None
    out: jax.Array
    entries: jax.Array | None = None
    parts: tuple[tuple[str, int], ...] = flax.struct.field(pytree_node=False, default=())


def is_inspected(module: nn.Module) -> bool:
    """Whether looks are recorded: never in training, evaluation or `init`."""
    return module.is_mutable_collection(INSPECTED)


def record(module: nn.Module, look: Look | None) -> None:
    """Adds a look to those of `module`, if looks are recorded."""
    module.sow(INSPECTED, 'look', look)


def attend_in(
    module: nn.Module,
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    rules: Rules,
    *,
    train: bool,
    parts: tuple[tuple[str, int], ...],
    block_size: int = 0,
) -> jax.Array:
    """`attend` as the attention of a module: with its dropout, and open to inspection.

    Args:
      module: bound, with `settings`.
      queries, keys, values, rules, block_size: as in `attend`; with `kernels = 'fused'` in the settings,
        whole segments are attended to by the fused kernel, which always has blocks.
      train: turns dropout on.
      parts: see `Look`.
    """
    dropout = weight_dropout.draw(module, train)
    if module.settings.kernels == 'fused' and fused_rules.is_whole(rules):
        out = fused_rules.attend(queries, keys, values, rules, dropout)
    else:
        out = attend(queries, keys, values, rules, dropout, block_size)
    if is_inspected(module):
        scaled, prepared = rules.prepared(queries, keys.shape[2])
        weights, seen = _weights(scaled, keys, prepared)
        weights = jnp.where(seen, weights, jnp.zeros_like(weights))
        record(module, Look(weights, values, out, parts=parts))
    return out


def mix_in(
    module: nn.Module,
    scores: jax.Array,
    values: jax.Array,
    seen: jax.Array,
    *,
    train: bool,
    parts: tuple[tuple[str, int], ...],
) -> jax.Array:
    """Values mixed by the softmax of given scores: with the dropout of a module, open to inspection.

    Args:
      module: bound, with `settings`.
      scores: [batch, heads, queries, keys]; `seen`: bool, of the same shape or broadcast to it.
      values: [batch, heads, keys, head_dim].
      train: turns dropout on.
      parts: see `Look`.
    """
    dropout = weight_dropout.draw(module, train)
    if is_inspected(module):
        out = mix(scores, values, seen, None, None)
        record(module, Look(weights_of(scores, seen, None), values, out, parts=parts))
    return mix(scores, values, seen, None, None if dropout is None else dropout.factor(scores))


def attend(
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    rules: Rules,
    dropout: WeightDropout | None = None,
    block_size: int = 0,
) -> jax.Array:
    """Softmax attention; queries that see no key give zeros. Scores and weights are at least float32.

    Args:
      queries: [batch, heads, queries, head_dim].
      keys, values: [batch, kv_heads, keys, head_dim]; kv_heads divides heads, and query head h
        reads key head h // (heads / kv_heads), without a copy per query head.
      rules: which keys are seen, and how they are scored.
      dropout: dropout of the weights; None = none.
      block_size: keys per block of an online softmax (Milakov and Gimelshein, 2018), which never
        holds all scores at once, not even in the backward pass; 0 = all keys at once.

    Returns:
      [batch, heads, queries, head_dim] in the dtype of `values`.

    Raises:
      UsageError: the heads of the queries cannot share those of the keys.
    """
    heads, kv_heads, num_keys = queries.shape[1], keys.shape[1], keys.shape[2]
    if heads % kv_heads or values.shape[1] != kv_heads:
        raise UsageError(
            f'{heads} heads of queries, {kv_heads} of keys, {values.shape[1]} of values: keys and '
            f'values need the same number of heads, which divides that of the queries.'
        )
    if block_size and block_size < num_keys:
        return _attend_blocks(queries, keys, values, rules, dropout, block_size)
    scaled, rules = rules.prepared(queries, num_keys)
    scores, seen = rules.scores(scaled, keys, 0, num_keys)
    group = heads // kv_heads
    kept = None if dropout is None else _grouped(dropout.kept(scores.shape), group)
    out = mix(_grouped(scores, group), values, _grouped(seen, group), None, kept)
    if dropout is not None:
        out = out / (1.0 - dropout.rate)  # less to divide than the weights
    return out.reshape(*queries.shape[:3], values.shape[3])


def _grouped(array: jax.Array, group: int) -> jax.Array:
    """[batch, heads | 1, queries, keys] as [batch, kv_heads | 1, group * queries, keys]."""
    if group == 1:
        return array
    batch, heads, num_queries, num_keys = array.shape
    shape = (batch, max(heads // group, 1), group, num_queries, num_keys)
    array = jnp.broadcast_to(array.reshape(*shape[:2], -1, *shape[3:]), shape)
    return array.reshape(*shape[:2], group * num_queries, num_keys)


def _weights(scaled: jax.Array, keys: jax.Array, rules: Rules) -> tuple[jax.Array, jax.Array]:
    """Softmax over all keys, and which are seen; `scaled` queries and `rules` are prepared."""
    scores, seen = rules.scores(scaled, keys, 0, keys.shape[2])
    scores = jnp.where(seen, scores, jnp.asarray(NEVER, scores.dtype))
    return jax.nn.softmax(scores, axis=-1), seen


def _blocks(array: jax.Array, axis: int, block_size: int) -> jax.Array:
    """Pads `array` at the end and cuts it into blocks along `axis`; blocks become the first axis."""
    padding = -array.shape[axis] % block_size
    array = jnp.pad(array, [(0, padding if i == axis else 0) for i in range(array.ndim)])
    shape = (*array.shape[:axis], -1, block_size, *array.shape[axis + 1 :])
    return jnp.moveaxis(array.reshape(shape), axis, 0)


def _attend_blocks(
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    rules: Rules,
    dropout: WeightDropout | None,
    block_size: int,
) -> jax.Array:
    """`attend` block by block."""
    num_keys = keys.shape[2]
    queries, rules = rules.prepared(queries, num_keys, block_size)
    column_blocks = {}
    for name in ('mask', 'bias'):
        array = getattr(rules, name)
        if array is not None:
            array = jnp.broadcast_to(array, (*array.shape[:3], num_keys))
            column_blocks[name] = _blocks(array, 3, block_size)

    def add(sums: Sums, inputs: Any) -> tuple[Sums, None]:
        index, keys, values, columns = inputs
        block_rules = rules.replace(**columns)
        scores, seen = block_rules.scores(queries, keys, index * block_size, num_keys)
        kept = None if dropout is None else dropout.in_block(index)
        return sums.add(scores, seen, values, kept), None

    key_blocks, value_blocks = (_blocks(array, 2, block_size) for array in (keys, values))
    indices = jnp.arange(key_blocks.shape[0], dtype=jnp.int32)
    sums, _ = jax.lax.scan(
        jax.checkpoint(add, prevent_cse=False),
        no_sums(queries, values.shape[3]),
        (indices, key_blocks, value_blocks, column_blocks),
    )
    return sums.result(values.dtype)
