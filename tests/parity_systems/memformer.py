"""Memformer: the published reader, writer and normalisation; and MemBART's released encoder."""

import jax
import jax.numpy as jnp
from flax.traverse_util import unflatten_dict

from longmem_jax.attention.cross_attention import CrossAttention
from longmem_jax.contract import ModelSettings, identity
from longmem_jax.layers.feature_maps import unit
from longmem_jax.memory.memformer import slot_attention as slots
from longmem_jax.memory.memformer.joint_slots import JointEncoder


def _model_settings(settings):
    heads, width = settings['heads'], settings['d_model']
    return ModelSettings(
        d_model=width, num_heads=heads, head_dim=width // heads,
        d_feed_forward=settings.get('ffn', 0), num_layers=settings.get('layers', 1),
        segment_length=settings['segment'], dropout=0.0, attention_dropout=0.0, init_std=0.02,
        dtype=jnp.dtype('float32'),
    )  # fmt: skip


def _heads_in(weight, heads):
    return weight.T.reshape(weight.shape[1], heads, -1)


def _paper(settings, arrays):
    model_settings, heads = _model_settings(settings), settings['heads']
    theirs = {k[len('param/') :]: jnp.asarray(v) for k, v in arrays.items() if 'param/' in k}
    reader = CrossAttention(settings=model_settings, normalize=identity, bias=False)
    writer = slots.SlotWriter(model_settings, settings['temperature'])
    numbers = range(1, settings['segments'] + 1)
    batch = arrays['in/x_1'].shape[0]

    def project(theirs, side, **names):
        return {
            ours: {'kernel': _heads_in(theirs[f'{side}.{name}.weight'], heads)}
            for ours, name in names.items()
        }

    def run(theirs, inputs):
        params = project(theirs, 'reader', query='q', key='k', value='v')
        out = theirs['reader.out.weight']
        params['out'] = {
            'kernel': out.T.reshape(heads, model_settings.head_dim, model_settings.d_model)
        }
        writing = project(theirs, 'writer', query='q', key='k', value='v')
        bias = theirs['bias_vectors']
        memory = jnp.broadcast_to(unit(bias, 0.0)[None], (batch, *bias.shape))
        found, total = {'state/memory_0': memory}, 0.0
        for t in numbers:

            def read(module, x, memory):
                every = jnp.ones(memory.shape[:2], bool)
                return x + module(x, module.source(memory, every), train=False)

            y = reader.apply(
                {'params': {'projections': params}}, inputs[f'x_{t}'], memory, method=read
            )
            valid = jnp.asarray(arrays[f'in/token_mask_{t}'] > 0)
            raw, weights = writer.apply({'params': writing}, memory, y, valid)
            memory = slots.forget(raw, bias)
            total = total + (y * arrays[f'in/loss_weight_{t}']).sum()
            found |= {
                f'out/y_{t}': y,
                f'out/writer_attention_{t}': weights,
                f'out/writer_raw_{t}': raw,
                f'state/memory_{t}': memory,
            }
        total = total + (memory * arrays['in/loss_weight_memory']).sum()
        return total, found | {'out/total_loss': total}

    inputs = {f'x_{t}': jnp.asarray(arrays[f'in/x_{t}']) for t in numbers}
    (own, of_inputs), found = jax.jit(jax.grad(run, argnums=(0, 1), has_aux=True))(theirs, inputs)
    for name, value in found.items():
        yield name, value, arrays[name]
    for name, value in (own | of_inputs).items():
        yield f'grad/{name}', value, arrays[f'grad/{name}']


