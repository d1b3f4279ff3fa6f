"""Memory tokens: three encoders, and Transformer-XL language models with fresh or carried tokens."""

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from longmem_jax.config.base import base, stack
from longmem_jax.contract import ModelSettings
from longmem_jax.models.block import Block
from longmem_jax.models.encoders.memory_tokens import MemoryEncoder
from longmem_jax.models.kinds import make_model
from longmem_jax.released import transformer_xl
from longmem_jax.segment import Segment
from tests.parity_systems.transformer_xl import export_gradient

VARIANTS = {'plain': 'plain', 'memctrl': 'ctrl', 'membottleneck': 'bottleneck'}


def _encoder_layout(name, settings):
    """Our path of one of their parameters, less the part of a stacked projection."""
    if name == 'memory':
        return ('tokens',)
    stack_name, number, *rest = name.split('.')
    ours = {'seq': 'sequence', 'mem': 'memory'}[stack_name]
    layer = ours if settings['shared_layers'] else f'{ours}_{number}'
    known = {
        'attn.out_proj.weight': ('attention', 'projections', 'out', 'kernel'),
        'attn.out_proj.bias': ('attention', 'projections', 'out', 'bias'),
        'attn.in_proj_weight': ('attention', 'projections', '*', 'kernel'),
        'attn.in_proj_bias': ('attention', 'projections', '*', 'bias'),
        'norm1.weight': ('attention_norm', 'scale'),
        'norm1.bias': ('attention_norm', 'bias'),
        'norm2.weight': ('feed_forward_norm', 'scale'),
        'norm2.bias': ('feed_forward_norm', 'bias'),
        'fc1.weight': ('feed_forward', 'up', 'kernel'),
        'fc1.bias': ('feed_forward', 'up', 'bias'),
        'fc2.weight': ('feed_forward', 'down', 'kernel'),
        'fc2.bias': ('feed_forward', 'down', 'bias'),
    }
    return (layer, *known['.'.join(rest)])


