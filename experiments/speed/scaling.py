"""How our speed depends on the text read, the lanes and the devices, and how long programs compile.

python -m experiments.speed.scaling [--part=contexts] [--output=FILE.json]

The parts, each in a process of its own: `contexts`, milliseconds per token that is read or drawn after
a context; `lanes`, microseconds per token of evaluation; `compiling`, seconds of tracing and of
compiling forward and backward; `devices`, a training step on two virtual CPU devices and on one;
`host`, what feeds a model (`host.py`). What a table compares takes turns.
"""

import argparse
import functools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments import provenance
from experiments.leaderboard.speed import train_call
from experiments.markdown import table
from experiments.options import make_parser
from experiments.short_trainings import ONE_DEVICE, on_one_device
from experiments.speed import host, ours
from experiments.speed.bench import draw, random_batch
from experiments.speed.cases import CASES, FULL, TOY
from experiments.speed.compare import summary
from experiments.speed.worker import timed
from longmem_jax.config.base import size
from longmem_jax.configs import benchmark, comparison
from longmem_jax.devices import initial, sharding
from longmem_jax.errors import UsageError
from longmem_jax.evaluation.evaluator import Evaluator
from longmem_jax.experiment import Experiment
from longmem_jax.generation.reader import Reader

MEMORIES = ('transformer_xl', 'infini', 'expire_span', 'compressive', 'memorizing')
CONTEXTS, TOY_CONTEXTS = (1024, 16_384, 131_072), (8, 16)
READ, DRAWN, LANES = 1024, 64, (1, 4, 16)
COMPILED = (
    ('transformer_xl', '1024'),
    ('infini', 'delta'),
    ('memorizing', '8192'),
    *(('transformer_sequential', case) for case in ('adaptive', 'compressive', 'expire')),
)
ON_DEVICES = ('', 'memory=infini', 'memorizing=8192', 'memory=expire_span')
Times = dict[str, dict[str, dict[str, float]]]
Table = tuple[list[str], list[list[str]]]


def in_turns(calls: dict[str, Callable[[], Any]], rounds: int, untimed: int = 1) -> Times:
    """Median and least milliseconds of each call, by the wall and of all threads.

    Args:
      calls: return arrays to wait for.
      rounds: every call once in each.
      untimed: rounds before them.
    """

    def waited(call: Callable[[], Any]) -> float:
        jax.block_until_ready(call())
        return 0.0

    steps: dict[str, list[dict[str, float]]] = {name: [] for name in calls}
    for count in range(untimed + rounds):
        for name, call in calls.items():
            taken = timed(functools.partial(waited, call))
            if count >= untimed:
                steps[name].append(taken)
    return {name: summary(of) for name, of in steps.items()}


def shown(times: dict[str, dict[str, float]], tokens: int, digits: int, unit: float = 1.0) -> str:
    """Median per token by the wall; in brackets the CPU time."""
    wall, cpu = (times[clock]['median'] * unit / tokens for clock in ('wall', 'cpu'))
    return f'{wall:.{digits}f} ({cpu:.{digits}f})'


def config_of(memory: str, toy: bool) -> Any:
    """The model of the first two tables."""
    config = comparison.get_config(f'memory={memory},tiny')
    if toy:
        size(config, layers=4, width=16, heads=2, feed_forward=16)
        config.train.segment_length = config.evaluate.segment_length = 8
    return config


def new_model(config: Any) -> tuple[Experiment, Any]:
    """A model on one device, and new parameters."""
    experiment = on_one_device(config)
    return experiment, initial.arrays(experiment.make_state).params


