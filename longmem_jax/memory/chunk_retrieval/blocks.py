"""Attention to a few blocks of a long past: MoBA, Landmark attention.

Lu et al. (2025), Mohtashami and Jaggi (2023). A text is cut into blocks from the start of the document.
A token attends to its own block, up to itself, and to the few earlier blocks whose gates are highest:

    gate(i, b)  = q_i . mean of the keys of block b
    chosen(i)   = the own block of i, and the top_k - 1 earlier blocks with the highest gates
    y_i         = sum over the tokens j of chosen(i) of softmax_j(q_i . k_j / sqrt(d)) v_j

With `landmarks` the last token l(b) of a block stands for it. Its score is the gate, and its weight is
shared by the other tokens of the block (grouped softmax); its own value is not read:

    gate(i, b)  = q_i . k_l(b)
    weight(i, j) = softmax over own tokens and landmarks, at l(b) * softmax over the tokens of b, at j

A pretrained decoder needs its first tokens and the last ones, which means of keys miss. So `sinks` and
`near` count the first block and those right before the own block among the top_k without a choice, as
InfLLM does (Xiao et al., 2024). And a mean of keys hides the one key that it looks for. So `gate` can be

    gate(i, b)  = largest q_i . k_j of the tokens j of block b

which Quest bounds from above (Tang et al., 2024).

And it cannot use distances that it was not trained on; `far` has positions that end before them.

No gradient flows through the choice. All else is in the softmax, so that gradients also flow to the
keys and values of earlier segments of a training step.
"""

from typing import NamedTuple

import flax.struct
import jax
import jax.numpy as jnp

from longmem_jax.attention.rules import NEVER, Rules
from longmem_jax.attention.self_attention import KeyValues
from longmem_jax.kernels.attention_products import dot


class BlocksState(flax.struct.PyTreeNode):
    """The last whole blocks of one layer, and the block that is not full yet.

    Attributes:
      keys, values: [batch, kv_heads, memory_length, head_dim], in the compute dtype. Blocks begin at
        multiples of `block_length`, the oldest first; keys have no position yet. Zeros behind `count`.
      count: int32 [batch], tokens that are held, the first ones.
    """

    keys: jax.Array
    values: jax.Array
    count: jax.Array


class Choice(NamedTuple):
    """How blocks are chosen; `held` is how many can be read, the others are fields of the layer."""

    block_length: int
    top_k: int
    landmarks: bool
    gate: str
    sinks: bool
    near: int
    held: int


