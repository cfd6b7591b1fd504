"""The first screen: the figure of the claim, three numbers, and which claims hold."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pipelines.parameters.params import Primary, primary_of, read_params
from pipelines.report.claims import AHEAD
from pipelines.report.collect import Folders, Inputs, collect
from pipelines.report.content import Intervals, Number, Numbers, Section, Verdicts
from pipelines.report.sections.summary import error_shares, section
from store import BeyondClsError
from store.format.pretraining import JOINT, MASKED, UNTRAINED
from tests.pipelines.report.parts import words
from tests.pipelines.report.written import several_labels, write_correct, write_probe

N = 1000
CLAIM = {"mae": (60, 66), "simmim": (50, 58), "dino": (70, 70.2), "random": (40, 42)}


def write(
    root: Path, gains: dict[str, tuple[float, float]], seeds: tuple[int, ...] = (0, 1, 2), by_image: bool = False
) -> Path:
    """[cls] and AbMILP of each encoder; known image by image, if that is asked for."""
    for encoder, of_heads in gains.items():
        for head, top1 in zip(("cls", "abmilp"), of_heads, strict=True):
            folder = write_probe(root, encoder, head, top1, std=0.1, seeds=seeds)
            if by_image:
                rates = top1 / 100 + np.array([[-0.001], [0.0], [0.001]])
                write_correct(folder, (np.arange(N) + 0.5) / N < rates)
    return root


def inputs_of(root: Path, **folders: object) -> Inputs:
    return collect(Folders(root, root / "none", **folders))  # type: ignore[arg-type]


def block(section: Section | None, kind: type) -> object:
    assert section is not None
    (found,) = [block for block in section.blocks if isinstance(block, kind)]
    return found


def numbers(section: Section | None) -> list[Number]:
    found = block(section, Numbers)
    assert isinstance(found, Numbers)
    return list(found.entries)


class TestFigure:
    def test_shares_of_errors_in_descending_order_with_their_intervals(self, tmp_path: Path) -> None:
        plot = error_shares(inputs_of(write(tmp_path, CLAIM, by_image=True)))
        assert plot is not None
        assert [row.name for row in plot.rows] == ["simmim", "mae", "random", "dino"]
        assert [row.value for row in plot.rows] == pytest.approx([16.0, 15.0, 10 / 3, 2 / 3])
        assert [row.text for row in plot.rows] == [
            "16.0\N{NO-BREAK SPACE}%",
            "15.0\N{NO-BREAK SPACE}%",
            "3.3\N{NO-BREAK SPACE}%",
            "0.7\N{NO-BREAK SPACE}%",
        ]
        for row in plot.rows:
            assert row.bounds is not None
            assert row.bounds[0] < row.value < row.bounds[1]
            assert row.detail == " to ".join(f"{round(bound, 1) + 0.0:.1f}".replace("-", "−") for bound in row.bounds)
            assert plot.ticks[0] <= row.bounds[0] < row.bounds[1] <= plot.ticks[-1]
        assert 0 in plot.ticks
        assert plot.reference is not None
        assert plot.reference.name == "random"
        assert [look.name for look in plot.legend] == [MASKED, JOINT, UNTRAINED]
        assert [row.look.name for row in plot.rows] == [MASKED, MASKED, UNTRAINED, JOINT]
        assert "on random, which was never trained" in plot.note

    def test_what_is_not_known_image_by_image_has_no_bounds(self, tmp_path: Path) -> None:
        plot = error_shares(inputs_of(write(tmp_path, {"mae": (60, 66)})))
        assert plot is not None
        (row,) = plot.rows
        assert (row.bounds, row.detail, plot.reference) == (None, "± 0.3 over seeds", None)
        assert "never trained" not in plot.note

    def test_average_precision_has_points(self, tmp_path: Path) -> None:
        for head, value in (("cls", 60.0), ("abmilp", 58.5)):
            several_labels(write_probe(tmp_path, "mae", head, value))
        plot = error_shares(inputs_of(tmp_path))
        assert plot is not None
        assert plot.title == "What AbMILP gains over [cls], points"
        assert plot.rows[0].text == "−1.5\N{NO-BREAK SPACE}points"

    def test_none_without_both_heads(self, tmp_path: Path) -> None:
        write_probe(tmp_path, "mae", "abmilp", 50.0)
        assert error_shares(inputs_of(tmp_path)) is None

    def test_the_axis_has_zero(self, tmp_path: Path) -> None:
        plot = error_shares(inputs_of(write(tmp_path, {"mae": (50, 62), "simmim": (50, 60)})))
        assert plot is not None
        assert plot.ticks[0] == 0

    def test_an_axis_without_any_gain(self, tmp_path: Path) -> None:
        plot = error_shares(inputs_of(write(tmp_path, {"mae": (60, 60)})))
        assert plot is not None
        assert plot.ticks == (0.0, 1.0)


class TestNumbers:
    def test_of_each_family_with_the_encoder_as_the_unit(self, tmp_path: Path) -> None:
        entries = numbers(section(inputs_of(write(tmp_path, CLAIM))))
        assert [(entry.value[:4], entry.about, entry.detail.split(" · ")[1]) for entry in entries] == [
            ("15.5", "on average over 2 encoders", "masked image modelling"),
            ("0.7\N{NO-BREAK SPACE}", "on dino", "joint embedding"),
            ("3.3\N{NO-BREAK SPACE}", "on random", "untrained"),
        ]

    def test_of_the_largest_gains_where_families_are_unknown(self, tmp_path: Path) -> None:
        gains = {"a": (50, 51), "b": (50, 52), "c": (50, 53), "d": (50, 54)}
        assert [entry.about[-1] for entry in numbers(section(inputs_of(write(tmp_path, gains))))] == ["d", "c", "b"]

    def test_of_the_best_head_without_a_gain(self, tmp_path: Path) -> None:
        for head, top1 in (("ep", 50.0), ("simpool", 51.0)):
            write_probe(tmp_path, "mae", head, top1)
        result = section(inputs_of(tmp_path))
        assert [(e.value, e.about, e.detail) for e in numbers(result)] == [
            ("51.0\N{NO-BREAK SPACE}%", "top-1 accuracy of simpool on mae, the most here", "51.0 ± 0.5")
        ]
        assert result is not None
        assert not [block for block in result.blocks if isinstance(block, Intervals | Verdicts)]

    def test_what_they_rest_on(self, tmp_path: Path) -> None:
        inputs = inputs_of(write(tmp_path / "one", CLAIM), dataset="one", datasets=(tmp_path,))
        write(tmp_path / "two", CLAIM)
        write(tmp_path / "three", CLAIM)
        inputs = inputs_of(tmp_path / "one", dataset="one", datasets=(tmp_path,))
        (note,) = words(section(inputs), "note")
        assert note.startswith(
            "one: 4 encoders, 2 heads; 50 training and 7 test images of 3 classes, 3 seeds. 2 other data sets below."
        )


class TestPrimary:
    """Of 1,000 images AbMILP is right about 60 more than [cls] on mae, 2 more on dino, 20 more on random."""

    def inputs(self, root: Path, **of_folders: object) -> Inputs:
        return inputs_of(write(root, CLAIM, by_image=True), primary=Primary("mae", "abmilp", "cls"), **of_folders)

    def test_it_is_first_and_all_others_are_exploratory(self, tmp_path: Path) -> None:
        write_probe(tmp_path, "mae", "average", 63.0)
        first, *others = numbers(section(self.inputs(tmp_path)))
        assert (first.value, first.about) == ("+6.0\N{NO-BREAK SPACE}points", "AbMILP − [cls] on mae, declared in advance")
        assert re.fullmatch(r".+ to .+ · ahead · 15\.0\s% of the errors removed", first.detail)
        assert [(n.value[:4], n.look and n.look.name) for n in others] == [
            ("+5.8", JOINT),
            ("+2.0", UNTRAINED),
            ("+3.0", MASKED),
        ]
        assert all(n.detail.endswith("exploratory") for n in others)
        assert "not shown" in others[-1].detail  # nothing is known of it image by image

    def test_one_that_was_not_measured_or_not_declared(self, tmp_path: Path) -> None:
        inputs = self.inputs(tmp_path, dataset="one")
        for primary, note in (
            (Primary("mae", "ep", "cls"), "ep − [cls] on mae was declared in advance and is not measured"),
            (None, "No "),
        ):
            summary = section(replace(inputs, folders=replace(inputs.folders, primary=primary)))
            assert note in words(summary, "note")[0]
            assert [n.about for n in numbers(summary)] == ["on average over 2 encoders", "on dino", "on random"]

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ("abmilp", "primary is 'abmilp', expected an encoder and two heads of this file"),
            ({"encoder": "mae", "head": "abmilp"}, "primary is .* or null"),
            ({"encoder": "mae", "head": "abmilp", "over": 1}, "primary is .* or null"),
        ],
    )
    def test_mistakes_are_refused(self, given: object, message: str) -> None:
        with pytest.raises(BeyondClsError, match=message):
            primary_of({"primary": given})

    def test_a_project_declares_it(self) -> None:
        params = read_params(Path(__file__).parents[3] / "params.yaml")
        assert primary_of(params) == Primary("quickstart-mae", "abmilp", "cls")
        assert primary_of({**params, "primary": None}) is None


def test_verdicts_have_what_decides_them(tmp_path: Path) -> None:
    verdicts = block(section(inputs_of(write(tmp_path, CLAIM, by_image=True))), Verdicts)
    assert isinstance(verdicts, Verdicts)
    first = verdicts.entries[0]
    assert (first.claim, first.state) == (AHEAD, "holds")
    assert re.fullmatch(
        r"\+7\.0 points \[.+ to .+\]; \+15\.5 % of the errors \[.+\] \(mae, simmim\)", first.detail.replace("\xa0", " ")
    )
