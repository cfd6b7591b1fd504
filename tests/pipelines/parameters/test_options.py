"""Options in tables: the command line has them, and they are what the program takes."""

import inspect
import re
import types
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import typer
from typer.testing import CliRunner

from extract.datasets import open_images
from extract.encoders import Encoder, load_encoder
from extract.requests import Request
from extract.writing import Settings
from pipelines.parameters import detection, extraction, training
from pipelines.parameters.options import Option, Table, check_values, select_options, takes_options
from probe.closed import Neighbours
from probe.detection.recipe import DetectionRecipe, DetectorOptions
from probe.grid import HeadPlan, HeadSpec
from probe.recipe import Recipe
from probe.run import probe
from store import BeyondClsError

TABLE = {
    "how_many": Option(int, "a number", "3", least=1),
    "these": Option(str, "several", read=lambda name, text: (name, *text.split(","))),
    "drop": Option(bool, "a switch", flags="--drop/--keep"),
}


def test_a_command_gets_what_was_given_and_nothing_else():
    app, received = typer.Typer(), list[Any]()

    @app.command()
    @takes_options(TABLE)
    def main(name: str, **given: Any) -> None:
        received.append((name, given))

    def said(*arguments: str) -> str:
        return CliRunner().invoke(app, ["x", *arguments]).output

    said()
    said("--how-many", "2", "--keep")
    said("--these", "a,b", "--drop")
    expected = [{}, {"how_many": 2, "drop": False}, {"these": ("--these", "a", "b"), "drop": True}]
    assert received == [("x", given) for given in expected]
    assert all("--how-many" in said("--how-many", value) for value in ("0", "two"))
    assert select_options({"how_many": 2, "else": 1}, TABLE) == {"how_many": 2}


@pytest.mark.parametrize(
    ("kind", "right", "wrong", "expected"),
    [
        (int, [3], ["90", 9.5, False], "a whole number"),
        (float, [3, 0.5], ["high", True], "a number"),
        (str, ["x"], [3], "a name"),
        (Path, ["x"], [3], "a name"),
        (bool, [True], [1, "yes"], "true or false"),
        (list[str], [["x"]], ["x", [3]], "a list of texts, in brackets"),
        (list[int], [[3], (3,)], [3, "3"], "a list; give \\["),
    ],
)
def test_values_of_a_parameter_file(kind: Any, right: list[Any], wrong: list[Any], expected: str) -> None:
    for value in (*right, None):
        check_values("probe.", {"x": value, "other": object()}, {"x": Option(kind, "")})
    for value in wrong:
        with pytest.raises(BeyondClsError, match=rf"probe\.x is {re.escape(repr(value))}, expected {expected}"):
            check_values("probe.", {"x": value}, {"x": Option(kind, "")})
    with pytest.raises(BeyondClsError, match=r"probe\.how_many is 2, expected 3 or more"):
        check_values("probe.", {"how_many": 2}, {"how_many": Option(int, "", least=3)})
    with pytest.raises(BeyondClsError, match=r"probe\.x is \[\], expected a list with something in it"):
        Option(list[int], "").checked("probe.x", [])


ARGUMENTS = {
    "loading": (extraction.LOADING | extraction.FAMILY | extraction.TRANSFORM, load_encoder),
    "images": (extraction.IMAGES, open_images),
    "features": (extraction.FEATURES, Request.resolve),
    "running": (extraction.RUNNING, Settings),
    # What matrices are multiplied in by default depends on the device: test_amp.
    "computing": ({n: o for n, o in extraction.COMPUTING.items() if n != "amp"}, Encoder.run_with),
    "a recipe": (training.OF_A_RECIPE, Recipe),
    "a run": ({n: o for n, o in training.OF_A_RUN.items() if n not in ("k_shot", "percent", "ids", "subset_seed")}, probe),
    "a head": ({n: training.OF_A_HEAD[n] for n in ("normalisation", "final_norm", "init")}, HeadSpec),
    "a recipe of detection": (detection.OF_A_RECIPE, DetectionRecipe),
    "a detector": (detection.OF_A_DETECTOR, DetectorOptions),
    "a protocol": (training.OF_A_PROTOCOL, Neighbours),
    "a plan": ({n: training.OF_A_HEAD[n] for n in ("seeds", "base_lrs", "weight_decays")}, HeadPlan),
}


@pytest.mark.parametrize(("table", "function"), ARGUMENTS.values(), ids=ARGUMENTS)
def test_they_are_arguments_of_the_program_with_these_defaults(table: Table, function: Any) -> None:
    known = inspect.signature(function).parameters
    assert set(table) <= set(known)
    for name, option in table.items():
        default = known[name].default
        if option.default and default not in (None, ()) and not isinstance(default, bool):
            shown = ",".join(map(str, default)) if isinstance(default, tuple) else str(default)
            assert option.default in (shown, shown.removesuffix(".0")), name


def test_a_recipe_has_no_other_fields_and_these_types():
    assert list(training.OF_A_RECIPE) == [field.name for field in fields(Recipe)]
    for name, hint in get_type_hints(Recipe).items():
        kind = get_args(hint)[0] if isinstance(hint, types.UnionType) else hint
        assert training.OF_A_RECIPE[name].type is kind, name
    assert all(field.default is not MISSING for field in fields(Recipe))
