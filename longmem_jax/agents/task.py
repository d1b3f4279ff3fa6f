"""Learning from rewards as a task of the runner."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from longmem_jax import files
from longmem_jax.agents import figures
from longmem_jax.agents.build import Built
from longmem_jax.agents.learning import UNREAD, AgentState
from longmem_jax.agents.testing import Tester, in_short
from longmem_jax.config import saved
from longmem_jax.devices import operations
from longmem_jax.memory import registry
from longmem_jax.reporting.figures import save
from longmem_jax.reporting.progress import Progress
from longmem_jax.reporting.writers import METRICS, Writer
from longmem_jax.training.job import Plan, Step

NOT_LEARNED = 'this share of steps is not learned from: raise config.reinforcement.starts'
EVALUATED = 3  # folded into the key of the run for episodes that nothing is learned from


def test_key(seed: int, step: int) -> jax.Array:
    """The random key of the episodes of an evaluation."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), EVALUATED), step)


class AgentTask:
    """See `training.job.Job`.

    Attributes:
      plan: the schedule.
      abstract_state: shapes, dtypes and shardings of the `AgentState`.
    """

    def __init__(self, built: Built, workdir: Path, writer: Writer, progress: Progress):
        """Compiles nothing yet."""
        self._built, self._workdir = built, workdir
        self._writer, self._progress = writer, progress
        config = built.config
        self._tester = make_tester(built)
        self.plan = Plan(
            num_steps=config.train.num_steps,
            log_every=config.train.log_every,
            evaluate_every=config.train.evaluate_every,
            max_bad_steps=config.train.max_bad_steps,
            remedy='lower config.optimizer.learning_rate, or set config.optimizer.clip_norm',
            warnings={UNREAD: NOT_LEARNED} | registry.warnings(config.model),
        )
        self.abstract_state = built.abstract_state

    def first_state(self) -> AgentState:
        """The state of step 0."""
        return self._built.first_state()

    def begin(self, step: int) -> None:
        """Saves the configuration and says what is learned."""
        config, environment = self._built.config, self._built.environment
        for note in config.notes:
            self._progress.say(f'Note: {note}')
        train = config.train
        steps = train.segments_per_step * train.segment_length
        self._progress.say(
            f'{environment.name}: {environment.num_actions} actions, episodes of '
            f'{environment.shortest:,} to {environment.longest:,} steps; {train.num_lanes} lanes, '
            f'rollouts of {steps} steps.'
        )
        if jax.process_index() == 0:
            saved.write(config, self._workdir / 'config.json')

    def compile(self) -> Step:
        """The step for the shapes of the config."""
        lowered = self._built.lower_step()
        compiled = lowered.compile()
        flops = operations.count(lowered, self._built.mesh.size)
        return Step(compiled, flops, at_most=operations.has_branches(lowered))

    def batches(self, state: AgentState) -> Iterator[tuple[()]]:
        """Nothing, without an end: the environments are in the state."""
        while True:
            yield ()

    def in_short(self, found: dict[str, float]) -> str:
        """Reward and length of the episodes that ended lately."""
        if not found['length']:
            return 'no episode has ended'
        success = f', success {found["success"]:.1%}' if 'success' in found else ''
        return f'reward {found["reward"]:.3f} in {found["length"]:.1f} steps{success}'

    def evaluate(self, state: AgentState, step: int) -> None:
        """Acts in new episodes, with drawn actions."""
        config = self._built.config
        key = test_key(config.train.seed, step)
        found = in_short(self._tester.episodes(state.params, config.reinforcement.episodes, key))
        self._writer.scalars(step, 'validation', found)
        self._progress.say(f'step {step:,}: new episodes: {told(found)}')

    def finish(self, state: AgentState, step: int) -> dict[str, Any]:
        """The final test, results.json and learning_curve.png."""
        result = finish(self._built, self._tester, state, step, self._workdir, self._progress)
        for name in ('test', 'test_greedy'):
            numbers = {k: v for k, v in result[name].items() if not isinstance(v, str)}
            self._writer.scalars(step, name, numbers)
        if jax.process_index() == 0:
            figure = figures.learning_curve(self._workdir / METRICS)
            save(figure, self._workdir / 'learning_curve.png')
            self._writer.figure('learning_curve', figure, step)
        return result


def make_tester(built: Built) -> Tester:
    """Tests of the agent of a configuration."""
    number = built.config.evaluate.num_lanes
    return Tester(built.model, built.environment, number, built.mesh)


def finish(
    built: Built, tester: Tester, state: AgentState, step: int, workdir: Path, progress: Progress
) -> dict[str, Any]:
    """Tests an agent in new episodes, with actions that are drawn and with the most likely ones.

    Returns what is written to results.json.
    """
    given, seed = built.config.reinforcement, built.config.train.seed
    result: dict[str, Any] = {
        'step': step,
        'parameters': sum(leaf.size for leaf in jax.tree.leaves(state.params)),
        'state_bytes_per_lane': bytes_per_lane(state.lanes.memory),
        'environment_steps': float(state.seen[0]) * 1e6 + float(state.seen[1]),
    }
    for name, greedy in (('test', False), ('test_greedy', True)):
        # The same episodes, as far as actions do not change them.
        found = in_short(
            tester.episodes(
                state.params, given.test_episodes, test_key(seed, step + 1), greedy=greedy
            )
        )
        how = 'the most likely actions' if greedy else 'drawn actions'
        protocol = f'{found["episodes"]:,} new episodes, {how}'
        result[name] = found | {'protocol': protocol}
        progress.say(f'{protocol}: {told(found)}')
    if jax.process_index() == 0:
        files.write_json(workdir / 'results.json', result)
    return result


def bytes_per_lane(memory: Any) -> int:
    """Bytes of the memories of one lane."""
    return sum(leaf.nbytes // leaf.shape[0] for leaf in jax.tree.leaves(memory))


def told(found: dict[str, float]) -> str:
    """Means of episodes as text."""
    rest = ''.join(
        f', {name} {value:.3f}'
        for name, value in found.items()
        if name not in ('reward', 'reward_error', 'length', 'episodes')
    )
    error = f' +- {found["reward_error"]:.3f}' if 'reward_error' in found else ''
    return f'reward {found["reward"]:.3f}{error}, {found["length"]:.1f} steps{rest}'
