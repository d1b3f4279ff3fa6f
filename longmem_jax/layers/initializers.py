"""Initial values of linear maps, one scheme for all (`config.model.init`), and of rates of fading."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn.initializers import variance_scaling
from jax.typing import DTypeLike

from longmem_jax.contract import INITS, ModelSettings


@dataclasses.dataclass(frozen=True)
class ByScheme:
    """An initialiser, see `by_scheme`; equal ones are equal, and so are modules that have them.

    Attributes:
      scheme, std, inputs: as there.
      factor: of all values.
    """

    scheme: str
    std: float
    inputs: tuple[int, ...]
    factor: float = 1.0

    def __call__(
        self, key: jax.Array, shape: Sequence[int], dtype: DTypeLike = jnp.float32
    ) -> jax.Array:
        """Draws the values of a kernel."""
        outputs = [i for i in range(len(shape)) if i not in self.inputs]
        axes: dict[str, Any] = dict(in_axis=self.inputs, out_axis=outputs)
        initializer = {
            'normal': jax.nn.initializers.normal(self.std),
            'glorot_uniform': variance_scaling(1.0, 'fan_avg', 'uniform', **axes),
            'torch': variance_scaling(1 / 3, 'fan_in', 'uniform', **axes),
        }[self.scheme]
        values = initializer(key, shape, dtype)
        return values if self.factor == 1.0 else self.factor * values


def by_scheme(scheme: str, std: float, inputs: Sequence[int], factor: float = 1.0) -> ByScheme:
    """The initialiser of a linear map.

    Args:
      scheme: 'normal', N(0, std^2); 'glorot_uniform', U(-a, a) with a = sqrt(6 / (fan_in + fan_out))
        (Glorot and Bengio, 2010); 'torch', U(-a, a) with a = fan_in**-0.5, PyTorch's for linear maps.
      std: standard deviation of 'normal'; the other schemes follow from the shape.
      inputs: axes of the kernel that are summed over; all others are outputs.
      factor: of all values.
    """
    assert scheme in INITS
    return ByScheme(scheme, std, tuple(inputs), factor)


def kernel(settings: ModelSettings, inputs: int = 1, *, residual: bool = False) -> ByScheme:
    """The initialiser of a kernel by the model's scheme.

    Args:
      settings: model settings shared by all layers.
      inputs: number of leading axes that are summed over: 1 for [d_model, heads, head_dim], 2 for
        [heads, head_dim, d_model].
      residual: whether the result is added to the residual stream, so that
        `settings.scale_residual_init` divides the kernel by sqrt(2 num_layers).
    """
    shared = residual and settings.scale_residual_init
    factor = (2 * settings.num_layers) ** -0.5 if shared else 1.0
    return by_scheme(settings.init, settings.init_std, range(inputs), factor)


def xavier_uniform(gain: float, inputs: int = 1) -> ByScheme:
    """Glorot's uniform initialiser times `gain`, for maps that have one of their own; as `kernel`."""
    return by_scheme('glorot_uniform', 1.0, range(inputs), gain)


def with_axes(
    initializer: Callable[..., jax.Array], axes: tuple[str | None, ...]
) -> Callable[..., jax.Array]:
    """`initializer` for a parameter whose dimensions have these logical axes; None = not split.

    `Module.param` gives the array itself, so that is the type here; Flax's is that of its box.
    """
    boxed: Any = nn.with_logical_partitioning(initializer, axes)
    return boxed


def rates(low: float, high: float) -> Callable[..., jax.Array]:
    """Logarithms of rates that are uniform in this range."""

    def draw(key: jax.Array, shape: Sequence[int], dtype: DTypeLike = jnp.float32) -> jax.Array:
        return jnp.log(jax.random.uniform(key, shape, dtype, low, high))

    return draw


def steps(low: float, high: float) -> Callable[..., jax.Array]:
    """Biases of which softplus makes time steps in this range, uniform in their logarithm."""

    def draw(key: jax.Array, shape: Sequence[int], dtype: DTypeLike = jnp.float32) -> jax.Array:
        found = jnp.exp(jax.random.uniform(key, shape, dtype, math.log(low), math.log(high)))
        return found + jnp.log(-jnp.expm1(-found))

    return draw
