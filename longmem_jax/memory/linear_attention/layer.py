"""Linear attention: ELU features, random features (RFA, gated or not), learned features (T2R).

Katharopoulos et al. (2020), Peng et al. (2021), Kasai et al. (2021). The sums `S` and `z` are the
memory. Carried from segment to segment they cover the whole document at constant cost; the models of
the papers see one segment at a time. The code of ELU, RFA and T2R is released; RFA-Gate is not, so the
gate here follows the paper alone.

T2R begins with a trained softmax Transformer (`config.train.start_from`): the projections have the same
paths, and `feature_map` is all that is new. See `:convert` of `configs/memsizer_wikitext103.py`.
"""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from longmem_jax.author import Lane, RecurrentMemory, Sight, field, logged, memory, param
from longmem_jax.contract import Fields, Graft, Recipe, Recipes, Scale
from longmem_jax.layers import associative, feature_maps
from longmem_jax.layers.associative import Pairs
from longmem_jax.layers.projections import Projections, repeat_heads
from longmem_jax.layers.token_shift import EARLIER, TokenShift
from longmem_jax.memory.linear_attention.cross import cross
from longmem_jax.memory.linear_attention.feature_map import FEATURES, FeatureMap
from longmem_jax.views import Seen, Series, View, changes_of_sums


class LinearAttention(RecurrentMemory):
    """Causal attention by features of queries and keys, without a softmax."""

    features: str = field('elu', 'the feature map', among=FEATURES)
    size: int = field(
        64, 'random or learned directions per head; RFA has a sine and a cosine of each', least=1
    )
    tau: float = field(1.0, 'temperature of the directions', above=0)
    random: str = field('orthogonal', 'directions of RFA', among=feature_maps.RANDOM)
    redraw: bool = field(
        False,
        'draw new directions in every training step and segment, for every layer its own. (The release '
        'draws from 500 stored matrices per step; its evaluation, like ours, has the same directions in '
        'all layers.)',
    )
    seed: int = field(0, 'seed of the directions, in evaluation or without `redraw`')
    learned_scale: bool = field(True, 'a learned sigma of the directions, per head and dimension')
    gate: bool = field(
        False,
        'forget by a gate per head and token (RFA-Gate, never released); `g = sigmoid(x w + b)`',
    )
    guard: str = field(
        'add',
        "against division by zero, see `associative.divide`. RFA's released code clamps at 1 in its "
        'kernel and takes the magnitude, at least 1e-3, in its masked form. With a gate the similarity '
        'never reaches 1: use the magnitude, at least 1e-4',
        among=associative.GUARDS,
    )
    epsilon: float = field(1e-6, 'smallest similarity, see `guard`', above=0)
    shift: str = field(
        'none',
        'how the layer also sees the tokens just before; none in the papers',
        among=EARLIER,
    )
    bias: bool = field(True, 'biases of the four projections; False = as `attention_bias`')

    def parts(self) -> None:
        names = ('features', 'size', 'tau', 'random', 'seed', 'learned_scale')
        self.projections = Projections(self.settings, bias=self.bias)
        self.feature_map = FeatureMap(
            self.settings, **{name: getattr(self, name) for name in names}
        )
        self.mix = TokenShift(self.settings, self.shift)
        if self.gate:
            self.gate_kernel = param('d_model', 'heads')
            # Initially forget 5 % per token.
            self.gate_bias = param('heads', init=nn.initializers.constant(3.0))

    def state(self) -> Pairs:
        """S [d_key, head_dim] and z [d_key]; with a `rest` if they carry over and forget nothing."""
        shape = (self.feature_map.width, self.settings.head_dim)
        return associative.empty(*shape, dtype=self.float32, endless=self.carry and not self.gate)

    def inputs(self, x: jax.Array, lane: Lane) -> tuple[jax.Array, ...]:
        """phi(q) and phi(k) [heads, n, d_key], values [heads, n, head_dim], with a gate log g."""
        x, maps = lane.mixed(self.mix, x), self.projections
        drawn = self.feature_map.draw(lane.train) if self.redraw else None
        keys = repeat_heads(maps.keys(x)[None], self.settings.num_heads)[0]
        queries, keys = (
            self.feature_map.queries(maps.queries(x), drawn),
            self.feature_map.keys(keys, drawn),
        )
        if not self.gate:
            return queries, keys, maps.values(x)
        logits = (x.astype(self.float32) @ self.gate_kernel + self.gate_bias).T
        lane.log(share_kept=jax.nn.sigmoid(logits))
        keys = keys * jax.nn.sigmoid(-logits)[..., None]
        return queries, keys, maps.values(x), jax.nn.log_sigmoid(logits)

    def step(
        self, sums: Pairs, query: jax.Array, key: jax.Array, value: jax.Array, log_gate: Any = None
    ) -> tuple[Pairs, jax.Array]:
        """`S <- g S + phi(k) v^T`, `z <- g z + phi(k)`; reads `phi(q) S / phi(q) z`."""
        if log_gate is not None:
            sums = jax.tree.map(lambda sum: jnp.exp(log_gate) * sum, sums)
        sums = associative.add(sums, Pairs(jnp.outer(key, value), key))
        return sums, self._divided(query @ sums.matrix, query @ sums.normalizer)

    def within(
        self,
        sight: Sight,
        queries: jax.Array,
        keys: jax.Array,
        values: jax.Array,
        log_gates: Any = None,
    ) -> tuple[Any, ...]:
        """Of [n, ...]: how queries meet the sums before, what they read of the chunk, what it adds."""
        shares, before, at_end = sight.shares(log_gates)
        scores, left = shares * (queries @ keys.T), at_end[:, None] * keys
        own, added = (scores @ values, scores.sum(-1)), Pairs(left.T @ values, left.sum(0))
        return before[:, None] * queries, own, added, before[-1]

    def chunked(
        self,
        sums: Pairs,
        sight: Sight,
        queries: jax.Array,
        own: Any,
        added: Pairs,
        share: jax.Array,
    ) -> tuple[Pairs, jax.Array]:
        """`step` for the n tokens of `within`."""
        read, weight = queries @ sums.matrix + own[0], queries @ sums.normalizer + own[1]
        sums = jax.tree.map(lambda sum: share * sum, sums)
        return associative.add(sums, added), self._divided(read, weight)

    def _divided(self, read: jax.Array, weight: jax.Array) -> jax.Array:
        return associative.divide(read, weight[..., None], self.guard, self.epsilon)

    def output(self, x: jax.Array, y: jax.Array, *inputs: jax.Array) -> jax.Array:
        """The output projection."""
        return self.projections.out(y)


