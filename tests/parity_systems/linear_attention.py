"""One layer of linear attention: ELU, random features, learned features; causal and not."""

from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from longmem_jax.contract import identity
from longmem_jax.layers import feature_maps
from longmem_jax.memory.linear_attention.cross import FIELDS, CrossLinear
from longmem_jax.memory.linear_attention.layer import LinearAttention
from longmem_jax.segment import Segment
from tests.parity_systems.common import parameters_of, settings_of

# Names of query, key, value and output, and of the first two's prefix in cross-attention.
ELU = ('query_projection', 'key_projection', 'value_projection', 'out_projection')
OTHERS = ('q_proj', 'k_proj', 'v_proj', 'out_proj')
CROSS = ('cross.q_proj', 'cross_project.k_proj', 'cross_project.v_proj', 'cross.out_proj')
# Our fields by the golden's settings; a setting that a golden lacks has the layer's default.
SETTINGS = {'proj_dim': 'size', 'tau': 'tau', 'eps': 'epsilon'}
# Where keys are narrower than values: elu(x) + 1 is 0 for the added dimensions of queries and keys.
NO_FEATURE = -1e9


def _widths(settings):
    """Width of keys and of values per head."""
    usual = settings.get('head_dim', settings['d_model'] // settings['heads'])
    return settings.get('d_keys', usual), settings.get('d_values', usual)


def _settings(settings):
    return settings_of(
        settings['d_model'], settings['heads'], max(_widths(settings)), settings['segment']
    )


def _fields(settings, theirs):
    """The golden's settings as fields of the layer."""
    fields = {ours: settings[name] for name, ours in SETTINGS.items() if name in settings}
    learned_scale = any(name.endswith('sigma') for name in theirs)
    guard = 'add' if settings['variant'] == 'elu' else 'clamp'
    return dict(
        features=settings['variant'], guard=guard, learned_scale=learned_scale, bias=True, **fields
    )


def _parameters(settings, theirs, names, sigma='sigma'):
    """The golden's parameters in our layout."""
    heads = settings['heads']
    d_keys, d_values = _widths(settings)
    widths = {'query': d_keys, 'key': d_keys, 'value': d_values}
    head_dim = max(widths.values())
    projections = {}
    for ours, name in zip(('query', 'key', 'value'), names[:3], strict=True):
        weight = theirs[f'{name}.weight']
        bias = theirs.get(f'{name}.bias', jnp.zeros(weight.shape[:1]))
        missing = (0, head_dim - widths[ours])
        empty = 0.0 if ours == 'value' else NO_FEATURE
        kernel = weight.T.reshape(weight.shape[1], heads, widths[ours])
        projections[ours] = {
            'kernel': jnp.pad(kernel, [(0, 0), (0, 0), missing]),
            'bias': jnp.pad(bias.reshape(heads, -1), [(0, 0), missing], constant_values=empty),
        }
    weight = theirs[f'{names[3]}.weight']
    out = weight.T.reshape(heads, widths['value'], -1)
    projections['out'] = {
        'kernel': jnp.pad(out, [(0, 0), (0, head_dim - widths['value']), (0, 0)]),
        'bias': theirs.get(f'{names[3]}.bias', jnp.zeros(weight.shape[:1])),
    }
    features = {}
    if settings['variant'] == 't2r':
        features['matrices'] = theirs['fc3.weight'].reshape(heads, -1, head_dim)
        features['offsets'] = theirs['fc3.bias'].reshape(heads, -1)
    if sigma in theirs:
        features['sigma'] = theirs[sigma].reshape(heads, head_dim)
    return {'params': {'projections': projections, 'feature_map': features}}


class _Golden:
    """Our layer with the golden's parameters; directions that the golden gives are the layer's."""

    def __init__(self, settings, arrays):
        self.settings, self.arrays = settings, arrays
        self.theirs = parameters_of(arrays)
        self.elu = settings['variant'] == 'elu'

    def first(self, x):
        """Batch first; the goldens of RFA and T2R have time first."""
        return x if self.elu else jnp.swapaxes(x, 0, 1)

    def directions(self):
        """A context in which the random directions of every layer are those of the golden."""
        given = self.arrays.get('const/random_matrices')
        return mock.patch.object(feature_maps, 'random_matrices', lambda *_: np.asarray(given))

    def layer(self, theirs, **changes):
        fields = _fields(self.settings, theirs) | changes
        layer = LinearAttention(
            settings=_settings(self.settings), normalize=identity, shared=None, **fields
        )
        return layer, _parameters(self.settings, theirs, ELU if self.elu else OTHERS)

    def run(self, method, theirs, *inputs, **changes):
        """`method(layer, *inputs)`, compiled."""

        @jax.jit
        def call(theirs, *inputs):
            layer, parameters = self.layer(theirs, **changes)
            return layer.apply(parameters, *inputs, method=method)

        with self.directions():
            return call(theirs, *inputs)


def _cut(x, length):
    """[batch, whole segments * length, ...] to [whole segments, batch, length, ...], and the rest."""
    whole = x.shape[1] // length * length
    parts = x[:, :whole].reshape(x.shape[0], -1, length, *x.shape[2:]).swapaxes(0, 1)
    return parts, x[:, whole:]


def _segments(layer, x, valid):
    """Reads segment after segment; outputs, and the state after each whole one."""

    def read(state, part):
        x, valid = part
        tokens, start = jnp.zeros(x.shape[:2], jnp.int32), jnp.zeros(x.shape[:1], bool)
        y, state, _ = layer(x, state, Segment(tokens, valid, start), train=False)
        return state, (y, state)

    (parts, rest), (counted, last) = (_cut(a, layer.settings.segment_length) for a in (x, valid))
    state, (y, states) = jax.lax.scan(read, layer.initial_state(x.shape[0]), (parts, counted))
    y = y.swapaxes(0, 1).reshape(x.shape[0], -1, x.shape[2])
    if rest.shape[1]:
        y = jnp.concatenate([y, read(state, (rest, last))[1][0]], axis=1)
    return y, states


def _tokens(layer, x):
    """Reads token by token, as text is generated; all but the last segment are whole."""
    batch, length = x.shape[0], layer.settings.segment_length

    def say(carry, token):
        cache, index = carry
        y, cache = layer.extend(token[:, None], cache, index, jnp.ones((batch,), jnp.int32))
        return (cache, index + 1), y[:, 0]

    def read(state, part):
        begin = (layer.open_segment(state, batch), jnp.zeros((batch,), jnp.int32))
        (cache, index), y = jax.lax.scan(say, begin, part.swapaxes(0, 1))
        return layer.close_segment(state, cache, index), y.swapaxes(0, 1)

    parts, rest = _cut(x, length)
    state, y = jax.lax.scan(read, layer.initial_state(batch), parts)
    y = y.swapaxes(0, 1).reshape(batch, -1, x.shape[2])
    return jnp.concatenate([y, read(state, rest)[1]], axis=1) if rest.shape[1] else y


def _features(layer, x):
    """Features of queries and keys, [batch, heads, n, width]."""
    maps = layer.projections
    return layer.feature_map.queries(maps.queries(x)), layer.feature_map.keys(maps.keys(x))


def check(settings, arrays):
    """Yields (name, ours, reference) for every tensor of the golden that we compute, too."""
    for name, ours in _computed(_Golden(settings, arrays)):
        if name in arrays:
            yield name, ours, arrays[name]


def _gradients(golden, x, valid, **changes):
    """(name, gradient) of the golden's loss, of all parameters and of the input."""

    def loss(theirs, x):
        y, _ = golden.run(_segments, theirs, golden.first(x), valid, **changes)
        return (golden.first(y) * golden.arrays['in/loss_weight']).sum()

    own, of_x = jax.jit(jax.grad(loss, argnums=(0, 1)))(golden.theirs, x)
    yield from own.items()
    yield 'x', of_x


def _computed(golden):
    """(name, ours) of all that can be computed from what the golden gives."""
    settings, arrays, theirs = golden.settings, golden.arrays, golden.theirs
    first, (d_keys, d_values) = golden.first, _widths(settings)
    x = jnp.asarray(arrays['in/x'])
    every = jnp.ones(first(x).shape[:2], bool)

    def causal(valid, **changes):
        y, states = golden.run(_segments, theirs, first(x), valid, **changes)
        return first(y), states

    def of_tokens(name, y, valid):
        """Padding, which only follows tokens, has no output of ours that means anything."""
        valid = valid[..., None] if golden.elu else valid.T[..., None]
        return np.where(valid, y, arrays[name]) if name in arrays else y

    y, states = causal(every, chunk=3)
    yield 'out/causal', y
    yield 'out/recurrent', first(golden.run(_tokens, theirs, first(x)))
    # What was added to narrower keys or values is zero.
    features = d_keys if golden.elu else None
    for i in range(len(states.count)):
        matrix, normalizer = states.memory.matrix[i], states.memory.normalizer[i]
        yield f'state/{"S" if golden.elu else "s"}_{i + 1}', matrix[:, :, :features, :d_values]
        yield f'state/{"Z" if golden.elu else "z"}_{i + 1}', normalizer[:, :, :features]
    features = golden.run(_features, theirs, first(x))
    for part, name in zip(features, ('out/phi_q', 'out/phi_k'), strict=True):
        yield name, part.transpose(2, 0, 1, 3)
    for name, gradient in _gradients(golden, x, every, chunk=3):
        yield f'grad/{name}', gradient
    if golden.elu:
        if 'in/key_lengths' in arrays:
            valid = np.arange(x.shape[1])[None] < arrays['in/key_lengths'][:, None]
            y, _ = causal(jnp.asarray(valid), chunk=5)
            yield 'out/causal_key_lengths', of_tokens('out/causal_key_lengths', y, valid)
            read, _ = _across(golden, ELU, 'sigma', x, x, valid)
            yield 'out/noncausal_key_lengths', read
        return
    mask = arrays.get('in/key_padding_mask')
    valid = every if mask is None else jnp.asarray(mask == 0)
    yield 'out/causal_padded', of_tokens('out/causal_padded', causal(valid, chunk=5)[0], valid)
    if settings['variant'] != 'rfa':
        return
    masked = dict(guard='magnitude', epsilon=settings.get('masked_eps', 1e-3))
    yield 'out/causal_masked', causal(every, chunk=5, **masked)[0]
    name = 'out/causal_masked_padded'
    yield name, of_tokens(name, causal(valid, chunk=5, **masked)[0], valid)
    for name, gradient in _gradients(golden, x, every, chunk=5, **masked):
        yield f'grad/masked_{name}', gradient
    if 'in/encoder_output' in arrays:
        source = first(jnp.asarray(arrays['in/encoder_output']))
        # The golden does not say whether its source was padded: the sums do.
        found = [_across(golden, CROSS, 'cross_project.sigma', first(x[: settings['segment']]), source,
                         counted, guard='magnitude') for counted in (valid, every)]  # fmt: skip
        read, pairs = min(
            found, key=lambda one: float(jnp.abs(one[1].matrix - arrays['state/cross_s']).max())
        )
        yield 'state/cross_s', pairs.matrix
        yield 'state/cross_z', pairs.normalizer
        yield 'out/cross', first(read)


def _across(golden, names, sigma, x, source, valid, **changes):
    """Cross-attention from `x` to `source`, both batch first, and the sums over the source."""
    fields = _fields(golden.settings, golden.theirs) | changes
    defaults = {field: getattr(LinearAttention, field) for field in FIELDS}
    module = CrossLinear(
        settings=_settings(golden.settings),
        normalize=identity,
        **{field: fields.get(field, defaults[field]) for field in FIELDS},
    )

    def read(module, x, source, valid):
        source = module.source(source, valid)
        return module(x, source, train=False), source.pairs

    parameters = _parameters(golden.settings, golden.theirs, names, sigma)

    def apply(*given):
        return module.apply(parameters, *given, method=read)

    with golden.directions():
        return jax.jit(apply)(x, source, jnp.asarray(valid))
