"""Whether the layers of a model can read as far back as its task asks."""

from typing import Any

from longmem_jax.data.tasks.registry import DISTANCES
from longmem_jax.memory.registry import LAYERS


def too_short(config: Any) -> list[str]:
    """What to say if the task asks for tokens beyond the reach of every layer; [] = nothing.

    Only of tasks with a greatest distance, and of models all of whose attention has a limited reach.
    """
    model = config.model
    if config.data.source not in DISTANCES or model.kind != 'language_model':
        return []
    entries = [LAYERS[name] for name in model.attention]
    if any(entry.reach is None for entry in entries):
        return []
    reaches = [entry.reach(model[entry.name]) for entry in entries]
    asked, longest, together = (
        DISTANCES[config.data.source](config.data.task),
        max(reaches),
        sum(reaches),
    )
    if longest >= asked:
        return []
    each = ', '.join(f'{e.name} {reach:,}' for e, reach in zip(entries, reaches, strict=True))
    handed_on = (
        f'What is farther back than {longest:,} can only be known if one layer hands it to the next, '
        f'and beyond {together:,} not at all'
        if together > longest
        else f'What is farther back than {longest:,} cannot be known'
    )
    return [
        f'config.data.task asks for tokens up to {asked:,} back, and no layer reads that far before its '
        f'segment ({each}). {handed_on}; lengthen the memory, or ask for shorter distances'
    ]
