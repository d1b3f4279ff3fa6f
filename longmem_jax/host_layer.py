"""How released decoders have a layer by themselves; `contract.Entry.hosts`."""

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
