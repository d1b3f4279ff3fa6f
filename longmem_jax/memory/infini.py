"""Infini-attention: local attention and a compressive memory of constant size (Munkhdalai et al., 2024).

Every layer reads `M` and `z` as earlier segments left them, attends within the segment, mixes the
two by a gate per head, and then writes the segment. Gradients flow through the memory across the
segments of one training step.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from longmem_jax.attention import fused_rules
from longmem_jax.attention.attend import attend_in
from longmem_jax.attention.relative_position import POSITIONS, RelativePosition
from longmem_jax.attention.rules import Rules
from longmem_jax.attention.self_attention import KeyValues, write_at
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
from longmem_jax.layers import associative, initializers
from longmem_jax.layers.projections import Projections
from longmem_jax.memory.in_hosts import FIRST_GATE_IN_HOST
from longmem_jax.problems import above, at_least, one_of
from longmem_jax.segment import Aux, Segment, count_on, mean_count
from longmem_jax.views import NOWHERE, Read, Seen, Series, View, changes_of_sums, read_window


class InfiniState(flax.struct.PyTreeNode):
    """The memory of one layer.

    Attributes:
      pairs: `M` and `z`, float32, per lane and key head; with a `rest` where they are sums that grow.
      count: int32 [batch], tokens written in this document; it stays at 2^31 - 1.
    """

    pairs: associative.Pairs
    count: jax.Array


class InfiniCache(flax.struct.PyTreeNode):
    """What an open segment reads, and will write when it closes.

    Attributes:
      keys, values: [batch, kv_heads, segment_length, head_dim], keys with their positions.
      plain_keys: keys as they are written to the memory; None if they are the same as `keys`.
      state: the memory that this segment reads.
    """

    keys: jax.Array
    values: jax.Array
    plain_keys: Any
    state: InfiniState


def check(fields: Fields, model: Any, segment_length: int) -> list[str]:
    """Checks that features, rule and normalizer fit together."""
    problems = one_of(
        fields,
        position=[kind for kind in POSITIONS if kind != 'transformer_xl'],
        features=associative.FEATURES,
        rule=associative.RULES,
        normalizer=associative.NORMALIZERS,
        guard=associative.GUARDS,
    )
    problems += above(fields, 0, 'epsilon') + at_least(fields, 0, 'gate_std')
    if problems:
        return problems
    if fields['rotate_memory'] and fields['position'] != 'rotary':
        problems.append(
            f"rotate_memory = True: needs position='rotary', not {fields['position']!r}"
        )
    if fields['normalizer'] == 'sum' and not associative.FEATURES[fields['features']][1]:
        problems.append(
            f'features = {fields["features"]!r}: they are signed, so their sum cannot normalise; use '
            "normalizer='none' or positive features"
        )
    if fields['rule'] == 'delta_sequential' and fields['normalizer'] != 'none':
        problems.append("rule = 'delta_sequential': needs normalizer='none'")
    if fields['rule'] == 'delta_sequential' and fields['features'] != 'normalized':
        problems.append(
            f"rule = 'delta_sequential' with features = {fields['features']!r}: steps of the delta rule "
            "overshoot with longer keys; use features='normalized'"
        )
    if fields['rule'] == 'delta' and fields['normalizer'] == 'none':
        problems.append(
            "rule = 'delta' with normalizer = 'none': tokens of a segment with like keys overshoot "
            "together, and the matrix grows; use rule='delta_sequential', or normalizer='sum'"
        )
    return problems


class InfiniAttention(nn.Module):
    """Local causal attention and a compressive memory, mixed by a learned gate per head.

    Attributes:
      position: position scheme of the local attention; positions restart in every segment.
      features: feature map of the memory, one of `associative.FEATURES`.
      rule: 'linear', 'delta' (the paper's), or 'delta_sequential'.
      normalizer: 'sum' (the paper's `z`), or 'none'. With 'sum', a pair written twice by the delta
        rule reads back as half of its value.
      guard: against division by zero: what is divided by is at least epsilon ('clamp'), its absolute
        value is ('magnitude', for features that may be negative), or epsilon is added ('add').
      epsilon: see `guard`; above 0.
      gate_init: mean of the initial betas; the memory's weight is sigmoid(beta), so 0 gives a half.
      gate_std: standard deviation of the initial betas; 0 = all alike. The thesis draws them from
        N(0, 1).
      skip_gate_when_empty: use local attention alone, not (1 - gate) of it, while nothing is stored.
        False is the paper's; with True gates open sooner in training.
      rotate_memory: keys and queries of the memory have positions, too.
      gradients: gradients flow through the memory from segment to segment.
    """

    settings: ModelSettings
    normalize: Callable[[jax.Array], jax.Array]
    shared: Any
    position: str = 'rotary'
    features: str = 'elu'
    rule: str = 'delta'
    normalizer: str = 'sum'
    guard: str = 'clamp'
    epsilon: float = 1e-6
    gate_init: float = 0.0
    gate_std: float = 0.0
    skip_gate_when_empty: bool = False
    rotate_memory: bool = False
    gradients: bool = True

    def setup(self) -> None:
        settings = self.settings
        self.projections = Projections(settings)
        self.relation = RelativePosition(
            settings, None, self.position, num_distances=settings.segment_length, clamp_length=0
        )

        def betas(
            key: jax.Array, shape: tuple[int, ...], dtype: DTypeLike = jnp.float32
        ) -> jax.Array:
            return self.gate_init + self.gate_std * jax.random.normal(key, shape, dtype)

        init = initializers.with_axes(betas, ('heads',))
        self.gate = self.param('gate', init, (settings.num_heads,))
        self.float32 = jnp.promote_types(settings.dtype, jnp.float32)
        self.reading = (self.normalizer, self.guard, self.epsilon)

    def initial_state(self, batch_size: int) -> InfiniState:
        """An empty memory."""
        width, heads = self.settings.head_dim, self.settings.kv_heads
        # Without a normalizer a token stores what its key does not give yet: the matrix does not grow.
        endless = self.normalizer == 'sum' or self.rule == 'linear'
        shape = (batch_size, heads, width, width)
        pairs = associative.empty(*shape, dtype=self.float32, endless=endless)
        return InfiniState(pairs, jnp.zeros((batch_size,), jnp.int32))

    def _features(self, x: jax.Array) -> jax.Array:
        """Feature map of keys or queries, in float32 at least."""
        return associative.FEATURES[self.features][0](x.astype(self.float32))

    def _attend(
        self,
        x: jax.Array,
        keys: jax.Array,
        values: jax.Array,
        state: InfiniState,
        offset: int | jax.Array,
        train: bool,
    ) -> jax.Array:
        """Local attention, memory and gate; `x` is normalised, its first token at `offset`."""
        plain = self.projections.queries(x)
        queries, by_distance = self.relation.apply_to_queries(
            plain, offset, keys.shape[2], train=train
        )
        rules = Rules(offset=offset, scale=self.settings.score_scale, **by_distance)
        parts = (('segment', keys.shape[2]),)
        local = attend_in(self, queries, keys, values, rules, train=train, parts=parts)
        features = self._features(queries if self.rotate_memory else plain)
        batch, heads, length, width = features.shape
        features = features.reshape(batch, self.settings.kv_heads, -1, width)
        retrieved = associative.read(state.pairs, features, *self.reading)
        retrieved = retrieved.reshape(batch, heads, length, width).astype(local.dtype)
        gate = self.gates(state).astype(local.dtype)
        return self.projections.out(gate * retrieved + (1 - gate) * local)

    def gates(self, state: InfiniState) -> jax.Array:
        """Weights of the memory, [batch | 1, heads, 1, 1]."""
        gate = jax.nn.sigmoid(self.gate)[None, :, None, None]
        if self.skip_gate_when_empty:
            gate = jnp.where((state.count > 0)[:, None, None, None], gate, jnp.zeros_like(gate))
        return gate

    def _write(
        self, state: InfiniState, keys: jax.Array, values: jax.Array, num_valid: jax.Array
    ) -> InfiniState:
        """Writes the first `num_valid` (int32 [batch]) keys and values."""
        valid = jnp.arange(keys.shape[2], dtype=jnp.int32)[None] < num_valid[:, None]
        features = self._features(keys)
        features = jnp.where(valid[:, None, :, None], features, jnp.zeros_like(features))
        pairs = associative.write(state.pairs, features, values, self.rule, *self.reading)
        return InfiniState(pairs, count_on(state.count, num_valid))

    def __call__(
        self, x: jax.Array, state: InfiniState, segment: Segment, *, train: bool
    ) -> tuple[jax.Array, InfiniState, Aux]:
        """Reads the memory, attends, then writes; x, y are [batch, length, d_model]."""
        if not self.gradients:
            state = jax.lax.stop_gradient(state)
        x = self.normalize(x)
        plain, values = self.projections.keys(x), self.projections.values(x)
        keys = self.relation.apply_to_keys(plain, 0)
        y = self._attend(x, keys, values, state, 0, train)
        new = self._write(state, keys if self.rotate_memory else plain, values, segment.num_valid)
        gate = jax.nn.sigmoid(self.gate)
        metrics = {'memory_size': mean_count(state.count), 'gate': gate.mean()}
        return y, new, Aux(losses={}, metrics=metrics, per_head={'gate': gate})

    def open_segment(self, state: InfiniState, batch_size: int) -> InfiniCache:
        """Room for the keys and values of the segment."""
        settings = self.settings
        shape = (batch_size, settings.kv_heads, settings.segment_length, settings.head_dim)
        room = jnp.zeros(shape, settings.dtype)
        same = self.rotate_memory or self.position != 'rotary'
        return InfiniCache(room, room, None if same else room, state)

    def extend(
        self, x: jax.Array, cache: InfiniCache, index: int | jax.Array, count: jax.Array
    ) -> tuple[jax.Array, InfiniCache]:
        """Reads the next tokens of the open segment, from `index` on; see `MemoryLayer`."""
        x = self.normalize(x)
        plain, values = self.projections.keys(x), self.projections.values(x)
        placed = self.relation.apply_to_keys(plain, index)
        both = KeyValues(cache.keys, cache.values).write_at(placed, values, index)
        if cache.plain_keys is not None:
            plain = write_at(cache.plain_keys, plain, index, 2)
            cache = cache.replace(plain_keys=plain)
        seen = both.before(index + x.shape[1])
        y = self._attend(x, seen.keys, seen.values, cache.state, index, False)
        return y, cache.replace(keys=both.keys, values=both.values)

    def close_segment(
        self, state: InfiniState, cache: InfiniCache, count: jax.Array
    ) -> InfiniState:
        """Writes the first `count` tokens of the open segment."""
        keys = cache.keys if cache.plain_keys is None else cache.plain_keys
        return self._write(state, keys, cache.values, count)


def recipe(scale: Scale) -> Recipe:
    """The paper's layer, but for its gates: they get a higher learning rate, or they hardly move.

    They are shut while nothing is stored. In the paper local attention counts (1 - gate) in the first
    segment too, which so teaches gates to shut: the memory is then found much later, or not at all.
    """
    position, notes = scale.position()
    fields = dict(position=position, skip_gate_when_empty=True)
    return Recipe({'infini': fields}, groups=(('attention/gate$', 5.0, False),), notes=notes)


def read(seen: Seen) -> dict[str, Read]:
    """The segment by 1 - gate; the memory, which is no sum over single tokens, by the gate."""
    look, gate = seen.look(), seen.layer.gates(seen.state)
    shape = (*look.weights.shape[:3], 1)
    memory = jnp.broadcast_to(gate, shape).astype(jnp.float32)
    nowhere = jnp.full((1, 1, 1, 1), NOWHERE, jnp.int32)
    return {**read_window(look, 1 - gate), 'memory': Read(memory, nowhere)}


def series(seen: Seen) -> Series:
    """Sizes of `M` and `z`, and what the segment changed."""
    return changes_of_sums(seen.state.pairs, seen.new.pairs)


ENTRY = Entry(
    name='infini',
    layer=LayerType(InfiniAttention, check=check, fused=fused_rules.position_problem),
    recipe=Recipes({'infini': recipe}),
    graft=Graft(
        lambda scale, position: dict(
            position=position, skip_gate_when_empty=True, gate_init=FIRST_GATE_IN_HOST
        ),
        exact=True,
        how='gates per head, which are closed while nothing is stored',
        positions='none in the memory, as in the paper',
    ),
    view=View(read=read, series=series),
    variants=dict(
        linear=dict(rule='linear', rotate_memory=True, gradients=False, gate_std=1.0),
        sequential=dict(
            features='normalized',
            rule='delta_sequential',
            normalizer='none',
            position='t5',
            skip_gate_when_empty=True,
        ),
    ),
)
