"""Test-time training: a small model per head that learns the values of its keys while it reads.

TTT-Linear and TTT-MLP (Sun et al., 2024). The state is the weights W of a model f, linear or of two
layers. A token asks it to give v - k for k, and takes a step of gradient descent:

    l(W; k, v) = 1/2 |LN(f(k; W)) - (v - k)|^2
    W_i = W - s_i sum_(j <= i) r_j grad l(W; k_j, v_j)
    o_i = q_i + LN(f(q_i; W_i))

All gradients of a mini-batch of K tokens are those at the weights W before it; W_K begins the next one.
r_j is the rate that token j gives itself, s_i the share that place i of the mini-batch takes of it.
"""

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from longmem_jax.author import Lane, RecurrentMemory, Sight, field, memory, param
from longmem_jax.contract import Fields, Graft, Recipe, Recipes, Scale
from longmem_jax.layers.positions import rotary_frequencies
from longmem_jax.layers.projections import Projections

MODELS = {'linear': 1, 'mlp': 2}  # layers of f
WIDER = 4  # the width of the hidden layer, in those of a head
gelu = jax.nn.gelu  # by tanh

Weights = dict[str, jax.Array]  # of f: W1, b1, and W2, b2 of two layers


def normed(z: jax.Array, scale: jax.Array, bias: jax.Array, epsilon: float) -> jax.Array:
    """LayerNorm over the last axis."""
    z = z - z.mean(-1, keepdims=True)
    return scale * z * jax.lax.rsqrt((z * z).mean(-1, keepdims=True) + epsilon) + bias


