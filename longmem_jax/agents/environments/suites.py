"""Environments of other suites: gymnax, popgym-arcade, Craftax.

None of them is needed by the library; each is imported where an environment of it is built. gymnax and
popgym-arcade have an extra each and should not be installed together: popgym-arcade brings
`stable-gymnax`, which installs a package that is named `gymnax` too. Craftax fits with either.
"""

import importlib
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp

from longmem_jax.agents.environments.adapters import adapt, shrunk
from longmem_jax.agents.environments.interface import Environment
from longmem_jax.errors import UsageError
from longmem_jax.problems import defaults_and_rules, of_section

# Package to the extra that installs it.
EXTRAS = {'gymnax': 'rl', 'popgym_arcade': 'popgym-arcade', 'craftax': 'craftax'}
POPGYM_ARCADE = tuple(
    game + level
    for game in (
        'AutoEncode', 'BattleShip', 'Breakout', 'CartPole', 'CountRecall', 'MineSweeper', 'Navigator',
        'NoisyCartPole', 'Skittles', 'Tetris',
    )
    for level in ('Easy', 'Medium', 'Hard')
)  # fmt: skip
CRAFTAX = (
    'Craftax-Symbolic-v1', 'Craftax-Pixels-v1', 'Craftax-Classic-Symbolic-v1',
    'Craftax-Classic-Pixels-v1',
)  # fmt: skip
FULLY, PARTLY = 'fully', 'partly'

# Name to the defaults, and what `problems.of_section` allows. `longest` cuts an episode off, if the task
# does not do so earlier.
TABLES = {
    'memory_chain': defaults_and_rules(length=(5, (1, 10**6)), bits=(1, (1, 64))),
    'gymnax': defaults_and_rules(task=('MemoryChain-bsuite', str), longest=(1_000, (1, 10**8))),
    'popgym_arcade': defaults_and_rules(
        task=('CountRecallEasy', POPGYM_ARCADE),
        observed=(PARTLY, (FULLY, PARTLY)),  # the twins of every task
        pixels=(128, (128, 256)),  # per side, of the picture that the suite draws
        shrink=(1, (1, 256)),  # pixels per side that are averaged to one
        longest=(2_000, (1, 10**8)),
    ),
    'craftax': defaults_and_rules(task=(CRAFTAX[0], CRAFTAX), longest=(10_000, (1, 10**8))),
}


def check(name: str, fields: Mapping[str, Any]) -> list[str]:
    """Problems of the fields of an environment; its package is looked for when it is built."""
    problems = of_section(fields, TABLES[name][1])
    if not problems and name == 'popgym_arcade':
        if fields['pixels'] not in (128, 256):
            problems.append(f'pixels = {fields["pixels"]}: the suite draws 128 or 256')
        if fields['pixels'] % fields['shrink']:
            problems.append(f'shrink = {fields["shrink"]}: must divide pixels = {fields["pixels"]}')
    return problems


def package(name: str) -> ModuleType:
    """The module of a suite.

    Raises:
      UsageError: it is not installed, or does not work here; names the extra.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        extra = EXTRAS[name.split('.')[0]]
        raise UsageError(
            f"this environment needs a package: pip install 'longmem_jax[{extra}]' ({error})."
        ) from error


def gymnax_1() -> ModuleType:
    """The module of gymnax.

    Raises:
      UsageError: it is missing, or is the older one that popgym-arcade brings.
    """
    module = package('gymnax')
    base = importlib.import_module('gymnax.environments.environment').Environment
    if not hasattr(base, 'is_truncated'):
        raise UsageError(
            'this environment needs gymnax 1.0, but the package gymnax is that of stable-gymnax, which '
            "popgym-arcade brings: pip install 'longmem_jax[rl]' into an environment without "
            'popgym-arcade.'
        )
    return module


def memory_chain(length: int, bits: int) -> Environment:
    """bsuite's MemoryChain of gymnax: bits at the start, a query at the end, +1 or -1.

    gymnax shows the state before a step after it: the bits are seen twice, in the first two
    observations, and the query right before the answer.

    Args:
      length: steps between the bits and the answer.
      bits: number of bits; the query names one of them.
    """
    suite, params = gymnax_1().make('MemoryChain-bsuite', num_bits=bits)
    params = params.replace(memory_length=length, max_steps_in_episode=length + 2)
    return adapt(suite, params, 'memory_chain', longest=length + 1, shortest=length + 1)


def gymnax(task: str, longest: int) -> Environment:
    """Any task of gymnax with discrete actions, by its id."""
    make = gymnax_1().make
    try:
        suite, params = make(task)
    except ValueError as error:
        raise UsageError(f'task = {task!r}: gymnax has no such environment ({error}).') from error
    return adapt(suite, params, 'gymnax', longest=longest)


def popgym_arcade(task: str, observed: str, pixels: int, shrink: int, longest: int) -> Environment:
    """A task of popgym-arcade in pixels, uint8 [pixels / shrink, pixels / shrink, 3]."""
    suite, params = package('popgym_arcade').make(
        task, partial_obs=observed == PARTLY, obs_size=pixels
    )
    picture = (lambda seen: shrunk(seen, shrink)) if shrink > 1 else None
    return adapt(suite, params, 'popgym_arcade', longest=longest, see=picture)


def craftax(task: str, longest: int) -> Environment:
    """Craftax, which makes a new world in every step of every environment: for accelerators.

    One of its measures is the number of achievements of an episode.
    """
    make = package('craftax.craftax_env').make_craftax_env_from_name
    suite = make(task, auto_reset=True)

    def achievements(info: Mapping[str, Any]) -> dict[str, jax.Array]:
        # In percent, and of episodes that have ended.
        reached = [value for name, value in info.items() if name.startswith('Achievements/')]
        return {'achievements': sum(map(jnp.float32, reached)) / 100}

    params = suite.default_params.replace(max_timesteps=longest)
    return adapt(suite, params, 'craftax', longest=longest, measure=achievements)


BUILD: dict[str, Callable[..., Environment]] = {
    'memory_chain': memory_chain,
    'gymnax': gymnax,
    'popgym_arcade': popgym_arcade,
    'craftax': craftax,
}
