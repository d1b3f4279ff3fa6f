"""A memory as one layer of any model: the modules that configs name, with a simple interface.

For example::

    from longmem_jax import InfiniAttention

    layer = InfiniAttention(d_model=256, num_heads=4, segment_length=128)
    state = layer.start(batch_size=2)
    variables = layer.init(key, x, state)
    y, state, aux = layer.apply(variables, x, state)

The models of this library call memories through `contract.MemoryLayer`, with packed segments and states
that have been reset. `Layer` does both, so that padding may be anywhere and a document may begin with
any segment.
"""

import contextlib
import dataclasses
import functools
import operator
from typing import TYPE_CHECKING, Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from longmem_jax.contract import Entry, ModelSettings
from longmem_jax.devices.sharding import require_auto
from longmem_jax.errors import UsageError, no_field, require_type, unknown
from longmem_jax.in_place import reset_lanes
from longmem_jax.layers.dropout import Dropout, asking_for_keys
from longmem_jax.memory.alone import Surrounded, apart, module, parts_of, settings_read
from longmem_jax.memory.checks import LONGEST, kernel_problems, layer_problems, size_problems
from longmem_jax.memory.registry import ATTENTION, LAYERS
from longmem_jax.memory.returned import initial, read
from longmem_jax.problems import at_least, at_most, of_section
from longmem_jax.segment import Aux, Segment, State, pack


class Layer(nn.Module):
    """A memory of the registry; see `make_layer`, or use its name, such as `longmem_jax.ExpireSpan`.

    It has no residual connection or norm around it: the caller adds those.

    Attributes:
      memory: name in the registry.
      settings: sizes.
      fields: fields of the memory, as pairs of name and value.
    """

    memory: str
    settings: ModelSettings
    fields: tuple[tuple[str, Any], ...]

    if TYPE_CHECKING:  # Flax's result has a second type, that of calls with `mutable`.

        def apply(
            self, variables: Any, *given: Any, **named: Any
        ) -> tuple[jax.Array, State, Aux]: ...

    def setup(self) -> None:
        entry = LAYERS[self.memory]
        if entry.place == 'around':
            self.inner: Any = Surrounded(self.settings, self.memory, self.fields)
        else:
            self.inner = module(self.memory, self.settings, dict(self.fields))
        self.drop = Dropout(self.settings.dropout)

    def start(self, batch_size: int) -> State:
        """The state before the first token of a document; needs no parameters.

        Args:
          batch_size: number of batch rows.

        Returns:
          The memory's state, every leaf [batch_size, ...].
        """
        whole = hasattr(batch_size, '__index__') and not isinstance(batch_size, bool | jax.Array)
        if not whole or batch_size < 1:
            raise ValueError(f'batch_size = {batch_size!r}: must be a whole number of at least 1')
        return _start(self, operator.index(batch_size))

    def init(self, rngs: Any, *args: Any, **kwargs: Any) -> Any:
        """As in linen, with plain arrays: only the models of this library use the sharding axes."""
        return nn.unbox(super().init(rngs, *args, **kwargs))

    def initial_state(self, batch_size: int) -> State:
        """`start` for use within a module that owns this one."""
        return initial(self.inner, batch_size)

    def __call__(
        self,
        x: jax.Array,
        state: State,
        *,
        valid: jax.Array | None = None,
        start: jax.Array | None = None,
        train: bool = False,
    ) -> tuple[jax.Array, State, Aux]:
        """Reads the memory, attends, and writes the segment.

        Args:
          x: [batch, length, d_model], length 1 to `segment_length`.
          state: the memory before the segment.
          valid: bool [batch, length], False = padding, anywhere and of any value: never attended to,
            never written. None = no padding.
          start: bool [batch], rows in which a new document begins: their state is reset before it is
            read. None = in no row. Of memories with `takes_starts` also bool [batch, length], documents
            that begin with any token; for others see `segment.split_at_starts`.
          train: turns on dropout (needs `rngs={'dropout': key}`) and the random draws of memories
            that have any (needs `rngs={'memory': key}`). `dropout` is the rate of y, in every layer,
            and of hidden activations and position embeddings where a layer has them;
            `attention_dropout` is that of attention weights, where a layer has any.

        Returns:
          y [batch, length, d_model] of the layer's dtype, zeros at padding; the state after the
          segment; losses (averaged, not weighted) and metrics.

        Raises:
          ValueError: a shape or dtype is wrong. A state of another memory whose arrays have the same
            names, shapes and dtypes is not told apart.
        """
        batch, length = self._check(x, valid, start)
        require_type('train', train, bool | np.bool_, 'True or False, static under jit')
        if valid is None:
            valid = jnp.ones((batch, length), bool)
        else:  # a weight of 0 does not keep a NaN out of a sum
            x = jnp.where(valid[..., None], x, jnp.zeros_like(x))
        start = jnp.zeros((batch,), bool) if start is None else start
        key = self.make_rng('memory') if train and self.has_rng('memory') else None
        tokens = jnp.zeros((batch, length), jnp.int32)
        takes_starts = getattr(type(self.inner), 'takes_starts', False)
        segment, packing = pack(Segment(tokens, valid, start, key), takes_starts=takes_starts)
        fresh = self.initial_state(batch)
        _check_state(state, fresh, batch)
        if start.ndim == 1:
            state = reset_lanes(start, fresh, state)
        x = packing.pack(x.astype(self.settings.dtype))
        with asking_for_keys():
            y, state, aux = read(self.inner, x, state, segment, train)
            y = self.drop(y, deterministic=not train)  # as a block of a model does with every layer
        if hasattr(state, 'carried'):  # what blocks of a model hand on is no part of the state
            state = state.replace(carried={})
        y = packing.unpack(y)
        return jnp.where(valid[..., None], y, jnp.zeros_like(y)), state, aux

    def _check(
        self, x: jax.Array, valid: jax.Array | None, start: jax.Array | None
    ) -> tuple[int, int]:
        """Batch and length of `x`, after checking all shapes."""
        longest, width = self.settings.segment_length, self.settings.d_model
        for name, array in dict(x=x, valid=valid, start=start).items():
            if (array is not None or name == 'x') and not hasattr(array, 'shape'):
                raise ValueError(f'{name} is of {type(array)}: must be an array')
        if x.ndim != 3 or x.shape[2] != width or not 1 <= x.shape[1] <= longest:
            raise ValueError(
                f'x has shape {x.shape}: must be [batch, length, {width}] with 1 to {longest} tokens '
                f'(segment_length){"; leave out segments without any" * (0 in x.shape)}'
            )
        if jnp.iscomplexobj(x):  # else its imaginary part would be lost
            raise ValueError(
                f'x is {x.dtype}: must be real, such as x.real and x.imag side by side'
            )
        require_auto(x)
        batch, length = x.shape[:2]
        takes_starts = getattr(type(self.inner), 'takes_starts', False)
        inside = takes_starts and start is not None and start.ndim == 2
        for name, array, shape in (
            ('valid', valid, (batch, length)),
            ('start', start, (batch, length) if inside else (batch,)),
        ):
            if array is not None and (array.shape != shape or array.dtype != bool):
                raise ValueError(
                    f'{name} is {array.dtype} {list(array.shape)}: must be bool {list(shape)}'
                )
        return batch, length


