"""An agent with memories: what it observes to a policy over actions and a value (actor and critic).

Blocks, memories and streams are those of a language model; an episode is a document, and a step of the
environment a token. In place of the embedding of tokens there is a linear map of the observation, and in
place of the softmax over words the logits of actions and the value of the state.
"""

from typing import TYPE_CHECKING, Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from longmem_jax.in_place import reset_lanes
from longmem_jax.layers import initializers, positions
from longmem_jax.layers.norms import Norm
from longmem_jax.models.block import BlockState
from longmem_jax.models.kinds import Kind
from longmem_jax.models.stack import init_std, make_stack, takes_starts, with_key
from longmem_jax.problems import above
from longmem_jax.segment import Aux, Segment, pack, select_lanes

FIELDS = {'actions': int, 'observation': int, 'previous': bool}
POLICY_STD = 0.01  # of the first policy's kernel: all actions are about equally likely


def check(model: Any, segment_length: int) -> list[str]:
    """Problems of `config.model.agent`, and of fields under which acting and learning would differ."""
    problems = above(model.agent, 0, 'actions', 'observation')
    for name in ('dropout', 'attention_dropout', 'layer_drop'):
        if model[name]:
            problems.append(
                f'actions: are chosen without dropout; config.model.{name} = {model[name]} must be 0'
            )
    if model.position == 'learned':
        problems.append(
            "observation: config.model.position must be 'none' or 'sinusoidal', positions in a segment"
        )
    return problems


