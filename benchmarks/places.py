"""Places of the program's source at which one small break is possible: operators, constants, branches, calls."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Each operator, and its replacement.
OTHERS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.And: ast.Or,
    ast.Or: ast.And,
}


@dataclass(frozen=True)
class Place:
    """One break.

    Attributes:
        file: relative to the root.
        scope: names of the class and function around it, with dots.
        kind: "operator", "constant", "branch" or "call".
        before, after: the source, and its replacement.
        ordinal: index among equal ones of that scope, from 0, so that it is found again in an edited file.
    """

    file: str
    scope: str
    kind: str
    before: str
    after: str
    ordinal: int


@dataclass(frozen=True)
class Span:
    """Where a place is: its first line, counted from 1, and its bytes in the file."""

    line: int
    start: int
    end: int


def places_in(root: Path, file: Path) -> dict[Place, Span]:
    """All breaks of one file."""
    content = file.read_bytes()
    finder = _Finder(content)
    finder.visit(ast.parse(content))
    counted: dict[tuple[str, ...], int] = {}
    spans = {}
    for scope, kind, after, span in finder.replacements:
        before = content[span.start : span.end].decode()
        facts = (str(file.relative_to(root)), ".".join(scope), kind, before, after)
        counted[facts] = counted.get(facts, -1) + 1
        spans[Place(*facts, counted[facts])] = span
    return spans


def broken(content: bytes, place: Place, span: Span) -> bytes:
    """The file with this break."""
    return content[: span.start] + place.after.encode() + content[span.end :]


class _Finder(ast.NodeVisitor):
    """Collects (scope, kind, replacement, span). Annotations, docstrings and the insides of f-strings are left out."""

    def __init__(self, content: bytes):
        self.replacements: list[tuple[tuple[str, ...], str, str, Span]] = []
        self.scope: tuple[str, ...] = ()
        self.starts = [0]
        for line in content.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.JoinedStr):  # before Python 3.12 their positions are those of other text
            return
        for kind, after in _replacements(node):
            self._add(node, kind, after)
        for test in _conditions(node):
            self._add(test, "branch", f"(not ({ast.unparse(test)}))")
        outer = self.scope
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            self.scope = (*outer, node.name)
        for child in _children(node):
            self.visit(child)
        self.scope = outer

    def _add(self, node: ast.AST, kind: str, after: str) -> None:
        at: ast.expr = node  # type: ignore[assignment]
        assert at.end_lineno is not None
        assert at.end_col_offset is not None
        span = Span(at.lineno, self.starts[at.lineno - 1] + at.col_offset, self.starts[at.end_lineno - 1] + at.end_col_offset)
        self.replacements.append((self.scope, kind, after, span))


def _children(node: ast.AST) -> Iterator[ast.AST]:
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "type_params", "pattern"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield child


def _conditions(node: ast.AST) -> list[ast.expr]:
    """Conditions of the branches."""
    if isinstance(node, ast.comprehension):
        return node.ifs
    decides = isinstance(node, ast.If | ast.IfExp | ast.While) and "TYPE_CHECKING" not in ast.unparse(node.test)
    return [node.test] if decides else []  # type: ignore[attr-defined]


def _replacements(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Kinds and sources of the possible replacements of a node."""
    match node:
        case ast.Expr(value=ast.Call()) | ast.Raise():
            yield "call", "pass"
        case ast.Constant(value=bool(value)):
            yield "constant", str(not value)
        case ast.Constant(value=int(value)):
            yield "constant", repr(value + 1)
        case ast.Constant(value=float(value)):
            yield "constant", repr(2 * value or 1.0)
        case ast.UnaryOp(op=ast.Not()):
            yield "operator", f"({ast.unparse(node.operand)})"
        case ast.Compare(ops=[operator]) if type(operator) in OTHERS:
            yield "operator", f"({ast.unparse(ast.Compare(node.left, [_other(operator)], node.comparators))})"
        case ast.BinOp(op=operator) if type(operator) in OTHERS:
            yield "operator", f"({ast.unparse(ast.BinOp(node.left, _other(operator), node.right))})"
        case ast.BoolOp(op=operator):
            yield "operator", f"({ast.unparse(ast.BoolOp(_other(operator), node.values))})"


def _other(operator: ast.AST) -> Any:
    return OTHERS[type(operator)]()
