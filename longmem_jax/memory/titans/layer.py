"""Titans: a network per head that learns keys and values while it reads.

The equations are in `maths`.
"""

from typing import Any

import jax
import jax.numpy as jnp

from longmem_jax.author import Lane, RecurrentMemory, Sight, field, logged, memory, param
from longmem_jax.contract import Fields, Graft, Recipe, Recipes, Scale
from longmem_jax.layers.norms import Norm
from longmem_jax.layers.projections import Projections
from longmem_jax.memory.titans import inner, maths
from longmem_jax.views import Seen, Series, View

KEY_NORMS = ('none', 'l2', 'rmsnorm')
# Biases at the start: a block leaves 98 % of the memory and of its momentum half.
DECAY_BIAS = -4.0

zeros, ones, constant = (
    jax.nn.initializers.zeros,
    jax.nn.initializers.ones,
    jax.nn.initializers.constant,
)


class Titans(RecurrentMemory):
    """A network per head that learns keys and values while it reads, with momentum and forgetting."""

    aligned = True

    chunk: int = field(16, 'tokens of a block, whose gradients are taken together', least=1)
    batch: int = field(
        1,
        'blocks after which gradients are taken at the new memory; 0 = never: always at the weights '
        'that a document begins with',
        least=0,
    )
    matrices: int = field(2, 'matrices of the network of a head', least=1)
    expansion: float = field(4.0, 'width between its matrices, in widths of a head', above=0)
    momentum: bool = field(True, 'surprise continues through later blocks')
    muon: bool = field(False, 'what is added to matrices has singular values of about 1')
    largest_step: float = field(
        0.0,
        'largest size of a step of a token; 0 = 1 / tokens between two values of the weights at which '
        'gradients are taken, so that no step overshoots',
        least=0,
    )
    largest_surprise: float = field(
        0.0,
        "norm of a block's surprise, per array: between half of it and it; 0 = as it is",
        least=0,
    )
    loss: str = field(
        'l2', "what is learned: 'l2', 'huber' or 'lp' between f(k) and v", among=inner.LOSSES
    )
    power: float = field(3.0, "power of the loss 'lp'", least=1)
    threshold: float = field(1.0, "error from which the loss 'huber' is linear", above=0)
    convolution: int = field(
        4, 'tokens that a convolution of queries, keys and values sees; 0 = there is none', least=0
    )
    silu: bool = field(True, 'queries, keys and values go through SiLU')
    key_norm: str = field(
        'l2',
        "queries and keys have length one ('l2'), or learned scales times a mean square of one "
        "('rmsnorm')",
        among=KEY_NORMS,
    )
    read_norm: bool = field(True, 'a norm of what each head reads, with learned scales')
    epsilon: float = field(1e-6, 'added to mean squares in the norms of vectors', above=0)
    inner_epsilon: float = field(1e-5, 'added to the variance in the norm of the network', above=0)
    own_norms: bool = field(
        False, 'norms before writing and before reading, after that of the model'
    )

    def parts(self) -> None:
        width, hidden = self.settings.head_dim, self.hidden()
        self.projections = Projections(self.settings)
        if self.convolution:
            maps, size = self.projections, self.convolution
            self.query_convolution = self.conv_of(maps.query, size)
            self.key_convolution = self.conv_of(maps.key, size)
            self.value_convolution = self.conv_of(maps.value, size)
        if self.own_norms:
            self.store_norm, self.retrieve_norm = (Norm('rmsnorm', self.epsilon) for _ in range(2))
        if self.key_norm == 'rmsnorm':
            self.query_scale = param('heads', 'head_dim', init=ones)
            self.key_scale = param('heads', 'head_dim', init=ones)
        self.step_kernel = param('d_model', 'heads')
        self.step_bias = param('heads', init=zeros)
        if self.momentum:
            self.momentum_kernel = param('d_model', 'heads')
            self.momentum_bias = param('heads', init=zeros)
        self.decay_kernel = param('d_model', 'heads')
        self.decay_bias = param('heads', init=constant(DECAY_BIAS))
        self.gamma = param('heads', 'head_dim', init=zeros)
        xavier = jax.nn.initializers.glorot_uniform(in_axis=1, out_axis=2, batch_axis=0)
        widths = [width] + [hidden] * (self.matrices - 1) + [width]
        for number, name in enumerate(inner.names(self.matrices)):
            setattr(self, name, param('heads', *widths[number : number + 2], init=xavier))
        if self.read_norm:
            self.read_scale = param('heads', 'head_dim', init=ones)
        self.shown = param('d_model', 'heads')

    def hidden(self) -> int:
        """Width between the matrices of the network."""
        return max(1, int(self.settings.head_dim * self.expansion))

    def rule(self) -> maths.Rule:
        """How blocks are written."""
        return maths.Rule(
            block=self.chunk,
            batch=self.batch * self.chunk,
            momentum=self.momentum,
            muon=self.muon,
            most=self.largest_surprise,
            loss=self.loss,
            power=self.power,
            threshold=self.threshold,
            epsilon=self.inner_epsilon,
        )

    def period(self) -> int:
        """Tokens of a batch, or of a block if there are no batches."""
        return self.chunk * max(self.batch, 1)

    def weights(self) -> inner.Weights:
        """Weights that a document begins with, arrays [heads, ...]."""
        named = ('gamma', *inner.names(self.matrices))
        return {name: getattr(self, name).astype(self.float32) for name in named}

    def constants(self) -> tuple[Any, ...]:
        return (self.weights(),)

    def state(self) -> maths.Neural:
        """See `maths.Neural`; needs no parameters."""
        width, hidden = self.settings.head_dim, self.hidden()
        shapes: dict[str, tuple[int, ...]] = {'gamma': (width,)}
        for number, name in enumerate(inner.names(self.matrices)):
            last = number == self.matrices - 1
            shapes[name] = (hidden if number else width, width if last else hidden)
        weights = {name: jnp.zeros(shape, self.float32) for name, shape in shapes.items()}
        return maths.empty(weights, self.rule())

    def inputs(self, x: jax.Array, lane: Lane) -> tuple[jax.Array, ...]:
        """q, k, v [heads, n, head_dim], steps [heads, n], logits [heads, n, 2], places [heads, n]."""
        stored, maps = self.store_norm(x) if self.own_norms else x, self.projections
        q, k, v = maps.queries(self.asked(x)), maps.keys(stored), maps.values(stored)
        if self.convolution:
            q = lane.mixed(self.query_convolution, q)
            k = lane.mixed(self.key_convolution, k)
            v = lane.mixed(self.value_convolution, v)
        if self.silu:
            q, k, v = (jax.nn.silu(part) for part in (q, k, v))
        q, k, v = (part.astype(self.float32) for part in (q, k, v))
        if self.key_norm != 'none':
            q, k = self.normed(q), self.normed(k)
        if self.key_norm == 'l2':
            q, k = (part * part.shape[-1] ** -0.5 for part in (q, k))
        if self.key_norm == 'rmsnorm':
            q, k = q * self.query_scale[:, None], k * self.key_scale[:, None]
        stored = stored.astype(self.float32)
        largest = self.largest_step or 1 / self.period()
        theta = largest * jax.nn.sigmoid(stored @ self.step_kernel + self.step_bias).T
        decay = (stored @ self.decay_kernel + self.decay_bias).T
        lane.log(step_size=theta, share_kept=jax.nn.sigmoid(-decay))
        eta = jnp.zeros_like(decay)
        if self.momentum:
            eta = (stored @ self.momentum_kernel + self.momentum_bias).T
            lane.log(momentum_kept=jax.nn.sigmoid(eta))
        place = 1 + lane.positions(x.shape[0]) % self.period()
        place = jnp.broadcast_to(place.astype(self.float32), theta.shape)
        return q, k, v, theta, jnp.stack([eta, decay], axis=-1), place

    def asked(self, x: jax.Array) -> jax.Array:
        """What queries and the gate are made of."""
        return self.retrieve_norm(x) if self.own_norms else x

    def normed(self, x: jax.Array) -> jax.Array:
        """Vectors [..., width] over the root of their mean square."""
        return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + self.epsilon)

    def step(self, state: Any, *inputs: Any, **named: Any) -> tuple[Any, Any]:
        """See `maths.step`."""
        return maths.step(state, *inputs, rule=self.rule())

    def chunked(self, state: Any, sight: Sight, *inputs: Any) -> tuple[Any, Any]:
        """See `maths.chunked`."""
        return maths.chunked(state, sight, *inputs, rule=self.rule())

    def output(self, x: jax.Array, y: jax.Array, *inputs: jax.Array) -> jax.Array:
        """`W_o (norm(y) sigmoid(W_g x))`, with a number of the gate per head."""
        if self.read_norm:
            y = self.normed(y) * self.read_scale[:, None]
        gate = jax.nn.sigmoid(self.asked(x).astype(self.float32) @ self.shown).T
        return self.projections.out((y * gate[..., None]).astype(self.settings.dtype))


