"""The environments that a config may name."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from longmem_jax.agents.environments import corridor, portal, repeat_previous, suites
from longmem_jax.agents.environments.interface import Environment
from longmem_jax.errors import UsageError, unknown
from longmem_jax.registry import Registry


class Entry(NamedTuple):
    """An environment of the registry.

    Attributes:
      build: fields to the environment.
      check: fields to their problems, one line per field.
      fields: name to what is allowed, as `problems.of_section` reads it.
      defaults: values of all fields: the paper's or the suite's.
    """

    build: Callable[..., Environment]
    check: Callable[[Mapping[str, Any]], list[str]]
    fields: Mapping[str, Any]
    defaults: Mapping[str, Any]


ENVIRONMENTS = Registry(
    'environment',
    Entry,
    {
        **{
            module.NAME: Entry(module.build, module.check, module.FIELDS, module.DEFAULTS)
            for module in (corridor, portal, repeat_previous)
        },
        **{
            name: Entry(suites.BUILD[name], functools.partial(suites.check, name), rules, defaults)
            for name, (defaults, rules) in suites.TABLES.items()
        },
    },
    kind='environment',
)


def check(name: str, fields: Mapping[str, Any]) -> list[str]:
    """Problems of an environment's name and of its fields; fields that are left out have defaults."""
    if name not in ENVIRONMENTS:
        return [unknown('environment', name, ENVIRONMENTS)]
    entry = ENVIRONMENTS[name]
    return entry.check({**entry.defaults, **fields})


def build(name: str, fields: Mapping[str, Any] | None = None) -> Environment:
    """An environment by its name; fields left out have their defaults.

    Raises:
      UsageError: an unknown name, problems of fields, or the environment's package is missing.
    """
    fields = dict(fields or {})
    problems = check(name, fields)
    if problems:
        raise UsageError(f'environment {name!r}:\n  ' + '\n  '.join(problems))
    entry = ENVIRONMENTS[name]
    return entry.build(**{**entry.defaults, **fields})
