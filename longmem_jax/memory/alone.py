"""Layers of the registry as they are used outside of this library's models."""

import dataclasses
import functools
import sys
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from longmem_jax.around import Run
from longmem_jax.contract import Entry, Fields, ModelSettings, identity
from longmem_jax.layers.feature_maps import unit
from longmem_jax.memory.registry import LAYERS
from longmem_jax.segment import Aux, Segment, State, merge_aux

EPSILON = 1e-6  # added to a squared length


def module(name: str, settings: ModelSettings, fields: Fields, **given: Any) -> Any:
    """The module of the registry's `name`, for use outside of this library's models."""
    entry = LAYERS[name]
    shared = entry.layer.shared(fields) if entry.layer.shared else None
    return entry.layer.module(
        settings=settings,
        normalize=_normed if entry.place == 'around' else identity,
        shared=shared(settings, name='shared') if shared else None,
        **given,
        **fields,
    )


def _normed(x: jax.Array) -> jax.Array:
    """Vectors [..., width] with a mean square of 1, in place of the last norm of a model.

    Without it what goes around from segment to segment would grow.
    """
    return unit(x, EPSILON) * x.shape[-1] ** 0.5


class SurroundedState(flax.struct.PyTreeNode):
    """States of an attention layer and of the memory around it."""

    attention: State
    around: State = None


class _Attention(nn.Module):
    """An attention layer with a residual connection, as the only block of `Surrounded`."""

    settings: ModelSettings
    layer: str
    fields: tuple[tuple[str, Any], ...]
    reads: bool

    def setup(self) -> None:
        self.attention = module(self.layer, self.settings, dict(self.fields))

    def initial_state(self, batch_size: int) -> SurroundedState:
        return SurroundedState(self.attention.initial_state(batch_size))

    def __call__(
        self,
        x: jax.Array,
        state: SurroundedState,
        segment: Segment,
        *,
        train: bool,
        source: None,
        between: Callable[[jax.Array], jax.Array],
    ) -> tuple[jax.Array, SurroundedState, Aux]:
        del source
        y, attention, aux = self.attention(x, state.attention, segment, train=train)
        x = x + y
        return x + between(x) if self.reads else x, SurroundedState(attention), aux


class Surrounded(nn.Module):
    """A memory around one attention layer, `LayerType.inside`, as a layer; reads whole segments only.

    Attributes:
      settings: sizes.
      memory: name in the registry.
      fields: of the memory and of the attention layer, as pairs of name and value.
    """

    settings: ModelSettings
    memory: str
    fields: tuple[tuple[str, Any], ...]

    def setup(self) -> None:
        entry, settings = LAYERS[self.memory], self.settings
        own, inside = apart(entry, dict(self.fields))
        leading, trailing = entry.layer.extra(own)
        length = settings.segment_length + leading + trailing
        within = dataclasses.replace(
            settings, segment_length=length, leading=leading, trailing=trailing
        )
        self.around = module(self.memory, settings, own, depth=1)
        self.block = _Attention(
            within, entry.layer.inside[0], tuple(inside.items()), entry.layer.between
        )
        self.run = Run(0, (self.block,), self.around, within, lambda x, deterministic: x)

    def initial_state(self, batch_size: int) -> SurroundedState:
        """States at the start of a document."""
        return self.run.initial_state(batch_size)[0]

    def __call__(
        self, x: jax.Array, state: SurroundedState, segment: Segment, *, train: bool
    ) -> tuple[jax.Array, SurroundedState, Aux]:
        """What is added to x, [batch, length, d_model], by the attention and the memory around it."""
        out, (state,), auxes, _ = self.run.read(x, (state,), segment, (None,), {}, train=train)
        return out - x, state, merge_aux(auxes)


def apart(entry: Entry, fields: Fields) -> tuple[dict[str, Any], ...]:
    """The fields of each of `parts_of`, which have no names in common."""
    return tuple({name: fields[name] for name in part.fields()} for part in parts_of(entry))


def parts_of(entry: Entry) -> tuple[Entry, ...]:
    """The entry, and that of the attention layer inside of one that stands around blocks."""
    return (entry, LAYERS[entry.layer.inside[0]]) if entry.place == 'around' else (entry,)


@functools.cache
def settings_read(layer: Any) -> frozenset[str]:
    """The settings that a `standalone.Layer` reads, with its fields as they are.

    It is traced, in training and not: no table of layers can forget a setting, or one of a package's
    layer.
    """
    read: set[str] = set()

    class Watched(ModelSettings):
        def __getattribute__(self, name: str) -> Any:
            found = super().__getattribute__(name)
            if sys._getframe(1).f_code.co_name not in ('replace', '_replace'):  # these copy all
                read.update(found if name == '__dict__' else (name,))
            return found

    settings = layer.settings
    watched = layer.clone(settings=Watched(**vars(settings)))

    def call() -> Any:
        key = jax.random.key(0)
        state, _ = watched.init_with_output(key, 1, method='initial_state')
        x = jnp.zeros((1, settings.segment_length, settings.d_model), settings.dtype)
        keys = dict(params=key, dropout=key, memory=key)
        return [watched.init_with_output(keys, x, state, train=train) for train in (True, False)]

    jax.eval_shape(call)
    return frozenset(read)
