"""Layers that families of decoders have besides attention: which of the registry they are."""

from typing import Any

from longmem_jax.host_layer import HostLayer
from longmem_jax.hosts import tables
from longmem_jax.hosts.families import Family
from longmem_jax.memory.registry import LAYERS


def own_layer(family: Family) -> tuple[str, HostLayer] | None:
    """Name and layout of what stands in for attention in some layers of a family; None = nothing."""
    found = (
        (name, entry.hosts[family.own])
        for name, entry in LAYERS.items()
        if family.own in entry.hosts
    )
    return next(found, None)


def rows_of(family: Family, model: Any) -> list[tables.Row]:
    """All rows of a family for a `config.model` of it, whose memory is none."""
    own = own_layer(family)
    kind = own[0] if own else ''
    instead = tables.of_layers(own[1].rows(model[kind])) if own and kind in model.attention else []
    taken = {path for row in instead for path in row.ours}
    head = [tables.head(*family.heads)] if family.heads else []
    rows = []
    for row in (*family.rows, *instead, *head):
        is_own, path = row in instead, row.ours[0]
        for layer in range(model.num_layers) if '{i}' in row.theirs else (0,):
            here = '{i}' in row.theirs and model.attention[layer] == kind
            replaced = here and (path.startswith(tables.ATTENTION) or path in taken)
            if here if is_own else not replaced:
                rows.append(row.of_layer(layer))
    return rows
