"""Recurrent memories on one core, in turns: next to `linear`, with documents inside, next to PyTorch.

python -m experiments.speed.recurrent --output=DIR [--rows=KIND,KIND/NAME] [--python=PYTHON]

Rows are of three kinds. `steps`: a whole training step (forward, backward, Adam) as a multiple of that
of `linear`. `starts`: one layer, forward and backward, with two documents that begin inside of every
segment, as a multiple of none. `peers`: one layer next to PyTorch's without GPU kernels, as a multiple
of ours; `--python` is an interpreter with torch, transformers, fla-core and triton, if this one has
none. CPU time of the process counts, so other programs may run. A row takes about a minute; those that
DIR/recurrent.json has already are left as they are.
"""

import argparse
import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments import provenance
from experiments.markdown import table
from experiments.options import make_parser
from experiments.speed import ours
from experiments.speed.bench import random_batch, state_bytes
from experiments.speed.cases import CASES, FULL, TOY, Case, Sizes
from experiments.speed.compare import Side, summary
from experiments.speed.history import ratio
from experiments.speed.worker import timed
from longmem_jax.config.base import size
from longmem_jax.configs import benchmark
from longmem_jax.data.lanes import Cursor
from longmem_jax.devices import initial, sharding
from longmem_jax.errors import UsageError
from longmem_jax.experiment import Experiment, lower_step, to_devices

PEER, FILE = 'recurrent', 'recurrent.json'
WARM = 2  # untimed steps
DOCUMENTS = 2  # that begin inside of a segment
NAMES = (
    'delta_net', 'gated_delta_net', 'kimi_delta', 'retnet', 'gla', 'mamba2', 'rwkv7', 'ttt_linear',
    'titans', 'linear',
)  # fmt: skip
# Decayed memories whose recipe has states of another size, with 64 x 64.
SQUARE = {
    'retnet_64': ('retnet', dict(value_dim=64)),
    'gla_64': ('gla', dict(key_dim=64)),
    'mamba2_64': ('mamba2', dict(value_dim=64)),
}
MEMORIES: dict[str, tuple[str, dict[str, Any]]] = {name: (name, {}) for name in NAMES} | SQUARE
ROWS = {'steps': tuple(MEMORIES), 'starts': NAMES, 'peers': tuple(CASES[PEER])}
HEADS = {
    'steps': ('memory', '`linear`, CPU ms', 'this, CPU ms', 'this / `linear`', 'state, kB'),
    'starts': ('memory', 'none, CPU ms', 'two documents, CPU ms', 'two / none'),
    'peers': ('row', 'peer', 'ours, CPU ms', 'peer, CPU ms', 'peer / ours'),
}
Timed = Callable[[], dict[str, float]]


class Training(NamedTuple):
    """A training step to be timed; calling it waits for all results and returns the loss.

    Attributes:
      call: does so.
      state_bytes: what a lane carries on, of all layers.
    """

    call: Callable[[], float]
    state_bytes: float


def training(memory: str, fields: dict[str, Any], sizes: Sizes) -> Training:
    """The training step of a language model with its optimizer, as a training runs it."""
    config = benchmark.get_config(f'memory={memory}')
    size(config, sizes.layers, sizes.width, sizes.heads, sizes.feed_forward)
    config.model.vocab_size = sizes.vocab
    config.train.segment_length, config.train.num_lanes = sizes.segment, sizes.lanes
    config.train.segments_per_step = 1
    config.model[config.model.attention[0]].update(fields)
    mesh = sharding.make_mesh(config.mesh.to_dict())
    experiment = Experiment(config, None, mesh)  # type: ignore[arg-type]  # no folder is used
    step = lower_step(experiment).compile()
    state = initial.arrays(experiment.make_state, experiment.state_shardings)
    carried = state_bytes(state.memory) / sizes.lanes
    zeros = np.zeros((sizes.lanes,), np.int32)
    batch = random_batch(config, config.train, 1)
    inputs = to_devices(experiment, batch, Cursor(document=zeros, offset=zeros))

    def call() -> float:
        nonlocal state
        state, metrics = jax.block_until_ready(step(state, *inputs))
        return float(metrics['loss'])

    return Training(call, carried)


@functools.cache
def linear(sizes: Sizes) -> Training:
    """The training step of `linear`, compiled once for all rows."""
    return training('linear', {}, sizes)


def in_turns(first: Timed, second: Timed, rounds: int) -> dict[str, Any]:
    """Times of both, of which `second` is given as a multiple of `first`, round by round."""
    steps: tuple[list[Any], list[Any]] = [], []
    for _ in range(rounds):
        for side, each in zip((first, second), steps, strict=True):
            step = side()
            each.append({clock: step[clock] for clock in ('wall', 'cpu')})
    base, this = (summary(each) for each in steps)
    return {'base': base, 'this': this, 'ratio': ratio(*steps)}


def step_of(call: Callable[[], float]) -> Timed:
    """A step, run a few times before it is timed."""
    for _ in range(WARM):
        call()
    return lambda: timed(call)


