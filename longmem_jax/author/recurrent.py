"""A memory that is a step of one token, of one lane and one head: what the library adds to it."""

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from longmem_jax.author.called import call
from longmem_jax.author.chunks import read_tokens
from longmem_jax.author.fields import Param, field, require_declared
from longmem_jax.author.lane import Lane
from longmem_jax.author.returned import (
    axes_hint,
    require_inputs,
    require_logged,
    require_output,
    require_state,
)
from longmem_jax.contract import ModelSettings
from longmem_jax.layers import initializers
from longmem_jax.layers.projections import HeadsIn, repeat_heads
from longmem_jax.layers.token_shift import Convolution
from longmem_jax.segment import Aux, Segment, State, count_on, mean_count, per_lane


class RecurrentState(flax.struct.PyTreeNode):
    """The state of one layer; while a segment is open, up to the last token read.

    Attributes:
      memory: what `RecurrentMemory.state` declares, every leaf [batch, heads, ...].
      count: int32 [batch], tokens of the document so far; it stays at 2^31 - 1. If the memory is
        `aligned`, it goes back by a multiple of `period` beyond 2^30.
      tails: name of a part to the last vectors that it read, [batch, ...], see `Lane.mixed`.
      carried: name to values of the tokens that are read now, [batch, ...], from one layer to the next;
        see `Lane.hand_on`. Empty before and after a segment or a call of `extend`.
    """

    memory: Any
    count: jax.Array
    tails: dict[str, jax.Array | None]
    carried: dict[str, jax.Array] = flax.struct.field(default_factory=dict)