def _encoder(settings, arrays):
    heads, width = settings['heads'], settings['d_model']
    theirs = {k[len('param/') :]: v for k, v in arrays.items() if k.startswith('param/')}
    flat = {}
    for name, value in theirs.items():
        path = _encoder_layout(name, settings)
        if '*' in path:
            for part, rows in zip(('query', 'key', 'value'), np.split(value, 3), strict=True):
                rows = rows.T.reshape(*rows.T.shape[:-1], heads, width // heads)
                flat[tuple(part if key == '*' else key for key in path)] = rows
        elif path[-2:] == ('out', 'kernel'):
            flat[path] = value.T.reshape(heads, width // heads, width)
        else:
            flat[path] = value.T if path[-1] == 'kernel' else value
    params = unflatten_dict({path: jnp.asarray(value) for path, value in flat.items()})
    model_settings = ModelSettings(
        d_model=width, num_heads=heads, head_dim=width // heads, d_feed_forward=settings['ffn'],
        num_layers=settings['layers'], segment_length=settings['length'], dropout=0.0,
        attention_dropout=0.0, init_std=0.02, dtype=jnp.dtype('float32'), pre_norm=False,
    )  # fmt: skip
    encoder = MemoryEncoder(
        settings=model_settings, dense=dict(activation='relu', bias=True),
        variant=VARIANTS[settings['variant']],
        num_tokens=settings['memory_tokens'], num_layers=settings['layers'],
        shared_layers=settings['shared_layers'], final_norm=False, std=1.0,
    )  # fmt: skip
    x = jnp.asarray(arrays['in/x'])
    valid = jnp.asarray(arrays['in/padding_mask'] == 0)

    @jax.jit
    def layers(params, x):
        def read(module, x):
            return list(module.layers(x, valid, train=False))

        return encoder.apply({'params': params}, x, method=read)

    for i, (memory, sequence) in enumerate(layers(params, x)):
        yield f'out/memory_layer{i}', memory, arrays[f'out/memory_layer{i}']
        yield f'out/sequence_layer{i}', sequence, arrays[f'out/sequence_layer{i}']

    def value(params, x):
        both, _ = encoder.apply({'params': params}, x, valid, train=False)
        return (both * jnp.asarray(arrays['in/loss_weight'])).sum()

    gradient, of_x = jax.jit(jax.grad(value, argnums=(0, 1)))(params, x)
    gradient = flatten_dict(gradient)
    yield 'grad/x', of_x, arrays['grad/x']
    for name in theirs:
        path = _encoder_layout(name, settings)
        if '*' in path:
            ours = jnp.concatenate(
                [
                    gradient[tuple(part if key == '*' else key for key in path)]
                    .reshape(*theirs[name].T.shape[:-1], -1)
                    .T
                    for part in ('query', 'key', 'value')
                ]
            )
        elif path[-2:] == ('out', 'kernel'):
            ours = gradient[path].reshape(-1, width).T
        else:
            ours = gradient[path].T if path[-1] == 'kernel' else gradient[path]
        yield f'grad/{name}', ours, arrays[f'grad/{name}']


def _language_model(settings, arrays):
    borrowed = transformer_xl.model_config(settings)
    theirs = {k[len('param/') :]: v for k, v in arrays.items() if k.startswith('param/')}
    tokens = theirs.pop('mem_tokens')
    params = transformer_xl.import_parameters(theirs, borrowed)
    params['shared_mem_transformer'] = params.pop('shared_transformer_xl')
    params['around_0'] = {'memory_tokens': {'tokens': tokens[:, 0]}}
    model = base().model
    for name, value in borrowed.items():
        if name != 'transformer_xl':
            model[name] = value
    own, at_end = settings['num_mem_tokens'], settings['mem_at_end']
    stack(model, settings['n_layer'], 'mem_transformer')
    model.around = ('memory_tokens',) * settings['n_layer']
    model.memory_tokens = dict(
        num_tokens=own,
        at_end=at_end,
        carry=settings['carry_memory_tokens'],
        gradients=True,
    )
    model.mem_transformer = dict(
        read_cache=settings['read_mem_from_cache'],
        look_ahead='released',
        memory_length=settings['mem_len'],
        same_length=bool(settings['same_length']) and settings['mem_len'] > 0,
        clamp_length=max(settings['clamp_len'], 0),
        position='transformer_xl',
    )
    batch, length = arrays['in/tokens_0'].shape
    model = make_model(model, length)
    numbers = range(settings['segments'])

    def read(params):
        state = model.apply({'params': params}, batch, method='initial_state')
        total, found = 0.0, []
        for number in numbers:
            segment = Segment(
                jnp.asarray(arrays[f'in/tokens_{number}'], jnp.int32),
                jnp.ones((batch, length), bool),
                jnp.zeros((batch,), bool),
            )
            targets = jnp.asarray(arrays[f'in/targets_{number}'], jnp.int32)

            (scores, state, _), outputs = model.apply(
                {'params': params}, segment, targets, state, train=False, method='nll',
                capture_intermediates=lambda module, _: isinstance(module, Block),
            )  # fmt: skip
            last = outputs['intermediates'][f'block_{settings["n_layer"] - 1}']['__call__'][0][0]
            nll = scores.nll
            written = last[:, -own:] if at_end else last[:, :own]
            total = total + (nll * jnp.asarray(arrays[f'in/loss_weight_{number}'])).sum()
            found.append((nll, written, state))
        return total, found

    gradient, found = jax.jit(jax.grad(read, has_aux=True))(params)
    for number, (nll, written, state) in enumerate(found):
        yield f'out/nll_{number}', nll, arrays[f'out/nll_{number}']
        name = f'state/memory_tokens_{number}'
        if name in arrays:
            yield name, written, arrays[name]
        for layer in range(settings['n_layer']):
            name = f'state/cache_layer{layer}_{number}'
            if name in arrays:
                rows = arrays[name].shape[1]
                hidden = state[layer].attention.hidden
                yield name, hidden[:, hidden.shape[1] - rows :], arrays[name]
    own = gradient['around_0']['memory_tokens']['tokens'][:, None]
    yield 'grad/mem_tokens', own, arrays['grad/mem_tokens']
    gradient['shared_transformer_xl'] = gradient.pop('shared_mem_transformer')
    for name in theirs:
        ours = export_gradient(gradient, name, borrowed)
        yield f'grad/{name}', ours, arrays[f'grad/{name}']


def check(settings, arrays):
    """Yields (name, ours, reference) for every tensor of the golden."""
    yield from (_language_model if settings['variant'] == 'lm' else _encoder)(settings, arrays)
