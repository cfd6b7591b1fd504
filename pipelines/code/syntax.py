"""The part of a Python file that counts: its syntax tree, without comments, docstrings, formatting and type-checking code."""

import ast
import hashlib
from collections.abc import Callable
from typing import Any

DIGITS = 32  # hexadecimal: 128 bits

# Fields of nodes that say how something is written, or follow from where it stands.
UNREAD = frozenset({"ctx", "kind", "type_comment", "type_ignores"})


def parsed(source: str) -> ast.Module:
    """The tree of a file, without docstrings and without code under `if TYPE_CHECKING`.

    Raises:
        SyntaxError: it is not valid Python.
    """
    return _WithoutWords().visit(ast.parse(source))


class _WithoutWords(ast.NodeTransformer):
    """Removes string statements, such as docstrings, and the branch of `if TYPE_CHECKING: … else: …` that is not run."""

    def visit_Expr(self, node: ast.Expr) -> Any:
        is_text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return None if is_text else self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> Any:
        self.generic_visit(node)
        # Python 3.12 puts an empty text behind the last value in a format.
        node.values = [value for value in node.values if not (isinstance(value, ast.Constant) and value.value == "")]
        return node

    def visit_If(self, node: ast.If) -> Any:
        self.generic_visit(node)
        name = node.test.attr if isinstance(node.test, ast.Attribute) else getattr(node.test, "id", None)
        return node.orelse if name == "TYPE_CHECKING" else node


def digest(tree: ast.AST) -> str:
    """The digest of a tree; the same under every version of Python that parses it.

    Versions differ in which empty fields nodes have, and in which characters `repr` escapes; so empty fields are left out, and
    all non-ASCII characters are escaped.
    """
    pieces: list[str] = []
    _write(tree, pieces.append)
    return hashlib.sha256("".join(pieces).encode("ascii")).hexdigest()[:DIGITS]


def _write(value: Any, write: Callable[[str], None]) -> None:
    if isinstance(value, ast.AST):
        write(f"{type(value).__name__}(")
        for name in sorted(value._fields):
            field = getattr(value, name, None)
            if name not in UNREAD and field is not None and field != []:
                write(f"{name}=")
                _write(field, write)
        write(")")
    elif isinstance(value, list):
        write("[")
        for item in value:
            _write(item, write)
            write(",")
        write("]")
    else:
        write(f"{type(value).__name__} {value!a} ")
