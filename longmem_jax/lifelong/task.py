"""Learning a stream as a task of the runner: steps, what is known after each task, and the result."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from longmem_jax import files, stopping
from longmem_jax.config import saved
from longmem_jax.lifelong import figures, metrics
from longmem_jax.lifelong.build import Built
from longmem_jax.lifelong.learner import LearnerState
from longmem_jax.lifelong.rows import Rows
from longmem_jax.reporting.figures import save
from longmem_jax.reporting.progress import Progress
from longmem_jax.reporting.writers import Writer, read_metrics
from longmem_jax.training.job import Metrics, Plan, Step

AFTER = 'after_task'  # group of metrics


def first(rows: Rows, number: int) -> Rows:
    """The first rows of a test set; 0 = all."""
    return jax.tree.map(lambda leaf: leaf[: number or None], rows)


def shared_sizes(tests: tuple[Rows, ...]) -> list[int]:
    """Rows that each test set is filled up to: at most four different sizes, each compiled once."""
    step = -(-max(map(len, tests)) // 4)
    return [-(-len(rows) // step) * step for rows in tests]


def filled(rows: Rows, size: int) -> Rows:
    """Rows with copies of the last one after them."""
    numbers = np.minimum(np.arange(size), len(rows) - 1)
    return jax.tree.map(lambda leaf: leaf[numbers], rows)


class Tests:
    """Asks a learner the questions of all tasks.

    `seconds` were those of the last draw, compilation left out.
    """

    def __init__(self, built: Built):
        """Nothing is compiled yet."""
        self._built, self.names = built, built.stream.names
        self._predict = jax.jit(built.learner.predict)
        self._right = jax.jit(built.network.head.right)
        self._programs: dict[Any, Any] = {}
        self.seconds = 0.0

    def right(
        self, state: LearnerState, tests: tuple[Rows, ...], draw: int = 0
    ) -> list[np.ndarray]:
        """How right each row of each test set is, float32 [rows] each.

        What is drawn from the memory depends on the seed, the number of the draw, and the task.
        """
        key = jax.random.fold_in(jax.random.key(self._built.config.train.seed), draw)
        found, self.seconds = [], 0.0
        for number, (rows, size) in enumerate(zip(tests, shared_sizes(tests), strict=True)):
            placed = self._built.placed(filled(rows, size))
            scores = self._scores(state, self._built.rows, placed, jax.random.fold_in(key, number))
            found.append(np.asarray(jax.device_get(self._right(scores, placed)))[: len(rows)])
            stopping.poll()
        return found

    def _scores(self, *given: Any) -> Any:
        """What `predict` returns; adds its time."""
        like = tuple((leaf.shape, leaf.sharding) for leaf in jax.tree.leaves(given))
        if like not in self._programs:
            self._programs[like] = self._predict.lower(*given).compile()
        began = time.monotonic()
        scores = jax.block_until_ready(self._programs[like](*given))
        self.seconds += time.monotonic() - began
        return scores


class LifelongTask:
    """See `training.job.Job`."""

    def __init__(self, built: Built, workdir: Path, writer: Writer, progress: Progress):
        """Reads the data; compiles nothing yet."""
        self._built, self._writer, self._progress = built, writer, progress
        self._workdir, config = workdir, built.config
        self._ends, self._measured = built.stream.ends, measured(config)
        self._tests, self._position = Tests(built), 0
        # At least these rows are read in every step.
        least = max(built.learner.most_rows - config.train.num_lanes, config.train.num_lanes)
        self.plan = Plan(
            num_steps=min(config.train.num_steps, -(-len(built.stream.rows) // least)),
            log_every=config.train.log_every,
            evaluate_every=0,
            max_bad_steps=config.train.max_bad_steps,
            remedy='lower config.optimizer.learning_rate, or the rate of the inner steps',
            evaluate_when=self._at_end,
            evaluated=AFTER,
        )
        self.abstract_state = built.abstract_state

    def _ended(self, position: int) -> int:
        """Tasks that have ended before a position."""
        return int((self._ends <= position).sum())

    def _at_end(self, state: LearnerState) -> bool:
        """Whether a task has ended in the last step."""
        before, self._position = self._position, int(state.position)
        return self._measured and self._ended(self._position) > self._ended(before)

    def first_state(self) -> LearnerState:
        """The state before the stream."""
        return self._built.first_state()

    def begin(self, step: int) -> None:
        """Saves the configuration and says what the method will do."""
        config, built = self._built.config, self._built
        for note in config.notes:
            self._progress.say(f'Note: {note}')
        counts = np.bincount(built.stream.tasks, minlength=len(built.stream.names))
        told = ', '.join(
            f'{name} ({count:,})' for name, count in zip(built.stream.names, counts, strict=True)
        )
        self._progress.say(f'Stream: {told}; {len(built.stream.rows):,} rows.')
        for line in built.learner.schedule(len(built.stream.rows)):
            self._progress.say(line)
        if jax.process_index() == 0:
            saved.write(config, self._workdir / 'config.json')

    def compile(self) -> Step:
        """The step; XLA compiles it on the first call."""
        learner, rows = self._built.learner, self._built.rows

        def observe(state: LearnerState, rows: Rows) -> tuple[LearnerState, Metrics]:
            state, found = learner.observe(state, rows)
            return state, found | {'position': state.position}

        compiled = jax.jit(observe, donate_argnums=0)
        return Step(lambda state: compiled(state, rows))

    def batches(self, state: LearnerState) -> Iterator[tuple[()]]:
        """Nothing but the word that there are more rows: they are on the devices."""
        self._position = int(state.position)
        if self._measured:
            # Before the first task; and a run may have been stopped by the step that ended one.
            known = {int(line['ended']) for line in _after_tasks(self._workdir)}
            if self._ended(self._position) not in known:
                self.evaluate(state, int(state.step))
        while self._position < len(self._built.stream.rows):
            yield ()

    def in_short(self, found: dict[str, float]) -> str:
        """The loss and how much of the stream has been read."""
        share = found['position'] / len(self._built.stream.rows)
        return f'loss {found["loss"]:.4f}, {share:.0%} of the stream'

    def evaluate(self, state: LearnerState, step: int) -> None:
        """Scores all tasks, after one of them has ended, and before the first."""
        if not self._measured:
            return
        ended = self._ended(int(state.position))
        if step and not ended:
            return
        number = self._built.config.lifelong.first_rows
        tests = tuple(first(rows, number) for rows in self._built.stream.tests)
        scores = [float(right.mean()) for right in self._tests.right(state, tests)]
        named = {name: score for name, score in zip(self._tests.names, scores, strict=True)}
        self._writer.scalars(step, AFTER, {'ended': ended} | named)
        told = ', '.join(f'{name} {100 * score:.1f}' for name, score in named.items())
        self._progress.say(f'step {step:,}: after {ended} tasks, right answers in %: {told}')

    def finish(self, state: LearnerState, step: int) -> dict[str, Any]:
        """Scores all test rows, and writes results.json, right.npz and matrix.png."""
        return finish(self._built, self._tests, state, step, self._workdir, self._progress)


def _after_tasks(workdir: Path) -> list[dict[str, Any]]:
    """The scores after tasks that have been written."""
    return [line for line in read_metrics(workdir / 'metrics.jsonl') if line['group'] == AFTER]


def measured(config: Any) -> bool:
    """Whether all tasks are scored after each; else, as with one task, nothing is known over time."""
    return bool(config.lifelong.measure == 'ends' and config.lifelong.stream == 'tasks')


def known_before(workdir: Path, names: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray] | None:
    """Scores after every task [tasks, tasks] and before the first [tasks]; None if not measured."""
    lines = _after_tasks(workdir)
    by_number = {int(line['ended']): [line[name] for name in names] for line in lines}
    if set(by_number) != set(range(len(names) + 1)):
        return None
    rows = np.asarray([by_number[number] for number in range(len(names) + 1)])
    return rows[1:], rows[0]


def finish(
    built: Built, tests: Tests, state: LearnerState, step: int, workdir: Path, progress: Progress
) -> dict[str, Any]:
    """The final scores of a learner; see `LifelongTask.finish`.

    Returns:
      What is written to results.json; `test_seconds` are those of a draw, compilation left out.
    """
    progress.say('Scoring all test rows ...')
    draws, seconds = [], []
    for draw in range(built.config.lifelong.draws):
        draws.append(tests.right(state, built.stream.tests, draw))
        seconds.append(tests.seconds)
    right = [np.mean(rows, axis=0) for rows in zip(*draws, strict=True)]
    scores = {name: float(each.mean()) for name, each in zip(tests.names, right, strict=True)}
    by_draw = [float(np.mean([rows.mean() for rows in drawn])) for drawn in draws]
    average, of_rows = float(np.mean(list(scores.values()))), float(np.concatenate(right).mean())
    memory, own = (metrics.num_bytes(part) for part in (state.memory, state.own))
    result: dict[str, Any] = {
        'step': step,
        'parameters': sum(leaf.size for leaf in jax.tree.leaves(state.params)),
        'test': {
            'accuracy': average,
            'answers': sum(len(rows) for rows in right),
            'accuracy_of_rows': of_rows,  # of one test set of all tasks, as relations are reported
            'draws': by_draw,
            'protocol': 'mean of the tasks'
            + (f', {len(draws)} draws from the memory' if len(draws) > 1 else ''),
        },
        'tasks': scores,
        'memory_bytes': memory,
        'own_bytes': own,
        'test_seconds': float(np.mean(seconds)),
    }
    found = known_before(workdir, tests.names) if len(tests.names) > 1 else None
    read = int(state.position) >= len(built.stream.rows)
    if found is None and read and measured(built.config):
        progress.say(
            'No matrix.png, forgetting and transfer: scores are not known after every task. Every task '
            f'needs as many rows as a step reads at most, {built.learner.most_rows}.'
        )
    if found is not None:
        matrix, before = found
        numbers = metrics.transfer(matrix, before)._asdict()
        result |= {'matrix': matrix.tolist(), 'before': before.tolist(), 'transfer': numbers}
    if jax.process_index() == 0:
        files.write_json(workdir / 'results.json', result)
        files.write_arrays(workdir / 'right.npz', **dict(zip(tests.names, right, strict=True)))
        if found is not None:
            save(figures.matrix(*found[:1], tests.names, found[1]), workdir / 'matrix.png')
    for name, score in scores.items():
        progress.say(f'{name}: {100 * score:.2f} % right')
    progress.say(
        f'mean of the tasks: {100 * average:.2f} % right, of all rows: {100 * of_rows:.2f} %; '
        f'memory {memory:,} bytes'
    )
    if found is not None:
        told = ', '.join(f'{name} {100 * value:.2f}' for name, value in numbers.items())
        progress.say(f'over time, %: {told}')
    return result
