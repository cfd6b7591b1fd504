"""What of a Python file counts: its syntax tree, without comments, docstrings, formatting and what is for type checkers."""

import ast
import hashlib
from collections.abc import Iterator
from typing import Any

DIGITS = 32  # hexadecimal: 128 bits

# Fields of nodes that say how something is written, not what it does.
UNREAD = ("kind", "type_comment", "type_ignores")


def parsed(source: str) -> ast.Module:
    """The tree of a file, without docstrings and without what stands below `if TYPE_CHECKING`.

    Raises: SyntaxError: it is no Python.
    """
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(
            node, clean=False
        ):
            del node.body[0]
    return _ForTypes().visit(tree)


class _ForTypes(ast.NodeTransformer):
    """Leaves of `if TYPE_CHECKING: … else: …` what is run."""

    def visit_If(self, node: ast.If) -> Any:
        self.generic_visit(node)
        name = node.test.attr if isinstance(node.test, ast.Attribute) else getattr(node.test, "id", None)
        return node.orelse if name == "TYPE_CHECKING" else node


def digest(tree: ast.AST) -> str:
    """Of a tree; the same under every version of Python that parses it.

    Versions differ in which empty fields nodes have, and in which characters `repr` escapes; so empty ones are left out, and
    all beyond ASCII is escaped.
    """
    content = hashlib.sha256()
    for piece in _written(tree):
        content.update(piece.encode("ascii"))
    return content.hexdigest()[:DIGITS]


def _written(value: Any) -> Iterator[str]:
    if isinstance(value, ast.AST):
        yield f"{type(value).__name__}("
        for name, field in sorted(ast.iter_fields(value)):
            if name not in UNREAD and field is not None and field != []:
                yield f"{name}="
                yield from _written(field)
        yield ")"
    elif isinstance(value, list):
        yield "["
        for item in value:
            yield from _written(item)
            yield ","
        yield "]"
    else:
        yield f"{type(value).__name__} {value!a} "
