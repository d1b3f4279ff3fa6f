"""Steps of environments per second with random actions, and gymnax's own random rollout in the same run.

python -m experiments.reinforcement.speed [--lanes 1 64 1024] [--steps=1000] [--rounds=7] [--output=FILE]
All programs are compiled first; then every round runs each of them once, in turn, so that other work on
the machine meets all of them. Shown are medians over rounds. The ratio is of one round's two times, of
which the median and both ends are shown: to gymnax's `RolloutWrapper` on its MemoryChain, with as many
lanes, which returns what ours do: observations, actions, rewards, next observations and ends. Without
gymnax (extra `[rl]`) its rows and the ratios are left out. `--output` also writes all times as JSON.
"""

import functools
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from experiments import provenance
from experiments.markdown import table
from experiments.options import make_parser
from longmem_jax.agents.environments import registry, suites
from longmem_jax.agents.environments.interface import Environment
from longmem_jax.errors import UsageError

OURS = ('corridor', 'portal', 'repeat_previous')
ADAPTED = 'memory_chain'
THEIRS = 'MemoryChain, rollout of gymnax'
CHAIN = 100  # steps between the bits of MemoryChain and the answer

Program = Callable[[jax.Array], Any]


def rollout(environment: Environment, steps: int, key: jax.Array) -> tuple[jax.Array, ...]:
    """Random steps of one environment.

    Returns:
      Observations, actions, rewards, next observations and ends, with a leading axis of steps.
    """
    key_reset, key = jax.random.split(key)
    observation, state = environment.reset(key_reset)
    actions = environment.action_space()

    def step(carry: Any, key: jax.Array) -> Any:
        observation, state = carry
        key_action, key_step = jax.random.split(key)
        action = actions.sample(key_action)
        after, state, reward, terminated, truncated, _ = environment.step(key_step, state, action)
        return (after, state), (observation, action, reward, after, terminated | truncated)

    return jax.lax.scan(step, (observation, state), jax.random.split(key, steps))[1]


def programs(steps: int) -> dict[str, Program]:
    """Name to a function of one key per lane."""
    found = {name: _ours(name, {}, steps) for name in OURS}
    try:
        found[f'{ADAPTED}, adapted'] = _ours(ADAPTED, dict(length=CHAIN), steps)
        found[THEIRS] = _theirs(steps)
    except UsageError as error:
        print(f'without gymnax: {error}\n')
    return found


def _ours(name: str, fields: dict[str, Any], steps: int) -> Program:
    """The rollout of an environment of the registry."""
    return jax.vmap(functools.partial(rollout, registry.build(name, fields), steps))


def _theirs(steps: int) -> Program:
    """gymnax's rollout of its MemoryChain; without a model its actions are random."""
    suites.gymnax_1()
    from gymnax.experimental.rollout import RolloutWrapper

    params = dict(memory_length=CHAIN, max_steps_in_episode=CHAIN + 2)
    wrapper = RolloutWrapper(None, 'MemoryChain-bsuite', steps, None, params)
    return lambda keys: wrapper.batch_rollout(keys, None)


def measure(
    programs: dict[str, Program], lanes: int, rounds: int, clock: Callable[[], float]
) -> dict[str, list[float]]:
    """Seconds of every program in every round.

    Args:
      programs: to measure.
      lanes: environments at once.
      rounds: times that each is run, after it has been compiled and run once.
      clock: to seconds.
    """
    keys = jax.random.split(jax.random.key(0), lanes)
    compiled = {name: jax.jit(program).lower(keys).compile() for name, program in programs.items()}
    for program in compiled.values():
        jax.block_until_ready(program(keys))
    times: dict[str, list[float]] = {name: [] for name in programs}
    for index in range(rounds):
        names = list(programs)
        for name in names[index % len(names) :] + names[: index % len(names)]:
            begun = clock()
            jax.block_until_ready(compiled[name](keys))
            times[name].append(clock() - begun)
    return times


def lines(times: dict[str, list[float]], lanes: int, steps: int) -> list[list[str]]:
    """Rows of the table."""
    rows = []
    for name, seconds in times.items():
        rate = lanes * steps / statistics.median(seconds)
        row = [name, f'{lanes:,}', f'{rate:,.0f}']
        if THEIRS in times:
            ratios = [their / our for their, our in zip(times[THEIRS], seconds, strict=True)]
            row.append(f'{statistics.median(ratios):.2f} ({min(ratios):.2f} - {max(ratios):.2f})')
        rows.append(row)
    return rows


def main() -> None:
    """Prints the table, and writes the times."""
    parser = make_parser(__doc__)
    parser.add_argument('--lanes', type=int, nargs='+', default=[1, 64, 1024])
    parser.add_argument('--steps', type=int, default=1_000)
    parser.add_argument('--rounds', type=int, default=7)
    parser.add_argument('--output', type=Path, help='a JSON file')
    arguments = parser.parse_args()
    if min(*arguments.lanes, arguments.steps, arguments.rounds) < 1:
        raise SystemExit('lanes, steps and rounds must be at least 1.')
    named = programs(arguments.steps)
    heads = ['environment', 'lanes', 'steps per second']
    heads += ["times as fast as gymnax's rollout"] * (THEIRS in named)
    rows, all_times = [], {}
    for lanes in arguments.lanes:
        times = measure(named, lanes, arguments.rounds, time.perf_counter)
        rows += lines(times, lanes, arguments.steps)
        all_times[str(lanes)] = times
    print(table(heads, rows))
    if arguments.output:
        provenance.save(arguments.output, dict(steps=arguments.steps, seconds=all_times), [0])


if __name__ == '__main__':
    main()
