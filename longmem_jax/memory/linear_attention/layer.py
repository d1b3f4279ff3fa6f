"""Linear attention: ELU features, random features (RFA, gated or not), learned features (T2R).

Katharopoulos et al. (2020), Peng et al. (2021), Kasai et al. (2021). The sums `S` and `z` are the
memory. Carried from segment to segment they cover the whole document at constant cost; the models of
the papers see one segment at a time. The code of ELU, RFA and T2R is released; RFA-Gate is not, so the
gate here follows the paper alone.

T2R begins with a trained softmax Transformer (`config.train.start_from`): the projections have the same
paths, and `feature_map` is all that is new. See `:convert` of `configs/memsizer_wikitext103.py`.
"""

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from longmem_jax.contract import Entry, Graft, ModelSettings, Recipe, Scale
from longmem_jax.faults import above, at_least, one_of
from longmem_jax.layers import associative, feature_maps, initializers, linear_kernel
from longmem_jax.layers.projections import Projections, repeat_heads
from longmem_jax.layers.token_shift import EARLIER, TokenShift
from longmem_jax.memory.linear_attention.cross import cross
from longmem_jax.memory.linear_attention.feature_map import FEATURES, FeatureMap
from longmem_jax.memory.recurrent import Recurrent
from longmem_jax.segment import Aux, Segment, count_on, mean_count
from longmem_jax.views import Seen, Series, View, changes_of_sums


@flax.struct.dataclass
class LinearState:
    """Sums of one layer; while a segment is open, up to the last token read.

    Attributes:
      pairs: S and z, float32, [batch, heads, d_key, head_dim] and [batch, heads, d_key]; with a
        `rest` if they carry over and nothing is forgotten.
      count: int32 [batch], tokens in them; it stays at 2^31 - 1.
      recent: [batch, 1 or 3, d_model], the last normalised vectors, for `shift`; None without it.
    """

    pairs: associative.Pairs
    count: jax.Array
    recent: jax.Array | None = None


def check(fields: Any, model: Any, segment_length: int) -> list[str]:
    """Checks that sizes and constants are positive, and that `redraw` does not carry sums."""
    faults = one_of(
        fields,
        features=FEATURES,
        random=feature_maps.RANDOM,
        guard=associative.GUARDS,
        shift=EARLIER,
    )
    faults += at_least(fields, 1, 'size', 'chunk') + above(fields, 0, 'tau', 'epsilon')
    if fields['redraw'] and (fields['features'] != 'rfa' or fields['carry']):
        faults.append(
            "redraw = True: new random directions in every step need features='rfa' and carry=False; "
            'sums of old directions cannot be read with new ones'
        )
    # Features of RFA have the squared length 0.01 size, and gated sums are at most a weighted mean.
    largest = feature_maps.FOURIER_SCALE**2 * fields['size']
    if fields['gate'] and fields['features'] == 'rfa' and fields['epsilon'] >= largest:
        faults.append(
            f'epsilon = {fields["epsilon"]}: with a gate the normaliser of {fields["size"]} random '
            f'features is at most {largest:.3g}, so the guard would always act and nothing would be '
            "normalised; use guard='magnitude' with epsilon=1e-4"
        )
    return faults


