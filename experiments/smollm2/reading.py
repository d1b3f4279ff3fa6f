"""Configurations of the experiment, and bits per byte of novels by position, kept as JSON."""

import functools
import time
from typing import Any

import jax

from experiments.short_trainings import Trainer
from longmem_jax.commands.start_from import first_parameters
from longmem_jax.config.files import configure
from longmem_jax.data import lanes
from longmem_jax.devices import initial, sharding
from longmem_jax.training.metrics import LN2

WINDOW = 512  # tokens that attention sees at most, where a row has a window
CONTEXT = 8192  # of SmolLM2


def config_of(options: Any, variants: str, **changes: Any) -> Any:
    """A configuration of `configs/host.py` for the host and the books of the command.

    Args:
      options: of the command.
      variants: after `configs/host.py:path=...,`.
      **changes: paths of fields, with `__` for dots, to their values.
    """
    tiny = 'tiny,' if options.tiny else ''
    fields = {
        'data.source': 'text', 'data.path': str(options.books), 'train.num_lanes': 1,
        'evaluate.num_lanes': 1,
    }  # fmt: skip
    fields |= {path.replace('__', '.'): value for path, value in changes.items()}
    return configure(f'host:{tiny}path={options.path},{variants}', fields)


def begun(config: Any) -> tuple[Trainer, Any]:
    """A trainer, and the parameters of its host with a memory that has learned nothing."""
    trainer = Trainer(config)
    shared = trainer.shared
    made = initial.arrays(lambda: shared.make_state().params, shared.state_shardings.params)
    return trainer, first_parameters(shared, made, print)


def by_segment(trainer: Trainer, params: Any, tokens: int) -> dict[str, Any]:
    """Nats of every segment of the first `tokens` tokens of every test book, and its bytes.

    Returns:
      'nats': a list per book; 'bytes': of a segment, the mean of its book; 'segment'; 'seconds'.
    """
    evaluator, shared = trainer.evaluator, trainer.shared
    length, corpus = shared.config.evaluate.segment_length, shared.corpus('test')
    step = functools.partial(evaluator.step, params)
    nats: list[list[float]] = []
    sizes, began = [], time.monotonic()
    initial = evaluator.initial_state(params, 1)
    for book in range(len(corpus)):
        memory, found = jax.tree.map(lambda leaf: leaf.copy(), initial), []
        alone = OneDocument(corpus.tokenizer, corpus[book])
        for number, (batch, _) in enumerate(lanes.in_order(alone, 1, length)):
            if (number + 1) * length > tokens:
                break
            batch = sharding.from_processes(shared.mesh, batch, 1)
            memory, sums = step(initial, memory, batch)
            found.append(round(float(sums['nll']), 3))
            size = float(sums['num_bytes'])
            if number == 0:
                sizes.append(round(size, 2))
        nats.append(found)
    seconds = round(time.monotonic() - began, 1)
    return {'nats': nats, 'bytes': sizes, 'segment': length, 'seconds': seconds}


class OneDocument:
    """One tokenized document, as a corpus."""

    def __init__(self, tokenizer: Any, document: Any):
        self.tokenizer, self._document = tokenizer, document

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Any:
        return self._document


def bits(found: dict[str, Any], first: int, last: int) -> float:
    """Bits per byte of the tokens from `first` to `last` of all books together."""
    a, b = first // found['segment'], last // found['segment']
    if any(len(book) < b for book in found['nats']):
        return float('nan')
    nats = sum(sum(book[a:b]) for book in found['nats'])
    return nats / LN2 / sum(size * (b - a) for size in found['bytes'])
