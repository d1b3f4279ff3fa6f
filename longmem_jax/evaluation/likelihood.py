"""Log-likelihoods of continuations, each after its own text, in batches of static shapes."""

import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from longmem_jax import stopping
from longmem_jax.devices.sharding import replicated, require_one_process
from longmem_jax.errors import UsageError
from longmem_jax.generation.contexts import ContextReader, Rows, cut, num_full, steps
from longmem_jax.models.kinds import KINDS
from longmem_jax.models.language_model import LanguageModel
from longmem_jax.segment import Segment, read_segments


class Score(NamedTuple):
    """The score of a continuation.

    Attributes:
      log_likelihood: sum of the log-probabilities of its tokens, nats; 0 for an empty one.
      greedy: whether every token was the most likely one.
    """

    log_likelihood: float
    greedy: bool


class Likelihood:
    """Scores continuations; a text that several of them share is read into memory once.

    Scores do not depend on what else is in the batch, nor on the number of lanes.

    Attributes:
      reader: reads the texts; counts the tokens.
    """

    def __init__(self, model: LanguageModel, params: Any, mesh: Mesh, num_lanes: int):
        """Compiles nothing yet; `num_lanes` continuations are scored at a time.

        Raises:
          UsageError: lanes that the devices do not divide, several processes, or a model of examples.
        """
        require_one_process('Scoring continuations')
        if KINDS[model.config.kind].by_example:
            raise UsageError(
                f'config.model.kind = {model.config.kind!r}: only language models continue texts; use '
                'another model.'
            )
        self.reader = ContextReader(model, params, mesh, num_lanes)
        everywhere = replicated(mesh)
        self._score = jax.jit(
            functools.partial(_score, model),
            out_shardings=(self.reader.shardings, everywhere),
            donate_argnums=1,
        )

    def use(self, params: Any) -> None:
        """Takes other parameters of the same model; nothing is compiled again."""
        self.reader.params = params

    def __call__(self, pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[Score]:
        """Scores pairs of a text and its continuation.

        Args:
          pairs: two int32 [n] each; a text begins with the begin token and has at least one token.

        Returns:
          A score per pair, in their order.

        Raises:
          UsageError: a text without a token.
        """
        if any(not len(text) for text, _ in pairs):
            raise UsageError('a text to continue is empty: it needs at least the begin token.')
        scores: list[Score] = [Score(0.0, True)] * len(pairs)
        length, lanes = self.reader.model.segment_length, self.reader.num_lanes
        # Texts with the same whole segments are one: (its whole segments, its pairs).
        shared: dict[bytes, tuple[np.ndarray, list[int]]] = {}
        for number, (text, continuation) in enumerate(pairs):
            if len(continuation):
                full = np.ascontiguousarray(text[: num_full(len(text), length)], np.int32)
                shared.setdefault(full.tobytes(), (full, []))[1].append(number)
        # Texts of like length are read together.
        groups = sorted(shared.values(), key=lambda group: -len(group[0]))
        for begin in range(0, len(groups), lanes):
            part = groups[begin : begin + lanes]
            states = self.reader.read([full for full, _ in part])
            jobs = [
                _Job(number, lane, len(full), *pairs[number])
                for lane, (full, numbers) in enumerate(part)
                for number in numbers
            ]
            for job, score in self._score_jobs(states, jobs):
                scores[job.number] = score
        return scores

    def _score_jobs(self, states: Any, jobs: list['_Job']) -> Iterator[tuple['_Job', Score]]:
        """Scores jobs of like length together."""
        lanes, length = self.reader.num_lanes, self.reader.model.segment_length
        jobs = sorted(jobs, key=lambda job: -len(job.inputs))
        for begin in range(0, len(jobs), lanes):
            batch = jobs[begin : begin + lanes]
            memory = self.reader.take(states, [job.lane for job in batch])
            rows = cut(
                [job.inputs for job in batch],
                lanes,
                length,
                [job.targets for job in batch],
                [len(job.inputs) - len(job.continuation) for job in batch],
            )
            total, greedy = np.zeros((lanes,)), np.ones((lanes,), bool)
            for part in steps(rows):
                memory, (sums, right) = self._score(
                    self.reader.params, memory, self.reader.to_devices(part)
                )
                total += np.asarray(sums, np.float64).sum(0)
                greedy &= np.asarray(right).all(0)
                stopping.poll()
            for lane, job in enumerate(batch):
                yield job, Score(float(total[lane]), bool(greedy[lane]))


class _Job:
    """A continuation to score.

    Attributes:
      number: of the pair.
      lane: where the memory of its text is.
      continuation: int32 [n].
      inputs, targets: int32 [m]: the text after its last segment border, then the continuation.
    """

    def __init__(
        self, number: int, lane: int, full: int, text: np.ndarray, continuation: np.ndarray
    ):
        self.number, self.lane, self.continuation = number, lane, continuation
        tokens = np.concatenate([text[full:], continuation]).astype(np.int32)
        self.inputs, self.targets = tokens[:-1], tokens[1:]


def _score(
    model: LanguageModel, params: Any, states: Any, rows: Rows
) -> tuple[Any, tuple[jax.Array, jax.Array]]:
    """Reads segments.

    Returns:
      The memories after them; and by segment and lane the log-likelihoods of the scored targets,
      float [segments, lanes], and whether all of them were the most likely tokens.
    """

    def read(state: Any, row: Rows, key: jax.Array) -> Any:
        segment = Segment(row.tokens, row.valid, jnp.zeros(row.tokens.shape[:1], bool))
        (nll, _, right), state, _ = model.apply(
            {'params': params}, segment, row.targets, state, train=False, method='nll'
        )
        sums = -jnp.where(row.scored, nll, 0.0).sum(axis=1)
        return state, (sums, (right | ~row.scored).all(axis=1))

    return read_segments(read, states, rows, jax.random.key(0))
