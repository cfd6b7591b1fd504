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

HOSTILE = ("../../../x", "..", ".", ".hidden", "a/b", "/etc/x", "a\\b", "")  # paths
HOSTILE += ("x; touch y", "x&&touch y", "$(touch y)", "`touch y`", "x|y", "x>y", "x'y", 'x"y', "x y", "x\ny", "x\u2028y", "x#")
HOSTILE += ("x*", "~", "-rf", "--out=x", "+x", "x\0", "x\x1b[0m", "x\u202ey", "x:y", "x" * 101, "${data}")


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
    others: list[Any] = ["a;b", "../x", {"a;b": 1}, ["a;b"]]
    for values in (*others, *([["c", "a;b"], [["a;b"]], {"c": {}, "a;b": None}] if place in NAMED else [])):
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


@pytest.mark.parametrize("head", ["../x", "..", "a/b", "heads/x.py:..", "heads/x.py:a/../b", "x; y"])
def test_heads_on_the_command_line_are_names_of_folders(head: str) -> None:
    for asked in (head, f"{head}:depth=2", "=cls", "..=cls", "a/b=cls"):
        with pytest.raises(BeyondClsError, match=r"a head has the name .*, which becomes part of paths"):
            folders_of(["cls", asked])
    assert folders_of(["cls", "../../heads/x.py:Own"]) == {"cls": "cls", "Own": "../../heads/x.py:Own"}
