"""The changes: one operator, constant, condition, statement or result of a source replaced by another."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.MatMult: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
#: A constant below this size is a tolerance, and is made so many times larger.
TOLERANCE, LARGER = 1e-2, 1e4
#: Fields of the syntax tree that hold no behaviour.
PASSED_OVER = {"annotation", "returns", "decorator_list", "type_comment", "type_params"}


@dataclass(frozen=True)
class Mutation:
    """One change: `new` in the place of `old`, which `owner` holds in its `field` (at `index` of a list)."""

    line: int
    text: str
    owner: ast.AST
    field: str
    index: int | None
    old: Any
    new: Any

    def apply(self) -> None:
        self._put(self.new)

    def undo(self) -> None:
        self._put(self.old)

    def _put(self, value: Any) -> None:
        if self.index is None:
            setattr(self.owner, self.field, value)
        else:
            getattr(self.owner, self.field)[self.index] = value


def mutations(tree: ast.Module) -> Iterator[Mutation]:
    """Iterate every change of a module, in the order of its lines as far as the tree has it."""
    yield from _within(tree)


def _within(owner: ast.AST) -> Iterator[Mutation]:
    for field, value in ast.iter_fields(owner):
        if field in PASSED_OVER:
            continue
        places = enumerate(value) if isinstance(value, list) else [(None, value)]
        for index, child in places:
            if not isinstance(child, ast.AST) or _has_no_behaviour(child):
                continue
            for new, text in _replacements(child):
                ast.fix_missing_locations(ast.copy_location(new, child))
                yield Mutation(getattr(child, "lineno", 0), text, owner, field, index, child, new)
            yield from _within(child)


def _has_no_behaviour(node: ast.AST) -> bool:
    """Whether tests have nothing to hold here: docstrings, `__all__`, imports for types, words of messages.

    That an error is raised is held by the changes of its condition.  What `strict` of `zip` would raise is a
    fault of the program, which has none to show it.
    """
    match node:
        case ast.keyword(arg="strict"):
            return True
        case ast.Expr(value=ast.Constant()) | ast.Raise():
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.Assign(targets=[ast.Name(id="__all__")]):
            return True
    return False


def _replacements(node: ast.AST) -> Iterator[tuple[Any, str]]:
    if isinstance(node, ast.expr):
        yield from _other_expressions(node)
    elif isinstance(node, ast.stmt):
        yield from _other_statements(node)


def _other_expressions(node: ast.expr) -> Iterator[tuple[ast.expr, str]]:
    match node:
        case ast.Compare(ops=[operator]):
            for other in COMPARISONS.get(type(operator), ()):
                yield _changed(ast.Compare(node.left, [other()], node.comparators), node)
        case ast.BoolOp(op, values):
            other_op = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield _changed(ast.BoolOp(other_op, values), node)
            for position, value in enumerate(values):
                rest = values[:position] + values[position + 1 :]
                new = rest[0] if len(rest) == 1 else ast.BoolOp(op, rest)
                yield new, f"{_short(node)}: without {_short(value)}"
        case ast.BinOp(left, op, right) if type(op) in ARITHMETIC and not _is_text(left, right):
            yield _changed(ast.BinOp(left, ARITHMETIC[type(op)](), right), node)
        case ast.UnaryOp(ast.Not() | ast.USub(), operand):
            yield _changed(operand, node)
        case ast.Constant(value=bool() | int() | float() as value):
            yield _changed(ast.Constant(_other_constant(value)), node)
        case ast.IfExp(test, body, orelse):
            yield _changed(ast.IfExp(test, orelse, body), node)


def _other_statements(node: ast.stmt) -> Iterator[tuple[ast.stmt, str]]:
    """Conditions negated, results lost, and statements left out whose absence is no error of names."""
    match node:
        case ast.If(test=test):
            new = ast.If(ast.UnaryOp(ast.Not(), test), node.body, node.orelse)
            yield new, f"if {_short(test)}: negated"
        case ast.Return(value=ast.expr()) if ast.unparse(node) != "return None":
            yield _changed(ast.Return(ast.Constant(None)), node)
        case ast.AugAssign(target, op, value):
            if type(op) in ARITHMETIC:
                yield _changed(ast.AugAssign(target, ARITHMETIC[type(op)](), value), node)
            yield ast.Pass(), f"{_short(node)}: dropped"
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.Break() | ast.Continue():
            yield ast.Pass(), f"{_short(node)}: dropped"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript(), *_]):
            yield ast.Pass(), f"{_short(node)}: dropped"


def _is_text(*nodes: ast.AST) -> bool:
    return any(
        isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))
        for node in nodes
    )


def _other_constant(value: float) -> float:
    if isinstance(value, bool):
        return not value
    return value * LARGER if 0.0 < abs(value) < TOLERANCE else value + 1


def _changed(new: Any, old: ast.AST) -> tuple[Any, str]:
    return new, f"{_short(old)} -> {_short(new)}"


def _short(node: ast.AST) -> str:
    text = ast.unparse(node).split("\n")[0]
    return text if len(text) <= 60 else f"{text[:57]}..."
