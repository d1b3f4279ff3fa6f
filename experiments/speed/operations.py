"""Where the time of our step goes, by kind of operation, as a Markdown table.

python -m experiments.speed.operations --peer=transformer_xl [--case=1024] [--most=20]

The cases are those of `compare.py`. The steps are traced by `jax.profiler`, and every operation of the
compiled program is counted as one kind (`programs.py`). Operations of a kind that run at once, and one
that several cores share, count once. `GF/s` is the rate of all products. `loops, branches` is the time
in them outside of their operations, `idle` that outside of all operations. `cores` is the CPU time of
all threads per time of the step: what is missing to their number is the most that sharing can save.
"""

import bisect
import collections
import dataclasses
import itertools
import statistics
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import jax
from jax.profiler import ProfileData, ProfileOptions

from experiments.markdown import table
from experiments.options import make_parser
from experiments.speed import ours
from experiments.speed.cases import CASES, FULL, TOY
from experiments.speed.programs import KINDS, PRODUCTS, Program

Interval = tuple[float, float]
# Names in traces of the runtime of XLA for CPUs.
EXECUTE, END, STARTED, ENDED = 'ThunkExecutor::Execute', 'end: ', '_p', '_c'
AT_ONCE = 0.02  # milliseconds


@dataclasses.dataclass(frozen=True)
class Times:
    """Milliseconds per step.

    Attributes:
      wall: of a whole step, while it is traced.
      kinds: by kind, while an operation of it runs. Several kinds may run at once, so their sum may be
        larger than the wall.
      control, idle, cores: see the top of this file.
      flops: of the products of a step.
      operations: by name: milliseconds of all its runs in a step.
    """

    wall: float
    kinds: dict[str, float]
    control: float
    idle: float
    cores: float
    flops: float
    operations: dict[str, float]

    @property
    def rate(self) -> float:
        """GF/s of the products, 0 without any."""
        return self.flops / 1e6 / self.kinds[PRODUCTS] if self.kinds[PRODUCTS] else 0.0


def covered(intervals: Iterable[Interval]) -> float:
    """The length of a union of intervals."""
    total, end = 0.0, float('-inf')
    for first, last in sorted(intervals):
        total += max(0.0, last - max(first, end))
        end = max(end, last)
    return total


def runs_of(program: Program, planes: Iterable[Any]) -> dict[str, list[Interval]]:
    """When every operation of a program ran, in milliseconds.

    Many operations are only started where the trace shows them, and run on other threads. Another event
    with the same number tells where they end. It comes after the operations that waited for this one, if
    its thread runs these first.

    Args:
      program: what was traced.
      planes: of a trace, as `ProfileData` has them.
    """
    began, ends = {}, {}
    for line in itertools.chain.from_iterable(plane.lines for plane in planes):
        calls, ends_here = [], {}
        for event in line.events:
            stats, first = dict(event.stats), event.start_ns / 1e6
            last = first + event.duration_ns / 1e6
            if event.name == EXECUTE:
                calls.append((last, first))
            elif event.name.startswith(END) and ENDED in stats:
                ends_here[stats[ENDED]] = first
            elif stats.get('hlo_module') == program.name and event.name in program.operations:
                began[stats.get(STARTED, (event.name, first))] = (event.name, first, last)
        calls.sort()
        ends |= {number: before(end, calls) for number, end in ends_here.items()}
    runs = collections.defaultdict(list)
    for number, (name, first, last) in began.items():
        runs[name].append((first, max(last, ends.get(number, last))))
    return runs


def before(end: float, calls: Sequence[Interval]) -> float:
    """`end`, or when that call began which was over just then.

    Args:
      end: milliseconds.
      calls: (end, begin) each, sorted.
    """
    index = bisect.bisect_right(calls, (end, float('inf'))) - 1
    return calls[index][1] if index >= 0 and end - calls[index][0] < AT_ONCE else end


def outside(holder: Interval, others: Sequence[Interval]) -> float:
    """The part of an interval in which none of those runs that begin in it; `others` are sorted."""
    first, last = holder
    begin = bisect.bisect_left(others, holder)
    inside = itertools.takewhile(lambda other: other[0] < last, others[begin:])
    return last - first - covered((a, min(b, last)) for a, b in inside if (a, b) != holder)


