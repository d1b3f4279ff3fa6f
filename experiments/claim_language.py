"""The language of claims: expressions of cells, in the syntax of Python, which is never run.

Numbers, names of cells, + - * /, and min, max, mean, sum, count and abs of cells; predicates have
< <= > >= == between single numbers, and `and`, `or`. Between two sets of cells + - * / are taken seed by
seed, and refused if their seeds differ.
"""

import ast
import operator
from typing import Any, NamedTuple

import numpy as np

FUNCTIONS = dict(
    min=np.min, max=np.max, mean=np.mean, median=np.median, sum=np.sum, count=np.size, abs=np.abs
)
ARITHMETIC = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
COMPARISONS = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
}


class Cells(NamedTuple):
    """Numbers, and the keys that tell them apart, such as seeds."""

    values: np.ndarray
    keys: tuple[str, ...] = ()


def number(text: str, cells: dict[str, Cells]) -> float:
    """The value of an expression.

    Raises:
      ValueError: it is several numbers or a predicate, or more than the language has.
    """
    return _single(_value(_parsed(text), cells))


def true(text: str, cells: dict[str, Cells]) -> bool:
    """Whether a predicate holds.

    Raises:
      ValueError: it is a number, or more than the language has.
    """
    found = _value(_parsed(text), cells)
    if not isinstance(found, bool):
        raise ValueError(f'{text}: a number, not a predicate')
    return found


def _parsed(text: str) -> ast.expr:
    return ast.parse(text.strip(), mode='eval').body


def _single(cells: Any) -> float:
    if not isinstance(cells, Cells) or cells.values.size != 1:
        raise ValueError(f'{cells}: several numbers; use min, max or mean')
    return cells.values.item()


def _known(ops: list[ast.cmpop]) -> bool:
    return all(type(op) in COMPARISONS for op in ops)


def _value(node: ast.expr, cells: dict[str, Cells]) -> Any:
    """`Cells`, or a bool."""
    match node:
        case ast.Constant(value=int() | float() as value):
            return Cells(np.asarray(value, float))
        case ast.Name(id=name) if name in cells:
            return cells[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = _value(operand, cells)
            return inner._replace(values=-inner.values)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC:
            first, second = _value(left, cells), _value(right, cells)
            several = [side.keys for side in (first, second) if side.values.size > 1]
            if len(several) == 2 and several[0] != several[1]:
                raise ValueError(f'{ast.unparse(node)}: cells of {several[0]} and {several[1]}')
            keys = several[0] if several else ()
            return Cells(ARITHMETIC[type(op)](first.values, second.values), keys)
        case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if name in FUNCTIONS:
            inner = _value(argument, cells)
            keys = inner.keys if name == 'abs' else ()
            return Cells(np.asarray(FUNCTIONS[name](inner.values)), keys)
        case ast.Compare(left=left, ops=ops, comparators=others) if _known(ops):
            sides = [_single(_value(side, cells)) for side in (left, *others)]
            pairs = zip(ops, sides, sides[1:], strict=False)
            return all(COMPARISONS[type(op)](first, second) for op, first, second in pairs)
        case ast.BoolOp(op=op, values=values):
            found = [_value(value, cells) for value in values]
            if all(isinstance(value, bool) for value in found):
                return all(found) if isinstance(op, ast.And) else any(found)
    raise ValueError(f'{ast.unparse(node)}: not in the language of claims')
