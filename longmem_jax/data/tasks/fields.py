"""The fields of `config.data.task`, checked."""

from typing import Any

from longmem_jax.errors import unknown


def faults(given: Any, wanted: dict[str, Any]) -> list[str]:
    """Faults of a task's fields, one line each.

    Args:
      given: `config.data.task`.
      wanted: name to what is allowed: a tuple of words, `bool`, or `(least, greatest)` numbers of
        the type of the first.
    """
    found = [
        unknown('a field of config.data.task', name, sorted(wanted))
        for name in given
        if name not in wanted
    ]
    for name, allowed in wanted.items():
        where = f'config.data.task.{name}'
        if name not in given:
            found.append(f'{where} is missing')
            continue
        value = given[name]
        if allowed is bool:
            if not isinstance(value, bool):
                found.append(f'{where} = {value!r}: True or False is needed')
        elif isinstance(allowed[0], str):
            if value not in allowed:
                found.append(unknown(where, value, allowed))
        else:
            least, greatest = allowed
            kinds = int if isinstance(least, int) else (int, float)
            if not isinstance(value, kinds) or isinstance(value, bool):
                found.append(f'{where} = {value!r}: a number is needed')
            elif not least <= value <= greatest:
                found.append(f'{where} = {value}: must lie between {least} and {greatest}')
    return found