def check(fields: Fields, model: Any, segment_length: int) -> list[str]:
    """Checks that a convolution sees more than the token itself."""
    if fields['convolution'] != 1:
        return []
    return ['convolution = 1: sees the token alone; use 0 for none, or at least 2']


def recipe(scale: Scale) -> Recipe:
    """Blocks of at most a segment; what fades leaves tiny numbers, so the epsilon is not tiny."""
    return Recipe({'titans': dict(chunk=min(scale.segment, 16), inner_epsilon=1e-2)})


def series(seen: Seen) -> Series:
    """Norms of the memory, its momentum, and what the segment changed; by token what `inputs` logs."""

    def norm(weights: inner.Weights) -> jax.Array:
        squares = [jnp.square(leaf).sum(range(2, leaf.ndim)) for leaf in weights.values()]
        return jnp.sqrt(sum(squares)).astype(jnp.float32)

    old, new = seen.state.memory, seen.new.memory
    change = jax.tree.map(jnp.subtract, new.memory, old.memory)
    by_segment = {'learned since the begin': norm(new.memory), 'change of the memory': norm(change)}
    if new.momentum is not None:
        by_segment['size of the momentum'] = norm(new.momentum)
    return Series(logged(seen), by_segment)


CHOSEN = 'it is part of what the memory computes, not of how; train with the value to be used'

ENTRY = memory(
    'titans',
    Titans,
    check=check,
    recipe=Recipes(
        {'titans': recipe},
        trained=dict(chunk=CHOSEN, batch=CHOSEN),
        unshifted=dict(convolution=0),
    ),
    graft=Graft(
        lambda scale, position: {},
        exact=False,
        how='projections and embeddings are kept; the network replaces the softmax, so it must be tuned',
        positions='the order of the last tokens, by its convolution; rotary ones are lost',
    ),
    view=View(series=series),
    # What fades leaves a network of tiny numbers; divided by them, rounding would decide.
    toy=dict(inner_epsilon=1e-2),
    variants=dict(
        muon=dict(muon=True, matrices=1, batch=2, key_norm='rmsnorm'),
        plain=dict(matrices=1, momentum=False, convolution=0, silu=False, read_norm=False),
        huber=dict(
            chunk=2, batch=0, loss='huber', largest_surprise=2.0, own_norms=True, matrices=3
        ),
    ),
)
