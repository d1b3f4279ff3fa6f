"""Layers whose state fades: RetNet, GLA, Mamba-2, RWKV-7; by segments and by tokens."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from longmem_jax.contract import identity
from longmem_jax.memory.decayed.gla import GatedLinearAttention
from longmem_jax.memory.decayed.mamba2 import Mamba2
from longmem_jax.memory.decayed.retnet import RetNet
from longmem_jax.memory.rwkv7 import MIXES, RWKV7
from tests.parity_systems.common import parameters_of, segment_of, settings_of, stacked


@dataclasses.dataclass
class Golden:
    """One of our layers in the layout of a golden.

    Attributes:
      module, fields: the layer.
      d_model, heads, head_dim: sizes.
      parameters: of theirs to ours.
      tails: `(state) -> name to array`, the last vectors of the convolutions as theirs.
      turn: their state is the transpose of ours.
    """

    module: type
    fields: dict[str, Any]
    d_model: int
    heads: int
    head_dim: int
    parameters: Any
    tails: Any
    turn: bool


def _in(weight, heads):
    """A kernel [heads * width, d_model] as [d_model, heads, width]."""
    return {'kernel': weight.T.reshape(weight.shape[1], heads, -1)}


def _out(weight, heads):
    return {'kernel': weight.T.reshape(heads, -1, weight.shape[0])}


def _taps(weight, heads):
    """Taps [channels, 1, size] as [size, heads, width]."""
    return {'kernel': weight[:, 0].T.reshape(weight.shape[2], heads, -1)}


def _heads(x, heads):
    """Vectors of all heads, [batch, n, heads * width] as [batch, heads, n, width]."""
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def _joined(tail):
    """The last vectors of a convolution, [batch, heads, size, width] as [batch, size, channels]."""
    return tail.swapaxes(1, 2).reshape(tail.shape[0], tail.shape[2], -1)


def _retnet(settings, theirs):
    heads = settings['num_heads']
    head_dim = settings['embed_dim'] // heads

    def parameters(theirs):
        names = dict(query='q_proj', key='k_proj', value='v_proj')
        maps = {ours: _in(theirs[f'{name}.weight'], heads) for ours, name in names.items()}
        maps['out'] = _out(theirs['out_proj.weight'], heads)
        return {'projections': maps, 'gate': _in(theirs['g_proj.weight'], heads)}

    fields = dict(value_dim=settings['value_dim'] // heads, epsilon=settings['norm_eps'])
    sizes = (settings['embed_dim'], heads, head_dim)
    return Golden(RetNet, fields, *sizes, parameters, lambda tails: {}, True)


def _gla(settings, theirs):
    heads, size = settings['num_heads'], settings['conv_size']

    def parameters(theirs):
        names = dict(query='q_proj', key='k_proj', value='v_proj')
        maps = {ours: _in(theirs[f'{name}.weight'], heads) for ours, name in names.items()}
        maps['out'] = _out(theirs['o_proj.weight'], heads)
        up = theirs['gk_proj.1.weight']
        own = {
            'projections': maps,
            'out_gate': _in(theirs['g_proj.weight'], heads),
            'norm': {'scale': theirs['g_norm.weight']},
            'decay_down': theirs['gk_proj.0.weight'].T,
            'decay_kernel': up.T.reshape(up.shape[1], heads, -1),
            'decay_bias': theirs['gk_proj.1.bias'].reshape(heads, -1),
        }
        for ours, name in dict(queries='q', keys='k', values='v').items():
            if size:
                own[f'convolved_{ours}'] = _taps(theirs[f'{name}_conv1d.weight'], heads)
        return own

    def tails(tails):
        names = dict(queries='q', keys='k', values='v') if size else {}
        return {f'conv_{name}': _joined(tails[f'convolved_{ours}']) for ours, name in names.items()}

    fields = dict(
        key_dim=settings['key_dim'] // heads,
        value_dim=settings['value_dim'] // heads,
        gate_rank=settings['gate_low_rank_dim'],
        slowness=settings['gate_logit_normalizer'],
        convolution=size,
        epsilon=settings['norm_eps'],
    )
    sizes = (settings['hidden_size'], heads, settings['value_dim'] // heads)
    return Golden(GatedLinearAttention, fields, *sizes, parameters, tails, False)


def _mamba2(settings, theirs):
    heads, width = settings['num_heads'], settings['head_dim']
    groups, size = settings['n_groups'], settings['state_size']
    inner, of_groups = heads * width, groups * size
    # Channels of the convolution, and of the map in.
    parts = dict(x=(inner, heads), B=(of_groups, groups), C=(of_groups, groups))
    cuts = np.cumsum([inner, inner, of_groups, of_groups])

    def parameters(theirs):
        gate, *maps, steps = jnp.split(theirs['in_proj.weight'], cuts)
        names = dict(zip(('value', 'key', 'query'), parts.values(), strict=True))
        kernels = {
            name: _in(weight, number)
            for weight, (name, (_, number)) in zip(maps, names.items(), strict=True)
        }
        kernels['out'] = _out(theirs['out_proj.weight'], heads)
        own = {'projections': kernels, 'gate': _in(gate, heads), 'step_kernel': steps.T}
        own |= {'step_bias': theirs['dt_bias'], 'log_rate': theirs['A_log'], 'skip': theirs['D']}
        own['scale'] = theirs['norm.weight'].reshape(heads, width)
        taps = jnp.split(theirs['conv1d.weight'], cuts[1:3] - inner)
        for weight, (name, (_, number)) in zip(taps, parts.items(), strict=True):
            own[f'convolved_{name}'] = _taps(weight, number)
        if settings['use_conv_bias']:
            biases = jnp.split(theirs['conv1d.bias'], cuts[1:3] - inner)
            for bias, (name, (_, number)) in zip(biases, parts.items(), strict=True):
                own[f'bias_{name}'] = bias.reshape(number, -1)
        if settings['use_bias']:
            gate, *maps, steps = jnp.split(theirs['in_proj.bias'], cuts)
            own['gate']['bias'] = gate.reshape(heads, width)
            for bias, (name, (_, number)) in zip(maps, names.items(), strict=True):
                kernels[name]['bias'] = bias.reshape(number, -1)
            kernels['out']['bias'] = theirs['out_proj.bias']
            own['step_bias'] = own['step_bias'] + steps
        return own

    def tails(tails):
        return {'conv': jnp.concatenate([_joined(tails[f'convolved_{p}']) for p in parts], -1)}

    shortest, longest = settings['time_step_limit']
    fields = dict(
        state_size=size,
        value_dim=width,
        groups=groups,
        convolution=settings['conv_kernel'],
        convolution_bias=settings['use_conv_bias'],
        bias=settings['use_bias'],
        shortest=shortest,
        longest=longest if np.isfinite(longest) else 0.0,
        epsilon=settings['norm_eps'],
    )
    sizes = (settings['hidden_size'], heads, width)
    return Golden(Mamba2, fields, *sizes, parameters, tails, True)


def _rwkv7(settings, theirs):
    heads = settings['num_heads']

    def parameters(theirs):
        names = dict(query='receptance', key='key', value='value')
        maps = {ours: _in(theirs[f'{name}.weight'], heads) for ours, name in names.items()}
        maps['out'] = _out(theirs['output.weight'], heads)
        own = {'projections': maps, 'mixes': jnp.stack([theirs[f'x_{n}'][0, 0] for n in MIXES])}
        for ours, name in dict(decay='w', erase='a', shown='g').items():
            own[f'{ours}_in'] = theirs[f'{name}1']
            own[f'{ours}_out'] = theirs[f'{name}2'].reshape(-1, heads, size)
            if ours != 'shown':
                own[f'{ours}_bias'] = theirs[f'{name}0'].reshape(heads, size)
        if 'v1' in theirs:
            first, second, bias = (theirs[f'v{i}'] for i in (1, 2, 0))
            own['first_share'] = {'in': first, 'out': second.reshape(-1, heads, size)}
            own['first_share']['bias'] = bias.reshape(heads, size)
        names = dict(erased='k_k', slowed='k_a', own='r_k', scale='ln_x.weight', bias='ln_x.bias')
        return own | {ours: theirs[name].reshape(heads, size) for ours, name in names.items()}

    size, loras = settings['head_size'], settings['loras']
    fields = dict(decay_rank=loras['decay'], erase_rank=loras['a'], gate_rank=loras['gate'])
    fields |= dict(value_rank=loras['v'], epsilon=settings['group_norm_eps'])
    sizes = (heads * size, heads, size)
    return Golden(
        RWKV7, fields, *sizes, parameters, lambda tails: {'shift': tails['before'][:, 0]}, True
    )


LAYERS = {'retnet': _retnet, 'gla': _gla, 'mamba2': _mamba2, 'rwkv7': _rwkv7}
NAMES = tuple(LAYERS)


def check(settings, arrays):
    """Yields (name, ours, reference) for every tensor of the golden."""
    theirs = parameters_of(arrays)
    golden = LAYERS[settings['system']](settings, theirs)
    number, length = settings['num_segments'], settings['segment_length']
    x, weights = stacked(arrays, number, 'x', 'loss_weight')
    layer = golden.module(
        settings=settings_of(golden.d_model, golden.heads, golden.head_dim, length),
        normalize=identity,
        shared=None,
        chunk=3,
        **golden.fields,
    )

    def read(layer, state, x, first):
        """Outputs and state after x [batch, n, d_model], with the values of the first layer."""
        if first is not None:
            state = state.replace(carried={'v_first': _heads(first, golden.heads)})
        y, state, _ = layer(x, state, segment_of(x), train=False)
        return y, state.replace(carried={})

    def segments(layer, x, first):
        """Outputs of all segments, and the states after them."""

        def body(state, given):
            y, state = read(layer, state, *given)
            return state, (y, state)

        return jax.lax.scan(body, layer.initial_state(x.shape[1]), (x, first))[1]

    def tokens(layer, x, first):
        """The same outputs, token by token."""

        def by_token(x):
            return x.swapaxes(1, 2).reshape(-1, x.shape[1], 1, x.shape[3])

        y, _ = segments(layer, *jax.tree.map(by_token, (x, first)))
        return y.reshape(number, length, *y.shape[1:2], y.shape[3]).swapaxes(1, 2)

    def run(method, theirs, *given):
        return layer.apply({'params': golden.parameters(theirs)}, *given, method=method)

    @jax.jit
    def everything(*given):
        y, states = run(segments, *given)
        slopes = jax.grad(lambda *given: (run(segments, *given)[0] * weights).sum(), (0, 1, 2))
        return y, states, run(tokens, *given), slopes(*given)

    first = None  # the values of the first layer, by segments
    if 'in/v_first' in arrays:
        first = jnp.stack(jnp.split(jnp.asarray(arrays['in/v_first']), number, axis=1))
    y, states, by_token, (slopes, of_x, of_first) = everything(theirs, x, first)
    if first is not None:
        yield 'grad/v_first', jnp.concatenate(list(of_first), axis=1), arrays['grad/v_first']
    for i in range(number):
        yield f'out/y_{i}', y[i], arrays[f'out/y_{i}']
        yield f'out/y_{i}_by_token', by_token[i], arrays[f'out/y_{i}']
        S = states.memory[i]
        S = S.swapaxes(-1, -2) if golden.turn else S
        yield f'state/S_{i}', S, arrays[f'state/S_{i}']
        for name, tail in golden.tails({k: v[i] for k, v in states.tails.items()}).items():
            yield f'state/{name}_{i}', tail, arrays[f'state/{name}_{i}']
        yield f'grad/x_{i}', of_x[i], arrays[f'grad/x_{i}']
    for name, slope in slopes.items():
        yield f'grad/param/{name}', slope, arrays[f'grad/param/{name}']
