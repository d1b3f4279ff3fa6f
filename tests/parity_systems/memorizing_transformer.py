"""One layer of the Memorizing Transformer with its norms and feed-forward, segment after segment."""

import jax
import jax.numpy as jnp

from longmem_jax.memory.memorizing.layer import Memorizing
from longmem_jax.segment import Segment, select_lanes
from tests.parity_systems.common import settings_of


def _layer(settings, normalize):
    model_settings = settings_of(
        settings['d_model'],
        settings['heads'],
        settings['head_dim'],
        settings['length'],
        d_feed_forward=settings['d_ff'],
    )
    return Memorizing(
        settings=model_settings,
        normalize=normalize,
        shared=None,
        position=settings['relative_position'] or 'none',
        memory_length=settings['length'] if settings['xl_cache'] else 0,
        window=settings['length'],
        attend_self=False,
        start='zeros',
        scale_init=1.0,
        memory_size=settings['memory_size'],
        top_k=settings['top_k'],
        search='exact' if settings['search'] == 'exact' else 'bucketed',
        recall_target=0.95,
        block_size=512,
        cache_dtype='float32',
        unwritten='zeros',
        gate_init=0.0,
    )


def _norm(x, scale, epsilon):
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + epsilon) * scale


def _to_ours(theirs, heads):
    def into(name):
        kernel = theirs[f'tbase._kvq.{name}_layer.kernel']
        return {'kernel': kernel.reshape(kernel.shape[0], heads, -1)}

    out = theirs['tbase.post_attn_mlp.output_layer.kernel']
    projections = {
        'query': into('queries'),
        'key': into('keys'),
        'value': into('values'),
        'out': {'kernel': out.reshape(heads, -1, out.shape[1])},
    }
    attention = {'scale': theirs['tbase._kvq.attention_scale']}
    if 'relative_positions.rel_embedding' in theirs:
        attention['relation'] = {'buckets': theirs['relative_positions.rel_embedding']}
    gate = theirs['external_memory_bias']
    return {'projections': projections, 'attention': attention, 'gate': gate}


def check(settings, arrays):
    """Yields (name, ours, reference) for every tensor of the golden."""
    theirs = {k[len('param/') :]: v for k, v in arrays.items() if k.startswith('param/')}
    epsilon = settings['norm_epsilon']

    def run(theirs, x, state, start, weight):
        params = _to_ours(theirs, settings['heads'])
        scale = theirs['tbase._kvq.pre_attn_layernorm.scale']
        layer = _layer(settings, lambda x: _norm(x, scale, epsilon)).bind({'params': params})
        fresh = layer.initial_state(x.shape[0])
        state = fresh if state is None else select_lanes(start, fresh, state)
        attention = layer.attention
        queries, _, _, local = attention.whole(layer.normalize(x), state.recent, False)
        retrieved = layer.retrieve(queries, state.rows)
        segment = Segment(jnp.zeros(x.shape[:2], jnp.int32), jnp.ones(x.shape[:2], bool), start)
        y, state, _ = layer(x, state, segment, train=False)
        x = x + y
        hidden = _norm(x, theirs['tbase.pre_ffn_layernorm.scale'], epsilon)
        hidden = jax.nn.relu(hidden @ theirs['tbase.ffn.hidden0.kernel'])
        x = x + hidden @ theirs['tbase.ffn.output_layer.kernel']
        found = dict(y=x, local=jnp.swapaxes(local, 1, 2), retrieved=jnp.swapaxes(retrieved, 1, 2))
        return (x * weight).sum(), (found, state)

    state = None
    step = jax.jit(jax.grad(run, argnums=(0, 1), has_aux=True))
    numbers = sorted(int(k.rsplit('_', 1)[1]) for k in arrays if k.startswith('in/x_'))
    for number in numbers:
        given = [arrays[f'in/{name}_{number}'] for name in ('x', 'start', 'loss_weight')]
        gradients, (found, state) = step(
            theirs, given[0], state, jnp.asarray(given[1]) > 0, given[2]
        )
        count = state.rows.count[:, None]
        ours = {f'out/{name}_{number}': value for name, value in found.items()} | {
            f'grad/x_{number}': gradients[1],
            f'state/memory_keys_{number}': state.rows.rows_keys,
            f'state/memory_values_{number}': state.rows.rows_values,
            f'state/memory_count_{number}': jnp.broadcast_to(
                count, (len(count), settings['heads'])
            ),
            f'state/xl_keys_{number}': jnp.swapaxes(state.recent.keys, 1, 2),
            f'state/xl_values_{number}': jnp.swapaxes(state.recent.values, 1, 2),
        }
        for name, value in ours.items():
            if name in arrays:
                yield name, value, arrays[name]
    for name, gradient in gradients[0].items():
        if f'grad/{name}' in arrays:
            yield f'grad/{name}', gradient, arrays[f'grad/{name}']
