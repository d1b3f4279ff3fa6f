"""The argument of a config file: `--config=configs/pg19.py:tiny` or `:memory=infini,tiny`."""

from collections.abc import Callable
from typing import Any

from longmem_jax.config.recipes import Given, use
from longmem_jax.contract import Recipe
from longmem_jax.errors import UsageError, unknown

Variant = Callable[..., None]


def whole_number(name: str, value: str) -> int:
    """The number of `name=value`; raises `UsageError` where it is none above 0."""
    if not value.isdigit() or not int(value):
        raise UsageError(f'{name}={value}: a whole number above 0 is needed, such as {name}=1024.')
    return int(value)


def one_of(name: str, value: str, allowed: Any) -> str:
    """`value`, or a `UsageError` with the nearest of those that `name=` allows."""
    if value not in allowed:
        raise UsageError(unknown(name, value, allowed))
    return value


def variant(
    config: Any,
    argument: str,
    *,
    memory: str | None,
    memories: dict[str, Given | Recipe] | None = None,
    scale: dict[str, Any] | None = None,
    **variants: Variant,
) -> Any:
    """Applies what `argument` names, in the order of declaration here, then puts the memory in.

    So a variant such as `tiny` sets sizes and changes `memories` and `scale`, and the memory, whatever
    its name and wherever it was typed, reads the sizes that are left.

    Args:
      config: the full-size configuration; changed in place.
      argument: names separated by commas; `name` or `name=value`, each once. `memory=NAME` is always
        among them: any memory of the library, or one of `memories`.
      memory: the config's own; None = the config has no `memory=` (it is no language model).
      memories: what the experiment says of a memory, by name, beyond its recipe; or one of its own.
      scale: sizes for recipes that are not to follow from the segment, see `recipes.scale_of`.
      **variants: name to a function that changes the config: `f(config)` or `f(config, value)`.

    Returns:
      The configuration.

    Raises:
      UsageError: a name that is not there, with those that are; a name given twice; a value where
        none is taken, or none where one is needed.
    """
    typed = _typed(argument, [*variants, *(['memory'] if memory else [])])
    for name, change in variants.items():
        if name in typed:
            change(config, *_values(name, typed[name], change))
    if memory:
        if 'memory' in typed and not typed['memory']:
            raise UsageError('memory: a value is needed, such as memory=infini.')
        name = typed.get('memory', memory)
        use(config, name, (memories or {}).get(name), **(scale or {}))
    return config


def _typed(argument, allowed):
    """Name to value, None where there was no '='."""
    typed = {}
    for part in filter(None, (argument or '').split(',')):
        name, equals, value = part.partition('=')
        if name not in allowed:
            raise UsageError(unknown('the argument of the config file', name, sorted(allowed)))
        if name in typed:
            raise UsageError(f'the argument of the config file names {name!r} twice: give it once.')
        typed[name] = value if equals else None
    return typed


def _values(name, value, change):
    takes_value = change.__code__.co_argcount > 1
    if takes_value and value is None:
        raise UsageError(f'{name}: a value is needed, such as {name}=VALUE.')
    if not takes_value and value is not None:
        raise UsageError(f'{name}={value}: {name} takes no value; give {name} alone.')
    return [value] if takes_value else []
