"""Whether the layers of a model, and the gradients of a step, reach as far back as its task asks."""

from typing import Any

from longmem_jax.data.tasks.registry import TASKS
from longmem_jax.memory.registry import LAYERS
from longmem_jax.models.stack import around_of, extra_of

BY_LENGTH = ('ruler', 'babilong')  # what is asked for may stand anywhere in a document


def carries_vectors(model: Any) -> bool:
    """Whether what stands around the blocks remembers without limit."""
    reaches = ((LAYERS[name].layer.reach, model[name]) for name in set(filter(None, model.around)))
    return any(reach is None or reach(fields, 1) is None for reach, fields in reaches)


def reaches(config: Any) -> list[tuple[str, int]] | None:
    """Layers and how many tokens before a segment each can read; None = without limit."""
    model, segment, found = config.model, config.train.segment_length, []
    for around, numbers in around_of(model):
        extra = sum(extra_of(model, around))
        names = [stack[i] for stack in (model.attention, model.beside) if stack for i in numbers]
        for name in filter(None, (around, *names)):
            entry = LAYERS[name]
            reach = entry.layer.reach and entry.layer.reach(model[name], segment + extra)
            if reach is None:
                return None
            segments, rest = divmod(reach, segment + extra)  # it holds extra tokens as well
            found.append((name, segments * segment + min(rest, segment)))
    return found


def asked_back(config: Any) -> int | None:
    """How many tokens before a question a task's answer may stand; None where that is not known."""
    data = config.data
    if data.source in BY_LENGTH:
        return max(data.task.lengths)
    task = TASKS.get(data.source)
    return task.distance(data.task) if task and task.distance else None


def too_short(config: Any) -> list[str]:
    """Warnings if the task asks for tokens beyond the reach of every layer; [] = none.

    Only of tasks with a greatest distance, and of models all of whose attention has a limited reach.
    """
    found, asked = reaches(config), asked_back(config)
    if asked is None or found is None:
        return []
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


def beyond_a_step(config: Any) -> list[str]:
    """A note if a step of training ends before what the task asks for; [] = none.

    A memory without limit must learn what to keep, by gradients, which go back to the begin of a step.
    Windows keep everything, and need none.
    """
    train, asked = config.train, asked_back(config)
    step = train.segment_length * train.segments_per_step
    if asked is None or asked <= step or reaches(config) is not None:
        return []
    return [
        f'config.data.task asks for tokens up to {asked:,} back, and a step of training has {step:,} '
        'tokens per lane: no gradient reaches what was written before it. If the memory is not used, '
        'raise config.train.segments_per_step (docs/training.md)'
    ]