def of_steps(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """A training step next to that of `linear`."""
    base, this = linear(options.sizes), training(*MEMORIES[name], options.sizes)
    found = in_turns(step_of(base.call), step_of(this.call), options.rounds)
    return found | {'state_bytes': this.state_bytes}


def of_starts(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """A layer with documents that begin inside, next to the same layer without."""
    memory, fields = MEMORIES[name]
    case = Case('', config=None, layer=dict(memory=memory, **fields))
    base, this = (ours.recurrent(case, options.sizes, number) for number in (0, DOCUMENTS))
    return in_turns(step_of(base.call), step_of(this.call), options.rounds)


def of_peers(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """A layer of PyTorch next to ours; raises `SystemExit` if it does not run."""
    given = [f'--peer={PEER}', f'--case={name}', f'--fill={WARM}', '--cores=1']
    given += ['--toy'] * options.toy
    module = f'experiments.speed.peers.{PEER}'
    path = [f'--side={module}', f'--checkout={Path(__file__).parents[2]}']
    peer = Side(f'the peer of {name}', options.python, [*given, *path])
    try:
        peer.wait()
        mine = step_of(ours.recurrent(CASES[PEER][name], options.sizes).call)

        def theirs() -> dict[str, float]:
            peer.step()
            return peer.steps[-1]

        found = in_turns(mine, theirs, options.rounds)
    finally:
        peer.close()
    return found | {'label': CASES[PEER][name].label, 'software': peer.software}


MEASURE = {'steps': of_steps, 'starts': of_starts, 'peers': of_peers}


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """Keeps the process, and those that it starts, to the last core that it may use."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[-1:])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def chosen(text: str) -> list[tuple[str, str]]:
    """Rows: 'steps' are all of a kind, 'starts/gla' is one."""
    rows = {f'{kind}/{name}': (kind, name) for kind, names in ROWS.items() for name in names}
    found: list[tuple[str, str]] = []
    for given in text.split(','):
        more = [row for key, row in rows.items() if f'{key}/'.startswith(f'{given}/')]
        if not more:
            known = ', '.join([*ROWS, *rows])
            raise argparse.ArgumentTypeError(f'{given!r}: allowed are {known}')
        found += more
    return list(dict.fromkeys(found))


def rows_of(file: Path, flags: list[str]) -> dict[str, Any]:
    """The rows of a file by kind, and its flags; none if it is not there.

    Raises:
      UsageError: it is something else, or was run with other flags.
    """
    found: dict[str, Any] = {'flags': flags} | {kind: {} for kind in ROWS}
    if file.exists():
        found |= provenance.read(file, *found)
        found.pop('run', None)  # every row has its own
        provenance.require_same(file, found['flags'], flags)
    return found


def report(found: dict[str, Any]) -> str:
    """A table for every kind of rows."""

    def line(kind: str, name: str, row: dict[str, Any]) -> list[str]:
        times = [f'{row[side]["cpu"]["median"]:.1f}' for side in ('base', 'this')]
        multiple = '{median:.2f} ({low:.2f} - {high:.2f})'.format(**row['ratio'])
        label = [f'{row["label"]}, {row["software"]}'] if kind == 'peers' else []
        state = [f'{row["state_bytes"] / 1000:.0f}'] if kind == 'steps' else []
        return [name, *label, *times, multiple, *state]

    parts = []
    for kind, names in ROWS.items():
        rows = [line(kind, name, found[kind][name]) for name in names if name in found[kind]]
        if rows:
            parts.append(table(HEADS[kind], rows))
    return '\n\n'.join(parts)


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Runs the command; returns all rows that the folder has."""
    parser = make_parser(__doc__)
    parser.add_argument('--output', type=Path, required=True, help='a folder')
    parser.add_argument('--rows', type=chosen, default=','.join(ROWS), help='default: all')
    parser.add_argument('--rounds', type=int, default=16)
    parser.add_argument('--python', default=sys.executable, help="runs PyTorch's side")
    parser.add_argument('--toy', action='store_true', help='tiny models, to see that it runs')
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error(f'--rounds={options.rounds}: give at least 1')
    options.sizes = TOY if options.toy else FULL
    file, flags = options.output / FILE, [f'--rounds={options.rounds}'] + ['--toy'] * options.toy
    try:
        found = rows_of(file, flags)
    except UsageError as error:
        parser.error(str(error))
    left_out = []
    with one_core():
        for kind, name in options.rows:
            if name in found[kind]:
                continue
            load = os.getloadavg()[0]
            try:
                row = MEASURE[kind](name, options)
            except SystemExit as error:
                left_out.append(f'{kind}/{name}')
                print(f'{kind}/{name} is left out: {error}', flush=True)
                continue
            loads = [load, os.getloadavg()[0]]
            found = rows_of(file, flags)  # with those of another process that runs beside this one
            found[kind][name] = {'run': provenance.of_run([0]), 'load': loads} | row
            provenance.save(file, found, [0])  # after every row, so that none is lost
            print(f'{kind}/{name}: {row["ratio"]["median"]:.2f}', flush=True)
    print(f'\n{report(found)}')
    if left_out:
        print(f'Left out: {", ".join(left_out)}.')
    return found


if __name__ == '__main__':
    main()
