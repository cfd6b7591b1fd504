"""Names of params.yaml, which become paths and parts of commands; and values that dvc.yaml puts into commands beside them."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipelines.parameters.commands import QUOTED, check_commands
from pipelines.parameters.heads import folders_of
from pipelines.parameters.params import NAMED, NAMING, OTHERS, read_params
from store import BeyondClsError

HOSTILE = ("../../../x", "..", ".hidden", "a/b", "/etc/x", "a\\b", "", "x" * 101, "-rf", "+x", "x:y", "x*", "x#", "x|y", "x'y")
HOSTILE += ("x y", "x; touch y", "$(touch y)", "`touch y`", "x\n", "x\ny", "x\u2028y", "x\0", "x\u202ey")


def within(place: str, value: Any) -> dict[str, Any]:
    """A parameter file with a value at a place; `*` is an entry `one`."""
    for part in reversed(place.split(".")):
        value = {part.replace("*", "one"): value}
    return value


def read(tmp_path: Path, content: Any) -> dict[str, Any]:
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(content))
    return read_params(tmp_path / "params.yaml")


@pytest.mark.parametrize("name", HOSTILE)
def test_names_that_could_be_something_else(name: str, tmp_path: Path) -> None:
    with pytest.raises(BeyondClsError, match=f"encoders in .*{re.escape(repr(name)[:80])}"):
        read(tmp_path, {"encoders": {"mae": {}, name: {}}})


@pytest.mark.parametrize("place", [*NAMED, *(f"{section}.*.{name}" for section in NAMING for name in OTHERS)])
def test_wherever_there_are_names_or_an_entry_names_others(place: str, tmp_path: Path) -> None:
    for values in (["c", "a;b"], {"c": {}, "a;b": None}) if place in NAMED else ("a;b", ["a;b"]):
        with pytest.raises(BeyondClsError, match=place.replace("*", "one")):
            read(tmp_path, within(place, values))
    assert read(tmp_path, within(place, {"c": {}, "d": {}} if place in NAMED else "c"))


ORDINARY = ("vit_base_patch16_224.mae", "mae-b16", "cifar10", "2024", "dinov2+reg", "a..b", "x" * 100)


@pytest.mark.parametrize("name", [*ORDINARY, "große_Bilder", "图像", "_own", "C-10.1", None, 2024, 1.5])
def test_ordinary_names(name: Any, tmp_path: Path) -> None:
    """Also those that are numbers, or left out."""
    params = read(tmp_path, {"datasets": [name], "studies": {"s": {"dataset": name, "heads": {"x": {}}}}, "heads": None})
    assert params["datasets"] == [name]
    assert not isinstance(name, str) or [*read(tmp_path, {"encoders": {name: {}}})["encoders"]] == [name]


@pytest.mark.parametrize("place", QUOTED)
def test_values_that_a_shell_would_read_as_more(place: str) -> None:
    for value in ("'; touch y; '", "x\ntouch y", "x\0", ["1", "$(touch y)"], {"x; touch y": 1}):
        with pytest.raises(BeyondClsError, match=f"{place.replace('*', 'one')} .* a shell would"):
            check_commands(within(place, value))
    for value in (None, 5, 0.5, True, "1,3,-1", "s3://bucket/my images", '$HOME; `x` \\ "y" & z', "~/Bilder/größer"):
        check_commands(within(place, value))  # in single quotes these are themselves


@pytest.mark.parametrize("head", ["../x", "..", "a/b", "heads/x.py:..", "x; y"])
def test_heads_on_the_command_line_are_names_of_folders(head: str) -> None:
    for asked in (head, f"{head}:depth=2", "=cls", "..=cls", "a/b=cls"):
        with pytest.raises(BeyondClsError, match=r"a head has the name .*, which becomes part of paths"):
            folders_of(["cls", asked])
    assert folders_of(["cls", "../../heads/x.py:Own"]) == {"cls": "cls", "Own": "../../heads/x.py:Own"}


# Parameter files that no one would write by hand: each is a message at once, whatever it would become in memory.


def nested(of: str, n: int = 9) -> str:
    """Nine levels, each of which has nine times the one before it by aliases."""
    lines = (f"a{level}: &a{level} {of.format(*[f'*a{level - 1}'] * n)}" for level in range(1, 10))
    return "\n".join(("a0: &a0 {x: 1}", *lines))


LISTS = nested("[{}, {}, {}, {}, {}, {}, {}, {}, {}]")
MERGED = nested("{{<<: [{}, {}, {}, {}, {}, {}, {}, {}, {}]}}")
CHAIN = "\n".join(("a0: &a0 [x]", *(f"a{level}: &a{level} [*a{level - 1}]" for level in range(1, 60))))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *((text, "more than 100,000 values or 50 levels.*line 6") for text in (LISTS, MERGED)),
        (CHAIN, "more than 100,000 values or 50 levels.*line 50"),
        ("a: " + "[" * 60 + "]" * 60, "more than 100,000 values or 50 levels"),
        ("a: " + "{a: " * 5_000 + "}" * 5_000, "more than 50 levels"),
        *((text, "an alias stands for what it is in") for text in ("a: &a [*a]", "a: &a {<<: *a}")),
        *((f"a: {number}", "more than 100 digits") for number in ("9" * 5_000, "1" + ":59" * 5_000)),
        ("a: {b: 1, 'b': 2}", "'b' appears 2 times.*line 1"),
        *((f"a: {value}", "a value cannot be read") for value in ("2024-99-99", "!!int x", "!!bool x")),
        ("a: !!python/object/apply:os.getcwd []", "could not determine a constructor"),
        ("a: b\0c", "special characters are not allowed"),
        (b"a: \xff\xfe", "'utf-8' codec can't decode"),
    ],
    ids=lambda value: value[:12] if isinstance(value, str) else None,
)
def test_what_cannot_be_read(text: str | bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(BeyondClsError, match=rf"(?s)params.yaml is not YAML; correct it, or name another file: .*{message}"):
        read_params(tmp_path / "params.yaml")


def test_large_files(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text("# " + "x" * (1 << 18))
    with pytest.raises(BeyondClsError, match=r"params.yaml has more than 262,144 bytes, expected a parameter file"):
        read_params(tmp_path / "params.yaml")


def test_aliases_and_merges_as_people_use_them(tmp_path: Path) -> None:
    text = "a: &a {x: 1, y: &y [1, 2]}\nb: &b {<<: *a, x: 2}\nc: {<<: *b, y: *y}\nd: {<<: [*a, *b], z: 3}\ne: [*a, *a]\n"
    (tmp_path / "params.yaml").write_text(text)
    params = read_params(tmp_path / "params.yaml")
    assert params["c"] == {"x": 2, "y": [1, 2]}
    assert params["d"] == {"x": 1, "y": [1, 2], "z": 3}
    assert params["e"] == [params["a"]] * 2
