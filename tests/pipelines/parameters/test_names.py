"""Names of params.yaml, which become paths and parts of commands; and values that dvc.yaml puts into commands beside them."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from pipelines.parameters.commands import QUOTED, check_commands
from pipelines.parameters.heads import folders_of
from pipelines.parameters.params import NAMED, NAMING, OTHERS, read_params
from store import BeyondClsError

HOSTILE = (
    *("../../../x", "..", ".", ".hidden", "a/b", "/etc/x", "a\\b", ""),  # paths
    *(
        "x; touch y",
        "x&&touch y",
        "$(touch y)",
        "`touch y`",
        "x|y",
        "x>y",
        "x'y",
        'x"y',
        "x y",
        "x\ny",
        "x\u2028y",
        "x#",
        "x*",
        "~",
    ),
    *("-rf", "--out=x", "+x", "x\0", "x\x1b[0m", "x\u202ey", "x:y", "x" * 101, "${data}"),
)


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
    (tmp_path / "params.yaml").write_text(yaml.safe_dump({"encoders": {"mae": {}, name: {}}}))
    with pytest.raises(BeyondClsError) as raised:
        read_params(tmp_path / "params.yaml")
    assert "encoders in " in str(raised.value)
    assert repr(name)[:80] in str(raised.value)


@pytest.mark.parametrize("place", NAMED)
def test_wherever_there_are_names(place: str, tmp_path: Path) -> None:
    for values in ({"a;b": {}}, ["c", "a;b"], "a;b", [{"a;b": 1}], [["a;b"]], {"c": {}, "a;b": None}):
        with pytest.raises(BeyondClsError, match=place.replace("*", "one")):
            read(tmp_path, within(place, values))
    assert read(tmp_path, within(place, {"c": {}, "d": {}}))


@pytest.mark.parametrize("place", [f"{section}.*.{name}" for section in NAMING for name in OTHERS])
def test_wherever_an_entry_names_others(place: str, tmp_path: Path) -> None:
    for value in ("a;b", "../x", {"a;b": 1}, ["a;b"]):
        with pytest.raises(BeyondClsError, match=place.replace("*", "one")):
            read(tmp_path, within(place, value))


ORDINARY = ("vit_base_patch16_224.mae", "mae-b16", "cifar10", "2024", "dinov2+reg", "a..b", "x" * 100)


@pytest.mark.parametrize("name", [*ORDINARY, "große_Bilder", "图像", "_own", "C-10.1"])
def test_ordinary_names(name: str, tmp_path: Path) -> None:
    study = {"dataset": name, "heads": {name: {}}}
    params = read(tmp_path, {"encoders": {name: {}}, "datasets": [name], "studies": {name: study}})
    assert [*params["encoders"]] == [name]


@pytest.mark.parametrize("value", [None, 2024, 1.5, "x"])
def test_names_that_are_numbers_or_left_out(value: Any, tmp_path: Path) -> None:
    assert read(tmp_path, {"datasets": [value], "studies": {"s": {"dataset": value}}, "heads": None})


@pytest.mark.parametrize("place", QUOTED)
def test_values_that_a_shell_would_read_as_more(place: str) -> None:
    for value in ("'; touch y; '", "x\ntouch y", "x\0", ["1", "$(touch y)"], {"x; touch y": 1}):
        with pytest.raises(BeyondClsError, match=f"{place.replace('*', 'one')} .* a shell would read as more than one value"):
            check_commands(within(place, value))
    for value in (None, 5, 0.5, True, "1,3,-1", "s3://bucket/my images", '$HOME; `x` \\ "y" & z', "~/Bilder/größer"):
        check_commands(within(place, value))  # in single quotes these are themselves


@pytest.mark.parametrize("head", ["../x", "..", "a/b", "heads/x.py:..", "heads/x.py:a/../b", "x; y"])
def test_heads_on_the_command_line_are_names_of_folders(head: str) -> None:
    with pytest.raises(BeyondClsError, match=r"a head has the name .*, which becomes part of paths"):
        folders_of(["cls", head])
    with pytest.raises(BeyondClsError, match=r"a head has the name .*, which becomes part of paths"):
        folders_of(["cls", f"{head}:depth=2"])
    for name in ("", "..", "a/b"):
        with pytest.raises(BeyondClsError, match="which becomes part of paths"):
            folders_of([f"{name}=cls"])
    assert folders_of(["cls", "../../heads/x.py:Own"]) == {"cls": "cls", "Own": "../../heads/x.py:Own"}