class Agent(nn.Module):
    """Policy and value of a stream of observations.

    `config.agent`: `actions`, their number; `observation`, numbers in a flattened observation;
    `previous`, whether the action and the reward before the observation are read with it.

    Attributes:
      config: `config.model`, frozen.
      segment_length: most steps of an episode that are read at a time, `length` below.
    """

    config: Any
    segment_length: int

    if TYPE_CHECKING:  # Flax's result has a second type, that of calls with `mutable`.

        def apply(self, *given: Any, **named: Any) -> Any: ...

    def setup(self) -> None:
        config, axes = self.config, initializers.with_axes
        self.stack = make_stack(config, self.segment_length)
        std = init_std(config)

        def dense(
            features: int, kernel_std: float, names: tuple[Any, Any], dtype: DTypeLike
        ) -> nn.Dense:
            normal = initializers.by_scheme(config.init, kernel_std, inputs=(0,))
            bias = axes(nn.initializers.zeros, names[1:])
            return nn.Dense(features, dtype=dtype, kernel_init=axes(normal, names), bias_init=bias)

        dtype = jnp.dtype(config.dtype)
        exact = jnp.promote_types(dtype, jnp.float32)
        self.observed = dense(config.d_model, 1.0, (None, 'embed'), dtype)
        if config.agent.previous:
            self.acted = dense(config.d_model, 1.0, (None, 'embed'), dtype)
        # Few entries of an observation may be 1 or all of them: vectors of steps are equally long.
        self.observed_norm = Norm(config.norm, config.norm_epsilon)
        normal = axes(nn.initializers.normal(POLICY_STD), ('embed', None))
        zeros = axes(nn.initializers.zeros, (None,))
        self.policy = nn.Dense(
            config.agent.actions, dtype=exact, kernel_init=normal, bias_init=zeros
        )
        self.value = dense(1, std, ('embed', None), exact)

    def encode(self, observation: jax.Array, action: jax.Array, reward: jax.Array) -> jax.Array:
        """Vectors of observations, without positions.

        Args:
          observation: any dtype, [batch, n, ...]; what follows the second axis is flattened.
          action: int32 [batch, n], the action before; -1 at the start of an episode.
          reward: float32 [batch, n], what it gave. Both are read only with `config.agent.previous`.

        Returns:
          [batch, n, d_model], normalised.
        """
        flat = observation.reshape(*observation.shape[:2], -1)
        x = self.observed(flat.astype(self.observed.dtype))
        if self.config.agent.previous:
            one_hot = jax.nn.one_hot(action, self.config.agent.actions, dtype=x.dtype)
            x = x + self.acted(jnp.concatenate([one_hot, reward[..., None].astype(x.dtype)], -1))
        return self.observed_norm(x)

    def _placed(self, x: jax.Array, index: jax.Array) -> jax.Array:
        """Adds positions `index` .. (int32 [batch]) in the segment, if the model has any."""
        if self.config.position == 'none':
            return x
        distances = positions.clamped(self.segment_length, 0)
        table = jnp.asarray(positions.sinusoids(distances, self.config.d_model))
        position = positions.following(index, x.shape[1])
        return x + table[jnp.minimum(position, self.segment_length - 1)].astype(x.dtype)

    def _heads(self, hidden: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Logits [batch, n, actions] and values [batch, n], at least float32."""
        return self.policy(hidden), self.value(hidden)[..., 0]

    def initial_state(self, batch_size: int) -> tuple[BlockState, ...]:
        """Memories at the start of an episode; every leaf [batch_size, ...]."""
        return self.stack.initial_state(batch_size)

    def __call__(
        self, x: jax.Array, valid: jax.Array, start: jax.Array, state: Any, *, train: bool
    ) -> tuple[tuple[jax.Array, jax.Array], Any, Aux]:
        """Reads a segment of one episode per lane, or of several if the model `takes_starts`.

        Args:
          x: [batch, length, d_model], from `encode`.
          valid: bool [batch, length]; steps of the episode.
          start: bool [batch]; the episode begins with the first of them. Or bool [batch, length];
            episodes begin with these steps.
          state: memories before the segment.
          train: training-only behaviour of memories on or off.

        Returns:
          logits [batch, length, actions] and values [batch, length], at least float32; memories after
          the segment; `Aux`.
        """
        batch_size = x.shape[0]
        segment = Segment(jnp.zeros(valid.shape, jnp.int32), valid, start)
        packed, packing = pack(segment, takes_starts=takes_starts(self.config))
        if start.ndim == 1:
            state = reset_lanes(start, self.initial_state(batch_size), state)
        packed = with_key(self, packed, train)
        x = self._placed(packing.pack(x), jnp.zeros((batch_size,), jnp.int32))
        hidden, state, aux = self.stack.read(x, state, packed, train=train)
        return self._heads(packing.unpack(hidden)), state, aux

    def open_segment(self, state: Any, batch_size: int) -> tuple[BlockState, ...]:
        """Caches of a segment that begins with the memories `state`."""
        return self.stack.open_segment(state, batch_size)

    def extend(
        self, x: jax.Array, cache: tuple[BlockState, ...], index: jax.Array
    ) -> tuple[tuple[jax.Array, jax.Array], tuple[BlockState, ...]]:
        """Reads the next steps, `x` [batch, n, d_model], from `index` (int32 [batch]) on.

        Returns:
          logits [batch, n, actions] and values [batch, n], and the caches with these steps in them.
        """
        hidden, cache = self.stack.extend(self._placed(x, index), cache, index)
        return self._heads(hidden), cache

    def close_segment(self, state: Any, cache: tuple[BlockState, ...], count: jax.Array) -> Any:
        """The memories with the first `count` (int32 [batch]) steps written; unchanged where it is 0."""
        closed = self.stack.close_segment(state, cache, count)
        return select_lanes(count > 0, closed, state)

    def initial(self) -> Any:
        """A call on one lane, for `init`."""
        shape, one = (1, self.segment_length), jnp.ones((1,), bool)
        x = self.encode(
            jnp.zeros((*shape, self.config.agent.observation), jnp.float32),
            jnp.zeros(shape, jnp.int32),
            jnp.zeros(shape, jnp.float32),
        )
        return self(x, jnp.ones(shape, bool), one, self.initial_state(1), train=False)


KIND = Kind(Agent, FIELDS, check, reads='', keeps=True)