def _check_state(state: State, fresh: State, batch: int) -> None:
    """Raises where `state` is not of the structure, shapes and dtypes of `fresh`."""
    advice = f'give what layer.start(batch_size={batch}) or the call before returned'
    given_structure: Any = jax.tree.structure(state)
    if given_structure != jax.tree.structure(fresh):
        given, needed = type(state).__name__, type(fresh).__name__
        given = f'{given} of other fields' if given == needed else given
        raise ValueError(f'state is {given}: {needed} of this layer is needed; {advice}')
    for (path, leaf), like in zip(
        jax.tree_util.tree_leaves_with_path(state), jax.tree.leaves(fresh), strict=True
    ):
        shape, dtype = jnp.shape(leaf), jnp.result_type(leaf)
        if (shape, dtype) != (like.shape, like.dtype):
            raise ValueError(
                f'state{jax.tree_util.keystr(path)} is {dtype} {list(shape)}: '
                f'{like.dtype} {list(like.shape)} is needed; {advice}'
            )


@functools.partial(jax.jit, static_argnums=(0, 1))
def _start(layer: Layer, batch_size: int) -> State:
    # The parameters drawn on the way are unused, so jit never computes them.
    return layer.init_with_output(jax.random.key(0), batch_size, method='initial_state')[0]


def defaults_of(entry: Entry) -> dict[str, Any]:
    """Fields of the memory with the paper's values."""
    own, *inside = (part.defaults() for part in parts_of(entry))
    return own | (inside[0] | entry.layer.inside[1] if inside else {})


OF_AROUND = ('leading', 'trailing')  # settings that follow from what stands around
SIZES = tuple(size for size in dataclasses.fields(ModelSettings) if size.name not in OF_AROUND)
REQUIRED = ('d_model', 'num_heads', 'segment_length')
SETTINGS: dict[str, Any] = {size.name: size.default for size in SIZES} | dict(
    num_layers=1,
    d_feed_forward=None,  # 4 * d_model
    dropout=0.0,
    attention_dropout=0.0,
    init_std=0.0,  # d_model**-0.5
    dtype='float32',
)
# Settings of a model that a layer may be given, with their defaults.
OF_MODEL = {name: value for name, value in SETTINGS.items() if value is not dataclasses.MISSING}
TAKEN = ('dropout', 'dtype')  # settings that every layer takes


