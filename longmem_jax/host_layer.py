"""How released decoders and programs have a layer by themselves; `contract.Entry.hosts`, `.released`."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class HostLayer:
    """How the models of a released family have a layer by themselves, in the place of attention.

    Attributes:
      read: `(attributes, config.model) -> fields` of its sub-config; `attributes` has `number` and
        `take`, see `hosts.attributes.Attributes`.
      write: `fields -> attributes`, the inverse.
      rows: `fields -> (their name within a layer, our paths within a block, layout)` of every tensor;
        see `hosts.patterns`. Further names of the tensor may stand after the layout.
    """

    read: Callable[[Any, Any], dict[str, Any]]
    write: Callable[[Mapping[str, Any]], dict[str, Any]]
    rows: Callable[[Mapping[str, Any]], list[tuple[Any, ...]]]


@dataclasses.dataclass(frozen=True)
class ReleasedLayer:
    """What a program of a layer's authors names in its own way; the backbone is that of the program.

    Attributes:
      fields: the program's arguments, by its names, to fields of the sub-config.
      tensors: names of the layer's own tensors in a block to (our path in it, kind of layout); see
        `released.transformer_sequential`.
      free: fields that the weights do not depend on: a config may set them freely.
    """

    fields: Callable[[Mapping[str, Any]], dict[str, Any]]
    tensors: Mapping[str, tuple[str, str]] = dataclasses.field(default_factory=dict)
    free: tuple[str, ...] = ()
