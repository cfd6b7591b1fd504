"""Places of the program's source at which one small break is possible: operators, constants, branches, calls."""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

COMPARISONS = {ast.Lt: ast.LtE, ast.Gt: ast.GtE, ast.Eq: ast.NotEq, ast.In: ast.NotIn, ast.Is: ast.IsNot}
ARITHMETIC = {ast.Add: ast.Sub, ast.Mult: ast.Div, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.BitAnd: ast.BitOr}
OTHERS: dict[type[ast.AST], type[ast.AST]] = {**COMPARISONS, **ARITHMETIC, ast.And: ast.Or, ast.Pow: ast.Mult}
OTHERS |= {other: one for one, other in OTHERS.items() if other not in OTHERS}


@dataclass(frozen=True)
class Place:
    """One break.

    Attributes:
        file: relative to the root.
        scope: names of the class and function around it, with dots.
        kind: "operator", "constant", "branch" or "call".
        before, after: source of what is replaced, and by what.
        ordinal: which of equal ones of that scope, counted from 0, so that it is found again in an edited file.
    """

    file: str
    scope: str
    kind: str
    before: str
    after: str
    ordinal: int


@dataclass(frozen=True)
class Span:
    """Where a place lies: its first line, counted from 1, and its bytes in the file."""

    line: int
    start: int
    end: int


def places_in(root: Path, file: Path) -> dict[Place, Span]:
    """All breaks of one file."""
    content = file.read_bytes()
    finder = _Finder(content)
    finder.visit(ast.parse(content))
    counted: dict[tuple[str, ...], int] = {}
    found = {}
    for scope, kind, after, span in finder.found:
        before = content[span.start : span.end].decode()
        facts = (str(file.relative_to(root)), ".".join(scope), kind, before, after)
        counted[facts] = counted.get(facts, -1) + 1
        found[Place(*facts, counted[facts])] = span
    return found


def broken(content: bytes, place: Place, span: Span) -> bytes:
    """The file with this break."""
    return content[: span.start] + place.after.encode() + content[span.end :]


class _Finder(ast.NodeVisitor):
    """Collects (scope, kind, replacement, span). Annotations, docstrings and the insides of f-strings are left out."""

    def __init__(self, content: bytes):
        self.found: list[tuple[tuple[str, ...], str, str, Span]] = []
        self.scope: tuple[str, ...] = ()
        self.starts = [0]
        for line in content.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.JoinedStr):  # before Python 3.12 their positions are those of other text
            return
        for kind, after in _breaks(node):
            self._add(node, kind, after)
        test = getattr(node, "test", None)
        if isinstance(node, ast.If | ast.IfExp | ast.While) and "TYPE_CHECKING" not in ast.unparse(node.test):
            self._add(node.test, "branch", f"(not ({ast.unparse(node.test)}))")
        if isinstance(node, ast.comprehension):
            for test in node.ifs:
                self._add(test, "branch", f"(not ({ast.unparse(test)}))")
        named = isinstance(node, ast.FunctionDef | ast.ClassDef)
        outer = self.scope
        if named:
            self.scope = (*outer, node.name)  # type: ignore[attr-defined]
        for child in _children(node):
            self.visit(child)
        self.scope = outer

    def _add(self, node: ast.AST, kind: str, after: str) -> None:
        at: ast.expr = node  # type: ignore[assignment]
        assert at.end_lineno is not None
        assert at.end_col_offset is not None
        span = Span(at.lineno, self.starts[at.lineno - 1] + at.col_offset, self.starts[at.end_lineno - 1] + at.end_col_offset)
        self.found.append((self.scope, kind, after, span))


def _children(node: ast.AST) -> Iterator[ast.AST]:
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "type_params", "pattern"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield child


def _breaks(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Kinds and replacements of one node."""
    if (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)) or isinstance(node, ast.Raise):
        yield "call", "pass"
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            yield "constant", str(not node.value)
        elif isinstance(node.value, int | float):
            yield "constant", repr(node.value + 1 if isinstance(node.value, int) else 2 * node.value or 1.0)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "operator", f"({ast.unparse(node.operand)})"
    else:
        yield from (("operator", f"({after})") for after in _operators(node))


def _operators(node: ast.AST) -> Iterator[str]:
    """The node with its operator replaced."""
    rebuilt: Callable[[ast.AST], ast.AST]
    match node:
        case ast.Compare(ops=[operator]):
            rebuilt = lambda other: ast.Compare(node.left, [other], node.comparators)  # noqa: E731
        case ast.BinOp(op=operator):
            rebuilt = lambda other: ast.BinOp(node.left, other, node.right)  # noqa: E731
        case ast.BoolOp(op=operator):
            rebuilt = lambda other: ast.BoolOp(other, node.values)  # noqa: E731
        case _:
            return
    if other := OTHERS.get(type(operator)):
        yield ast.unparse(rebuilt(other()))
