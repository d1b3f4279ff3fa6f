"""The types of a configuration that was read from a file: rules of fields can then compare numbers."""

from typing import Any

from longmem_jax.errors import UsageError
from longmem_jax.untrusted.schema import shown

KINDS = {
    bool: ((bool,), 'true or false'),
    int: ((int, float), 'a number'),
    float: ((int, float), 'a number'),
    str: ((str,), 'text'),
    tuple: ((list, tuple), 'a list'),
    list: ((list, tuple), 'a list'),
    dict: ((dict,), 'an object'),
}


def require_types(given: Any, defaults: Any, source: str, where: str = 'config') -> None:
    """Raises `UsageError` where a field is of another type than its default.

    Args:
      given: a configuration, or a part of it, from a file.
      defaults: the same with default values; fields without a default are not looked at.
      source: the file, for messages.
      where: path of the part, for messages.
    """
    kinds, description = KINDS.get(type(defaults), ((object,), ''))
    wrong = not isinstance(given, kinds) or (isinstance(given, bool) and bool not in kinds)
    if wrong and kinds != (object,):
        raise UsageError(f'{source}: {where} = {shown(given)}: must be {description}.')
    if isinstance(defaults, dict):
        for name in set(given) & set(defaults):
            require_types(given[name], defaults[name], source, f'{where}.{name}')
