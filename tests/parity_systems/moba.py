"""One layer of MoBA: outputs, gradients, and all keys, values and block means after every segment."""

import jax
import jax.numpy as jnp

from longmem_jax.contract import identity
from longmem_jax.memory.chunk_retrieval.blocks import block_means
from longmem_jax.memory.chunk_retrieval.layer import ChunkRetrieval
from tests.parity_systems.common import parameters_of, segment_of, settings_of


def _layer(settings, tokens, kv_heads):
    """Our layer, with room for the whole text."""
    size, top_k = settings['moba_chunk_size'], settings['moba_topk']
    model = settings_of(
        settings['hidden_size'],
        settings['num_heads'],
        settings['head_dim'],
        settings['segment_length'],
        num_kv_heads=kv_heads,
    )
    blocks = max(-(-tokens // size), top_k, 2)
    fields = dict(block_length=size, memory_length=blocks * size, top_k=top_k, position='none')
    return ChunkRetrieval(settings=model, normalize=identity, shared=None, **fields)


def _segments(layer, xs):
    """Segment after segment, a list of [batch, length, d_model]: outputs and states."""
    state, ys, states = layer.initial_state(xs[0].shape[0]), [], []
    for x in xs:
        y, state, _ = layer(x, state, segment_of(x), train=False)
        ys, states = [*ys, y], [*states, state]
    return ys, states


def _tokens(layer, xs):
    """The same token by token, as a stream: outputs."""
    state, ys = layer.initial_state(xs[0].shape[0]), []
    for x in xs:
        one = jnp.ones(x.shape[:1], jnp.int32)
        cache, read = layer.open_segment(state, x.shape[0]), []
        for i in range(x.shape[1]):
            y, cache = layer.extend(x[:, i : i + 1], cache, i, one)
            read.append(y)
        state = layer.close_segment(state, cache, one * x.shape[1])
        ys.append(jnp.concatenate(read, axis=1))
    return ys


def _parameters(settings, theirs):
    """Their maps as ours."""
    found, width = {}, settings['head_dim']
    for ours in ('query', 'key', 'value'):
        weight = theirs[f'{ours[0]}_proj.weight']
        found[ours] = {'kernel': weight.T.reshape(weight.shape[1], -1, width)}
    out = theirs['o_proj.weight']
    found['out'] = {'kernel': out.T.reshape(-1, width, out.shape[0])}
    return {'params': {'projections': found}}


def check(settings, arrays):
    """Yields (name, ours, reference) for every tensor of the golden."""
    number, size = settings['num_segments'], settings['moba_chunk_size']
    xs, weights = (
        [jnp.asarray(arrays[f'in/{name}_{i}']) for i in range(number)]
        for name in ('x', 'loss_weight')
    )
    kv_heads = arrays['state/k_0'].shape[1]
    layer = _layer(settings, sum(x.shape[1] for x in xs), kv_heads)
    theirs = parameters_of(arrays)

    def run(theirs, xs, method=_segments):
        return layer.apply(_parameters(settings, theirs), xs, method=method)

    def loss(theirs, xs):
        ys, states = run(theirs, xs)
        return sum((y * weight).sum() for y, weight in zip(ys, weights, strict=True)), (ys, states)

    of_loss = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
    (_, (ys, states)), (slopes, of_x) = of_loss(theirs, xs)
    by_tokens = jax.jit(lambda *given: run(*given, method=_tokens))(theirs, xs)
    for i, state in enumerate(states):
        yield f'out/y_{i}', ys[i], arrays[f'out/y_{i}']
        yield f'out/y_{i}, by tokens', by_tokens[i], arrays[f'out/y_{i}']
        yield f'grad/x_{i}', of_x[i], arrays[f'grad/x_{i}']
        held = int(state.count[0])
        yield f'state/k_{i}', state.keys[:, :, :held], arrays[f'state/k_{i}']
        yield f'state/v_{i}', state.values[:, :, :held], arrays[f'state/v_{i}']
        means = block_means(state.keys, size)[:, :, : held // size]
        yield f'state/block_mean_{i}', means, arrays[f'state/block_mean_{i}']
    for name, slope in slopes.items():
        yield f'grad/param/{name}', slope, arrays[f'grad/param/{name}']
