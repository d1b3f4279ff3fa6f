"""A mixture of experts in place of the dense layer (Shazeer et al., 2017): a few of many per token.

A router gives every token a weight for each expert; those with the largest count, and none of them is
too full for a token. One more expert may read all tokens, times a gate (Qwen-MoE). No
loss keeps the load of the experts even: for hosts, whose routers are trained.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from longmem_jax.contract import Entry, Fields, LayerType, identity
from longmem_jax.layers import initializers
from longmem_jax.layers.feed_forward import ACTIVATIONS, Dense
from longmem_jax.problems import at_least, one_of


def routed(scores: jax.Array, top_k: int, renormalized: bool) -> tuple[jax.Array, jax.Array]:
    """Weights and numbers of the experts of every token.

    Args:
      scores: float32 [tokens, experts].
      top_k: experts per token.
      renormalized: the weights of those sum to one, not those of all.

    Returns:
      float32 and int32 [tokens, top_k].
    """
    weights, numbers = jax.lax.top_k(jax.nn.softmax(scores, axis=-1), top_k)
    if renormalized:
        weights = weights / weights.sum(axis=-1, keepdims=True)
    return weights, numbers


def mixed(
    rows: jax.Array,
    weights: jax.Array,
    numbers: jax.Array,
    kernels: tuple[jax.Array, jax.Array, jax.Array],
    act: Callable[[jax.Array], jax.Array],
) -> jax.Array:
    """The weighted sum of what its experts make of every token.

    Args:
      rows: [tokens, d_model].
      weights, numbers: of `routed`.
      kernels: gate and up [experts, d_model, width], down [experts, width, d_model].
      act: activation of the gate.

    Returns:
      [tokens, d_model].
    """
    gate, up, down = kernels
    # Tokens of an expert are made neighbours: then its part of the product is one of matrices.
    order = jnp.argsort(numbers.reshape(-1))
    sizes = jnp.bincount(numbers.reshape(-1), length=gate.shape[0]).astype(jnp.int32)
    read = rows[order // numbers.shape[1]]
    hidden = act(jax.lax.ragged_dot(read, gate, sizes)) * jax.lax.ragged_dot(read, up, sizes)
    made = jax.lax.ragged_dot(hidden, down, sizes)[jnp.argsort(order)]
    made = made.reshape(*numbers.shape, -1) * weights.astype(made.dtype)[:, :, None]
    return made.sum(axis=1)


class Experts(Dense):
    """A mixture of gated experts without biases; stateless.

    Attributes:
      activation: 'swiglu' or 'geglu'.
      bias: has to be False.
      experts: their number.
      top_k: experts that a token goes through.
      width: numbers inside an expert; 0 = d_feed_forward.
      renormalized: the weights of the chosen experts sum to one.
      always: numbers inside the expert that all tokens go through; 0 = there is none.
    """

    takes_starts: ClassVar[bool] = True

    activation: str = 'swiglu'
    bias: bool = False
    experts: int = 8
    top_k: int = 2
    width: int = 0
    renormalized: bool = True
    always: int = 0

    def setup(self) -> None:
        settings, axes = self.settings, initializers.with_axes
        width = self.width or settings.d_feed_forward

        def kernels(name: str, inputs: int, outputs: int, names: Any, residual: bool) -> jax.Array:
            scheme = initializers.kernel(settings, residual=residual)
            init = axes(dataclasses.replace(scheme, inputs=(1,)), names)
            return self.param(name, init, (self.experts, inputs, outputs))

        into, out = (None, 'embed', None), (None, None, 'embed')
        self.router = self.param(
            'router',
            axes(initializers.kernel(settings), ('embed', None)),
            (settings.d_model, self.experts),
        )
        self.expert_gate = kernels('expert_gate', settings.d_model, width, into, False)
        self.expert_up = kernels('expert_up', settings.d_model, width, into, False)
        self.expert_down = kernels('expert_down', width, settings.d_model, out, True)
        if self.always:
            self.every = Dense(
                settings=dataclasses.replace(settings, d_feed_forward=self.always),
                normalize=identity,
                shared=None,
                activation=self.activation,
                bias=False,
            )
            self.every_gate = self.param(
                'every_gate',
                axes(initializers.kernel(settings), ('embed', None)),
                (settings.d_model, 1),
            )

    def mapped(self, x: jax.Array, train: bool) -> jax.Array:
        """The layer's output for `x` [..., d_model]."""
        x = self.normalize(x)
        rows, dtype = x.reshape(-1, x.shape[-1]), x.dtype
        scores = rows.astype(jnp.promote_types(dtype, jnp.float32)) @ self.router.astype(
            jnp.promote_types(dtype, jnp.float32)
        )
        weights, numbers = routed(scores, self.top_k, self.renormalized)
        kernels = (self.expert_gate, self.expert_up, self.expert_down)
        gate, up, down = (kernel.astype(dtype) for kernel in kernels)
        y = mixed(rows, weights, numbers, (gate, up, down), ACTIVATIONS[self.activation][0])
        y = y.reshape(x.shape)
        if self.always:
            y = y + jax.nn.sigmoid(x @ self.every_gate.astype(dtype)) * self.every.mapped(x, train)
        return y


def check(fields: Fields, model: Any, segment_length: int) -> list[str]:
    """Checks that there are as many experts as a token goes through."""
    gated = [name for name, (_, is_gated) in ACTIVATIONS.items() if is_gated]
    problems = one_of(fields, activation=gated, bias=(False,))
    problems += at_least(fields, 1, 'experts', 'top_k') + at_least(fields, 0, 'width', 'always')
    if not problems and fields['top_k'] > fields['experts']:
        problems.append(f'top_k = {fields["top_k"]}: at most experts = {fields["experts"]}')
    return problems


ENTRY = Entry(
    name='experts',
    place='feed_forward',
    layer=LayerType(Experts, check=check, nearest='experts'),
    toy=dict(experts=4, width=6, always=6),
    variants=dict(alone=dict(always=0, renormalized=False)),
)