def make_layer(
    memory: str,
    *,
    d_model: int,
    num_heads: int,
    segment_length: int,
    head_dim: int | None = None,
    name: str | None = None,
    **others: Any,
) -> Layer:
    """A memory of the registry as a linen module.

    Args:
      memory: its name in `config.model.attention`, `feed_forward` or `around`.
      d_model: width of `x`.
      num_heads: attention heads.
      segment_length: positions of a segment at most.
      head_dim: width of a head; None = d_model / num_heads, which must be a whole number.
      name: of the module within the one that owns it, as in linen.
      **others: fields of the memory, by default the paper's values, and further attributes of
        `ModelSettings`: dropout, attention_dropout, init_std (0 = d_model**-0.5), dtype,
        and so on; those that the layer does not read must have their defaults.

    Raises:
      UsageError: an unknown name (the nearest one is suggested), or invalid values.
    """
    require_type('memory', memory, str, f'the name of a memory, such as {sorted(LAYERS)[0]!r}')
    if memory not in LAYERS:
        for name, found in LAYERS.items():
            if memory in found.recipe.by_name:
                raise UsageError(
                    f'memory = {memory!r}: a recipe of configs for the layer {name!r}; give that name '
                    f'and fields: python -m longmem_jax.main --config=quickstart:memory={memory} '
                    f'--mode=list has those of the recipe, as model.{name}.FIELD'
                )
        raise UsageError(unknown('memory', memory, sorted(LAYERS)))
    entry = LAYERS[memory]
    fields = defaults_of(entry)
    settings = dict(SETTINGS)
    sized = dict(
        d_model=d_model, num_heads=num_heads, head_dim=head_dim, segment_length=segment_length
    )
    if 'num_heads' in fields:
        fields['num_heads'] = _plain(num_heads)
    require_known(memory, sized | others)
    for field, value in (sized | others).items():
        (fields if field in fields and field not in sized else settings)[field] = _plain(value)
    problems = _complete(settings)
    if not problems:
        model, length = _Settings(settings), settings['segment_length']
        for part, own in zip(parts_of(entry), apart(entry, fields), strict=True):
            problems += layer_problems(part, own, part.fields(), model, length)
        if not problems and memory in ATTENTION:
            problems = kernel_problems(ATTENTION, {memory: fields}, model)
    if not problems:
        settings['dtype'] = jnp.dtype(settings['dtype'])
        made = memory, ModelSettings(**settings), tuple(fields.items())
        usual = SETTINGS | sized
        _complete(usual)
        changed = [name for name in others if name in usual and settings[name] != usual[name]]
        problems = _unread(Layer(*made, parent=None), changed)
    if problems:
        raise UsageError(f'{memory}: ' + '; '.join(problems))
    return Layer(*made, name=name)


def _unread(layer: Layer, changed: list[str]) -> list[str]:
    """Problems of changed settings that would change nothing."""
    of_all = {*TAKEN, *dict(layer.fields)}  # so that most layers need not be traced
    return [
        f'{name} = {getattr(layer.settings, name)!r}: this layer, with its other fields, does not '
        'read it; leave it out'
        for name in changed
        if name not in of_all and name not in settings_read(layer)
    ]


def require_known(memory: str, given: dict[str, Any]) -> None:
    """Raises for an unknown field, with those that a layer of the others takes."""
    allowed = {*defaults_of(LAYERS[memory]), *REQUIRED, *TAKEN, 'head_dim', 'name'}
    known = {field: value for field, value in given.items() if field in {*SETTINGS, *allowed}}
    if wrong := [field for field in given if field not in known]:
        with contextlib.suppress(UsageError, TypeError):  # the others may make no layer
            layer = make_layer(memory, **dict(d_model=64, num_heads=4, segment_length=64) | known)
            allowed |= settings_read(layer.clone(parent=None)) & {*SETTINGS}
        raise UsageError(no_field(memory, wrong[0], allowed, SETTINGS))


class _Settings(dict[str, Any]):
    """Settings whose names are attributes too, as in a config, which needs a library more."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


def _complete(settings: dict[str, Any]) -> list[str]:
    """Sets the sizes that follow from others, in place; returns the problems of all."""
    types = {size.name: size.type for size in SIZES}
    follow = [name for name in ('head_dim', 'd_feed_forward') if settings[name] is None]
    if problems := of_section(settings | dict.fromkeys(follow, 1), types):
        return problems
    width, heads = settings['d_model'], settings['num_heads']
    if 'd_feed_forward' in follow:
        settings['d_feed_forward'] = 4 * width
    settings['init_std'] = settings['init_std'] or max(width, 1) ** -0.5
    if 'head_dim' in follow:
        settings['head_dim'] = max(width // max(heads, 1), 1)
        if heads and width % heads:
            problems.append(
                f'num_heads = {heads}: must divide d_model = {width}, or give head_dim as well'
            )
    with contextlib.suppress(TypeError):  # the name of no type is one of the problems
        settings['dtype'] = jnp.dtype(settings['dtype']).name
    problems += at_least(settings, 1, 'segment_length') + at_most(settings, LONGEST)
    return problems + size_problems(settings)


def _plain(value: Any) -> Any:
    """A value that can be hashed and compared: tuples for lists and arrays, numbers of Python."""
    value = value.tolist() if isinstance(value, (np.generic, np.ndarray, jax.Array)) else value
    return tuple(map(_plain, value)) if isinstance(value, (list, tuple)) else value
