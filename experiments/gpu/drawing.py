"""Milliseconds per token that is read or drawn, by lanes and by the text before; beside transformers."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments.gpu import peers
from experiments.gpu.job import Place, memories, seconds_left
from experiments.gpu.steps import config_of, experiment_of
from experiments.speed.bench import bytes_per_lane, draw
from longmem_jax.devices import initial
from longmem_jax.generation.reader import Reader

PEER = 'transformers'
LANES, CONTEXTS, DRAWN, ROUNDS = (1, 8, 64), (1024, 16_384, 131_072, 1_048_576), 64, 3
NO_ROOM = ('out of memory', 'RESOURCE_EXHAUSTED')


def cells(tiny: bool) -> list[str]:
    """By lanes, the peer first."""
    found = []
    for lanes in LANES[: 1 if tiny else None]:
        found += [f'{PEER}/{lanes} lanes', *(f'{lanes} lanes/{name}' for name in memories(tiny))]
    return found


def drawing(place: Place, cell: str, folder: Path) -> dict[str, Any]:
    """Times after every context, up to the first for which there is no room or no time."""
    first, second = cell.split('/')
    lanes = int((second if first == PEER else first).split()[0])
    if first == PEER:
        call = peers.continued(lanes, DRAWN, place.tiny)
    else:
        call = continued(second, lanes, place.tiny)
    found, done, read = {}, 0, 0.0
    for context in (16, 40) if place.tiny else CONTEXTS:
        if 2 * read * (context - done) > seconds_left():
            found[str(context)] = {'said': 'takes too long'}
            break
        try:
            read, drawn, size = call(context)
        except RuntimeError as error:
            if not any(words in str(error) for words in NO_ROOM):
                raise
            found[str(context)] = {'said': 'out of memory'}
            break
        done = context
        found[str(context)] = {
            'read_ms': 1e3 * read, 'drawn_ms': 1e3 * drawn, 'tokens_per_s': lanes / drawn,
            'state_bytes': size,
        }  # fmt: skip
        print(context, found[str(context)], flush=True)
    return {'contexts': found}


def continued(memory: str, lanes: int, tiny: bool) -> Callable[[int], tuple[float, float, int]]:
    """A function like that of `peers.continued` for a memory of the library."""
    experiment = experiment_of(config_of(memory, 512, 12, lanes, tiny))
    model, params = experiment.evaluation_model, initial.arrays(experiment.make_state).params
    size = bytes_per_lane(model, params)
    reader = Reader(model, params, lanes=lanes)
    random, done = np.random.default_rng(0), 0

    def drawing_time() -> float:
        began = time.perf_counter()
        draw(reader, DRAWN, 256)  # numpy arrays, so they are there
        return time.perf_counter() - began

    def call(context: int) -> tuple[float, float, int]:
        nonlocal done
        number, done = context - done, context
        tokens, began = random.integers(0, 256, (lanes, number), np.int32), time.perf_counter()
        for _ in reader.read_in_parts(tokens):
            pass
        jax.block_until_ready(reader.logits)
        read = (time.perf_counter() - began) / number
        times = [drawing_time() for _ in range(1 + ROUNDS)]  # the first may compile
        return read, float(np.median(times[1:])) / DRAWN, size

    return call
