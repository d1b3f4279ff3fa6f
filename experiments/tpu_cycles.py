"""Cycles of a compiled TPU program, by the compiler's own schedule; no TPU.

XLA writes `estimated_cycles` into every operation that it schedules, and nothing for a Pallas kernel.
Of a kernel it can write the bundles (`keep_bundles`): a core begins at most one of them per cycle. Both
together are the compiler's estimate, without waits for memory inside of kernels: no time of a device.
"""

import bisect
import collections
import os
import re
from pathlib import Path

COMPUTATION = re.compile(r'^(?:ENTRY )?%?([\w.-]+) \(.*\{$')
OPERATION = re.compile(r'^\s*(?:ROOT )?%([\w.-]+) = ')
ESTIMATED = re.compile(r'"estimated_cycles":"(\d{1,18})"')  # 2^64 - 1: the compiler has no estimate
TURNS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
CONDITION = re.compile(r' while\(.*?condition=%([\w.-]+)')
CONSTANT = re.compile(r'%([\w.-]+) = s32\[\]\S* constant\((\d+)\)')
LAST = re.compile(r'ROOT .*? compare\((.*?)\), direction=LT')
BRANCHES = re.compile(r'branch_computations=\{([^}]*)\}|(?:true|false)_computation=(%[\w.-]+)')
BODY = re.compile(r' (?:while|call)\(.*?(?:body|to_apply)=%([\w.-]+)')
KERNEL = 'custom_call_target="tpu_custom_call"'

BUNDLE = re.compile(r'^ *(0x[0-9a-f]+|0) +(?:\w\w)?: ', re.MULTILINE)
REGION = re.compile(r'(?:Start|Start/End empty) region (\d+)')
BRANCH = re.compile(r'sbr\.rel(?: \(!?%(\w+)\))? target = \$region(\d+)')
COMPARED = r'%{} = scmp\.ge\.s32\.totalorder %\w+, (\d+)'


def keep_bundles(folder: Path) -> None:
    """Lets libtpu, if it is not loaded yet, write the bundles of all that it compiles to a folder."""
    os.environ['LIBTPU_INIT_ARGS'] = (
        f'--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true '
        '--xla_jf_dump_llo_pass_label_regex=final_bundles'
    )


def with_kernels(program: str, folder: Path) -> str:
    """The program with `estimated_cycles` behind the lines of its kernels, by their bundles.

    Raises:
      FileNotFoundError: of a kernel nothing was written.
    """
    lines = program.splitlines()
    for number, line in enumerate(lines):
        if KERNEL in line and (match := OPERATION.match(line)):
            # Kernels that are alike are compiled once, under the name of one of them.
            for name in (match[1], match[1].partition('.')[0]):
                files = sorted(folder.glob(f'*-{name}[-.]*[0-9]-final_bundles.txt'))
                if files:
                    break
            else:
                raise FileNotFoundError(f'{folder}: no bundles of the kernel {match[1]}')
            lines[number] += f', "estimated_cycles":"{of_kernel(files[0].read_text()):.0f}"'
    return '\n'.join(lines)


def of_kernel(text: str) -> float:
    """Cycles of a kernel, from its bundles.

    A kernel is a loop over the steps of its grid. What a step may leave out are regions that a branch
    jumps over. The largest one of several is counted in every step, as if all blocks were read; the
    others once in a turn of the innermost axis, such as what begins and ends a block. Loops in a step
    are counted once.
    """
    bundles = list(BUNDLE.finditer(text))
    starts = [bundle.start() for bundle in bundles]
    address = [int(bundle[1], 16) for bundle in bundles]

    def at(place: int) -> int:
        return address[bisect.bisect_right(starts, place) - 1]

    region: dict[str, int] = {}
    for match in REGION.finditer(text):
        region.setdefault(match[1], at(match.start()))
    jumps = [
        (at(match.start()), region[match[2]], match[1])
        for match in BRANCH.finditer(text)
        if match[2] in region
    ]
    loops = [(to, start, flag) for start, to, flag in jumps if to <= start]
    total = address[-1] + 1
    if not loops:
        return total
    first, last, flag = max(loops, key=lambda loop: loop[1] - loop[0])
    steps = re.findall(COMPARED.format(flag), text)
    inner = next(
        (int(m[1]) for m in re.finditer(COMPARED.format(r'\w+'), text) if at(m.start()) >= first), 1
    )
    if not steps:
        return total  # a loop that is no grid
    skipped = sorted({(start + 1, to) for start, to, _ in jumps if first <= start < to <= last})
    length = last + 1 - first
    return total - length + int(steps[-1]) * _step(first, last + 1, skipped, inner)


def _step(start: int, end: int, skipped: list[tuple[int, int]], inner: int) -> float:
    """Mean bundles of a step between two addresses; `skipped`: regions inside, sorted."""
    costs, outside, place = [], end - start, start
    for since, to in skipped:
        if since >= place:  # not inside of the region before
            within = [each for each in skipped if since < each[0] and each[1] <= to]
            costs.append(_step(since, to, within, inner))
            outside, place = outside - (to - since), to
    largest = max(costs, default=0.0)
    return outside + largest + (sum(costs) - largest) / inner


def by_operation(program: str) -> dict[str, float]:
    """Cycles by the lines of the operations that have any, those in loops times their turns.

    Args:
      program: HLO after all optimizations, as text, `with_kernels`.
    """
    bodies: dict[str, list[str]] = {}
    entry = name = ''
    for line in program.splitlines():
        if match := COMPUTATION.match(line):
            name = match[1]
            entry = name if line.startswith('ENTRY') else entry
            bodies[name] = []
        elif name:
            bodies[name].append(line)

    def turns_of(line: str) -> int:
        """Of a loop that counts up to a constant, as those of JAX do; 1 if it is another."""
        if known := TURNS.search(line):
            return int(known[1])
        condition = CONDITION.search(line)
        lines = bodies.get(condition[1], []) if condition else []
        constants = dict(match.groups() for line in lines if (match := CONSTANT.search(line)))
        last = next((match[1] for line in lines if (match := LAST.search(line))), '')
        return next((int(n) for name, n in constants.items() if f'%{name}' in last.split(', ')), 1)

    def of(computation: str, turns: float) -> collections.Counter[str]:
        found: collections.Counter[str] = collections.Counter()
        for line in bodies.get(computation, ()):
            match = OPERATION.match(line)
            if not match:
                continue
            known = ESTIMATED.search(line)
            found[line] += turns * float(known[1] if known else 0)
            if body := BODY.search(line):
                found.update(of(body[1], turns * turns_of(line)))
            branches = [
                each.strip().lstrip('%')
                for groups in BRANCHES.findall(line)
                for each in ','.join(groups).split(',')
                if each.strip()
            ]
            if branches:
                choices = [of(each, turns) for each in branches]
                found.update(max(choices, key=lambda choice: sum(choice.values())))
        return found

    return {line: cycles for line, cycles in of(entry, 1.0).items() if cycles}
