"""Infini-attention: a whole small model (interleaved rotary, gated feed-forward) and a single layer."""

import jax
import jax.numpy as jnp
import numpy as np

from longmem_jax.contract import identity
from longmem_jax.layers import associative
from longmem_jax.memory.infini import InfiniAttention, InfiniState
from longmem_jax.segment import Segment
from tests.parity_systems.common import settings_of


def _model_settings(width, heads, head_dim, length, **others):
    return settings_of(width, heads, head_dim, length, d_feed_forward=width, **others)


def _layer(model_settings, normalize, **changes):
    fields = dict(
        position='rotary',
        features='elu',
        rule='delta',
        normalizer='sum',
        guard='clamp',
        epsilon=1e-10,
        gate_init=0.0,
        skip_gate_when_empty=True,
        rotate_memory=False,
        gradients=True,
    )
    return InfiniAttention(
        settings=model_settings, normalize=normalize, shared=None, **(fields | changes)
    )


def _heads_in(weight, heads):
    return {'kernel': weight.T.reshape(weight.shape[1], heads, -1)}


def _numbers(arrays, name):
    return sorted(int(k.rsplit('_', 1)[1]) for k in arrays if k.startswith(name))


def _segment(x):
    return Segment(
        jnp.zeros(x.shape[:2], jnp.int32), jnp.ones(x.shape[:2], bool), jnp.zeros(x.shape[:1], bool)
    )


def _attention(theirs, name, heads):
    """Our parameters of one layer; pairs (2i, 2i + 1) become (i, i + d / 2)."""
    weight = theirs[f'{name}.to_qkv.weight']
    query, key, value = jnp.split(weight, 3)
    width = weight.shape[1]
    head_dim = query.shape[0] // heads
    order = np.concatenate([np.arange(0, head_dim, 2), np.arange(1, head_dim, 2)])

    def paired(part):
        return part.reshape(heads, head_dim, width)[:, order].reshape(-1, width)

    out = theirs[f'{name}.to_out.weight'].T
    projections = {
        'query': _heads_in(paired(query), heads),
        'key': _heads_in(paired(key), heads),
        'value': _heads_in(value, heads),
        'out': {'kernel': out.reshape(heads, -1, width)},
    }
    return {
        'projections': projections,
        'gate': -theirs[f'{name}.fastweight_mem.head_gates'],
    }, order


def _whole_model(settings, arrays):
    theirs = {k[len('param/') :]: v for k, v in arrays.items() if k.startswith('param/')}
    heads, width = settings['heads'], settings['dim']
    numbers = _numbers(arrays, 'in/tokens_')
    rule = 'delta' if settings['delta_rule'] else 'linear'
    model_settings = _model_settings(width, heads, settings['head_dim'], settings['length'])

    def norm(x, gamma):
        length = jnp.sqrt(jnp.sum(x * x, axis=-1, keepdims=True))
        return x / jnp.maximum(length, 1e-12) * width**0.5 * gamma

    def forward(theirs):
        states = [None] * settings['depth']
        total, found = 0.0, {}
        for number in numbers:
            x = theirs['token_emb.weight'][arrays[f'in/tokens_{number}']]
            for depth in range(settings['depth']):
                name = f'layers.{depth}.0'
                params, order = _attention(theirs, name, heads)
                gamma = theirs[f'{name}.norm.gamma']
                layer = _layer(
                    model_settings,
                    lambda x, gamma=gamma: norm(x, gamma),
                    rule=rule,
                    gradients=settings.get('backprop_through_segments', True),
                )
                layer = layer.bind({'params': params})
                if states[depth] is None:
                    states[depth] = layer.initial_state(x.shape[0])
                y, states[depth], _ = layer(x, states[depth], _segment(x), train=False)
                x = x + y
                name = f'layers.{depth}.1'
                hidden = norm(x, theirs[f'{name}.norm.gamma'])
                hidden = hidden @ theirs[f'{name}.proj_in.weight'].T
                hidden, gate = jnp.split(hidden + theirs[f'{name}.proj_in.bias'], 2, axis=-1)
                hidden = hidden * jax.nn.gelu(gate, approximate=False)
                x = x + hidden @ theirs[f'{name}.proj_out.weight'].T
                x = x + theirs[f'{name}.proj_out.bias']
                back = np.argsort(order)
                pairs = states[depth].pairs
                found[f'state/M_layer{depth}_{number}'] = pairs.matrix[:, :, back]
                found[f'state/z_layer{depth}_{number}'] = pairs.normalizer[:, :, back]
            logits = norm(x, theirs['norm.gamma']) @ theirs['to_logits.weight'].T
            logits = logits + theirs['to_logits.bias']
            found[f'out/logits_{number}'] = logits
            total = total + (logits * arrays[f'in/loss_weight_{number}']).sum()
        return total, found

    gradients, found = jax.jit(jax.grad(forward, has_aux=True))(theirs)
    found |= {f'grad/{name}': gradient for name, gradient in gradients.items()}
    for name, value in found.items():
        if name in arrays:
            yield name, value, arrays[name]


def _one_layer(settings, arrays):
    theirs = {k[len('param/') :]: v for k, v in arrays.items() if k.startswith('param/')}
    heads, width = settings['heads'], settings['hidden_size']
    head_dim = settings.get('head_dim', width // heads)
    model_settings = _model_settings(
        width,
        heads,
        head_dim,
        settings['length'],
        scale_scores=settings.get('scale_scores', False),
        rotary_base=float(settings.get('rope_base', 10000)),
    )
    layer = _layer(
        model_settings,
        identity,
        rule='delta' if settings['delta_rule'] else 'linear',
        guard='add',
        epsilon=settings['epsilon'],
        skip_gate_when_empty=False,
        rotate_memory=settings['rotated_memory_keys'],
        gradients=False,
    )

    def run(theirs, hidden, state, weight):
        projections = {
            name: _heads_in(theirs[f'{name[0]}_proj.weight'], heads)
            for name in ('query', 'key', 'value')
        }
        out = theirs['out_proj.weight'].T
        projections['out'] = {'kernel': out.reshape(heads, -1, width)}
        params = {'projections': projections, 'gate': theirs['betas'].reshape(heads)}
        y, state, _ = layer.apply({'params': params}, hidden, state, _segment(hidden), train=False)
        y = y + theirs['out_proj.bias']
        return (y * weight).sum(), (y, state)

    batch = settings['batch']
    nothing = associative.empty(batch, heads, head_dim, head_dim)
    state = InfiniState(nothing, jnp.zeros((batch,), jnp.int32))
    for number in _numbers(arrays, 'in/hidden_'):
        gradients, (y, state) = jax.jit(jax.grad(run, argnums=(0, 1), has_aux=True))(
            theirs, arrays[f'in/hidden_{number}'], state, arrays[f'in/loss_weight_{number}']
        )
        ours = {
            f'out/attention_{number}': y,
            f'state/M_{number}': state.pairs.matrix[0],
            f'state/z_{number}': state.pairs.normalizer[0, ..., None],
            f'grad/hidden_{number}': gradients[1],
        }
        for name, value in ours.items():
            if name in arrays:
                yield name, value, arrays[name]
    for name, gradient in gradients[0].items():
        if f'grad/{name}' in arrays:
            yield f'grad/{name}', gradient, arrays[f'grad/{name}']


def check(settings, arrays):
    """Yields (name, ours, reference) for every tensor of the golden."""
    check = _one_layer if settings['source'] == 'thesis_gpt_neo' else _whole_model
    yield from check(settings, arrays)
