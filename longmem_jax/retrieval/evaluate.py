"""`--mode=evaluate` with retrieval: kNN-LM, continuous cache, or both; tuned on validation."""

import dataclasses
import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np

from longmem_jax import files
from longmem_jax.errors import number_of
from longmem_jax.evaluation.result import Result, segment_text
from longmem_jax.evaluation.tables import show
from longmem_jax.experiment import Experiment
from longmem_jax.reporting.progress import Progress
from longmem_jax.reporting.waiting import Waiting
from longmem_jax.retrieval import report, spalm
from longmem_jax.retrieval.cache import Cache
from longmem_jax.retrieval.datastore import Datastore, identity
from longmem_jax.retrieval.index import Index, open_datastore
from longmem_jax.retrieval.knn_lm import log_probability, mixture
from longmem_jax.retrieval.own_document import is_own_text, source_of, warnings
from longmem_jax.retrieval.reading import Part, Reader
from longmem_jax.retrieval.search import require_k
from longmem_jax.retrieval.settings import WITH_CACHE, WITH_NEIGHBOURS
from longmem_jax.retrieval.spalm_keys import open_keys

TEMPERATURES = tuple(2.0**power for power in range(-3, 11))
FLATNESS = (0.0, *(2.0**power for power in range(-12, 4)))
SHARES = tuple(share / 20 for share in range(20))


@dataclasses.dataclass(frozen=True)
class Choice:
    """How the predictions of model, neighbours and cache are mixed.

    Attributes:
      k, temperature, share: of the neighbours.
      cache_flatness, cache_share: of the cache.
    """

    k: int
    temperature: float
    share: float
    cache_flatness: float
    cache_share: float


@dataclasses.dataclass
class LookupResult:
    """Predictions of some counted tokens; every array [tokens, ...].

    Attributes:
      log_model: log-probability of the target by the model.
      targets: the tokens to predict.
      distances, values: of the neighbours, [tokens, k]; k = 0 without a datastore.
      cache: log-probability by the cache, [tokens, flatness].
    """

    log_model: np.ndarray
    targets: np.ndarray
    distances: np.ndarray
    values: np.ndarray
    cache: np.ndarray


class Lookup:
    """Looks up the tokens of one pass over a corpus."""

    def __init__(
        self, index: Index | None, store: Any, k: int, cache: Cache | None, *, own_text: bool
    ):
        """Looks up `k` neighbours in a datastore, or in a cache, or in both.

        With `own_text` the datastore has the documents that are read; a token's own is left out.
        """
        self._index, self._store, self._k, self._cache = index, store, k, cache
        self._own_text = own_text
        self.numbers = np.zeros((0, 0), np.int64)

    def read(self, part: Part) -> LookupResult:
        """Looks up the counted tokens of a part, in the order of segments, lanes and positions."""
        counted = part.counted
        count = int(counted.sum())
        cache = np.zeros((count, 0))
        if self._cache is not None:
            cache = self._cache.read(part)[counted]
        distances, values = np.zeros((count, 0), np.float32), np.zeros((count, 0), np.int32)
        if self._index is not None:
            documents = np.broadcast_to(part.documents[:, :, None], counted.shape)[counted]
            distances, self.numbers, _ = self._index.search(
                part.keys[counted], self._k, documents if self._own_text else None
            )
            values = self._store.rows('values', self.numbers)
        return LookupResult(
            -part.nll[counted].astype(np.float64), part.targets[counted], distances, values, cache
        )


def neighbours_log(looked_up: LookupResult, k: int, temperature: float) -> np.ndarray:
    """Log-probability of the targets by the k nearest neighbours, float64 [tokens]."""
    return log_probability(
        -looked_up.distances[:, :k].astype(np.float64) / temperature,
        looked_up.values[:, :k],
        looked_up.targets,
    )


