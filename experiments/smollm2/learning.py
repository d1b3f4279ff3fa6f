"""Trains what a memory adds to the frozen host on novels, and scores two other novels by position."""

import dataclasses
import gc
import re
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax.serialization import msgpack_restore, msgpack_serialize

from experiments.smollm2 import reading
from experiments.smollm2.inside import gates_of, with_gates
from experiments.smollm2.reading import WINDOW
from longmem_jax import files
from longmem_jax.hosts.grafting import HOST
from longmem_jax.training.optimizer import parameter_path


@dataclasses.dataclass(frozen=True)
class Row:
    """A memory in the host.

    Attributes:
      variants: of `configs/host.py`, without the length of segments.
      segments: of a window; attention sees at most a window.
      changes: other fields.
    """

    variants: str
    segments: int = 1
    changes: dict[str, Any] = dataclasses.field(default_factory=dict)


ROWS = {
    'memorizing': Row('memory=memorizing', changes={'model.memorizing.memory_size': 32_768}),
    'hippocampus': Row('memory=hippocampus', segments=2),
    'infini': Row('memory=infini'),
}


def config_of(options: Any, name: str) -> Any:
    """The configuration of a row's training."""
    row, window = ROWS[name], 16 if options.tiny else WINDOW
    length = window // row.segments
    changes = {
        'train.num_steps': options.steps, 'train.segments_per_step': 2 * row.segments,
        'data.pieces': 16,
    } | row.changes  # fmt: skip
    if row.segments > 1:
        changes['model.sinks.memory_length'] = window - length
    variants = f'{row.variants},frozen,segment={length}'
    return reading.config_of(options, variants, **changes)


def trained(path: Path, trainer: Any, params: Any, seed: int) -> tuple[Any, dict[str, Any]]:
    """Parameters of a seed, from its file or from a training; only what is new is in the file."""
    new = {
        name: leaf
        for name, leaf in (
            (parameter_path(at), leaf) for at, leaf in jax.tree.leaves_with_path(params)
        )
        if not re.search(HOST, name)
    }
    if not path.exists():
        began = time.monotonic()
        done = trainer.train(seed, None, 100, begin=params)
        learned = {parameter_path(at): leaf for at, leaf in jax.tree.leaves_with_path(done.params)}
        found = {
            'params': {name: np.asarray(learned[name]) for name in new},
            'lines': done.lines,
            'seconds': round(time.monotonic() - began),
        }
        files.write(path, msgpack_serialize(found))
    found = msgpack_restore(path.read_bytes())
    put = jax.tree.map_with_path(
        lambda at, leaf: jax.numpy.asarray(found['params'].get(parameter_path(at), leaf)), params
    )
    return put, {'lines': found['lines'], 'seconds': found['seconds']}


def floor_of(params: Any) -> Any:
    """The same model without its memory: shut gates; a map that begins at zero is shut already."""
    shut = jax.tree.map(lambda gate: np.full_like(gate, -30.0), gates_of(params))
    return with_gates(params, shut) if shut else params


def run(options: Any) -> None:
    """Every row and seed that is not there yet."""
    for name in ROWS if options.rows is None else options.rows:
        folder = options.output / 'learning' / name
        missing = [seed for seed in options.seeds if not (folder / f'{seed}.json').exists()]
        if not missing and (folder / 'floor.json').exists():
            continue
        trainer, params = reading.begun(config_of(options, name))
        if not (folder / 'floor.json').exists():
            found = reading.by_segment(trainer, floor_of(params), options.tokens)
            reading.keep(folder / 'floor.json', found)
        for seed in missing:
            put, how = trained(folder / f'{seed}.msgpack', trainer, params, seed)
            found = {
                'training': how,
                'kept': reading.by_segment(trainer, put, options.tokens),
                'reset': reading.by_segment(trainer, put, options.tokens, reset=True),
            }
            gates = {path: np.asarray(gate).tolist() for path, gate in gates_of(put).items()}
            reading.keep(folder / f'{seed}.json', found | {'gates': gates}, (seed,))
        del trainer, params
        gc.collect()
