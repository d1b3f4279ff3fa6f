"""Linear attention to a source: sums over all of it, read by every query."""

import functools
from collections.abc import Callable

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from longmem_jax.contract import Fields, ModelSettings
from longmem_jax.layers import associative
from longmem_jax.layers.projections import Projections, repeat_heads
from longmem_jax.memory.linear_attention.feature_map import FeatureMap

# Fields that it has in common with the layer.
FIELDS = (
    'features', 'size', 'tau', 'random', 'seed', 'learned_scale', 'guard', 'epsilon', 'bias',
)  # fmt: skip


class LinearSource(flax.struct.PyTreeNode):
    """What linear cross-attention reads.

    Attributes:
      pairs: S [batch, heads, d_key, head_dim] and z [batch, heads, d_key] of the whole source.
    """

    pairs: associative.Pairs


class CrossLinear(nn.Module):
    """Linear attention to a source of any length, whose sums are made once (RFA's cross-attention).

    Random directions are those of `seed`, in training, too: source and queries need the same.

    Attributes:
      settings: sizes of the model.
      normalize: norm of a pre-norm model, used on the queries' side only.
      features, size, tau, random, seed, learned_scale, guard, epsilon, bias: see `LinearAttention`.
    """

    settings: ModelSettings
    normalize: Callable[[jax.Array], jax.Array]
    features: str
    size: int
    tau: float
    random: str
    seed: int
    learned_scale: bool
    guard: str
    epsilon: float
    bias: bool

    def setup(self) -> None:
        self.projections = Projections(self.settings, bias=self.bias)
        self.feature_map = FeatureMap(
            settings=self.settings,
            features=self.features,
            size=self.size,
            tau=self.tau,
            random=self.random,
            seed=self.seed,
            learned_scale=self.learned_scale,
        )

    def source(self, vectors: jax.Array, valid: jax.Array) -> LinearSource:
        """Sums over `vectors` [batch, n, d_model] where `valid`, bool [batch, n]."""
        maps, heads = self.projections, self.settings.num_heads
        keys = self.feature_map.keys(repeat_heads(maps.keys(vectors), heads))
        keys = jnp.where(valid[:, None, :, None], keys, jnp.zeros_like(keys))
        values = repeat_heads(maps.values(vectors), heads)
        shape = (*keys.shape[:2], keys.shape[-1], values.shape[-1])
        empty = associative.empty(*shape, dtype=keys.dtype)
        return LinearSource(
            associative.write(empty, keys, values, 'linear', 'none', self.guard, self.epsilon)
        )

    def __call__(self, x: jax.Array, source: LinearSource, *, train: bool) -> jax.Array:
        """Reads from `x` [batch, length, d_model]; the same shape, without the residual."""
        maps = self.projections
        queries = self.feature_map.queries(maps.queries(self.normalize(x)))
        read = associative.read(source.pairs, queries, 'sum', self.guard, self.epsilon)
        return maps.out(read.astype(self.settings.dtype))


def cross(fields: Fields, num_slots: int) -> Callable[..., CrossLinear]:
    """Cross-attention with the fields of the decoder's self-attention; `num_slots` has no meaning."""
    return functools.partial(CrossLinear, **{name: fields[name] for name in FIELDS})
