"""`--mode=evaluate` with retrieval: kNN-LM, continuous cache, both; tuned on validation."""

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np

from longmem_jax.config.retrieval import WITH_CACHE, WITH_NEIGHBOURS
from longmem_jax.evaluation.result import Result
from longmem_jax.experiment import Experiment
from longmem_jax.reporting.progress import Progress
from longmem_jax.reporting.results import show
from longmem_jax.retrieval import report, spalm
from longmem_jax.retrieval.cache import Cache
from longmem_jax.retrieval.datastore import Datastore, identity
from longmem_jax.retrieval.index import Index, make_index
from longmem_jax.retrieval.knn_lm import log_probability, mixture
from longmem_jax.retrieval.reading import Part, Reader
from longmem_jax.retrieval.search import require_k

TEMPERATURES = tuple(2.0**power for power in range(-1, 11))
SHARES = tuple(share / 20 for share in range(20))


@dataclasses.dataclass(frozen=True)
class Choice:
    """How three predictions are mixed.

    Attributes:
      k, temperature, share: of the neighbours.
      cache_temperature, cache_share: of the cache.
    """

    k: int
    temperature: float
    share: float
    cache_temperature: float
    cache_share: float


@dataclasses.dataclass
class Found:
    """What some counted tokens got; every array [tokens, ...].

    Attributes:
      log_model: log-probability of the target by the model.
      targets: the tokens to be said.
      distances, values: of the neighbours, [tokens, k]; k = 0 without a datastore.
      cache: log-probability by the cache, [tokens, temperatures].
    """

    log_model: np.ndarray
    targets: np.ndarray
    distances: np.ndarray
    values: np.ndarray
    cache: np.ndarray


class Lookup:
    """Looks up the tokens of one pass over a corpus."""

    def __init__(self, index: Index | None, store: Any, k: int, cache: Cache | None):
        """`index` and `store`, or `cache`, or all."""
        self._index, self._store, self._k, self._cache = index, store, k, cache
        self.numbers = np.zeros((0, 0), np.int64)

    def read(self, part: Part) -> Found:
        """The counted tokens of a part, in the order of lanes and places."""
        own = part.counted
        count = int(own.sum())
        cache = np.zeros((count, 0))
        if self._cache is not None:
            cache = self._cache.read(part)[own]
        distances, values = np.zeros((count, 0), np.float32), np.zeros((count, 0), np.int32)
        if self._index is not None:
            distances, self.numbers = self._index.search(part.keys[own], self._k)
            values = self._store.rows('values', self.numbers)
        return Found(-part.nll[own].astype(np.float64), part.targets[own], distances, values, cache)


def neighbours_log(found: Found, k: int, temperature: float) -> np.ndarray:
    """Log-probability of the targets by the k nearest neighbours."""
    return log_probability(
        -found.distances[:, :k].astype(np.float64) / temperature, found.values[:, :k], found.targets
    )


def tune(found: Found, choice: Choice, kind: str) -> Choice:
    """The best temperature, number of neighbours and shares for validation tokens.

    Args:
      found: of validation; `found.cache` has a column per `TEMPERATURES`.
      choice: its k is the largest that may be chosen.
      kind: one of `settings.KINDS`.
    """
    uses_store, uses_cache = kind in WITH_NEIGHBOURS, kind in WITH_CACHE
    best_store = best_cache = None
    if uses_store:
        ks = sorted({choice.k, *(4**p for p in range(1, 8) if 4**p < choice.k)})
        tried = []
        for k, temperature in itertools.product(ks, TEMPERATURES):
            log = neighbours_log(found, k, temperature)
            loss, share = min((-_mean([found.log_model, log], [1 - s, s]), s) for s in SHARES)
            tried.append((loss, k, temperature, share))
        _, k, temperature, share = min(tried)
        choice = dataclasses.replace(choice, k=k, temperature=temperature, share=share)
        best_store = neighbours_log(found, k, temperature)
    if uses_cache:
        tried = []
        for at, temperature in enumerate(TEMPERATURES):
            log = found.cache[:, at]
            loss, share = min((-_mean([found.log_model, log], [1 - s, s]), s) for s in SHARES)
            tried.append((loss, at, temperature, share))
        _, at, temperature, share = min(tried)
        choice = dataclasses.replace(choice, cache_temperature=temperature, cache_share=share)
        best_cache = found.cache[:, at]
    if uses_store and uses_cache:
        logs = [found.log_model, best_store, best_cache]
        pairs = [(a, b) for a, b in itertools.product(SHARES, SHARES) if a + b <= 0.95]
        _, a, b = min((-_mean(logs, [1 - a - b, a, b]), a, b) for a, b in pairs)
        choice = dataclasses.replace(choice, share=a, cache_share=b)
    return choice