def contexts(memories: Sequence[str], rounds: int, toy: bool) -> Table:
    """One lane with new parameters; reading is in whole segments, drawing token by token."""
    random, readers = np.random.default_rng(0), {}
    read, drawn = (8, 8) if toy else (READ, DRAWN)
    for memory in memories:
        experiment, params = new_model(config_of(memory, toy))
        model = experiment.evaluation_model
        reader = Reader(model, params)
        reader.read(np.zeros((1, 1), np.int32))  # the first of a segment stays open
        readers[memory] = reader

    def read_more(reader: Reader, number: int) -> jax.Array:
        reader.read(random.integers(0, 256, (1, number), np.int32))
        return reader.logits

    lengths, done, found = TOY_CONTEXTS if toy else CONTEXTS, 0, {memory: [] for memory in memories}
    for context in lengths:
        calls = {}
        for memory, reader in readers.items():
            # Everything is read in parts of one size, which compile once.
            for _ in range((context - done) // read):
                read_more(reader, read)
            calls[memory, 'read'] = lambda reader=reader: read_more(reader, read)
            calls[memory, 'drawn'] = lambda reader=reader: draw(reader, drawn, 256)
        done = context
        times = in_turns(calls, rounds)
        for memory in memories:
            found[memory] += [
                shown(times[memory, 'read'], read, 3),
                shown(times[memory, 'drawn'], drawn, 3),
            ]
    heads = [f'{what} after {length:,}' for length in lengths for what in ('read', 'drawn')]
    return ['ms per token (CPU)', *heads], [[name, *cells] for name, cells in found.items()]


def evaluation_call(config: Any, lanes: int) -> Callable[[], Any]:
    """Scores one more segment of every lane."""
    config.evaluate.num_lanes = lanes
    experiment, params = new_model(config)
    evaluator = Evaluator(experiment.evaluation_model, experiment.mesh, config)
    batch = sharding.from_processes(experiment.mesh, random_batch(config, config.evaluate, 1), 1)
    initial = evaluator.initial_state(params, lanes)
    holder = [jax.tree.map(jax.numpy.copy, initial)]

    def call() -> Any:
        holder[0], sums = evaluator.step(params, initial, holder[0], batch)
        return sums

    return call


def by_lanes(memories: Sequence[str], rounds: int, toy: bool) -> Table:
    """Evaluation with new parameters, after memories are filled."""
    counts = (1, 2) if toy else LANES
    rows = []
    for memory in memories:
        calls = {lanes: evaluation_call(config_of(memory, toy), lanes) for lanes in counts}
        length = config_of(memory, toy).evaluate.segment_length
        times = in_turns(calls, 2 * rounds, untimed=1 if toy else 66)
        cells = [shown(times[lanes], lanes * length, 1, unit=1e3) for lanes in counts]
        rows.append([memory, *cells])
    return ['us per token (CPU)', *(f'lanes: {lanes}' for lanes in counts)], rows


def compiling(memories: Sequence[str], rounds: int, toy: bool) -> Table:
    """Forward and backward of cases of `compare.py`, without a cache of programs."""
    del memories, rounds
    kept = jax.config.jax_enable_compilation_cache
    jax.config.update('jax_enable_compilation_cache', False)
    rows = []
    for peer, case in COMPILED[:1] if toy else COMPILED:
        step = ours.build(CASES[peer][case], TOY if toy else FULL)
        clocks = [(time.perf_counter(), time.process_time())]
        lowered = step.lower()
        clocks.append((time.perf_counter(), time.process_time()))
        lowered.compile()
        clocks.append((time.perf_counter(), time.process_time()))
        cells = [
            f'{b[0] - a[0]:.1f} ({b[1] - a[1]:.1f})'
            for a, b in zip(clocks[:-1], clocks[1:], strict=True)
        ]
        rows.append([f'{peer} {case}', *cells])
    jax.config.update('jax_enable_compilation_cache', kept)
    return ['seconds (CPU)', 'traced', 'compiled'], rows


def devices(memories: Sequence[str], rounds: int, toy: bool) -> Table:
    """A training step of `configs/benchmark.py` with Adam; lanes are split over the devices."""
    del memories
    if jax.device_count() < 2:
        raise SystemExit('This part needs two devices: run it by --part=devices.')
    rows = []
    for argument in ON_DEVICES[1:2] if toy else ON_DEVICES:
        calls = {}
        for number in (1, 2):
            config = benchmark.get_config(argument)
            if toy:
                size(config, layers=4, width=16, heads=2, feed_forward=16)
            mesh = sharding.make_mesh(ONE_DEVICE | dict(data=number), jax.devices()[:number])
            calls[number] = train_call(Experiment(config, None, mesh))
        times = in_turns(calls, rounds, untimed=1 if toy else 12)
        ratio = times[1]['wall']['median'] / times[2]['wall']['median']
        cells = [shown(times[number], 1, 1) for number in (1, 2)]
        rows.append([f'`:{argument}`' if argument else 'Transformer-XL', *cells, f'{ratio:.2f}'])
    return ['ms per step (CPU)', 'one device', 'two', 'one / two, wall'], rows


PARTS: dict[str, Callable[[Sequence[str], int, bool], Table]] = {
    'contexts': contexts,
    'lanes': by_lanes,
    'compiling': compiling,
    'devices': devices,
    'host': host.measure,
}


def run_part(part: str, options: argparse.Namespace) -> Table:
    """One part in a process of its own, which has its own devices and caches."""
    given = [f'--part={part}', f'--rounds={options.rounds}', f'--memories={options.memories}']
    command = [sys.executable, '-m', 'experiments.speed.scaling', '--json', *given]
    done = subprocess.run([*command, *['--toy'] * options.toy], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f'--part={part} ended with exit code {done.returncode}; see above.')
    heads, rows = json.loads(done.stdout.splitlines()[-1])
    return heads, rows


def main(arguments: Sequence[str] | None = None) -> dict[str, Table]:
    """Runs the command; returns the tables by part."""
    parser = make_parser(__doc__)
    parser.add_argument('--part', choices=PARTS, help='default: all')
    parser.add_argument(
        '--memories', default=','.join(MEMORIES), help='of the first two tables, any'
    )
    parser.add_argument('--rounds', type=int, default=12)
    parser.add_argument('--toy', action='store_true', help='tiny models, to see that it runs')
    parser.add_argument('--json', action='store_true', help='print JSON, for one part')
    parser.add_argument('--output', type=Path, help='a JSON file')
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error(f'--rounds={options.rounds}: at least one')
    if options.json and not options.part:
        parser.error('--json: needs --part; for all parts use --output=FILE.json')
    if options.json and options.output:
        parser.error('--json: prints, and writes no --output')
    if options.output and not options.output.absolute().parent.is_dir():
        parser.error(f'--output={options.output}: its folder does not exist')
    memories = options.memories.split(',')
    try:
        for memory in memories:
            config_of(memory, options.toy)
    except UsageError as error:
        parser.error(str(error))
    if options.part:
        if options.part == 'devices':  # nothing has used a device yet
            jax.config.update('jax_num_cpu_devices', 2)
        found = {options.part: PARTS[options.part](memories, options.rounds, options.toy)}
    else:
        found = {part: run_part(part, options) for part in PARTS}
    if options.json:
        print(json.dumps(found[options.part]))
        return found
    for heads, rows in found.values():
        print(table(heads, rows), end='\n\n')
    if options.output:
        provenance.save(options.output, found, [0])
    return found


if __name__ == '__main__':
    main()
