"""Layers by pattern: `3*linear+full` is three layers of one memory and one of another, and so on."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from longmem_jax.contract import Group, Recipe
from longmem_jax.errors import UsageError
from longmem_jax.memory.registry import LAYERS


def is_pattern(name: str) -> bool:
    """Whether a name of `:memory=` is a pattern of several."""
    return '+' in name or '*' in name


def names_of(pattern: str) -> tuple[str, ...]:
    """The names of a pattern, one per layer: ('linear', 'linear', 'linear', 'full').

    Raises:
      UsageError: it is no pattern.
    """
    names: list[str] = []
    for part in pattern.split('+'):
        number, times, name = part.rpartition('*')
        if not name or (times and not (number.isdecimal() and 0 < int(number) <= 4096)):
            raise UsageError(
                f'memory={pattern}: needed are names joined by +, each with a number of layers or '
                'without, such as memory=3*linear+full.'
            )
        names += [name] * int(number or 1)
    return tuple(names)


def written(names: Sequence[str]) -> str:
    """The shortest pattern of these names."""
    runs = [(name, len([*run])) for name, run in itertools.groupby(names)]
    return '+'.join(f'{times}*{name}' if times > 1 else name for name, times in runs)


def join(pattern: Sequence[str], recipes: Mapping[str, Recipe], layers: int) -> Recipe:
    """One recipe of several, by `pattern` repeated to the depth of the model.

    Of each recipe only the layers with its memory are used.

    Raises:
      UsageError: two recipes want different values of one setting, or to stand around the blocks; or
        the model has too few layers for a memory of the pattern.
    """
    chosen = tuple(itertools.islice(itertools.cycle(pattern), layers))
    if missing := sorted({*pattern} - {*chosen}):
        raise UsageError(
            f'memory={written(pattern)}: is a pattern of {len(pattern)} layers, and the model has '
            f'{layers}, so {", ".join(missing)} would be in none; shorten the pattern, or use a config '
            'with more layers.'
        )
    stacks: dict[str, list[str]] = dict(attention=[], feed_forward=[], around=[])
    for name in chosen:
        recipe = recipes[name]
        main = next(iter(recipe.sections))
        place = LAYERS[main].place
        at = {'around': ''} | {place: main}
        # What the recipe has where its memory stands, or everywhere.
        own = getattr(recipe, place)
        where = own.index(main) if main in own else 0
        at = at | {other: getattr(recipe, other)[where] for other in ('attention', 'feed_forward')}
        for place, layer in at.items():
            stacks[place].append(layer)
    used = {layer for stack in stacks.values() for layer in stack}
    sections: dict[str, Any] = {}
    model: dict[str, Any] = {}
    weights: dict[str, Any] = {}
    groups: list[Group] = []
    notes: list[str] = []
    for name in dict.fromkeys(chosen):
        recipe = recipes[name]
        for layer, fields in recipe.sections.items():
            if layer in used:
                _add(sections, {layer: fields}, name, 'config.model')
        _add(model, recipe.model, name, 'config.model')
        _add(weights, recipe.loss_weights, name, 'config.train.loss_weights')
        groups += [group for group in recipe.groups if group not in groups]
        notes += recipe.notes
    around = tuple(dict.fromkeys(filter(None, stacks['around'])))
    if len(around) > 1:
        raise UsageError(f'memory={"+".join(around)}: only one memory can stand around all blocks.')
    return Recipe(
        {layer: _values(fields) for layer, fields in sections.items()},
        tuple(stacks['attention']),
        tuple(stacks['feed_forward']),
        around * layers,
        _values(model),
        _values(weights),
        tuple(groups),
        tuple(notes),
    )


def _values(found: dict[str, tuple[Any, str]]) -> dict[str, Any]:
    return {key: value for key, (value, _) in found.items()}


def _add(found: dict[str, Any], new: Mapping[str, Any], name: str, where: str) -> None:
    """Adds the values of the recipe `name`, each with that name; raises where another has others."""
    for key, value in new.items():
        if isinstance(value, dict):
            _add(found.setdefault(key, {}), value, name, f'{where}.{key}')
            continue
        other, owner = found.setdefault(key, (value, name))
        if other != value:
            raise UsageError(
                f'memory={owner}+{name}: {where}.{key} would be {other!r} for {owner} and {value!r} for '
                f'{name}, and a model has one; use one of them.'
            )