class RecurrentMemory(nn.Module):
    """A recurrent memory; the methods from `parts` to `output` are the author's.

    In `inputs` and `output` arrays have no axis of the batch, in `step` and `chunked` none of the heads
    either. There the usual promotion of types and shapes holds, and products have full precision.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        require_declared(cls)
        super().__init_subclass__(**options)

    takes_starts: ClassVar[bool] = True
    # Chunks begin where the document has a multiple of `chunk` tokens, which is part of the definition.
    aligned: ClassVar[bool] = False

    settings: ModelSettings
    normalize: Callable[[jax.Array], jax.Array]
    shared: Any
    chunk: int = field(64, 'tokens processed at once', least=1)
    carry: bool = field(True, 'the memory carries over to the next segment')
    gradients: bool = field(True, 'gradients flow through the memory from segment to segment')

    def parts(self) -> None:
        """Sets modules and parameters as attributes; in place of linen's `setup`."""
        raise NotImplementedError

    def heads(self) -> int:
        """The number of heads of the memory."""
        return self.settings.num_heads

    def state(self) -> Any:
        """The memory of one lane and head at the begin of a document; float32 unless declared."""
        raise NotImplementedError

    def inputs(self, x: jax.Array, lane: Lane) -> tuple[jax.Array, ...]:
        """What the tokens of one lane give to `step`.

        Args:
          x: [n, d_model], normalised.
          lane: what else is known of the lane.

        Returns:
          Arrays [heads, n, ...]; groups of heads may share one. They become float32, and 0 at padding.
        """
        raise NotImplementedError

    def constants(self) -> tuple[Any, ...]:
        """Parameters [heads, ...] that `step` and `chunked` get after the inputs, those of a head."""
        return ()

    def step(self, state: Any, *inputs: Any, **named: Any) -> tuple[Any, Any]:
        """One token of one lane and head: the new state, and what the token reads. The definition."""
        raise NotImplementedError

    # `(state, sight, *inputs [n, ...], *constants) -> (state, y [n, ...])`: the same for n tokens;
    # inputs of zeros must write nothing. None = token by token.
    chunked: ClassVar[Callable[..., Any] | None] = None

    # `(sight, *inputs [n, ...], *constants) -> tuple`: the part of `chunked` that needs no state, which
    # many chunks do at once; `chunked` is `(state, sight, *that tuple)` then. None = there is none.
    within: ClassVar[Callable[..., Any] | None] = None

    def output(self, x: jax.Array, y: Any, *inputs: Any, **named: Any) -> jax.Array:
        """The layer's output [n, d_model] for one lane; y has leaves [heads, n, ...]."""
        raise NotImplementedError

    def memory_size(self, count: jax.Array) -> jax.Array:
        """The metric 'memory_size': tokens [batch] written before the segment."""
        return mean_count(count)

    # What the library adds.

    def setup(self) -> None:
        settings = self.settings
        self.float32 = jnp.promote_types(settings.dtype, jnp.float32)
        call('parts', self.parts, ())
        init, sizes = initializers.kernel(settings), vars(self.sizes())
        for name, value in list(vars(self).items()):
            if isinstance(value, Param):
                object.__setattr__(self, name, value.made(self, name, sizes, init))

    def sizes(self) -> SimpleNamespace:
        """Dimensions by name: those of the model, and the int fields; 0 as their `share` says."""
        settings = self.settings
        found = dict(d_model=settings.d_model, heads=settings.num_heads, head_dim=settings.head_dim)
        found |= dict(num_heads=settings.num_heads, kv_heads=settings.kv_heads)
        for name, declared in type(self).__dataclass_fields__.items():
            value = getattr(self, name)
            if type(value) is int:
                found[name] = value or found.get(declared.metadata.get('share', ''), 0)
        return SimpleNamespace(**found)

    def to_heads(self, width: int = 0, heads: int = 0) -> HeadsIn:
        """A map [n, d_model] -> [heads, n, width], of the model's sizes where these are 0."""
        settings = self.settings
        return HeadsIn(
            heads or settings.num_heads,
            width or settings.head_dim,
            dtype=settings.dtype,
            kernel_init=initializers.kernel(settings),
            axis='heads' if heads in (0, settings.num_heads) else 'kv_heads',
        )

    def conv_of(self, heads: HeadsIn, size: int, biased: bool = False) -> Convolution:
        """A causal convolution over `size` tokens, per channel of what a map gives; see `Lane.mixed`."""
        of_map = (heads.num_heads, heads.head_dim, heads.axis)
        return Convolution(size, *of_map, self.settings.dtype, biased)

    def _with_tails(self) -> dict[str, Any]:
        """The parts that keep vectors of earlier tokens, by name."""
        return {
            name: part
            for name, part in vars(self).items()
            if name not in type(self).__dataclass_fields__ and hasattr(part, 'initial_state')
        }

    def _checked_state(self) -> Any:
        """`state`, checked."""
        return require_state(type(self).__name__, call('state', self.state, ()))

    def initial_state(self, batch_size: int) -> RecurrentState:
        """The state before the first token of a document."""
        lanes = (batch_size, self.heads())
        memory = jax.tree.map(
            lambda leaf: jnp.broadcast_to(leaf, (*lanes, *jnp.shape(leaf))), self._checked_state()
        )
        tails = {name: part.initial_state(batch_size) for name, part in self._with_tails().items()}
        return RecurrentState(memory, jnp.zeros((batch_size,), jnp.int32), tails)

    def _inputs(
        self,
        x: jax.Array,
        before: jax.Array,
        count: jax.Array,
        start: jax.Array | None,
        tails: dict[str, jax.Array | None],
        carried: dict[str, jax.Array],
        train: bool,
    ) -> tuple[tuple[jax.Array, ...], dict[str, Any], dict[str, Any], dict[str, jax.Array]]:
        """`inputs` of one lane, new tails, what is carried on, and what was logged, [lines, n] each."""
        lane, heads = Lane(before, count, start, tails, train, carried), self.heads()
        with _as_usual():
            given = call('inputs', self.inputs, (x, lane), 'x of a lane [n, d_model], and the lane')
        name, n = type(self).__name__, x.shape[0]
        require_inputs(name, given, heads, n)
        require_logged(name, lane.logged, n)
        valid = jnp.arange(n, dtype=jnp.int32) < count

        def ready(leaf: jax.Array) -> jax.Array:
            leaf = repeat_heads(leaf[None], heads)[0].astype(self.float32)
            return jnp.where(per_lane(valid, leaf[0])[None], leaf, jnp.zeros_like(leaf))

        logged = {name: jnp.atleast_2d(values) for name, values in lane.logged.items()}
        return tuple(map(ready, given)), lane.tails, lane.carried, logged

    def _output(self, x: jax.Array, y: Any, inputs: tuple[jax.Array, ...]) -> jax.Array:
        """`output` of one lane."""
        hint = axes_hint(self._checked_state(), self.heads())
        with _as_usual():
            words = 'x [n, d_model], y, and what `inputs` returns'
            out = call('output', self.output, (x, y, *inputs), words, hint)
        require_output(type(self).__name__, out, x.shape, y, hint)
        return out.astype(self.settings.dtype)

    def _over_lanes(self, method: Callable[..., Any], *arrays: Any) -> Any:
        """A method of one lane for the whole batch; lanes have dropout of their own, the same draws."""
        split: dict[Any, bool] = {'params': False, 'dropout': True, 'memory': False}
        lifted = nn.vmap(method, variable_axes={'params': None}, split_rngs=split)
        return lifted(self, *arrays)

    def given(
        self,
        x: jax.Array,
        state: RecurrentState,
        count: jax.Array,
        start: jax.Array | None = None,
        train: bool = False,
    ) -> Any:
        """What the first `count` (int32 [batch]) tokens of all lanes give to `step`; see `_inputs`."""

        def given(self: Any, *arrays: Any) -> Any:
            return self._inputs(*arrays, train)

        of_state = (state.count, count, start, state.tails, state.carried)
        return self._over_lanes(given, x, *of_state)

    def read(
        self,
        x: jax.Array,
        state: RecurrentState,
        valid: jax.Array,
        start: jax.Array | None = None,
        train: bool = False,
    ) -> tuple[jax.Array, RecurrentState, dict[str, jax.Array]]:
        """Reads and writes; x [batch, n, d_model] is normalised, valid and start bool [batch, n]."""
        count = valid.sum(axis=1, dtype=jnp.int32)
        inputs, tails, carried, logged = self.given(x, state, count, start, train)
        memory, y = self.write_tokens(state, inputs, valid, start)
        y = self._over_lanes(type(self)._output, x, y, inputs)
        before = state.count
        if start is not None:
            first = jax.lax.cummax(jnp.where(start, jnp.arange(x.shape[1]), -1), axis=1)[:, -1]
            before = jnp.where(first < 0, before, 0)
            count = count - jnp.maximum(first, 0)
        return y, RecurrentState(memory, count_on(before, count), tails, carried), logged

    def period(self) -> int:
        """Of a memory that is `aligned`: tokens after which places in chunks recur."""
        return self.chunk

    def write_tokens(
        self,
        state: RecurrentState,
        inputs: tuple[jax.Array, ...],
        valid: jax.Array,
        start: jax.Array | None,
        chunk: int = 0,
        by_steps: bool = False,
    ) -> tuple[Any, Any]:
        """The memory after the inputs, and y; see `read_tokens`. `chunk` 0 = the field's."""
        return read_tokens(
            self.step,
            None if by_steps else self.chunked,
            self._checked_state(),
            state.memory,
            inputs,
            valid,
            start,
            chunk or self.chunk,
            jax.tree.map(
                lambda leaf: leaf.astype(self.float32), call('constants', self.constants, ())
            ),
            state.count if self.aligned else None,
            None if by_steps else self.within,
        )

    def begin(self, state: State, batch_size: int) -> State:
        """The state that a segment begins with."""
        if self.carry and self.aligned:
            # A count that stayed at its largest value would lose the place in the chunk.
            back = (1 << 30) // self.period() * self.period()
            return state.replace(
                count=jnp.where(state.count > back, state.count - back, state.count)
            )
        if self.carry:
            return state
        return self.initial_state(batch_size).replace(carried=state.carried)

    def __call__(
        self, x: jax.Array, state: RecurrentState, segment: Segment, *, train: bool
    ) -> tuple[jax.Array, RecurrentState, Aux]:
        """Reads and writes token by token; x, y are [batch, length, d_model]."""
        if not self.gradients:
            state = jax.lax.stop_gradient(state).replace(carried=state.carried)
        start = segment.start if segment.start.ndim == 2 else None
        begin, valid = self.begin(state, x.shape[0]), segment.valid
        y, new, logged = self.read(self.normalize(x), begin, valid, start, train)
        metrics = {'memory_size': self.memory_size(state.count)}
        for name, values in logged.items():
            number = jnp.maximum(valid.sum(1), 1).astype(values.dtype)
            metrics[name] = (values.mean(1).sum(1, where=valid) / number).mean().astype(jnp.float32)
        kept = new if self.carry else state.replace(carried=new.carried)
        return y, kept, Aux(losses={}, metrics=metrics)

    def open_segment(self, state: State, batch_size: int) -> State:
        """The state that the segment begins with."""
        return self.begin(state, batch_size)

    def extend(
        self, x: jax.Array, cache: State, index: int | jax.Array, count: jax.Array
    ) -> tuple[jax.Array, State]:
        """Reads and writes the next tokens of the open segment; see `MemoryLayer`."""
        valid = jnp.arange(x.shape[1], dtype=jnp.int32)[None] < count[:, None]
        y, cache, _ = self.read(self.normalize(x), cache, valid)
        return y, cache

    def close_segment(self, state: State, cache: State, count: jax.Array) -> State:
        """The state after the segment: its tokens are already in the cache."""
        return cache if self.carry else state

    def logged(self, x: jax.Array, state: State, segment: Segment) -> dict[str, jax.Array]:
        """What `inputs` logs of a segment x [batch, n, d_model]: float32 [batch, n, lines]."""
        begin = self.begin(state, x.shape[0])
        *_, logged = self.given(self.normalize(x), begin, segment.num_valid)
        return {
            name: jnp.swapaxes(values, 1, 2).astype(jnp.float32) for name, values in logged.items()
        }


@contextlib.contextmanager
def _as_usual() -> Iterator[None]:
    """The usual promotion of types and shapes, whatever is set around the library."""
    with jax.numpy_rank_promotion('allow'), jax.numpy_dtype_promotion('standard'):
        yield
