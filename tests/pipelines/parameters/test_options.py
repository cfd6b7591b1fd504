"""Options in tables: the command line has them, and they are what the program takes."""

import inspect
from dataclasses import dataclass
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from extract.datasets import open_images
from extract.encoders import Encoder, load_encoder
from extract.requests import Request
from extract.writing import Settings as Writing
from pipelines.parameters import detection, extraction, training
from pipelines.parameters.options import Option, Table, options_of, select_options, takes_options
from pipelines.parameters.params import integers
from probe.closed import Neighbours
from probe.grid import HeadPlan, HeadSpec
from probe.run import probe

TABLE = {
    "how_many": Option(int, "a number", "3", least=1),
    "these": Option(str, "several", read=lambda name, text: (name, *text.split(","))),
    "drop": Option(bool, "a switch", flags="--drop/--keep"),
}


@pytest.fixture
def call():
    """The parameters that a command gets."""
    app, received = typer.Typer(), {}

    @app.command()
    @takes_options(TABLE)
    def main(name: str, **given: Any) -> None:
        """What it does."""
        received.update(name=name, given=given)

    def call(*arguments: str) -> Any:
        received.clear()
        result = CliRunner().invoke(app, ["x", *arguments])
        return (received["name"], received["given"]) if result.exit_code == 0 else result.output

    return call


def test_a_command_gets_what_was_given_and_nothing_else(call):
    assert call() == ("x", {})
    assert call("--how-many", "2", "--keep") == ("x", {"how_many": 2, "drop": False})
    assert call("--these", "a,b", "--drop") == ("x", {"these": ("--these", "a", "b"), "drop": True})
    assert select_options({"how_many": 2, "else": 1}, TABLE) == {"how_many": 2}


def test_values_that_cannot_be_are_refused_by_name(call):
    assert "--how-many" in call("--how-many", "0")
    assert "--how-many" in call("--how-many", "two")


def parameters(function: Any) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(function).parameters)


ARGUMENTS = {
    "loading": (extraction.LOADING | extraction.FAMILY | extraction.TRANSFORM, load_encoder),
    "images": (extraction.IMAGES, open_images),
    "features": (extraction.FEATURES, Request.resolve),
    "running": (extraction.RUNNING, Writing),
    # What matrices are multiplied in by default depends on the device: test_amp.
    "computing": ({n: o for n, o in extraction.COMPUTING.items() if n != "amp"}, Encoder.run_with),
    "a run": ({n: o for n, o in training.OF_A_RUN.items() if n not in ("k_shot", "percent", "ids", "subset_seed")}, probe),
    "a head": ({n: training.OF_A_HEAD[n] for n in ("normalisation", "final_norm", "init")}, HeadSpec),
    "a protocol": (training.OF_A_PROTOCOL, Neighbours),
    "a plan": ({n: training.OF_A_HEAD[n] for n in ("seeds", "base_lrs", "weight_decays")}, HeadPlan),
}


@pytest.mark.parametrize(("table", "function"), ARGUMENTS.values(), ids=ARGUMENTS)
def test_they_are_arguments_of_the_program_with_these_defaults(table: Table, function: Any) -> None:
    known = parameters(function)
    assert set(table) <= set(known)
    for name, option in table.items():
        default = known[name].default
        if option.default and default not in (None, ()) and not isinstance(default, bool):
            shown = ",".join(map(str, default)) if isinstance(default, tuple) else str(default)
            assert option.default in (shown, shown.removesuffix(".0")), name


@dataclass(frozen=True)
class Settings:
    """Of a test.

    Attributes:
        rate: how fast, in images
            a second.
        sides: in pixels.
        limit: the most.
        folds: whether it folds.
    """

    rate: float = 2.0
    sides: tuple[int, ...] = (8, 16)
    limit: int | None = None
    folds: bool = True


def test_fields_of_a_dataclass_are_options() -> None:
    assert options_of(Settings, limit={"default": "none"}) == {
        "rate": Option(float, "how fast, in images a second", "2"),
        "sides": Option(str, "in pixels", "8,16", read=integers),
        "limit": Option(int, "the most", "none"),
        "folds": Option(bool, "whether it folds", "yes", "--folds/--no-folds"),
    }


@pytest.mark.parametrize("table", [training.OF_A_RECIPE, detection.OF_A_RECIPE, detection.OF_A_DETECTOR])
def test_every_option_says_what_it_is(table: Table) -> None:
    assert all(option.help for option in table.values())
