"""The part of a Python file that counts: its syntax tree, without comments, docstrings, formatting and type-checking code."""

import ast
import hashlib
from collections.abc import Iterator
from functools import cache
from typing import Any

DIGITS = 32  # hexadecimal: 128 bits

# Fields of nodes that say how something is written, or follow from where it stands.
UNREAD = frozenset({"ctx", "kind", "type_comment", "type_ignores"})
BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")  # fields with statements, or with what has a body of statements


def parse_code(source: str) -> ast.Module:
    """The tree of a file, without docstrings and without code under `if TYPE_CHECKING`.

    Raises:
        SyntaxError: it is not valid Python.
    """
    tree = ast.parse(source)
    tree.body = _without_words(tree.body)
    return tree


def _without_words(block: list[Any]) -> list[Any]:
    """Statements without those that are texts, such as docstrings, and the branch of `if TYPE_CHECKING` that is not run."""
    kept: list[Any] = []
    for statement in block:
        for name in BLOCKS:
            if inner := getattr(statement, name, None):
                setattr(statement, name, _without_words(inner))
        match statement:
            case ast.Expr(ast.Constant(str())):
                pass
            case ast.If(ast.Name("TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
                kept += statement.orelse
            case _:
                kept.append(statement)
    return kept


def statements_of(statement: ast.AST) -> Iterator[ast.AST]:
    """A statement and all in its blocks, in any order; no expressions, of which most of a tree consists."""
    waiting = [statement]
    while waiting:
        node = waiting.pop()
        yield node
        for name in BLOCKS:
            waiting += getattr(node, name, ())


def digest(tree: ast.AST) -> str:
    """The digest of a tree; the same under every version of Python that parses it.

    Versions differ in which empty fields nodes have, in empty texts of f-strings, and in which characters `repr` escapes; so
    what is empty is left out, and all non-ASCII characters are escaped.
    """
    return hashlib.sha256(_written(tree).encode("ascii")).hexdigest()[:DIGITS]


def _written(value: Any) -> str:
    if isinstance(value, list):
        return f"[{''.join(f'{_written(item)},' for item in value)}]"
    if not isinstance(value, ast.AST):
        return f"{type(value).__name__} {value!a} "
    fields = [(name, getattr(value, name, None)) for name in _counted_fields(value._fields)]
    if isinstance(value, ast.JoinedStr):
        fields = [("values", [part for part in value.values if not (isinstance(part, ast.Constant) and part.value == "")])]
    return f"{type(value).__name__}({''.join(f'{name}={_written(v)}' for name, v in fields if v is not None and v != [])})"


@cache
def _counted_fields(fields: tuple[str, ...]) -> list[str]:
    return sorted({*fields} - UNREAD)
