"""Two long memories on one page: Transformer-XL and Infini-attention.

Each is a function `(params, x, state, segment) -> y, state` with the parameters of the full layer of
that name (`longmem_jax.TransformerXL`, `longmem_jax.InfiniAttention`), and its numbers. The full layers
also have streams token by token, other position schemes, half precision, sharding, and kernels for TPUs.
"""

import flax.struct
import jax
import jax.numpy as jnp

from longmem_jax.segment import Segment


def heads(x, kernel):
    """[batch, length, d_model] to [batch, heads, length, head_dim]."""
    return jnp.einsum('bld,dhk->bhlk', x, kernel)


def merge(x, kernel):
    """[batch, heads, length, head_dim] to [batch, length, d_model]."""
    return jnp.einsum('bhlk,hkd->bld', x, kernel)


def attend(scores, seen, values):
    """Softmax over the keys that are seen, [batch | 1, 1, queries, keys]; none seen gives zeros."""
    weights = jax.nn.softmax(jnp.where(seen, scores, -1e30), axis=-1)
    return jnp.where(seen, weights, 0.0) @ values


def fresh(segment: Segment, initial, state):
    """The state, or the initial one in lanes (rows of the batch) in which a document starts."""

    def reset(first, leaf):
        return jnp.where(segment.start.reshape(-1, *[1] * (leaf.ndim - 1)), first, leaf)

    return jax.tree.map(reset, initial, state)


# --- Transformer-XL (Dai et al., 2019): the hidden vectors of the last tokens, without gradient ---


@flax.struct.dataclass
class Window:
    """The last vectors of a lane: `hidden` [batch, size, d_model], the last `count` are filled."""

    hidden: jax.Array
    count: jax.Array


def empty_window(batch, size, d_model):
    return Window(jnp.zeros((batch, size, d_model)), jnp.zeros((batch,), jnp.int32))


def remember(state: Window, x, num_valid) -> Window:
    """The last vectors of memory and segment (Sec. 3.2); a segment has its tokens before its padding."""
    joined = jnp.concatenate([state.hidden, jax.lax.stop_gradient(x)], axis=1)
    size = state.hidden.shape[1]
    last = jax.vmap(lambda row, first: jax.lax.dynamic_slice_in_dim(row, first, size))
    return Window(last(joined, num_valid), jnp.minimum(state.count + num_valid, size))


def waves(distances, width):
    """Sinusoids of distances (Sec. 3.3): sines, then cosines."""
    angles = distances[:, None] * 10000.0 ** (-jnp.arange(0, width, 2) / width)
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


def transformer_xl(params, x, state: Window, segment: Segment):
    """One layer of segment-level recurrence.

    Args:
      params: kernels `query`, `key`, `value`, `relative` [d_model, heads, head_dim] and `out` [heads,
        head_dim, d_model]; biases u `content` and v `position` [heads, head_dim].
      x: [batch, length, d_model].
      state: the memory before the segment.
      segment: says which tokens are valid, and where documents start.
    """
    batch, length, d_model = x.shape
    size = state.hidden.shape[1]
    state = fresh(segment, empty_window(batch, size, d_model), state)
    joined = jnp.concatenate([state.hidden, x], axis=1)
    queries = heads(x, params['query'])
    keys, values = heads(joined, params['key']), heads(joined, params['value'])

    key = jnp.arange(size + length)
    distance = size + jnp.arange(length)[:, None] - key[None]  # from query i to key j
    by_distance = jnp.einsum('nd,dhk->hnk', waves(key, d_model), params['relative'])
    relative = by_distance[:, jnp.maximum(distance, 0)]  # [heads, queries, keys, head_dim]
    # (a) + (c): content and its bias. (b) + (d): position and its bias.
    content = jnp.einsum('bhqk,bhmk->bhqm', queries + params['content'][None, :, None], keys)
    position = jnp.einsum('bhqk,hqmk->bhqm', queries + params['position'][None, :, None], relative)

    filled = key[None] >= size - state.count[:, None]
    seen = (distance >= 0)[None, None] & filled[:, None, None]
    scores = (content + position) / jnp.sqrt(queries.shape[-1])
    y = merge(attend(scores, seen, values), params['out'])
    return y, remember(state, x, segment.valid.sum(axis=1))


# --- Infini-attention (Munkhdalai et al., 2024): an associative memory beside local attention ---


@flax.struct.dataclass
class Associative:
    """`matrix` M [batch, heads, head_dim, head_dim], `normalizer` z [batch, heads, head_dim]."""

    matrix: jax.Array
    normalizer: jax.Array


def empty_memory(batch, num_heads, head_dim):
    shape = (batch, num_heads, head_dim)
    return Associative(jnp.zeros((*shape, head_dim)), jnp.zeros(shape))


def retrieve(features, memory: Associative):
    """sigma(Q) M / (sigma(Q) z), Eq. 3; zeros while the memory is empty."""
    weight = jnp.einsum('bhlk,bhk->bhl', features, memory.normalizer)
    return features @ memory.matrix / jnp.maximum(weight, 1e-6)[..., None]


def write(features, values, memory: Associative) -> Associative:
    """The delta rule, Eq. 5: only what the memory does not already say about a key is added."""
    new = values - retrieve(features, memory)
    matrix = memory.matrix + jnp.swapaxes(features, -1, -2) @ new
    return Associative(matrix, memory.normalizer + features.sum(axis=2))


def rotate(x):
    """Rotary positions (Su et al., 2021), which begin again in every segment."""
    half = x.shape[-1] // 2
    angles = jnp.arange(x.shape[2])[:, None] * 10000.0 ** (-jnp.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    sin, cos = jnp.sin(angles), jnp.cos(angles)
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)


def infini_attention(params, x, state: Associative, segment: Segment):
    """One layer; arguments as in `transformer_xl`, with a `gate` [heads] and no relative positions."""
    queries, keys, values = (heads(x, params[name]) for name in ('query', 'key', 'value'))
    batch, num_heads, length, head_dim = queries.shape
    memory = fresh(segment, empty_memory(batch, num_heads, head_dim), state)
    scores = rotate(queries) @ jnp.swapaxes(rotate(keys), -1, -2) / jnp.sqrt(head_dim)
    local = attend(scores, jnp.tril(jnp.ones((length, length), bool))[None, None], values)

    retrieved = retrieve(jax.nn.elu(queries) + 1, memory)
    gate = jax.nn.sigmoid(params['gate'])[None, :, None, None]  # Eq. 6
    y = merge(gate * retrieved + (1 - gate) * local, params['out'])
    features = jnp.where(segment.valid[:, None, :, None], jax.nn.elu(keys) + 1, 0.0)
    return y, write(features, values, memory)