def seen(
    choice: Choice,
    queries: jax.Array,
    keys: jax.Array,
    rules: Rules,
    scores: jax.Array | None = None,
) -> Rules:
    """The rules for all tokens, with the choice of blocks; keys [batch, kv_heads, n, head_dim].

    `scores`, [batch, heads, queries, n], are those of the keys if they are known.
    """
    size, num_keys = choice.block_length, keys.shape[2]
    if scores is None and (choice.landmarks or choice.gate == 'largest'):
        scaled, prepared = rules.prepared(queries, num_keys)
        scores, _ = prepared.scores(scaled, keys, 0, num_keys)
    if scores is None:
        grouped = queries.reshape(queries.shape[0], keys.shape[1], -1, queries.shape[3])
        means = block_means(jax.lax.stop_gradient(keys), size)
        gates = dot(jax.lax.stop_gradient(grouped).astype(means.dtype), means)
        gates = gates.reshape(*queries.shape[:3], -1)
    else:
        gates = gates_of(choice, scores)
    at = rules.positions(queries.shape[2])[:, None, :, None]
    chosen = choose(gates, at // size, choice.top_k, choice.held, choice.sinks, choice.near)
    slot = jnp.arange(num_keys, dtype=jnp.int32)[None, None, None]
    mask, bias = of_slots(choice, at, slot, chosen, scores)
    return rules.replace(mask=mask, bias=bias)


def gates_of(choice: Choice, scores: jax.Array) -> jax.Array:
    """Gates of blocks by the scores of their tokens, [..., blocks * size] to [..., blocks]."""
    of_blocks = scores.reshape(*scores.shape[:-1], -1, choice.block_length)
    if choice.landmarks:
        return of_blocks[..., -1]
    return of_blocks.max(axis=-1) if choice.gate == 'largest' else of_blocks.mean(axis=-1)


def of_slots(
    choice: Choice, at: jax.Array, slot: jax.Array, chosen: jax.Array, scores: jax.Array | None
) -> tuple[jax.Array, jax.Array | None]:
    """Which tokens of whole blocks are read, if they are not behind the query, and what landmarks add.

    Args:
      at: int32 [batch, 1, queries, 1], slots of the queries.
      slot: int32 [1, 1, 1, tokens].
      chosen: bool [batch, heads, queries, blocks].
      scores: [batch, heads, queries, tokens]; None without landmarks.

    Returns:
      bool [batch, heads, queries, tokens], and what is added to the scores, None = nothing.
    """
    size = choice.block_length
    in_own = slot // size == at // size
    mask = in_own | jnp.repeat(chosen, size, axis=-1)
    if not choice.landmarks or scores is None:
        return mask, None
    of_block = jnp.repeat(shared_by_landmarks(scores, size), size, axis=-1)
    # They pass their weight on, and give none to themselves.
    mask = mask & ((slot % size != size - 1) | (in_own & (slot != at)))
    return mask, jnp.where(in_own, jnp.zeros_like(of_block), of_block)


def chosen_scores(
    choice: Choice, queries: jax.Array, keys: jax.Array, rules: Rules, scores: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """`scores` with what landmarks add, and which of them are seen; both [batch, heads, n, keys]."""
    rules = seen(choice, queries, keys, rules, scores)
    slot = jnp.arange(keys.shape[2], dtype=jnp.int32)[None, None, None]
    causal = slot <= rules.positions(queries.shape[2])[:, None, :, None]
    mask = jnp.broadcast_to(causal if rules.mask is None else causal & rules.mask, scores.shape)
    return scores if rules.bias is None else scores + rules.bias, mask


def in_blocks(rows: jax.Array, size: int) -> jax.Array:
    """[..., blocks * size, width] as [..., blocks, size, width]."""
    return rows.reshape(*rows.shape[:-2], -1, size, rows.shape[-1])


def block_means(keys: jax.Array, size: int) -> jax.Array:
    """Means of the keys of each block, [batch, heads, blocks, head_dim], float32 at least."""
    wide = jnp.promote_types(keys.dtype, jnp.float32)
    return in_blocks(keys, size).mean(axis=-2, dtype=wide)


def choose(
    gates: jax.Array, own: jax.Array, top_k: int, held: int, sinks: bool = False, near: int = 0
) -> jax.Array:
    """The earlier blocks that queries read, without gradient.

    Args:
      gates: [batch, heads, queries, blocks].
      own: int32 [batch, 1, queries, 1], the block of each query.
      top_k: blocks that a query reads, its own included; 0 = all.
      held: blocks that can be read, the query's own included: the newest ones.
      sinks: block 0 is one of `held` and of `top_k`, whatever its gate is.
      near: and so are these many blocks right before the query's own.

    Returns:
      bool like `gates`.
    """
    number = jnp.arange(gates.shape[-1], dtype=jnp.int32)[None, None, None]
    first = (number == 0) & sinks
    earlier = (number < own) & ((number > own - (held - sinks)) | first)
    if top_k == 0 or top_k > gates.shape[-1]:
        return jnp.broadcast_to(earlier, gates.shape)
    gates = jnp.where(earlier, jax.lax.stop_gradient(gates), jnp.asarray(NEVER, gates.dtype))
    always = earlier & (first | (number >= own - near))
    gates = jnp.where(always, jnp.asarray(jnp.inf, gates.dtype), gates)
    _, best = jax.lax.top_k(gates, top_k - 1)
    return earlier & (best[..., None] == number[..., None, :]).any(axis=-2)


def shared_by_landmarks(scores: jax.Array, size: int) -> jax.Array:
    """What is added to the scores of an earlier block, so that one softmax gives the grouped softmax.

    `s_j + (s_l(b) - log sum exp s over block b)` has the weight of the landmark in all, and in the block
    the shares of its softmax (Sec. 3.1 of Landmark attention).

    Args:
      scores: [batch, heads, queries, blocks * size]; a landmark is the last token of a block.

    Returns:
      [batch, heads, queries, blocks].
    """
    blocks = scores.reshape(*scores.shape[:-1], -1, size)
    return blocks[..., -1] - jax.nn.logsumexp(blocks[..., :-1], axis=-1)


def joined(old: jax.Array, new: jax.Array, count: jax.Array, size: int) -> jax.Array:
    """What is held, then the segment, in whole blocks.

    Args:
      old: [batch, heads, memory_length, head_dim], the first `count` (int32 [batch]) are held.
      new: [batch, heads, length, head_dim].
      size: tokens of a block.
    """
    room = -(-new.shape[2] // size) * size
    old = jnp.pad(old.astype(new.dtype), ((0, 0), (0, 0), (0, room), (0, 0)))
    put = jax.vmap(lambda old, new, at: jax.lax.dynamic_update_slice_in_dim(old, new, at, 1))
    return put(old, new, count)


def kept(
    both: KeyValues,
    count: jax.Array,
    num_valid: jax.Array,
    length: int,
    size: int,
    sinks: bool = False,
) -> BlocksState:
    """The state after a segment: the oldest blocks go, as whole blocks, until the rest fits.

    With `sinks` the first block stays, and those after it go.

    Args:
      both: keys, without positions, and values as of `joined`.
      count, num_valid: int32 [batch], tokens that were held, and those of the segment.
      length: tokens that can be held, whole blocks.
      size: tokens of a block.
    """
    total = count + num_valid
    gone = jnp.maximum(-(-(total - length) // size), 0) * size
    count = total - gone
    there = jnp.arange(length, dtype=jnp.int32)[None, None, :, None] < count[:, None, None, None]
    take = jax.vmap(lambda rows, at: jax.lax.dynamic_slice_in_dim(rows, at, length, 1))

    def left(rows: jax.Array) -> jax.Array:
        first, rows = rows, take(rows, gone)
        if sinks:
            rows = rows.at[:, :, :size].set(first[:, :, :size])
        return jnp.where(there, rows, jnp.zeros_like(rows))

    return BlocksState(left(both.keys), left(both.values), count)
