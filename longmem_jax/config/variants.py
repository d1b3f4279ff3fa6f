"""The argument of a config file: `--config=configs/pg19.py:tiny` or `:memory=local,tiny`."""

from collections.abc import Callable
from typing import Any

from longmem_jax.errors import UsageError, unknown


def whole_number(name: str, value: str) -> int:
    """The number of `name=value`; raises `UsageError` where it is none above 0."""
    if not value.isdigit() or not int(value):
        raise UsageError(f'{name}={value}: a whole number above 0 is needed, such as {name}=1024.')
    return int(value)


def variant(config: Any, argument: str, **variants: Callable[..., None]) -> Any:
    """Applies the variants that `argument` names, in its order.

    Args:
      config: the full-size configuration; changed in place.
      argument: names separated by commas; `name` or `name=value`.
      **variants: name to a function that changes the config: `f(config)` or `f(config, value)`.

    Returns:
      The configuration.

    Raises:
      UsageError: a name that is not there, with those that are.
    """
    for part in filter(None, (argument or '').split(',')):
        name, equals, value = part.partition('=')
        if name not in variants:
            raise UsageError(unknown('the argument of the config file', name, sorted(variants)))
        variants[name](config, *([value] if equals else []))
    return config
