"""What a compiled TPU program moves through the memory of the chip, and its cycles, by part; no TPU.

python -m experiments.tpu_programs 'pg19, fused' --all_layers --program=FILE
python -m experiments.program_bytes FILE

Counted are operands and results of the operations of the program and of the bodies of its loops, each
once, without those that stay in the fast memory of the chip. XLA's own count (`bytes accessed`) has
the latter, too, and every block that a kernel reads again. So this is the least that is moved.
"""

import math
import re
import sys
from collections import Counter
from pathlib import Path

from experiments import markdown, tpu_cycles

FAST = re.compile(r'\w+\[[\d,]*\]\{[^}]*S\([1-9]\)[^}]*\}')  # arrays in the fast memory
# These move nothing, or end what another operation began.
NOTHING = (
    'get-tuple-element', 'bitcast', 'tuple', 'parameter', 'constant', 'after-all', 'while',
    'conditional', 'iota', 'partition-id',
)  # fmt: skip
PARTS = (  # the first that the name of an operation contains
    ('fused_', 'attention, kernels'),
    ('/attention', 'attention, all else'),
    ('/feed_forward', 'feed-forward layers'),
    ('embedding', 'embedding and softmax'),
    ('/block_', 'all else of a block'),
)

COLLECTIVES = ('all-reduce', 'all-gather', 'reduce-scatter', 'all-to-all', 'collective-permute')
BYTES = {'pred': 1, 's8': 1, 'u8': 1, 'bf16': 2, 's16': 2, 'u16': 2, 'f16': 2, 'f64': 8, 's64': 8}
ASSIGNED = re.compile(r'^\s*(?:ROOT )?(%[\w.-]+) = (\(.*?\)|\S+) ([\w-]+)\((.*)$')
COMPUTATION = re.compile(r'^(?:ENTRY )?(%[\w.-]+) \(')
BODY = re.compile(r'body=(%[\w.-]+)')
_ARRAY = re.compile(r'(\w+)\[([\d,]*)\]')


def size_of(shape: str) -> int:
    """Bytes of the arrays of a shape in HLO, such as '(f32[2,3]{1,0}, bf16[4])'."""
    return sum(
        BYTES.get(dtype, 4) * math.prod(int(axis) for axis in axes.split(',') if axis)
        for dtype, axes in _ARRAY.findall(shape)
    )


def collectives_of(program: str, turns: int) -> int:
    """Bytes of the results of all collective operations in HLO, those in loops `turns` times."""
    bodies, computation, total = set(BODY.findall(program)), '', 0
    for line in program.splitlines():
        if begins := COMPUTATION.match(line):
            computation = begins[1]
        match = ASSIGNED.match(line)
        if match and match[3].removesuffix('-start') in COLLECTIVES:
            total += size_of(match[2]) * (turns if computation in bodies else 1)
    return total


def wide_products_of(program: str) -> tuple[str, ...]:
    """Products of two float32 arrays that do not ask for more than the default precision."""
    shapes, wide = {}, set()
    for line in program.splitlines():
        match = ASSIGNED.match(line)
        if not match:
            continue
        name, shapes[match[1]], operation, rest = match[1], match[2], match[3], match[4]
        if operation not in ('dot', 'convolution') or 'operand_precision={high' in line:
            continue
        operands = re.findall(r'%[\w.-]+', rest.split(')')[0])
        if operands and all(shapes.get(each, '').startswith('f32[') for each in operands):
            named = re.search(r'op_name="([^"]*)"', line)
            wide.add(named[1].rpartition('/closed_call/')[2] if named else name)
    return tuple(sorted(wide))


def part_of(name: str) -> str:
    """The part of a model that an operation belongs to, by its name in the program."""
    return next((part for word, part in PARTS if word in name), 'optimizer and all else')


def moved(program: str) -> dict[str, float]:
    """Gigabytes by part, the largest first.

    Args:
      program: HLO after all optimizations, as text.
    """
    bodies, inside = set(BODY.findall(program)), False
    shapes: dict[str, str] = {}
    parts: Counter[str] = Counter()
    for line in program.splitlines():
        if begins := COMPUTATION.match(line):
            inside = line.startswith('ENTRY') or begins[1] in bodies
        match = ASSIGNED.match(line)
        if not match:
            continue
        name, operation, rest = match[1], match[3], match[4]
        shapes[name] = FAST.sub('', match[2])
        ends = operation.endswith('-done') or 'ConcatBitcast' in line
        if not inside or ends or operation in NOTHING:
            continue
        named = re.search(r'op_name="([^"]*)"', line)
        operands = re.findall(r'%[\w.-]+', rest.partition('), ')[0])
        if operation == 'copy-start':  # its results are both copies
            total = size_of(shapes[name])
        elif operation == 'slice-start':  # its results are the whole array, the slice, a counter
            total = size_of(match[2]) - size_of(shapes.get(operands[0], ''))
        else:
            total = size_of(shapes[name]) + sum(size_of(shapes.get(each, '')) for each in operands)
        parts[part_of(named[1]) if named else 'copies to and from fast memory'] += total
    return {part: total / 1e9 for part, total in parts.most_common() if total}


def cycles(program: str) -> dict[str, float]:
    """Cycles by part, of a program `tpu_cycles.with_kernels`."""
    parts: dict[str, float] = {}
    for line, number in tpu_cycles.by_operation(program).items():
        named = re.search(r'op_name="([^"]*)"', line)
        part = part_of(named[1] if named else '')
        parts[part] = parts.get(part, 0.0) + number
    return parts


def main() -> None:
    """Prints the table of a program in a file."""
    if len(sys.argv) != 2:
        sys.exit('usage: python -m experiments.program_bytes FILE')
    program = Path(sys.argv[1]).read_text()
    bytes_of, cycles_of = moved(program), cycles(program)
    heads = ['part', 'moved, GB', 'scheduled, million cycles']
    lines = [
        [part, f'{bytes_of.get(part, 0):.2f}', f'{cycles_of.get(part, 0) / 1e6:.2f}']
        for part in [*bytes_of, *sorted(set(cycles_of) - set(bytes_of))]
    ]
    totals = ['all', f'{sum(bytes_of.values()):.2f}', f'{sum(cycles_of.values()) / 1e6:.2f}']
    print(markdown.table(heads, [*lines, totals]))


if __name__ == '__main__':
    main()
