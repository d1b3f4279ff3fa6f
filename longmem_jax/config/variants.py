"""The argument of a config file: `--config=configs/pg19.py:tiny` or `:memory=infini,tiny`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from longmem_jax.config.hybrids import is_pattern, names_of
from longmem_jax.config.recipes import Given, changes_of, recipes, use
from longmem_jax.contract import Recipe
from longmem_jax.errors import UsageError, unknown
from longmem_jax.memory.registry import ATTENTION, LAYERS

Variant = Callable[..., None]
WHICH = '?'  # the argument that asks for what is accepted


class AcceptedError(UsageError):
    """The answer to the argument `WHICH`.

    Attributes:
      names: the arguments that a config accepts, `NAME=VALUE` for those with a value.
    """

    names: tuple[str, ...] = ()


def accepted(get_config: Callable[..., Any]) -> tuple[str, ...]:
    """The arguments that a config accepts; none if it takes no argument."""
    try:
        get_config(WHICH)
    except AcceptedError as answer:
        return answer.names
    except TypeError:
        pass
    return ()


def whole_number(name: str, value: str) -> int:
    """The number of `name=value`; raises `UsageError` unless it is an integer above 0."""
    if not value.isdecimal() or not int(value):
        raise UsageError(f'{name}={value}: must be an integer above 0, such as {name}=1024.')
    return int(value)


def new_segment(config: Any, value: str) -> int:
    """Sets the segment length that `segment=value` names, with as many tokens per update; returns it."""
    train, length = config.train, whole_number('segment', value)
    tokens = train.num_lanes * train.segment_length
    if tokens % length:
        raise UsageError(f'segment={value}: must divide the {tokens:,} tokens of an update.')
    train.segment_length, train.num_lanes = length, tokens // length
    return length


def one_of(name: str, value: str, allowed: Any) -> str:
    """`value`, or a `UsageError` with the nearest value that `name=` allows."""
    if value not in allowed:
        raise UsageError(unknown(name, value, allowed))
    return value


def variant(
    config: Any,
    argument: str | None,
    *,
    memory: str | None,
    memories: Mapping[str, Given | Recipe] | None = None,
    scale: Mapping[str, Any] | None = None,
    put: Callable[..., None] = use,
    others: Sequence[str] = (),
    **variants: Variant,
) -> Any:
    """Applies the variants that `argument` names, in the order declared here, then sets the memory.

    So a variant such as `tiny` can set sizes and change `memories` and `scale`, and every memory,
    wherever it was typed, is built for the final sizes.

    Args:
      config: the full-size configuration; changed in place.
      argument: names separated by commas; `name` or `name=value`, each once. In addition to `variants`,
        `memory=NAME`: any memory of the library, one of `memories`, or a pattern of these and of
        attention layers, such as `memory=3*linear+full`.
      memory: the config's default; None = the config accepts no `memory=`.
      memories: by name, changes to the recipe of a memory, or a recipe of the experiment's own; a
        new name is for another version of a memory.
      put: sets the memory, as `recipes.use` does.
      others: names that `put` accepts and that are neither recipes nor in `memories`.
      scale: sizes for recipes that should not follow from the segment, see `recipes.scale_of`.
      **variants: name to a function that changes the config: `f(config)` or `f(config, value)`.

    Raises:
      UsageError: an unknown name, with those allowed; a name given twice; a value where none is
        taken, or none where one is needed.
    """
    if WHICH in (argument or '').split(','):
        valued = [name for name in variants if variants[name].__code__.co_argcount > 1]
        names = [f'{name}=VALUE' if name in valued else name for name in variants]
        names += ['memory=NAME'] if memory else []
        answer = AcceptedError(f'the config accepts {", ".join(names)}')
        answer.names = tuple(names)
        raise answer
    typed = _typed(argument, [*variants, *(['memory'] if memory else [])])
    for name, change in variants.items():
        if name in typed:
            change(config, *_values(name, typed[name], change))
    if memory:
        if 'memory' in typed and not typed['memory']:
            raise UsageError('memory: a value is needed, such as memory=infini.')
        memories = memories or {}
        name = typed.get('memory') or memory
        for part in names_of(name) if is_pattern(name) else ():
            _memory(part, {*recipes(), *memories, *ATTENTION})
        if not is_pattern(name):
            _memory(name, {*recipes(), *memories, *others})
        put(config, name, changes_of(memories, name), **(scale or {}))
    return config


def _memory(name: str, allowed: set[str]) -> None:
    """Refuses what is no memory: with the nearest, or with those of the layer that is called so."""
    of_layer = LAYERS[name].recipe.by_name if name in LAYERS and name not in allowed else ()
    if of_layer:
        raise UsageError(f'memory = {name!r}: a layer; its memories are {", ".join(of_layer)}')
    if name in ATTENTION and name not in allowed and name not in LAYERS.own:
        raise UsageError(
            f'memory = {name!r}: a layer without a recipe; give its Entry one, such as recipe=Recipes('
            f"{{'{name}': lambda scale: Recipe({{'{name}': {{}}}})}})"
        )
    one_of('memory', name, sorted(allowed))


def _typed(argument: str | None, allowed: Sequence[str]) -> dict[str, str | None]:
    """Name to value; None where there was no '='."""
    typed = {}
    for item in filter(None, (argument or '').split(',')):
        name, equals, value = item.partition('=')
        if name not in allowed:
            said = unknown('the argument of the config file', name, sorted(allowed))
            a_memory = 'memory' in allowed and name in recipes()
            raise UsageError(f'{said}; for the memory write memory={name}' if a_memory else said)
        if name in typed:
            raise UsageError(f'the argument of the config file names {name!r} twice: give it once.')
        typed[name] = value if equals else None
    return typed


def _values(name: str, value: str | None, change: Variant) -> list[str]:
    """The arguments of `change` after the config: its value, if it takes one."""
    takes_value = change.__code__.co_argcount > 1
    if takes_value and value is None:
        raise UsageError(f'{name}: a value is needed, such as {name}=VALUE.')
    if not takes_value and value is not None:
        raise UsageError(f'{name}={value}: {name} takes no value; give {name} alone.')
    return [] if value is None else [value]
