"""The part of a Python file that counts: its syntax tree, without comments, docstrings, formatting and type-checking code."""

import ast
import hashlib
from collections.abc import Callable, Iterator
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


def nodes_of(tree: ast.AST) -> Iterator[ast.AST]:
    """A node and all below it, as `ast.walk`, but in another order and in a third of the time."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for value in node.__dict__.values():
            if isinstance(value, ast.AST):
                waiting.append(value)
            elif isinstance(value, list):
                waiting += [item for item in value if isinstance(item, ast.AST)]


def statements_of(statement: ast.AST) -> Iterator[ast.AST]:
    """A statement and all in its blocks, in any order; no expressions, of which most of a tree consists."""
    waiting = [statement]
    while waiting:
        node = waiting.pop()
        yield node
        for name in BLOCKS:
            waiting += getattr(node, name, ())


def _without_words(block: list[Any]) -> list[Any]:
    """Statements without those that are texts, such as docstrings, and the branch of `if TYPE_CHECKING` that is not run."""
    kept: list[Any] = []
    for statement in block:
        if isinstance(statement, ast.Expr) and _is_text(statement.value):
            continue
        for name in BLOCKS:
            if inner := getattr(statement, name, None):
                setattr(statement, name, _without_words(inner))
        kept += statement.orelse if isinstance(statement, ast.If) and _name(statement.test) == "TYPE_CHECKING" else [statement]
    return kept


def _is_text(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def _name(test: ast.expr) -> str | None:
    return test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", None)


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
        for name in _counted_fields(value._fields):
            field = _without_empty_texts(value.values) if isinstance(value, ast.JoinedStr) else getattr(value, name, None)
            if field is not None and field != []:
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


@cache
def _counted_fields(fields: tuple[str, ...]) -> tuple[str, ...]:
    """Those of the fields of a node that count, in their order of names."""
    return tuple(sorted(set(fields) - UNREAD))


def _without_empty_texts(values: list[ast.expr]) -> list[ast.expr]:
    """Parts of an f-string: Python 3.12 puts an empty text behind the last value in a format."""
    return [value for value in values if not (isinstance(value, ast.Constant) and value.value == "")]