def _mean(logs, shares):
    return float(mixture(logs, shares).mean())


def _joined(parts: list[Found]) -> Found:
    names = [field.name for field in dataclasses.fields(Found)]
    return Found(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def _validation(experiment, params, make, tokens):
    """What the first `tokens` tokens of validation find."""
    lookup, parts, count = make(TEMPERATURES), [], 0
    for part in Reader(experiment, params, 'validation').parts():
        parts.append(lookup.read(part))
        count += len(parts[-1].targets)
        if count >= tokens:
            break
    return _joined(parts)


def evaluate(experiment: Experiment, split: str) -> dict[str, Result]:
    """Scores a split by the model alone and with what `config.retrieval.kind` adds; prints a table.

    Raises:
      UsageError: faulty settings, no checkpoint, or a datastore that does not belong to it.
    """
    settings = experiment.config.retrieval
    if settings.kind == 'spalm':
        return spalm.evaluate(experiment, split)
    kind, progress = settings.kind, Progress(0, log_every=0)
    params, step = experiment.restore_parameters()
    progress.say(f'Evaluating step {step:,} of {experiment.workdir} with {kind}.')
    index = store = None
    if kind in WITH_NEIGHBOURS:
        folder = Path(settings.datastore).expanduser()
        store = Datastore(folder, identity(experiment, params), settings.verify)
        require_k(settings.k, store)
        index = make_index(settings, store, experiment.mesh)
    lanes = experiment.config.evaluate.num_lanes

    def make(temperatures):
        cache = Cache(lanes, settings.cache_length, temperatures) if kind in WITH_CACHE else None
        return Lookup(index, store, settings.k, cache)

    choice = Choice(
        settings.k, settings.temperature, settings.share,
        settings.cache_temperature, settings.cache_share,
    )  # fmt: skip
    if settings.tune_tokens:
        choice = tune(_validation(experiment, params, make, settings.tune_tokens), choice, kind)
    used = []
    if kind in WITH_NEIGHBOURS:
        used.append(f'k {choice.k}, temperature {choice.temperature:g}, lambda {choice.share:g}')
    if kind in WITH_CACHE:
        used.append(
            f'cache of {settings.cache_length:,}, temperature {choice.cache_temperature:g}, '
            f'lambda {choice.cache_share:g}'
        )
    said = '; '.join(used)
    tuned = (
        f' (tuned on {settings.tune_tokens:,} validation tokens)' if settings.tune_tokens else ''
    )
    progress.say(f'{said}{tuned}.')
    lookup = make((choice.cache_temperature,))
    limit = experiment.config.evaluate.max_test_segments
    sums: dict[str, float] = {}
    count, num_bytes, gains = 0, 0.0, report.Gains(settings.report_tokens)
    for part in Reader(experiment, params, split).parts(limit):
        found = lookup.read(part)
        added, mixed = _mixed(found, choice, kind)
        for name, log in ((split, found.log_model), (f'{split}, {added}', mixed)):
            sums[name] = sums.get(name, 0.0) - float(log.sum())
        count += len(found.targets)
        num_bytes += float(part.num_bytes.sum())
        if store is not None:
            gains.add(part, found, lookup.numbers, mixed, choice)
    protocol = (
        f'segment {experiment.config.evaluate.segment_length}, {lanes} lanes, '
        f'{"the first" if limit else "all"} {count:,} tokens of {split}'
    )
    results = {
        name: Result(
            split,
            nll,
            count,
            num_bytes,
            f'{protocol}{"" if name == split else "; " + said}',
            right=0,
            answers=0,
            exact=0,
        )
        for name, nll in sums.items()
    }
    paths = {'numbers': experiment.workdir / 'retrieval.json'}
    whole = {'step': step, 'kind': kind, 'choice': dataclasses.asdict(choice)}
    for name, result in results.items():
        whole[name] = result.as_json()
    paths['numbers'].write_text(json.dumps(whole, indent=1) + '\n')
    if store is not None and settings.report_tokens:
        paths |= gains.write(store, experiment.tokenizer, experiment.workdir)
    progress.close()
    show(progress, results, '', paths)
    return results


def _mixed(found: Found, choice: Choice, kind: str) -> tuple[str, np.ndarray]:
    """What is mixed with the model, 'kNN-LM and cache', and the log-probability of the targets."""
    names, logs, shares = [], [found.log_model], []
    if kind in WITH_NEIGHBOURS:
        names.append('kNN-LM')
        logs.append(neighbours_log(found, choice.k, choice.temperature))
        shares.append(choice.share)
    if kind in WITH_CACHE:
        names.append('cache')
        logs.append(found.cache[:, 0])
        shares.append(choice.cache_share)
    return ' and '.join(names), mixture(logs, [1 - sum(shares), *shares])
