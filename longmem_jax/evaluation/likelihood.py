"""Log-likelihoods of continuations, each after its own text, in batches of static shapes."""

from collections.abc import Callable, Iterator, Sequence
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
from longmem_jax.models.stack import context_of
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
    """

    def __init__(
        self,
        model: LanguageModel,
        params: Any,
        mesh: Mesh,
        num_lanes: int,
        report: Callable[[str], None] = lambda line: None,
    ):
        """Compiles nothing yet; `num_lanes` continuations are scored at a time.

        `report` is called with lines on a decoder: the size of its cache, and texts beyond its context.

        Raises:
          UsageError: lanes that the devices do not divide, several processes, or a model of examples.
        """
        require_one_process('Scoring continuations')
        if KINDS[model.config.kind].by_example:
            raise UsageError(
                f'config.model.kind = {model.config.kind!r}: only language models continue texts; use '
                'another model.'
            )
        self._report, self._context = report, context_of(model.config)
        self.reader = ContextReader(model, params, mesh, num_lanes, report)
        everywhere = replicated(mesh)
        self._score = jax.jit(
            _score,
            static_argnums=0,
            out_shardings=(self.reader.shardings, everywhere),
            donate_argnums=2,
        )

    def use(self, params: Any) -> None:
        """Takes other parameters of the same model; nothing is compiled again."""
        self.reader.params = params

    def __call__(self, pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[Score]:
        """Scores pairs of a text and its continuation.

        A plain decoder has a longest text. Of a longer pair it reads the last tokens that it can, and
        scores a continuation that is longer itself in `windows`, as lm-eval does with its own models.

        Args:
          pairs: two int32 [n] each; a text begins with the begin token and has at least one token.

        Raises:
          UsageError: a text without a token.
        """
        if any(not len(text) for text, _ in pairs):
            raise UsageError('a text to continue is empty: it needs at least the begin token.')
        parts = [list(windows(*pair, self._context)) for pair in pairs]
        cut = sum(
            len(part) > 1 or len(part[0][0]) < len(text)
            for part, (text, _) in zip(parts, pairs, strict=True)
        )
        if cut:
            self._report(
                f'{cut:,} of {len(pairs):,} texts are longer than the {self._context:,} tokens that the '
                'model reads: only the last of them are read, and a longer text is scored in windows'
            )
        scores = iter(self._score_pairs([pair for part in parts for pair in part]))
        together = ([next(scores) for _ in part] for part in parts)
        return [
            Score(sum(s.log_likelihood for s in each), all(s.greedy for s in each))
            for each in together
        ]

    def _score_pairs(self, pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[Score]:
        """As `__call__`, for pairs that the model can read whole."""
        scores: list[Score] = [Score(0.0, True)] * len(pairs)
        self.reader.fit(max((len(text) + len(rest) - 1 for text, rest in pairs), default=0))
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
                memory, (sums, right) = self.reader.run(
                    self._score, memory, self.reader.to_devices(part)
                )
                total += np.asarray(sums, np.float64).sum(0)
                greedy &= np.asarray(right).all(0)
                stopping.poll()
            for lane, job in enumerate(batch):
                yield job, Score(float(total[lane]), bool(greedy[lane]))


def windows(
    before: np.ndarray, tokens: np.ndarray, context: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """A text in windows that a decoder can read, as lm-eval cuts it; every token is scored once.

    Args:
      before: int32 [m], what stands before the text, m at least 1.
      tokens: int32 [n], the text.
      context: tokens that the decoder reads at a time; 0 = any number.

    Yields:
      What is read, and the part that is scored after it. All windows are full: the last one is read
      after tokens that the one before it has scored.
    """
    context = context or len(before) + len(tokens)
    first = min(len(tokens), context)
    yield before[max(first - 1 + len(before) - context, 0) :], tokens[:first]
    for start in range(first, len(tokens), context):
        end = min(start + context, len(tokens))
        yield tokens[end - context - 1 : start], tokens[start:end]


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
        scores, state, _ = model.apply(
            {'params': params}, segment, row.targets, state, train=False, method='nll'
        )
        sums = -jnp.where(row.scored, scores.nll, 0.0).sum(axis=1)
        return state, (sums, (scores.right | ~row.scored).all(axis=1))

    return read_segments(read, states, rows, jax.random.key(0))