def tune(looked_up: LookupResult, choice: Choice, kind: str) -> Choice:
    """The best temperature, number of neighbours and shares for validation tokens.

    The k of `choice` is the largest to try, and its fields that are not tuned are kept;
    `looked_up.cache` has a column for each of `FLATNESS`.
    """
    uses_store, uses_cache = kind in WITH_NEIGHBOURS, kind in WITH_CACHE
    best_store = best_cache = np.zeros(0)
    if uses_store:
        ks = sorted({choice.k, *(4**p for p in range(1, 8) if 4**p < choice.k)})
        trials = []
        for k, temperature in itertools.product(ks, TEMPERATURES):
            loss, share = _best_share(
                looked_up.log_model, neighbours_log(looked_up, k, temperature)
            )
            trials.append((loss, k, temperature, share))
        _, k, temperature, share = min(trials)
        choice = dataclasses.replace(choice, k=k, temperature=temperature, share=share)
        best_store = neighbours_log(looked_up, k, temperature)
    if uses_cache:
        trials = []
        for column, flatness in enumerate(FLATNESS):
            loss, share = _best_share(looked_up.log_model, looked_up.cache[:, column])
            trials.append((loss, column, flatness, share))
        _, column, flatness, share = min(trials)
        choice = dataclasses.replace(choice, cache_flatness=flatness, cache_share=share)
        best_cache = looked_up.cache[:, column]
    if uses_store and uses_cache:
        logs = [looked_up.log_model, best_store, best_cache]
        pairs = [(a, b) for a, b in itertools.product(SHARES, SHARES) if a + b <= 0.95]
        _, a, b = min((-_mean(logs, [1 - a - b, a, b]), a, b) for a, b in pairs)
        choice = dataclasses.replace(choice, share=a, cache_share=b)
    return choice


def _mean(logs: list[np.ndarray], shares: list[float]) -> float:
    """Mean log-probability of a mixture."""
    return float(mixture(logs, shares).mean())


def _best_share(log_model: np.ndarray, log: np.ndarray) -> tuple[float, float]:
    """The lowest loss of a mixture of the model with `log`, and the share of `log` in it."""
    return min((-_mean([log_model, log], [1 - share, share]), share) for share in SHARES)


def concatenate(results: list[LookupResult]) -> LookupResult:
    """The tokens of several results, in order."""
    names = [field.name for field in dataclasses.fields(LookupResult)]
    return LookupResult(
        *(np.concatenate([getattr(result, name) for result in results]) for name in names)
    )


def _reader(experiment: Experiment, params: Any, split: str) -> Reader:
    """A pass that brings only the vectors that the kind of retrieval needs."""
    uses = {'keys': WITH_NEIGHBOURS, 'hidden': WITH_CACHE}
    kind = experiment.config.retrieval.kind
    vectors = (name for name, kinds in uses.items() if kind in kinds)
    return Reader(experiment, params, split, wanted=(*vectors, 'nll'))


def _look_up_validation(parts: Iterable[Part], lookup: Lookup, tokens: int) -> LookupResult:
    """Looks up the first `tokens` tokens of validation, rounded up to a part."""
    results, count = [], 0
    for part in parts:
        results.append(lookup.read(part))
        count += len(results[-1].targets)
        if count >= tokens:
            break
    return concatenate(results)


def _describe(choice: Choice, settings: Any) -> str:
    """The mixture as text; `settings` is `config.retrieval`."""
    used = []
    if settings.kind in WITH_NEIGHBOURS:
        used.append(f'k {choice.k}, temperature {choice.temperature:g}, lambda {choice.share:g}')
    if settings.kind in WITH_CACHE:
        used.append(
            f'cache of {settings.cache_length:,}, flatness {choice.cache_flatness:g}, '
            f'lambda {choice.cache_share:g}'
        )
    return '; '.join(used)


