"""What a compiled program says about its operations: the kind of each, and the products in it."""

import dataclasses
import math
import re
from collections.abc import Iterable

# Kinds, in the order in which an operation is asked for them; the last one is everything else.
PRODUCTS, LARGEST, SCATTER, GATHER = 'products', 'largest k, sorting', 'scatter', 'gather'
MOVES, MIXED, OTHERS = 'moves', 'elementwise with pads', 'other elementwise, sums'
KINDS = (PRODUCTS, LARGEST, SCATTER, GATHER, MOVES, MIXED, OTHERS)
# Operations that hold others, which have times of their own.
HOLDERS = {'while', 'conditional', 'call'}
# Operations of loops that CPUs have for one operation of the model are known by its name.
SCATTER_NAME = re.compile(r'/scatter')
LARGEST_NAME = re.compile(r'top_k|topk|_by_comparison|/sort|argsort')
# What an operation may consist of if it only moves numbers; the second line is the index arithmetic.
MOVING = {
    *('bitcast broadcast concatenate constant copy dynamic-slice dynamic-update-slice pad').split(),
    *('parameter reshape reverse slice transpose tuple get-tuple-element').split(),
    *('and clamp compare iota not or select').split(),
}
LINE = re.compile(r'\s*(?:ROOT )?%([\w.\-]+) = (\(.*?\)|\S+) ([a-z][\w\-]*)\((.*)')
HEAD = re.compile(r'(?:ENTRY )?%([\w.\-]+) \(.*\{$')


@dataclasses.dataclass(frozen=True)
class Operation:
    """One line of a program.

    Attributes:
      name: unique in the program.
      shape: of the result, as HLO writes it.
      code: what it does, such as 'dot' or 'fusion'.
      rest: the text after its opening bracket: operands, attributes, metadata.
    """

    name: str
    shape: str
    code: str
    rest: str

    @property
    def operands(self) -> list[str]:
        """Names of the operands."""
        return re.findall(r'%([\w.\-]+)', self.rest.split(')')[0])

    @property
    def source(self) -> str:
        """Where the model asks for it: names of modules and functions, '' if unknown."""
        found = re.search(r'op_name="([^"]*)"', self.rest)
        return found[1] if found else ''

    @property
    def calls(self) -> str:
        """The computation of a fusion, '' of others."""
        found = re.search(r'calls=%?([\w.\-]+)', self.rest)
        return found[1] if found else ''


class Program:
    """The text of a compiled program (`jax.stages.Compiled.as_text`).

    Attributes:
      name: of the module, as traces have it.
      operations: by name.
    """

    def __init__(self, text: str):
        """Reads it; lines that are no operations are passed over."""
        self.name = re.search(r'HloModule ([\w.\-]+)', text)[1]
        self.operations: dict[str, Operation] = {}
        self._computations: dict[str, list[Operation]] = {}
        inside: list[Operation] = []
        for line in text.splitlines():
            if head := HEAD.match(line):
                inside = self._computations.setdefault(head[1], [])
            elif found := LINE.match(line):
                operation = Operation(*found.groups())
                self.operations[operation.name] = operation
                inside.append(operation)

    def parts(self, name: str) -> list[Operation]:
        """An operation, or all that a fusion consists of, those of inner fusions included."""
        operation = self.operations[name]
        if operation.code != 'fusion':
            return [operation]
        inner = self._computations.get(operation.calls, ())
        return [part for each in inner for part in self.parts(each.name)]

    def kind(self, name: str) -> str:
        """One of `KINDS`; of a loop, a branch or a call, which hold others, maybe ''."""
        operation = self.operations[name]
        parts = self.parts(name)
        codes = {part.code for part in parts}
        if 'dot' in codes or 'convolution' in codes:
            return PRODUCTS
        sources = [operation.source, *(part.source for part in parts if part.code != 'parameter')]
        # The call of a library for the k largest has its name in the attributes.
        if codes & {'sort', 'topk'} or any(map(LARGEST_NAME.search, [*sources, operation.rest])):
            return LARGEST
        if codes & {'scatter', 'select-and-scatter'} or SCATTER_NAME.search(operation.source):
            return SCATTER
        if operation.code in HOLDERS:
            return ''
        if 'gather' in codes:
            return GATHER
        if all(self._moves(part) for part in parts):
            return MOVES
        return MIXED if codes & {'pad', 'concatenate', 'transpose'} else OTHERS

    def holds(self, name: str) -> bool:
        """Whether it is a loop, a branch or a call, whose operations have times of their own."""
        return self.operations[name].code in HOLDERS

    def flops(self, name: str) -> int:
        """Floating point operations of the products in it."""
        return sum(self._product(part) for part in self.parts(name) if part.code == 'dot')

    def _moves(self, operation: Operation) -> bool:
        # Whatever is computed with integers and truth values says where numbers go.
        return operation.code in MOVING or operation.shape.startswith(('s32[', 'u32[', 'pred['))

    def _product(self, dot: Operation) -> int:
        left = sizes(self.operations[dot.operands[0]].shape)
        summed = re.search(r'lhs_contracting_dims=\{([\d,]*)\}', dot.rest)[1]
        return 2 * math.prod(sizes(dot.shape)) * math.prod(left[int(i)] for i in whole(summed))


def whole(text: str) -> Iterable[str]:
    """The numbers of 'a,b,c', none of ''."""
    return filter(None, text.split(','))


def sizes(shape: str) -> list[int]:
    """[4, 128] of 'f32[4,128]{1,0}'."""
    return [int(size) for size in whole(re.search(r'\[([\d,]*)\]', shape)[1])]
