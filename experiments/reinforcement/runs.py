"""Seeds of an agent's configuration, trained in one process, which compiles once."""

import dataclasses
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from experiments import provenance
from experiments.reinforcement import held
from longmem_jax.agents.build import Built
from longmem_jax.agents.learning import make_initial_state
from longmem_jax.agents.task import bytes_per_lane, make_tester, test_key
from longmem_jax.agents.testing import in_short
from longmem_jax.devices import sharding

CURVE = ('reward', 'length', 'entropy')  # of training, with the sizes of memories


def built(config: Any) -> Built:
    """The agent and its environment on one device."""
    return Built(config, sharding.make_mesh(config.mesh.to_dict(), jax.devices()[:1]))


def train(config: Any, folder: Path, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Trains all seeds of a configuration that have no file yet.

    Training is that of `longmem_jax.main`, without checkpoints.

    Args:
      config: of the agent; its seed is not read.
      folder: of the files, one per seed.
      seeds: which.

    Returns:
      What is written to `FOLDER/SEED.json`: 'test' and 'test_greedy' as in results.json, 'parameters',
      'state_bytes_per_lane', 'held', see `held.measure`, 'curve' and 'seconds' of training.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = {seed: folder / f'{seed}.json' for seed in seeds}
    missing = {seed: path for seed, path in paths.items() if not path.exists()}
    if missing:
        _train(config, missing)
    return [json.loads(path.read_text()) for path in paths.values()]


def _train(config: Any, paths: dict[int, Path]) -> None:
    """Trains seeds, and writes their files."""
    once = built(config)
    step, tester = once.lower_step().compile(), make_tester(once)
    measure = held.program(once.model, once.environment)
    for seed, path in paths.items():
        model, given = once.model, config.reinforcement
        first = make_initial_state(
            model, once.optimizer, once.environment, config.train.num_lanes, seed
        )
        state = jax.jit(first, out_shardings=once.state_shardings)()
        curve, begun = [], time.monotonic()
        for number in range(1, config.train.num_steps + 1):
            state, metrics = step(state)
            if number % config.train.log_every == 0:
                metrics = jax.device_get(metrics)
                told = {name: value for name, value in metrics.items() if not value.ndim}
                line = {
                    name: float(value)
                    for name, value in told.items()
                    if name in CURVE or name.startswith('memory/')
                }
                curve.append({'step': number, **line})
        jax.block_until_ready(state)
        found: dict[str, Any] = {
            'parameters': sum(leaf.size for leaf in jax.tree.leaves(state.params)),
            'state_bytes_per_lane': bytes_per_lane(state.lanes.memory),
            'seconds': time.monotonic() - begun,
        }
        key = test_key(seed, config.train.num_steps + 1)
        for name, greedy in (('test', False), ('test_greedy', True)):
            episodes = tester.episodes(state.params, given.test_episodes, key, greedy=greedy)
            found[name] = in_short(episodes)
        kept = measure(state.params, jax.random.fold_in(key, 1))
        found['held'] = dataclasses.asdict(kept) if kept else None
        provenance.save(path, found | {'curve': curve}, [seed])
        reward = found['test']['reward']
        held_text = f', {kept.mean:.2f} steps held' if kept else ''
        print(f'{path}: reward {reward:.3f}{held_text}, {found["seconds"]:.0f} s', flush=True)
