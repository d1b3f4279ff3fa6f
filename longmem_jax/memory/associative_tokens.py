"""ARMT, the associative recurrent memory transformer (Rodkin et al., 2024).

Learned memory tokens stand after every segment. Every block has a matrix W and a sum of keys z, which
remember pairs. phi are products of features (DPFP). Before a block all tokens read from the segments
before:

    h <- h + phi(Q h) W / (z phi(Q h) + e)

Behind it the outputs m of the memory tokens are written, each with k = phi(K m), v = V m and
b = sigmoid(B m). What the memory gives for k is moved to v, a delta rule:

    W <- W + sum_i b_i k_i (v_i - k_i W / (z k_i + e))
    z <- z + sum_i g_i k_i,    g = clip(1 - (z k + e) / (|k|^2 + e), 0, 1)

g is how new a key is: one that z has already is not counted a second time. No gradient flows through g,
and it is 1 in the first segment of a document. All memory tokens are written at once, from the W and z
before them.
"""

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from longmem_jax.around import Around
from longmem_jax.contract import (
    Entry,
    Fields,
    Graft,
    LayerType,
    ModelSettings,
    Recipe,
    Recipes,
    Scale,
)
from longmem_jax.layers import associative, feature_maps, initializers
from longmem_jax.layers.associative import Pairs
from longmem_jax.layers.triangular import product
from longmem_jax.memory.memory_tokens.tokens import LearnedTokens
from longmem_jax.problems import at_least
from longmem_jax.views import Seen, Series, View, changes_of_sums

EPSILON = 1e-5  # e


class ARMTState(flax.struct.PyTreeNode):
    """What the blocks remember of the segments before.

    Attributes:
      pairs: of every block W [batch, features, d_model] and z [batch, features], at least float32.
      count: int32 [batch], 1 after a segment of the document, else 0.
    """

    pairs: tuple[Pairs, ...]
    count: jax.Array


def read(pairs: Pairs, features: jax.Array) -> jax.Array:
    """`phi W / (z phi + e)`.

    Args:
      pairs: of one block.
      features: phi, [batch, n, features], in the dtype of the pairs.

    Returns:
      [batch, n, d_model]; zeros of an empty memory.
    """
    return associative.read(pairs, features, 'sum', 'add', EPSILON)


def newness(z: jax.Array, keys: jax.Array) -> jax.Array:
    """g of keys [batch, n, features]: [batch, n], between 0 and 1, without a gradient."""
    held = product(keys, z[..., None])[..., 0] + jnp.asarray(EPSILON, keys.dtype)
    size = jnp.square(keys).sum(-1) + jnp.asarray(EPSILON, keys.dtype)
    return jax.lax.stop_gradient(jnp.clip(1 - held / size, 0, 1))


def write(
    pairs: Pairs, keys: jax.Array, values: jax.Array, strength: jax.Array, share: jax.Array
) -> Pairs:
    """The pairs with those of the memory tokens.

    Args:
      pairs: of one block, before.
      keys: k, [batch, n, features].
      values: v, [batch, n, d_model].
      strength: b, [batch, n].
      share: g, [batch, n].
    """
    moves = strength[..., None] * (values - read(pairs, keys))
    transposed = jnp.swapaxes(keys, 1, 2)
    more = Pairs(product(transposed, moves), product(transposed, share[..., None])[..., 0])
    return associative.add(pairs, more)


class AssociativeMaps(nn.Module):
    """The maps of one block, in float32.

    Attributes:
      settings: of the model.
      d_mem: width of queries and keys.
      nu: rolls of phi.
    """

    settings: ModelSettings
    d_mem: int
    nu: int

    def setup(self) -> None:
        init, axes = initializers.kernel(self.settings), initializers.with_axes
        zeros, narrow = nn.initializers.zeros, axes(init, ('embed', None))
        width = self.settings.d_model
        self.query = self.param('query', narrow, (width, self.d_mem))
        self.key = self.param('key', narrow, (width, self.d_mem))
        # Zeros: an untrained memory gives nothing.
        self.value = self.param('value', axes(zeros, ('embed', None)), (width, width))
        self.strength = self.param('strength', narrow, (width, 1))
        self.bias = self.param('bias', zeros, (1,))

    def _wide(self, x: jax.Array) -> jax.Array:
        return x.astype(jnp.promote_types(x.dtype, jnp.float32))

    def queries(self, x: jax.Array) -> jax.Array:
        """phi(Q x) of [batch, n, d_model]: [batch, n, features]."""
        return feature_maps.products(self._wide(x) @ self.query, self.nu)

    def keys(self, x: jax.Array) -> jax.Array:
        """phi(K x), as `queries`."""
        return feature_maps.products(self._wide(x) @ self.key, self.nu)

    def values(self, x: jax.Array) -> jax.Array:
        """V x, [batch, n, d_model]."""
        return self._wide(x) @ self.value

    def strengths(self, x: jax.Array) -> jax.Array:
        """b, [batch, n]."""
        return jax.nn.sigmoid((self._wide(x) @ self.strength)[..., 0] + self.bias[0])