def layers_of(weights: Weights, x: jax.Array) -> tuple[list[jax.Array], list[jax.Array], jax.Array]:
    """f of x [..., head_dim]: the inputs of its layers, the slopes of gelu between them, the result."""
    inputs, slopes = [x], []
    for number in range(1, len(weights) // 2):
        z = inputs[-1] @ weights[f'W{number}'] + weights[f'b{number}']
        y, slope = jax.jvp(gelu, (z,), (jnp.ones_like(z),))
        inputs.append(y)
        slopes.append(slope)
    last = len(weights) // 2
    return inputs, slopes, inputs[-1] @ weights[f'W{last}'] + weights[f'b{last}']


def loss(
    weights: Weights, k: jax.Array, v: jax.Array, scale: jax.Array, bias: jax.Array, epsilon: float
) -> jax.Array:
    """The inner loss l of a token, k and v [head_dim]; of several, their sum. The definition."""
    z = layers_of(weights, k)[2]
    return jnp.square(normed(z, scale, bias, epsilon) - (v - k)).sum() / 2


def gradients(
    weights: Weights, k: jax.Array, v: jax.Array, scale: jax.Array, bias: jax.Array, epsilon: float
) -> tuple[list[jax.Array], list[jax.Array]]:
    """The gradients of `loss` of every token, as factors.

    Args:
      weights: of one head.
      k, v: [..., head_dim].
      scale, bias: [head_dim], of the norm.
      epsilon: of the norm.

    Returns:
      Inputs a and errors e of every layer, [..., width]: the gradient of W is the outer product of a and
      e, that of b is e.
    """
    inputs, slopes, z = layers_of(weights, k)
    z = z - z.mean(-1, keepdims=True)
    by = jax.lax.rsqrt((z * z).mean(-1, keepdims=True) + epsilon)
    z = z * by
    e = scale * (scale * z + bias - (v - k))
    errors = [(e - e.mean(-1, keepdims=True) - z * (e * z).mean(-1, keepdims=True)) * by]
    for number in range(len(slopes), 0, -1):
        errors.append((errors[-1] @ weights[f'W{number + 1}'].T) * slopes[number - 1])
    return inputs, errors[::-1]


def step(
    state: Weights,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    rate: jax.Array,
    share: jax.Array,
    closes: jax.Array,
    first: Weights,
    scale: jax.Array,
    bias: jax.Array,
    *,
    epsilon: float,
) -> tuple[Weights, jax.Array]:
    """One token of one head: the definition.

    Args:
      state: `W1`, `b1`, ...: how far the weights are from the first ones, before the mini-batch;
        `sum_W1`, ...: gradients times rates, summed over the tokens of the mini-batch so far.
      q, k, v: [head_dim].
      rate, share: scalars r and s.
      closes: 1 for the last token of a mini-batch, else 0.
      first: the weights that a document begins with.
      scale, bias: [head_dim], of the norm.
      epsilon: of the norm.

    Returns:
      The new state, and o [head_dim].
    """
    weights = {name: of_first + state[name] for name, of_first in first.items()}
    sums = {}
    factors = gradients(weights, k, v, scale, bias, epsilon)
    for number, (a, e) in enumerate(zip(*factors, strict=True), 1):
        sums[f'W{number}'] = state[f'sum_W{number}'] + rate * jnp.outer(a, e)
        sums[f'b{number}'] = state[f'sum_b{number}'] + rate * e
    now = {name: weights[name] - share * sums[name] for name in first}
    y = q + normed(layers_of(now, q)[2], scale, bias, epsilon)
    return closed(state, sums, jax.lax.stop_gradient(closes), share), y


def closed(state: Weights, sums: Weights, closes: jax.Array, share: jax.Array) -> Weights:
    """The state after a mini-batch with these sums, `closes` 1, or in the midst of it, 0."""
    new = {name: state[name] - closes * share * total for name, total in sums.items()}
    return new | {f'sum_{name}': (1 - closes) * total for name, total in sums.items()}


def chunked(
    state: Weights,
    sight: Sight,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    rate: jax.Array,
    share: jax.Array,
    closes: jax.Array,
    first: Weights,
    scale: jax.Array,
    bias: jax.Array,
    *,
    epsilon: float,
) -> tuple[Weights, jax.Array]:
    """`step` for n tokens of one mini-batch, arrays [n, ...]; no weights of single tokens are formed.

    A layer with inputs a and errors e of the keys gives, for inputs x of the queries,
    `x_i W + b - s_i (x_i G + g + sum_(j <= i) r_j (x_i . a_j + 1) e_j)`, with G and g what was summed up
    before.
    """
    weights = {name: of_first + state[name] for name, of_first in first.items()}
    pairs, share_of = sight.pairs.astype(q.dtype) * rate, share[:, None]
    before, at_end = sight.before[:, None], (sight.at_end * rate)[:, None]
    x, sums = q, {}
    factors = gradients(weights, k, v, scale, bias, epsilon)
    for number, (a, e) in enumerate(zip(*factors, strict=True), 1):
        W, b = f'W{number}', f'b{number}'
        moved = before * (x @ state[f'sum_{W}'] + state[f'sum_{b}'])
        moved += (pairs * (x @ a.T + 1)) @ e
        z = x @ weights[W] + weights[b] - share_of * moved
        x = gelu(z)
        sums[W] = before[-1] * state[f'sum_{W}'] + (at_end * a).T @ e
        sums[b] = before[-1] * state[f'sum_{b}'] + (at_end * e).sum(0)
    y = q + normed(z, scale, bias, epsilon)
    closes = jax.lax.stop_gradient(closes)
    return closed(state, sums, closes.sum(), (closes * share).sum()), y


def rotated(x: jax.Array, places: jax.Array, chunk: int, base: float) -> jax.Array:
    """Turns neighbouring pairs of channels by a place in the mini-batch; an odd one is left as it is.

    Args:
      x: [heads, n, head_dim].
      places: int32 [n], below `chunk`.
      chunk: tokens of a mini-batch.
      base: of the wavelengths.
    """
    width = x.shape[-1] // 2 * 2
    angles = np.arange(chunk)[:, None] * rotary_frequencies(width, base)
    sin, cos = (jnp.asarray(table(angles), x.dtype)[places] for table in (np.sin, np.cos))
    a, b = x[..., 0:width:2], x[..., 1:width:2]
    turned = jnp.stack([a * cos - b * sin, b * cos + a * sin], axis=-1)
    return jnp.concatenate([turned.reshape(*x.shape[:-1], width), x[..., width:]], axis=-1)


zeros, ones, drawn = (
    jax.nn.initializers.zeros,
    jax.nn.initializers.ones,
    jax.nn.initializers.normal(0.02),
)


class TTT(RecurrentMemory):
    """A small model per head that is trained while it reads."""

    aligned = True

    inner: str = field('linear', 'the model of a head: linear, or of two layers', among=MODELS)
    chunk: int = field(
        16, 'tokens of a mini-batch, all of whose gradients are those at its begin', least=1
    )
    base_rate: float = field(1.0, 'a step is at most this, divided by head_dim', above=0)
    rope_base: float = field(1e4, 'base of the rotary positions within a mini-batch', above=1)
    convolution: int = field(
        4,
        'tokens that two convolutions see, which make queries and keys of one map; 0 = two maps',
        least=0,
    )
    gate: bool = field(True, 'what is read is multiplied by gelu of a linear map')
    epsilon: float = field(1e-6, 'added to the variance in the norms', above=0)

    def parts(self) -> None:
        width = self.settings.head_dim
        self.projections = Projections(self.settings)
        if self.convolution:
            maps, size = self.projections, self.convolution
            self.query_convolution = self.conv_of(maps.query, size, biased=True)
            self.key_convolution = self.conv_of(maps.query, size, biased=True)
        if self.gate:
            self.shown = self.to_heads()
        self.rate = param('d_model', 'heads', init=drawn)
        self.rate_bias = param('heads', init=zeros)
        self.share = param('chunk', init=zeros)
        widths = [width, *[WIDER * width] * (MODELS[self.inner] - 1), width]
        for number, shape in enumerate(itertools.pairwise(widths), 1):
            setattr(self, f'W{number}', param('heads', *shape, init=drawn))
            setattr(self, f'b{number}', param('heads', shape[1], init=zeros))
        self.scale = param('heads', 'head_dim', init=ones)
        self.bias = param('heads', 'head_dim', init=zeros)
        self.out_scale = param('heads', 'head_dim', init=ones)
        self.out_bias = param('heads', 'head_dim', init=zeros)

    def first(self) -> Weights:
        """The weights [heads, ...] that a document begins with."""
        numbers = range(1, MODELS[self.inner] + 1)
        return {
            f'{part}{number}': getattr(self, f'{part}{number}')
            for part in 'Wb'
            for number in numbers
        }

    def constants(self) -> tuple[Any, ...]:
        return self.first(), self.scale, self.bias

    def state(self) -> Weights:
        """See `test_time.step`; zeros."""
        shapes = {name: leaf.shape[1:] for name, leaf in self.first().items()}
        named = shapes | {f'sum_{name}': shape for name, shape in shapes.items()}
        return {name: jnp.zeros(shape, self.float32) for name, shape in named.items()}

    def inputs(self, x: jax.Array, lane: Lane) -> tuple[jax.Array, ...]:
        """q, k, v [heads, n, head_dim], r, s and whether a mini-batch closes, all [heads or 1, n]."""
        maps = self.projections
        q, v = maps.queries(x), maps.values(x)
        if self.convolution:
            q, k = lane.mixed(self.query_convolution, q), lane.mixed(self.key_convolution, q)
        else:
            k = maps.keys(x)
        places = lane.positions(x.shape[0]) % self.chunk
        q, k, v = (part.astype(self.float32) for part in (q, k, v))
        q, k = (rotated(part, places, self.chunk, self.rope_base) for part in (q, k))
        opened = jax.nn.sigmoid(x.astype(self.float32) @ self.rate + self.rate_bias).T
        lane.log(rate=self.base_rate * opened)
        shares = jnp.maximum(0, 1 / (1 + jnp.arange(self.chunk)) + self.share)
        rates = self.base_rate / self.settings.head_dim * opened
        return q, k, v, rates, shares[places][None], (places == self.chunk - 1)[None]

    def step(self, state: Any, *inputs: Any, **named: Any) -> tuple[Any, Any]:
        """See `test_time.step`."""
        return step(state, *inputs, epsilon=self.epsilon)

    def chunked(self, state: Weights, sight: Sight, *inputs: Any) -> tuple[Any, Any]:
        """See `test_time.chunked`."""
        return chunked(state, sight, *inputs, epsilon=self.epsilon)

    def output(self, x: jax.Array, y: jax.Array, *inputs: jax.Array) -> jax.Array:
        """`W_o (LN(o) gelu(W_g x))`, with a norm over all heads together."""
        y = y - y.mean((0, 2), keepdims=True)
        y = y * jax.lax.rsqrt((y * y).mean((0, 2), keepdims=True) + self.epsilon)
        y = y * self.out_scale[:, None] + self.out_bias[:, None]
        if self.gate:
            y = y * gelu(self.shown(x).astype(self.float32))
        return self.projections.out(y.astype(self.settings.dtype))


def check(fields: Fields, model: Any, segment_length: int) -> list[str]:
    """Checks that a convolution sees more than the token itself."""
    if fields['convolution'] != 1:
        return []
    return ['convolution = 1: sees the token alone; use 0 for two maps, or at least 2']


PAPERS = {
    'ttt_linear': dict(inner='linear', base_rate=1.0),
    'ttt_mlp': dict(inner='mlp', base_rate=0.1),
}


def recipe(scale: Scale, kind: str) -> Recipe:
    """One of `PAPERS`."""
    return Recipe({'test_time': PAPERS[kind]})


ENTRY = memory(
    'test_time',
    TTT,
    check=check,
    recipe=Recipes(
        {kind: functools.partial(recipe, kind=kind) for kind in PAPERS},
        unshifted=dict(convolution=0),
    ),
    graft=Graft(
        lambda scale, position: dict(convolution=0, gate=False),
        exact=False,
        how='projections and embeddings are kept; the trained model replaces the softmax, so it must be '
        'tuned',
        positions='rotations within a mini-batch; those of the document are lost',
    ),
    toy=dict(convolution=0),
    variants=dict(
        mlp=PAPERS['ttt_mlp'] | dict(convolution=3),
        transformer=dict(gate=False, gradients=False, chunk=4),
    ),
)
