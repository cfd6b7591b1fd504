"""What of a file counts."""

import pytest

from pipelines.code.syntax import digest, parse_code

FILE = '''\
"""What it does."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from store import FeatureStore


def scaled(x: int, by: float = 2.0) -> "str":
    """Longer."""
    if x:
        y = {**{}, "a": f"{x!r:>{by}}", "b": b"\\x00", "ü": (None, ..., 1j)}
        return str(y)
    return "no"
'''


def of(text: str) -> str:
    return digest(parse_code(text))


@pytest.mark.parametrize(
    ("there", "then"),
    [
        ("    if x:", "    # whether there is one\n    if x:"),
        ('"""Longer."""', '"""Shorter: `x` times `by`."""'),
        ('"""What it does."""\n', ""),
        ('str(y)\n    return "no"', "(str(\n            y))\n    return 'no'"),
        ("    if x:", '    "a note"\n    if x:'),
        ("import FeatureStore", "import FeatureStore, Loader"),
    ],
)
def test_words_do_not_count(there: str, then: str) -> None:
    assert there in FILE
    assert of(FILE.replace(there, then)) == of(FILE)


@pytest.mark.parametrize(
    ("there", "then"),
    [
        ("2.0", "2"),
        ('"no"', 'b"no"'),
        ('"no"', '"No"'),
        ("!r", "!s"),
        ("None, ...", "..., None"),
        ("{**{}, ", "{"),
        ("if x:", "if not x:"),
        ("x: int", "x: str"),
        ("scaled", "scale"),
        ("    if x:", "    ...\n    if x:"),
        ("if TYPE_CHECKING:", "if scaled:"),
    ],
)
def test_what_is_run_counts(there: str, then: str) -> None:
    assert there in FILE
    assert of(FILE.replace(there, then)) != of(FILE)


def test_else_of_what_is_for_types_is_run() -> None:
    text = "if typing.TYPE_CHECKING:\n    a = 1\nelse:\n    a = 2\n"
    assert of(text) == of("a = 2\n")


def test_versions_of_python_agree() -> None:
    """Written under 3.11, and the same under 3.12 and 3.13, whose trees have other empty fields."""
    assert of(FILE) == "f804d80939f8f6d4c1376a364648f26c"


def test_words_do_not_count_in_any_block() -> None:
    heads = ("if a:", "else:", "for b in a:", "while a:", "with a:", "try:", "except A:", "finally:", "class A:")
    heads += ("async def a():",)
    body = "".join(f"{head}\n    {{text}}a\n" for head in heads) + "match a:\n    case 1:\n        {text}a\n"
    assert of(body.format(text="'why';")) == of(body.format(text=""))
