"""How many operations the matrix products of a program are, each loop by its turns.

XLA counts the body of a loop once, however often it turns, and nothing of products that libraries
compute on GPUs. So products are counted here, in the program before it is compiled; nothing else is.
Operations are never printed: MLIR would number a whole function for each.
"""

import functools
import math
import re
from typing import Any

import jax

OF_GPU = re.compile('triton|cudnn|mosaic_gpu')
_COST = re.compile(r'"cost_estimate": ?\{[^}]*"flops": ?(\d+)')
_CONTRACTED = re.compile(r'lhs_contracting_dimensions = \[([\d, ]*)\]')
_AXIS = re.compile(r'"([^"]+)"(?:=(\d+))?')


def count(lowered: jax.stages.Lowered, devices: int) -> float:
    """Operations of the products of a program on each of its devices; 0 if they are not known.

    Those of GPU kernels are not. A TPU kernel counts with the estimate that it has. Of choices the
    largest counts, taken or not, see `has_branches`; a loop that is no scan counts as one turn.
    """
    program: Any = lowered.compiler_ir('stablehlo')
    functions, meshes = {}, {}
    for operation in program.body.operations:
        if 'sym_name' not in operation.attributes:
            continue
        name = str(operation.attributes['sym_name']).strip('"')
        if operation.operation.name == 'sdy.mesh':
            sizes = dict(_AXIS.findall(str(operation).partition('>')[0]))
            meshes[name] = {axis: int(size) for axis, size in sizes.items() if size}
        else:
            functions[name] = operation.operation
    try:
        return _Counter(functions, meshes).of_function('main') / devices
    except _Unknown:
        return 0.0


class _Unknown(Exception):
    """The program has a kernel that cannot be counted."""


class _Counter:
    """Counts the products of the functions of a program."""

    def __init__(self, functions: dict[str, Any], meshes: dict[str, dict[str, int]]):
        self._functions, self._meshes = functions, meshes
        self.of_function = functools.cache(self._of_function)

    def _of_function(self, name: str) -> float:
        return sum(self._of_regions(self._functions[name]))

    def _of_regions(self, operation: Any) -> list[float]:
        return [
            sum(self._of(inner.operation) for block in region for inner in block.operations)
            for region in operation.regions
        ]

    def _of(self, operation: Any) -> float:
        kind = operation.name
        if kind == 'stablehlo.dot_general':
            return _of_product(operation)
        if kind in ('func.call', 'call'):
            return self.of_function(str(operation.attributes['callee']).strip('@"'))
        if kind == 'stablehlo.custom_call':
            return _of_kernel(operation)
        inside = self._of_regions(operation)
        if kind == 'stablehlo.while':
            return sum(inside) * (_turns(operation) if sum(inside) else 1)
        if kind in ('stablehlo.case', 'stablehlo.if'):
            return max(inside)
        if kind == 'sdy.manual_computation':
            return sum(inside) * self._parts(operation)
        return sum(inside)

    def _parts(self, operation: Any) -> int:
        """Devices that each run what is written for one."""
        axes = [axis for axis, _ in _AXIS.findall(str(operation.attributes['manual_axes']))]
        used = re.search(r'@"?(\w+)', str(operation.attributes['in_shardings']))
        mesh = self._meshes[used[1]] if used else next(iter(self._meshes.values()))
        return math.prod(mesh[axis] for axis in axes)


def _shape(value: Any) -> list[int]:
    """Of a tensor such as `tensor<16x512xbf16>`."""
    return [int(size) for size in re.findall(r'(\d+)x', str(value.type).partition(',')[0])]


def _of_product(operation: Any) -> float:
    contracted = _CONTRACTED.search(str(operation.attributes['dot_dimension_numbers']))
    left = _shape(operation.operands[0])
    axes = [int(axis) for axis in re.findall(r'\d+', contracted[1])] if contracted else []
    return 2.0 * math.prod(_shape(operation.results[0])) * math.prod(left[axis] for axis in axes)


def _of_kernel(operation: Any) -> float:
    if OF_GPU.search(str(operation.attributes['call_target_name'])):
        raise _Unknown
    settings = (
        operation.attributes['backend_config'] if 'backend_config' in operation.attributes else ''
    )
    found = _COST.search(str(settings).replace('\\22', '"'))
    return float(found[1]) if found else 0.0


def _constant(value: Any) -> int | None:
    """The number that a scalar is, if the program says it."""
    if getattr(value.owner, 'name', '') != 'stablehlo.constant':
        return None
    found = re.fullmatch(r'dense<(-?\d+)> : tensor<u?i\d+>', str(value.owner.attributes['value']))
    return int(found[1]) if found else None


def _turns(operation: Any) -> int:
    """Turns of a loop that counts from 0 to a constant by ones, as a scan does; 1 if it is another."""
    *_, condition = operation.regions[0].blocks[0].operations
    *_, body = operation.regions[1].blocks[0].operations
    compared = condition.operands[0].owner
    if getattr(compared, 'name', '') != 'stablehlo.compare':
        return 1
    counter, end = compared.operands[0], _constant(compared.operands[1])
    number = getattr(counter, 'arg_number', None)
    below = 'LT' in str(compared.attributes['comparison_direction'])
    if number is None or end is None or not below or _constant(operation.operands[number]) != 0:
        return 1
    added = body.operands[number].owner
    if getattr(added, 'name', '') != 'stablehlo.add':
        return 1
    by_one = {(getattr(each, 'arg_number', None), _constant(each)) for each in added.operands}
    return end if by_one == {(number, None), (None, 1)} else 1


def has_branches(lowered: jax.stages.Lowered) -> bool:
    """Whether a program chooses on the device what it computes, so that `count` is a bound."""
    program: Any = lowered.compiler_ir('stablehlo')
    return _chooses(program.operation)


def _chooses(operation: Any) -> bool:
    """Whether an operation of a program, or one inside it, has branches that compute something.

    What depends on the platform is a `case` too, of constant numbers or with one branch.
    """
    bodies = [list(block.operations) for region in operation.regions for block in region]
    computed = {inner.operation.name for body in bodies for inner in body}
    computed -= {'stablehlo.constant', 'stablehlo.return'}
    if operation.name == 'stablehlo.case' and len(bodies) > 1 and computed:
        return True
    return any(_chooses(inner.operation) for body in bodies for inner in body)