class ARMT(Around):
    """Memory tokens whose outputs every block writes to a matrix, from which later segments read.

    Attributes:
      num_tokens: memory tokens after every segment.
      d_mem: width of queries and keys before phi; W has 2 d_mem nu rows.
      nu: rolls of phi.
      correction: keys that are known already are not counted again; False: g is 1.
    """

    num_tokens: int = 10
    d_mem: int = 64
    nu: int = 3
    correction: bool = True

    def setup(self) -> None:
        settings = self.settings
        self.memory_tokens = LearnedTokens(
            num_tokens=self.num_tokens,
            d_model=settings.d_model,
            std=settings.token_std or settings.init_std,
            dtype=settings.dtype,
        )
        self.maps = [AssociativeMaps(settings, self.d_mem, self.nu) for _ in range(self.depth)]

    def initial_state(self, batch_size: int) -> ARMTState:
        """No pairs."""
        dtype = jnp.promote_types(self.settings.dtype, jnp.float32)
        shape = (batch_size, 2 * self.d_mem * self.nu, self.settings.d_model)
        pairs = tuple(associative.empty(*shape, dtype=dtype) for _ in range(self.depth))
        return ARMTState(pairs, jnp.zeros((batch_size,), jnp.int32))

    def trailing(self, opened: ARMTState) -> jax.Array:
        """The learned memory tokens, the same in every segment."""
        return self.memory_tokens(opened.count.shape[0])

    def before(
        self, block: int, x: jax.Array, opened: ARMTState, index: int | jax.Array
    ) -> tuple[jax.Array, ARMTState]:
        """All tokens read; memory tokens too."""
        found = read(opened.pairs[block], self.maps[block].queries(x))
        return x + found.astype(x.dtype), opened

    def after(self, block: int, written: jax.Array, opened: ARMTState) -> ARMTState:
        """Writes the memory tokens; this segment does not read the block's memory any more."""
        maps, pairs = self.maps[block], opened.pairs[block]
        keys, strength = maps.keys(written), maps.strengths(written)
        share = jnp.ones_like(strength)
        if self.correction:
            known = opened.count[:, None] > 0
            share = jnp.where(known, newness(pairs.normalizer, keys), share)
        new = write(pairs, keys, maps.values(written), strength, share)
        others = opened.pairs[:block], opened.pairs[block + 1 :]
        return opened.replace(pairs=(*others[0], new, *others[1]))

    def close_segment(self, state: ARMTState, opened: ARMTState, count: jax.Array) -> ARMTState:
        """What all blocks have written."""
        return opened.replace(count=jnp.ones_like(opened.count))


def check(fields: Fields, model: object, segment_length: int) -> list[str]:
    """Checks its sizes."""
    return at_least(fields, 1, 'num_tokens', 'd_mem', 'nu')


def recipe(scale: Scale) -> Recipe:
    """Around attention to the segment alone; narrow models have fewer features."""
    position, notes = scale.position()
    fields = dict(num_tokens=scale.tokens, d_mem=min(64, scale.d_model))
    return Recipe(
        {'armt': fields, 'local': dict(position=position)},
        attention=('local',) * scale.layers,
        around=('armt',) * scale.layers,
        notes=notes,
    )


def series(seen: Seen) -> Series:
    """Size and change of W, and the mass of z, by block."""

    def by_block(state: ARMTState) -> Pairs:
        return jax.tree.map(lambda *leaves: jnp.stack(leaves, axis=1), *state.pairs)

    return changes_of_sums(by_block(seen.state), by_block(seen.new))


FEATURES = 'the maps to queries and keys are trained for it; leave it as in training'
ENTRY = Entry(
    name='armt',
    place='around',
    layer=LayerType(ARMT, check=check, extra=lambda fields: (0, fields['num_tokens'])),
    recipe=Recipes({'armt': recipe}, trained=dict(nu=FEATURES, correction=FEATURES)),
    graft=Graft(
        fields=lambda scale, position: {},
        exact=True,
        how='memory tokens after every segment, which no token of it sees; an empty memory gives zero',
        positions='none in the memory, as in the paper',
    ),
    view=View(series=series, lengths={'num_tokens': '+ memory tokens '}),
    # With fewer features some queries have hardly any in common with the keys, and rounding decides.
    toy=dict(num_tokens=2, d_mem=16),
    variants=dict(uncorrected=dict(correction=False, nu=2)),
)