def check(fields: Fields, model: Any, segment_length: int) -> list[str]:
    """Checks that `redraw` does not carry sums, and that the guard of a gate does not always act."""
    problems = []
    if fields['redraw'] and (fields['features'] != 'rfa' or fields['carry']):
        problems.append(
            "redraw = True: new random directions in every step need features='rfa' and carry=False; "
            'sums of old directions cannot be read with new ones'
        )
    # Features of RFA have the squared length 0.01 size, and gated sums are at most a weighted mean.
    largest = feature_maps.FOURIER_SCALE**2 * fields['size']
    if fields['gate'] and fields['features'] == 'rfa' and fields['epsilon'] >= largest:
        problems.append(
            f'epsilon = {fields["epsilon"]}: with a gate the normaliser of {fields["size"]} random '
            f'features is at most {largest:.3g}, so the guard would always act and nothing would be '
            "normalised; use guard='magnitude' with epsilon=1e-4"
        )
    return problems


RELEASED = {
    'elu': dict(features='elu', guard='add', epsilon=1e-6),
    'rfa': dict(features='rfa', guard='clamp', epsilon=1.0),
    't2r': dict(features='t2r', guard='clamp', epsilon=0.01),
}  # as in their released code
SIZE = 64  # K, as released: directions per head of RFA and T2R
SHIFT_NOTE = (
    "shift = 'half': the features alone cannot single out the token before; no absolute positions, "
    'which would be as large as the token'
)
GUARD_NOTE = (
    "guard = 'magnitude': the released clamp at 1 shrinks what the first tokens of a document read, "
    'up to eightfold'
)


def recipe(scale: Scale, kind: str = 'elu') -> Recipe:
    """One of `RELEASED` with a view of the token before, which stands in for positions.

    Sums are a bag of all tokens: to find what followed a mark, a key must know its predecessor.
    """
    fields = RELEASED[kind] | dict(size=SIZE, chunk=min(scale.segment, 64), shift='half')
    notes: tuple[str, ...] = (SHIFT_NOTE,)
    if kind == 'rfa':
        fields |= dict(guard='magnitude', epsilon=1e-3)
        notes += (GUARD_NOTE,)
    return Recipe({'linear': fields}, notes=notes)


def series(seen: Seen) -> Series:
    """Sizes of the sums and what the segment changed; with a gate what every token leaves of them."""
    found = changes_of_sums(seen.state.memory, seen.new.memory)
    return found.replace(by_token=logged(seen))


RFA = dict(features='rfa', random='orthogonal')
T2R = dict(features='t2r', guard='clamp', epsilon=0.01)
ENTRY = memory(
    'linear',
    LinearAttention,
    check=check,
    cross=cross,
    recipe=Recipes(
        {
            'linear': recipe,
            'rfa': functools.partial(recipe, kind='rfa'),
            't2r': functools.partial(recipe, kind='t2r'),
        },
        unshifted=dict(shift='none'),
    ),
    graft=Graft(
        lambda scale, position: dict(bias=False, shift='none'),
        exact=False,
        how='projections and embeddings are kept; features replace the softmax, so it must be tuned',
        positions="those in the host's embeddings; rotary ones are lost",
    ),
    view=View(series=series),
    toy=dict(size=6, random='normal'),
    variants=dict(
        rfa_gate=RFA | dict(gate=True, guard='magnitude', epsilon=1e-4),
        rfa_redraw=RFA | dict(guard='clamp', epsilon=1.0, redraw=True, carry=False),
        t2r=T2R | dict(chunk=16, gradients=False),
        t2r_plain=T2R | dict(learned_scale=False),
        shifted=dict(shift='half'),
        convolved=T2R | dict(shift='convolution'),
    ),
)
