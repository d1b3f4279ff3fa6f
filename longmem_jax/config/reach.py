"""Whether the layers of a model can read as far back as its task asks."""

from typing import Any

from longmem_jax.data.tasks.registry import TASKS
from longmem_jax.memory.registry import LAYERS
from longmem_jax.models.kinds import KINDS


def carries_vectors(model: Any) -> bool:
    """Whether the model itself carries vectors, in addition to the states of its layers."""
    return KINDS[model.kind].carries(model)


def reaches(config: Any) -> list[tuple[str, int]] | None:
    """Attention layers and how many tokens before a segment each can read; None = without limit.

    None is also for models that remember by themselves, in addition to their layers.
    """
    model = config.model
    entries = [LAYERS[name] for name in model.attention]
    if carries_vectors(model) or any(entry.reach is None for entry in entries):
        return None
    segment = config.train.segment_length
    return [(entry.name, entry.reach(model[entry.name], segment)) for entry in entries]


def too_short(config: Any) -> list[str]:
    """Warnings if the task asks for tokens beyond the reach of every layer; [] = none.

    Only of tasks with a greatest distance, and of models all of whose attention has a limited reach.
    """
    found = reaches(config)
    task = TASKS.get(config.data.source)
    if task is None or task.distance is None or found is None:
        return []
    asked = task.distance(config.data.task)
    longest, together = (f(reach for _, reach in found) for f in (max, sum))
    if longest >= asked:
        return []
    each = ', '.join(f'{name} {reach:,}' for name, reach in found)
    handed_on = (
        f'Tokens farther back than {longest:,} can be known only if one layer passes them to the next, '
        f'and tokens beyond {together:,} not at all'
        if together > longest
        else f'Tokens farther back than {longest:,} cannot be known'
    )
    return [
        f'config.data.task asks for tokens up to {asked:,} back, and no layer reads that far before its '
        f'segment ({each}). {handed_on}; lengthen the memory, or ask for shorter distances'
    ]
