"""A continuous memory with its parameters, for any layer that provides queries and vectors.

Infinity-former (Martins et al., 2022), one memory of one layer: gate and fit (write), expectation of
the basis under the densities of the queries (read). Stateless: coefficients go in and come out.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from longmem_jax.contract import ModelSettings
from longmem_jax.layers import initializers
from longmem_jax.layers.projections import HeadsIn, HeadsOut
from longmem_jax.memory.infinity_former import continuous


def _uniform(bound: float) -> Callable[..., jax.Array]:
    """An initialiser with values in +-`bound`."""

    def draw(key: jax.Array, shape: Any, dtype: DTypeLike = jnp.float32) -> jax.Array:
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return draw


def _constant(values: Any) -> Callable[..., jax.Array]:
    """An initialiser that broadcasts `values`."""
    return lambda key, shape, dtype=jnp.float32: jnp.broadcast_to(values, shape).astype(dtype)


class ContinuousMemory(nn.Module):
    """Writes vectors into coefficients `B` and reads them with a density per query.

    All in float32 at least. Products with B, G or psi have the highest precision; gate and output
    projection follow the default of the device, as nothing amplifies their rounding. No gradient flows
    into old coefficients or positions; gate and projections learn from the segment that first reads the
    new vectors.

    Attributes:
      settings: sizes of the model.
      first_length, write_length: vectors in the first fit, and in every later one.
      The others: as in `InfinityFormer`. Without biases densities begin sqrt(log 2) = .83 wide.
    """

    settings: ModelSettings
    num_basis: int
    widths: tuple[float, ...]
    num_samples: int
    tau: float
    ridge: float
    first_length: int
    write_length: int
    sigma_sq_min: float
    density: str
    padding: bool
    biases: bool = False
    first_width: float = 0.0
    first_places: tuple[float, ...] = ()

    def setup(self) -> None:
        settings, width = self.settings, self.settings.d_model
        self.float32 = jnp.promote_types(settings.dtype, jnp.float32)
        init = nn.initializers.normal(settings.init_std)
        heads: dict[str, Any] = dict(
            num_heads=settings.num_heads,
            head_dim=settings.head_dim,
            dtype=self.float32,
            kernel_init=initializers.kernel(settings),
        )
        exact = dict(precision=continuous.HIGHEST, **heads)
        self.key, self.value = HeadsIn(**exact), HeadsIn(**exact)
        out = initializers.kernel(settings, inputs=2, residual=True)
        self.out = HeadsOut(d_model=width, dtype=self.float32, kernel_init=out)
        axes = initializers.with_axes
        uniform = _uniform((3 * width) ** -0.5)  # PyTorch's default, as in the released code
        gate = axes(uniform, (None, None, 'embed'))
        self.gate_kernel = self.param('gate_kernel', gate, (3, width, width))
        self.gate_bias = self.param('gate_bias', uniform, (width,))
        self.mu_kernel = self.param('mu_kernel', init, (self.num_basis,))
        self.sigma_kernel = self.param('sigma_kernel', init, (self.num_basis,))
        if self.biases:
            first, last = self.first_places or (0.5, 0.5)
            places = np.linspace(first, last, settings.num_heads)
            wide = np.log(np.expm1(self.first_width**2)) if self.first_width else 0.0
            starts = dict(mu_bias=np.log(places / (1 - places)), sigma_bias=wide)
            self.offsets = tuple(
                self.param(name, axes(_constant(value), ('heads',)), (settings.num_heads,))
                for name, value in starts.items()
            )
        sizes = (self.num_samples, self.tau, self.ridge, self.num_basis, tuple(self.widths))
        whole, _ = continuous.fit_matrices(self.first_length, *sizes, self.padding)
        _, update = continuous.fit_matrices(self.write_length, *sizes, self.padding)
        centres, widths = continuous.gaussian_basis(self.num_basis, tuple(self.widths))
        self.first_matrix = jnp.asarray(whole, self.float32)
        self.update_matrix = jnp.asarray(update, self.float32)
        self.centres, self.sizes = (jnp.asarray(array, self.float32) for array in (centres, widths))

    def gate(self, vectors: jax.Array) -> jax.Array:
        """Vectors times their gate (Eq. 18), a convolution over neighbours: [batch, n, d_model]."""
        vectors = vectors.astype(self.float32)
        padded = jnp.pad(vectors, [(0, 0), (1, 1), (0, 0)])
        kernel = self.gate_kernel.astype(self.float32)
        mixed = sum(padded[:, i : i + vectors.shape[1]] @ kernel[i] for i in range(3))
        bias = self.gate_bias.astype(self.float32).reshape(1, 1, -1)
        return vectors * jax.nn.sigmoid(mixed + bias)

    def fit_first(self, vectors: jax.Array) -> jax.Array:
        """Coefficients of the first `first_length` vectors (Eq. 5): [batch, num_basis, d_model]."""
        return continuous.fit(self.first_matrix, self.gate(vectors))

    def update(
        self, coefficients: jax.Array, positions: jax.Array, vectors: jax.Array
    ) -> jax.Array:
        """Contracts the old signal and adds `write_length` vectors (Eqs. 13-15).

        The contraction is in `update_matrix`: it puts the samples at other positions than those at
        which they were read, see `continuous.update_positions`.

        Args:
          coefficients: [batch, num_basis, d_model].
          positions: [samples] or [batch, samples], ascending, where the old signal is read: t / tau of
            Eq. 14, in [0, 1].
          vectors: [batch, write_length, d_model].

        Returns:
          [batch, num_basis, d_model].
        """
        old, positions = jax.lax.stop_gradient((coefficients.astype(self.float32), positions))
        basis = continuous.psi(positions.astype(self.float32), self.centres, self.sizes)
        signal = continuous.evaluate(old, basis)
        joined = jnp.concatenate([signal, self.gate(vectors)], axis=1)
        return continuous.fit(self.update_matrix, joined)

    def linear_places(self) -> jax.Array:
        """Evenly spaced positions, m / M, for `update`: [samples]."""
        return jnp.arange(1, self.num_samples + 1, dtype=self.float32) / self.num_samples

    def project(self, coefficients: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Keys and values of the basis functions (Eq. 8), [batch, heads, num_basis, head_dim] each."""
        coefficients = coefficients.astype(self.float32)
        return self.key(coefficients), self.value(coefficients)

    def _affine(self, scores: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Eqs. 9-10 before sigmoid and softplus: two arrays [batch, heads, n]."""
        kernels = (kernel.astype(self.float32) for kernel in (self.mu_kernel, self.sigma_kernel))
        mu, width = (jnp.matmul(scores, k, precision=continuous.HIGHEST) for k in kernels)
        if self.biases:
            offsets = (offset.astype(self.float32)[None, :, None] for offset in self.offsets)
            mu, width = (x + offset for x, offset in zip((mu, width), offsets, strict=True))
        return mu, width

    def read(
        self, queries: jax.Array, keys: jax.Array, values: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        """The expectation of the signal under the density of every query (Eqs. 9-11), projected.

        Args:
          queries: [batch, heads, n, head_dim], not scaled.
          keys, values: see `project`.

        Returns:
          [batch, n, d_model]; mu and sigma_sq, [batch, heads, n]; scores [batch, heads, n, num_basis].
        """
        queries = queries.astype(self.float32)
        scores = jnp.einsum('bhqd,bhkd->bhqk', queries, keys, precision=continuous.HIGHEST)
        scores = scores * jnp.asarray(self.settings.head_dim**-0.5, self.float32)
        mu, width = self._affine(scores)
        mu, sigma_sq = jax.nn.sigmoid(mu), jax.nn.softplus(width)
        sigma_sq = jnp.maximum(sigma_sq, jnp.asarray(self.sigma_sq_min, self.float32))
        expected = continuous.expectation(mu, sigma_sq, self.centres, self.sizes, self.density)
        read = jnp.einsum('bhqk,bhkd->bhqd', expected, values, precision=continuous.HIGHEST)
        return self.out(read), mu, sigma_sq, scores


def continuous_memory_of(layer: Any, first_length: int, write_length: int) -> ContinuousMemory:
    """The continuous memory of a layer with `settings` and the fields of `ContinuousMemory`."""
    return ContinuousMemory(
        settings=layer.settings,
        num_basis=layer.num_basis,
        widths=tuple(layer.widths),
        num_samples=layer.num_samples,
        tau=layer.tau,
        ridge=layer.ridge,
        first_length=first_length,
        write_length=write_length,
        sigma_sq_min=layer.sigma_sq_min,
        density=layer.density,
        padding=layer.padding,
        biases=layer.biases,
        first_width=layer.first_width,
        first_places=tuple(layer.first_places),
    )