def evaluate(experiment: Experiment, split: str = 'test') -> dict[str, Result]:
    """Scores a split by the model alone and with what `config.retrieval.kind` adds; prints a table.

    Raises:
      UsageError: wrong settings, no checkpoint, or a datastore of another model.
    """
    settings = experiment.config.retrieval
    if settings.kind == 'spalm':
        return spalm.evaluate(experiment, split)
    kind, progress = settings.kind, Progress(0, log_every=0)
    with_spalm = kind == 'spalm_knn_lm'
    index: Index | None = None
    store: Datastore | None = None
    if with_spalm:
        keys = open_keys(experiment)
        index, store, step = keys.index, keys.store, keys.step
        require_k(settings.k, keys.store)
    else:
        params, step = experiment.restore_parameters()
        if kind in WITH_NEIGHBOURS:
            made_by = identity(experiment, params)
            index, store = open_datastore(experiment, made_by, settings.k, progress.say)
    progress.say(f'Evaluating step {step:,} of {experiment.workdir} with {kind}.')

    uses = ({'validation': 'tuned on'} if settings.tune_tokens else {}) | {split: 'scored'}
    for warning in warnings(store, experiment, uses):
        progress.say(f'Warning: {warning}')

    def make_lookup(flatness: tuple[float, ...], split: str) -> Lookup:
        cache = Cache(settings.cache_length, flatness) if kind in WITH_CACHE else None
        own_text = store is not None and is_own_text(store, source_of(experiment, split))
        return Lookup(index, store, settings.k, cache, own_text=own_text)

    def parts(split: str, limit: int = 0) -> Iterable[Part]:
        if with_spalm:
            return spalm.parts(experiment, keys, split, limit)
        return _reader(experiment, params, split).parts(limit)

    choice = Choice(
        settings.k, settings.temperature, settings.share,
        settings.cache_flatness, settings.cache_share,
    )  # fmt: skip
    tuned = ''
    if settings.tune_tokens:
        lookup = make_lookup(FLATNESS, 'validation')
        validation = _look_up_validation(parts('validation'), lookup, settings.tune_tokens)
        choice = tune(validation, choice, kind)
        tuned = f' (tuned on {len(validation.targets):,} validation tokens)'
    description = _describe(choice, settings)
    progress.say(f'{description}{tuned}.')
    lookup = make_lookup((choice.cache_flatness,), split)
    limit = experiment.config.evaluate.max_test_segments
    sums: dict[str, float] = {}
    count, num_bytes, gains = 0, 0.0, report.Gains(settings.report_tokens)
    alone = f'{split}, SPALM' if with_spalm else split
    waiting = Waiting(f'Scoring {split}', 0, 'tokens')
    for part in parts(split, limit):
        looked_up = lookup.read(part)
        added, mixed = _mixed(looked_up, choice, kind)
        together = f'{alone} and {added}' if with_spalm else f'{split}, {added}'
        for name, log in ((alone, looked_up.log_model), (together, mixed)):
            sums[name] = sums.get(name, 0.0) - float(log.sum())
        count += len(looked_up.targets)
        waiting.update(count)
        num_bytes += float(part.num_bytes.sum())
        if store is not None:
            gains.add(part, looked_up, lookup.numbers, mixed, choice)
    waiting.close()
    reading = experiment.config.evaluate
    protocol = (
        f'{segment_text(reading)}, {number_of(reading.num_lanes, "lane")}, '
        f'{"the first" if limit else "all"} {count:,} tokens of {split}'
    )
    protocols = {name: f'{protocol}; {description}' for name in sums} | {alone: protocol}
    results = {
        name: Result(split, dict(nll=nll, scored=count, num_bytes=num_bytes), protocols[name])
        for name, nll in sums.items()
    }
    numbers = experiment.workdir / 'retrieval.json'
    content = {'step': step, 'kind': kind, 'choice': dataclasses.asdict(choice)}
    content |= {name: result.as_json() for name, result in results.items()}
    files.write_json(numbers, content)
    progress.close()
    show(progress, results, {'numbers': numbers})
    # Last, so that nothing that goes wrong in a report can cost the results.
    if store is not None and settings.report_tokens:
        for name, path in gains.write(store, experiment.tokenizer, experiment.workdir).items():
            progress.say(f'{name}: {path}')
    return results


def _mixed(looked_up: LookupResult, choice: Choice, kind: str) -> tuple[str, np.ndarray]:
    """What is mixed with the model, 'kNN-LM and cache', and log-probabilities of the targets,
    float64 [tokens].
    """
    names, logs, shares = [], [looked_up.log_model], []
    if kind in WITH_NEIGHBOURS:
        names.append('kNN-LM')
        logs.append(neighbours_log(looked_up, choice.k, choice.temperature))
        shares.append(choice.share)
    if kind in WITH_CACHE:
        names.append('cache')
        logs.append(looked_up.cache[:, 0])
        shares.append(choice.cache_share)
    return ' and '.join(names), mixture(logs, [1 - sum(shares), *shares])
