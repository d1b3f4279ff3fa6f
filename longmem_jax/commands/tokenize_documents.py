"""`--mode=tokenize`: the documents of all splits, tokenized once by all cores; see `data.tokenized`."""

import concurrent.futures
import concurrent.futures.process
import functools
import multiprocessing
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import ml_collections

from longmem_jax.data import content, load, tokenized
from longmem_jax.data.corpus import AnyCorpus, Corpus
from longmem_jax.data.documents import SPLITS, require_split
from longmem_jax.errors import UsageError
from longmem_jax.experiment import Experiment
from longmem_jax.files import own_folder
from longmem_jax.reporting.progress import Progress

_corpus: AnyCorpus | None = None  # of this worker process


def tokenize(experiment: Experiment, split: str = '', *, workers: int = 0) -> None:
    """Writes the tokens of one split or all of them to `config.data.tokenized`.

    What an earlier call wrote is checked and kept, so a call that was stopped is taken up again.

    Args:
      workers: processes; 0 = one per core that this process may use.

    Raises:
      UsageError: no folder, or one that is among the texts, has other tokens or cannot be written; an
        unknown split; missing data.
    """
    data = experiment.config.data
    if not data.tokenized:
        raise UsageError(
            "config.data.tokenized = '': give the folder to write, --config.data.tokenized=DIR."
        )
    if split:
        require_split(split)
    if jax.process_count() > 1:
        raise UsageError('--mode=tokenize: one process does it, on all cores of its machine.')
    content.require_outside(data, data.tokenized, 'config.data.tokenized', 'tokens')
    progress = Progress(0, log_every=0)
    for name in [split] if split else SPLITS:
        progress.say(_tokenize_split(experiment, name, workers or _cores()))


def _cores() -> int:
    """Cores that this process may use; a container or `taskset` may give it few of many."""
    if hasattr(os, 'sched_getaffinity'):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _tokenize_split(experiment: Experiment, split: str, workers: int) -> str:
    """Writes a split; what to print of it."""
    data, tokenizer = experiment.config.data, experiment.tokenizer
    corpus = Corpus(load.load_source(data, split), tokenizer)
    folder = Path(data.tokenized).expanduser() / split
    about = tokenized.about(data, split, tokenizer)
    shards = tokenized.Shards(folder, about, len(corpus))
    with tokenized.written():
        own_folder(folder)
    numbers = range(len(shards.borders) - 1)
    if min(workers, len(numbers)) == 1:
        tokens = [shards.write(number, corpus) for number in numbers]
    else:
        begin = functools.partial(_begin, data.to_dict(), split, experiment.workdir)
        tokens = list(_by_processes(shards, numbers, begin, min(workers, len(numbers))))
    shards.finish(tokens)
    return f'{folder}: {len(corpus):,} documents, {sum(tokens):,} tokens in {len(tokens)} files'


def _by_processes(
    shards: tokenized.Shards, numbers: range, begin: Any, workers: int
) -> Iterator[int]:
    """Tokens of the shards, in order, which as many processes write."""
    # A fork would copy the threads' locks of libraries that are already running here.
    pool = concurrent.futures.ProcessPoolExecutor(
        workers, multiprocessing.get_context('spawn'), begin
    )
    try:
        yield from pool.map(functools.partial(_write, shards), numbers)
    except concurrent.futures.process.BrokenProcessPool as error:
        raise UsageError(
            '--mode=tokenize: one of its processes was killed, perhaps as there was no more memory. '
            'What is written is kept; run it again.'
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(data: dict[str, Any], split: str, workdir: Path | None) -> None:
    """Opens the documents in a worker; no device is used there."""
    global _corpus
    jax.config.update('jax_platforms', 'cpu')
    settings = ml_collections.ConfigDict(data)
    tokenizer = load.make_tokenizer(settings, workdir)
    _corpus = Corpus(load.load_source(settings, split), tokenizer)


def _write(shards: tokenized.Shards, number: int) -> int:
    assert _corpus is not None  # as of `_begin`
    return shards.write(number, _corpus)
