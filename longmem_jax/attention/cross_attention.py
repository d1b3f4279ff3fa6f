"""Attention to a source, a memory, or a whole sequence, instead of to one's own past."""

from collections.abc import Callable

import flax.linen as nn
import flax.struct
import jax

from longmem_jax.attention.attend import attend_in
from longmem_jax.attention.rules import Rules
from longmem_jax.contract import ModelSettings
from longmem_jax.layers.projections import Projections


class Source(flax.struct.PyTreeNode):
    """What is attended to, projected once.

    Attributes:
      keys, values: [batch, kv_heads, n, head_dim].
      valid: bool [batch, n]; False = never seen.
    """

    keys: jax.Array
    values: jax.Array
    valid: jax.Array


class CrossAttention(nn.Module):
    """Multi-head attention from a sequence to a source, without positions (Vaswani et al., 2017).

    Attributes:
      settings: sizes of the model.
      normalize: norm of a pre-norm model, used on the queries' side only.
      bias: biases on the four projections; False = as `settings.attention_bias`.
    """

    settings: ModelSettings
    normalize: Callable[[jax.Array], jax.Array]
    bias: bool

    def setup(self) -> None:
        self.projections = Projections(self.settings, bias=self.bias)

    def source(self, vectors: jax.Array, valid: jax.Array) -> Source:
        """Projects `vectors` [batch, n, d_model]; only `valid` ones (bool [batch, n]) are seen."""
        return Source(self.projections.keys(vectors), self.projections.values(vectors), valid)

    def __call__(self, x: jax.Array, source: Source, *, train: bool) -> jax.Array:
        """Attends from `x` [batch, length, d_model]; the same shape, without the residual."""
        queries = self.projections.queries(self.normalize(x))
        rules = Rules(
            offset=0,
            causal=False,
            mask=source.valid[:, None, None, :],
            scale=self.settings.score_scale,
        )
        parts = (('source', source.valid.shape[1]),)
        out = attend_in(self, queries, source.keys, source.values, rules, train=train, parts=parts)
        return self.projections.out(out)