def _joint_layout(name):
    """Our path of one of MemBART's parameters within the encoder."""
    known = {
        'memory_bias': ('bias',),
        'layernorm_embedding': ('embedding_norm',),
        'memory_layer_norm': ('slot_norm',),
        'memory_gate_net.dense': ('gate_hidden',),
        'memory_gate_net.dense2': ('gate',),
        'self_attn_layer_norm': ('attention_norm',),
        'mem_self_attn_layer_norm': ('slot_attention_norm',),
        'final_layer_norm': ('final_norm',),
        'mem_final_layer_norm': ('slot_final_norm',),
        'fc1': ('feed_forward', 'up'),
        'fc2': ('feed_forward', 'down'),
        'mem_fc1': ('slot_feed_forward', 'up'),
        'mem_fc2': ('slot_feed_forward', 'down'),
    }
    for slot, ours in (('', ''), ('mem_', 'slot_')):
        for short, part in (('q', 'query'), ('k', 'key'), ('v', 'value'), ('out', 'out')):
            known[f'self_attn.{slot}{short}_proj'] = ('attention', f'{ours}{part}')
    if name == 'memory_bias':
        return known[name]
    lead = ()
    if name.startswith('layers.'):
        _, number, name = name.split('.', 2)
        lead = (f'layer_{number}',)
    module, kind = name.rsplit('.', 1)
    norm = 'norm' in module
    leaf = {'weight': 'scale' if norm else 'kernel', 'bias': 'bias'}[kind]
    return (*lead, *known[module], leaf)


def _joint(settings, arrays):
    model_settings, heads = _model_settings(settings), settings['heads']
    theirs = {k[len('param/') :]: jnp.asarray(v) for k, v in arrays.items() if 'param/' in k}
    approximate = {'gelu': 'gelu_exact', 'relu': 'relu'}[settings['activation']]
    encoder = JointEncoder(
        settings=model_settings, dense=dict(activation=approximate, bias=True),
        num_layers=settings['layers'], num_slots=settings['memory_len'], bias_std=0.01,
    )  # fmt: skip
    numbers = range(1, settings['segments'] + 1)
    outside = ('embed_tokens.weight', 'embed_positions.weight')

    def convert(name, value):
        path = _joint_layout(name)
        if name == 'memory_bias':
            return value[0]
        if path[-1] == 'kernel' and 'self_attn' in name:
            if 'out_proj' in name:
                return value.T.reshape(heads, model_settings.head_dim, model_settings.d_model)
            return _heads_in(value, heads)
        if path[-1] == 'bias' and 'self_attn.' in name and 'out_proj' not in name:
            return value.reshape(heads, -1)
        return value.T if path[-1] == 'kernel' else value

    def run(theirs, memory):
        params = unflatten_dict(
            {_joint_layout(n): convert(n, v) for n, v in theirs.items() if n not in outside}
        )
        found, total = {}, 0.0
        for t in numbers:
            ids = jnp.asarray(arrays[f'in/ids_{t}'], jnp.int32)
            x = theirs['embed_tokens.weight'][ids]
            # PyTorch's padding token has no gradient.
            padding = (ids == settings['pad_id'])[..., None]
            x = jnp.where(padding, jax.lax.stop_gradient(x), x)
            if settings['scale_embedding']:
                x = x * model_settings.d_model**0.5
            start = settings['position_offset']
            x = x + theirs['embed_positions.weight'][None, start : start + ids.shape[1]]
            reset = jnp.asarray(arrays[f'in/memory_resets_{t}'])[:, None, None]
            valid = jnp.asarray(arrays[f'in/attention_mask_{t}'] > 0)
            encoded, _, memory, _ = encoder.apply(
                {'params': params}, x, valid, memory * (1 - reset), train=False
            )
            total = total + (encoded * arrays[f'in/loss_weight_{t}']).sum()
            found |= {f'out/last_hidden_state_{t}': encoded, f'state/memory_{t}': memory}
        return total, found | {'out/total_loss': total}

    start = jnp.asarray(arrays['state/memory_0'])
    (own, of_memory), found = jax.jit(jax.grad(run, argnums=(0, 1), has_aux=True))(theirs, start)
    for name, value in found.items():
        yield name, value, arrays[name]
    yield 'grad/memory_0', of_memory, arrays['grad/memory_0']
    for name, value in own.items():
        yield f'grad/{name}', value, arrays[f'grad/{name}']


def check(settings, arrays):
    """Yields (name, ours, reference) for every tensor of the golden."""
    yield from (_paper if settings['variant'] == 'paper' else _joint)(settings, arrays)