def times_of(
    program: Program, runs: dict[str, list[Interval]], wall: float, cpu: float, steps: int
) -> Times:
    """Of `steps` steps; a single operation counts with its median.

    Args:
      program, runs: see `runs_of`.
      wall, cpu: milliseconds of all steps, and of all threads in them.
      steps: how many.
    """
    by_kind, operations, flops, control = collections.defaultdict(list), {}, 0.0, 0.0
    everything = sorted(itertools.chain.from_iterable(runs.values()))
    for name, intervals in runs.items():
        kind = program.kind(name)
        if program.holds(name):
            taken = sum(outside(interval, everything) for interval in intervals) / steps
        else:
            each = statistics.median(last - first for first, last in intervals)
            taken = each * len(intervals) / steps
            flops += program.flops(name) * len(intervals) / steps
        operations[name] = taken
        if kind:
            by_kind[kind] += intervals
        else:
            control += taken
    kinds = {kind: covered(by_kind[kind]) / steps for kind in KINDS}
    idle = max(0.0, (wall - covered(everything)) / steps)
    return Times(wall / steps, kinds, control, idle, cpu / wall, flops, operations)


def measure(step: ours.Step, fill: int, steps: int) -> tuple[Program, Times]:
    """Traces `steps` steps after `fill` others."""
    program = Program(step.lower().compile().as_text())
    for _ in range(fill):
        step()
    options = ProfileOptions()
    options.python_tracer_level = 0
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            began, cpu_began = time.perf_counter(), time.process_time()
            for _ in range(steps):
                step()
            wall = 1e3 * (time.perf_counter() - began)
            cpu = 1e3 * (time.process_time() - cpu_began)
        (file,) = Path(folder).rglob('*.xplane.pb')
        runs = runs_of(program, ProfileData.from_file(str(file)).planes)
    if not runs:
        raise SystemExit(f'No operation of {program.name} in the trace: is a device busy tracing?')
    return program, times_of(program, runs, wall, cpu, steps)


def as_table(found: dict[str, Times]) -> str:
    """Milliseconds per step of some cases, a line each."""
    heads = ['case', 'step, ms', *KINDS, 'loops, branches', 'idle', 'cores', 'GF', 'GF/s']
    lines = []
    for name, times in found.items():
        numbers = [times.wall, *times.kinds.values(), times.control, times.idle]
        numbers = [f'{number:.1f}' for number in numbers]
        rates = [f'{times.cores:.2f}', f'{times.flops / 1e9:.1f}', f'{times.rate:.0f}']
        lines.append([name, *numbers, *rates])
    return table(heads, lines)


def largest(program: Program, times: Times, most: int) -> str:
    """The operations that take longest."""
    heads = ['ms', 'GF/s', 'kind', 'operation', 'result', 'of']
    lines = []
    for name, taken in sorted(times.operations.items(), key=lambda item: -item[1])[:most]:
        operation, flops = program.operations[name], program.flops(name)
        rate = f'{flops / 1e6 / taken:.0f}' if flops else ''
        of = operation.source.rsplit('/', 3)[1:]
        lines.append(
            [f'{taken:.2f}', rate, program.kind(name), name, operation.shape, '/'.join(of)]
        )
    return table(heads, lines)


def main(arguments: Sequence[str] | None = None) -> dict[str, Times]:
    """Runs the command; returns the times by case."""
    parser = make_parser(__doc__)
    peers = sorted(
        peer for peer, cases in CASES.items() if not any(c.prompt for c in cases.values())
    )
    parser.add_argument('--peer', required=True, choices=peers)
    parser.add_argument('--case', action='append', help='one of the peer; default: all in turn')
    parser.add_argument('--steps', type=int, default=12, help='that are traced')
    parser.add_argument(
        '--most', type=int, default=0, help='also print this many of the largest operations'
    )
    parser.add_argument('--toy', action='store_true', help='a tiny model, to see that it runs')
    options = parser.parse_args(arguments)
    if options.steps < 1 or options.most < 0:
        parser.error(f'--steps={options.steps}, --most={options.most}: at least 1 and 0')
    cases = CASES[options.peer]
    for name in options.case or ():
        if name not in cases:
            parser.error(f'--case={name}: --peer={options.peer} has {", ".join(cases)}')
    found = {}
    for name in options.case or cases:
        step = ours.build(cases[name], TOY if options.toy else FULL)
        fill = 2 if options.toy else cases[name].fill
        program, found[f'{options.peer} {name}'] = measure(step, fill, options.steps)
        if options.most:
            print(largest(program, found[f'{options.peer} {name}'], options.most), end='\n\n')
    print(as_table(found))
    return found


if __name__ == '__main__':
    main()