class LinearAttention(Recurrent):
    """Causal attention by features of queries and keys, without a softmax.

    Attributes:
      features: the feature map, 'elu', 'rfa' or 't2r'.
      size: random or learned directions per head; RFA has a sine and a cosine of each.
      tau: temperature of the directions.
      random: 'normal' or 'orthogonal' directions of RFA.
      redraw: draw new directions in every training step and segment, for every layer its own. (The
        release draws from 500 stored matrices per step; its evaluation, like ours, has the same
        directions in all layers.)
      seed: seed of the directions, in evaluation or without `redraw`.
      learned_scale: a learned sigma of the directions, per head and dimension.
      gate: forget by a gate per head and token (RFA-Gate, never released); `g = sigmoid(x w + b)`.
      guard, epsilon: against division by zero, see `associative.divide`. RFA's released code clamps
        at 1 in its kernel and takes the magnitude, at least 1e-3, in its masked form. With a gate
        the similarity never reaches 1: use the magnitude, at least 1e-4.
      shift: a view of the tokens just before, see `token_shift.TokenShift`; none in the papers.
      bias: biases of the four projections; False = as `settings.attention_bias`.
      chunk: tokens processed at once.
      carry: the sums carry over to the next segment.
      gradients: gradients flow through the sums from segment to segment.
    """

    settings: ModelSettings
    normalize: Callable[[jax.Array], jax.Array]
    shared: Any
    features: str = 'elu'
    size: int = 64
    tau: float = 1.0
    random: str = 'orthogonal'
    redraw: bool = False
    seed: int = 0
    learned_scale: bool = True
    gate: bool = False
    guard: str = 'add'
    epsilon: float = 1e-6
    shift: str = 'none'
    bias: bool = True
    chunk: int = 64
    carry: bool = True
    gradients: bool = True

    def setup(self):
        settings, axes = self.settings, nn.with_logical_partitioning
        init = initializers.kernel(settings)
        self.projections = Projections(settings, bias=self.bias)
        self.feature_map = FeatureMap(
            settings=settings,
            features=self.features,
            size=self.size,
            tau=self.tau,
            random=self.random,
            seed=self.seed,
            learned_scale=self.learned_scale,
        )
        self.mix = TokenShift(settings, self.shift)
        self.float32 = jnp.promote_types(settings.dtype, jnp.float32)
        if self.gate:
            kernel = axes(init, ('embed', 'heads'))
            self.gate_kernel = self.param(
                'gate_kernel', kernel, (settings.d_model, settings.num_heads)
            )
            # Initially forget 5 % per token.
            bias = axes(nn.initializers.constant(3.0), ('heads',))
            self.gate_bias = self.param('gate_bias', bias, (settings.num_heads,))

    def initial_state(self, batch_size: int) -> LinearState:
        """Empty sums."""
        settings = self.settings
        width, endless = self.feature_map.width, self.carry and not self.gate
        pairs = associative.empty(
            batch_size, settings.num_heads, width, settings.head_dim, self.float32, endless=endless
        )
        recent = self.mix.initial_state(batch_size)
        return LinearState(pairs, jnp.zeros((batch_size,), jnp.int32), recent)

    def read(
        self,
        x: jax.Array,
        state: LinearState,
        counted: jax.Array,
        *,
        train: bool = False,
    ) -> tuple[jax.Array, LinearState]:
        """Reads with features of queries, writes with features of keys; see `Recurrent.read`."""
        maps, heads = self.projections, self.settings.num_heads
        count = counted.sum(axis=1, dtype=jnp.int32)
        x, recent = self.mix(x, state.recent, count)
        keys, values = (repeat_heads(project(x), heads) for project in (maps.keys, maps.values))
        drawn = self.feature_map.draw(train) if self.redraw else None
        queries = self.feature_map.queries(maps.queries(x), drawn)
        keys = self.feature_map.keys(keys, drawn)
        decay = None
        if self.gate:
            logits = jnp.swapaxes(self._gate_logits(x), 1, 2)
            decay = jnp.where(counted[:, None], jax.nn.log_sigmoid(logits), 0.0).astype(
                self.float32
            )
            keys = keys * jax.nn.sigmoid(-logits)[..., None]
        keys = jnp.where(counted[:, None, :, None], keys, jnp.zeros_like(keys))
        pairs, read, weight = linear_kernel.causal(
            state.pairs, queries, keys, values, chunk=self.chunk, log_decay=decay
        )
        read = associative.divide(read, weight[..., None], self.guard, self.epsilon)
        y = maps.out(read.astype(self.settings.dtype))
        return y, LinearState(pairs, count_on(state.count, count), recent)

    def _gate_logits(self, x: jax.Array) -> jax.Array:
        """Of normalised and shifted vectors [batch, n, d_model]: [batch, n, heads]."""
        logits = x.astype(self.float32) @ self.gate_kernel.astype(self.float32)
        return logits + self.gate_bias.astype(self.float32)[None, None]

    def gates(self, x: jax.Array, state: LinearState, num_valid: jax.Array) -> jax.Array:
        """How much of the sums every token leaves, [batch, n, heads]; x [batch, n, d_model] is raw."""
        recent = self.begin(state, x.shape[0]).recent
        return jax.nn.sigmoid(self._gate_logits(self.mix(self.normalize(x), recent, num_valid)[0]))

    def __call__(
        self, x: jax.Array, state: LinearState, segment: Segment, *, train: bool
    ) -> tuple[jax.Array, LinearState, Aux]:
        """Reads and writes token by token; x, y are [batch, length, d_model]."""
        if not self.gradients:
            state = jax.lax.stop_gradient(state)
        begin = self.begin(state, x.shape[0])
        y, new = self.read(self.normalize(x), begin, segment.valid, train=train)
        metrics = {'memory_size': mean_count(state.count)}
        return y, new if self.carry else state, Aux(losses={}, metrics=metrics)


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
    notes = (SHIFT_NOTE,)
    if kind == 'rfa':
        fields |= dict(guard='magnitude', epsilon=1e-3)
        notes += (GUARD_NOTE,)
    return Recipe({'linear': fields}, notes=notes)


def series(seen: Seen) -> Series:
    """Sizes of the sums and what the segment changed; with a gate what every token leaves of them."""
    found = changes_of_sums(seen.state.pairs, seen.new.pairs)
    if not seen.layer.gate:
        return found
    gates = seen.layer.gates(seen.x, seen.state, seen.segment.num_valid)
    return found.replace(by_token={'share kept': gates})


ENTRY = Entry(
    name='linear',
    layer=LinearAttention,
    view=View(series=series),
    check=check,
    cross=cross,
    recipes={
        'linear': recipe,
        'rfa': functools.partial(recipe, kind='rfa'),
        't2r': functools.partial(recipe, kind='t2r'),
    },
    graft=Graft(
        lambda scale, position: dict(bias=False, shift='none'),
        exact=False,
        how='projections and embeddings are kept; features replace the softmax, so it must be tuned',
        positions="those in the host's embeddings; rotary ones are lost",
    ),
    toy=dict(size=6, random='normal', chunk=3),
    variants=dict(
        rfa_gate=dict(
            features='rfa', random='orthogonal', gate=True, guard='magnitude', epsilon=1e-4
        ),
        rfa_redraw=dict(
            features='rfa',
            random='orthogonal',
            guard='clamp',
            epsilon=1.0,
            redraw=True,
            carry=False,
        ),
        t2r=dict(features='t2r', guard='clamp', epsilon=0.01, chunk=16, gradients=False),
        t2r_plain=dict(features='t2r', guard='clamp', epsilon=0.01, learned_scale=False),
        shifted=dict(shift='half'),
        convolved=dict(features='t2r', guard='clamp', epsilon=0.01, shift='convolution'),
    ),
)
