"""The first screen: the figure of the claim, three numbers, and which claims hold."""

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from pipelines.parameters.params import Primary, primary_of
from pipelines.report.collect import Folders, Inputs, collect
from pipelines.report.content import Figures
from pipelines.report.sections.summary import error_shares, section
from store import BeyondClsError
from store.format.pretraining import JOINT, MASKED, UNTRAINED
from tests.pipelines.report.written import several_labels, shown, tables, words, write_correct, write_probe

N = 1000
PRIMARY = {"encoder": "mae", "head": "abmilp", "over": "cls"}
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


class TestFigure:
    """A bar for each encoder, of which tests read what is said of it in words."""

    def alt(self, root: Path) -> list[str]:
        figures = error_shares(inputs_of(root))
        assert figures is not None
        (figure,) = figures.figures
        ElementTree.fromstring(figure.svg)
        return figure.alt.replace("\xa0", " ").split(". ", 1)[1].split("; ")

    def test_shares_of_errors_in_descending_order_with_their_intervals(self, tmp_path: Path) -> None:
        figures = error_shares(inputs_of(write(tmp_path, CLAIM, by_image=True)))
        assert figures is not None
        assert [look.name for look in figures.legend] == [MASKED, JOINT, UNTRAINED]
        assert "on random, which was never trained" in figures.figures[0].caption
        found = [re.fullmatch(r"(\w+): (\S+) % \((\S+) to (\S+)\)", one.replace("−", "-")) for one in self.alt(tmp_path)]
        rows = [(one[1], *map(float, one.groups()[1:])) for one in found if one]
        assert [row[:2] for row in rows] == [("simmim", 16.0), ("mae", 15.0), ("random", 3.3), ("dino", 0.7)]
        assert all(low < value < high for _, value, low, high in rows)

    def test_what_is_not_known_image_by_image_has_no_interval(self, tmp_path: Path) -> None:
        assert self.alt(write(tmp_path, {"mae": (60, 66), "simmim": (60, 60)})) == [
            *("mae: 15.0 % (± 0.3 over seeds)", "simmim: 0.0 % (± 0.4 over seeds)")
        ]

    def test_average_precision_has_points(self, tmp_path: Path) -> None:
        for head, value in (("cls", 60.0), ("abmilp", 58.5)):
            several_labels(write_probe(tmp_path, "mae", head, value))
        assert self.alt(tmp_path) == ["mae: −1.5 points (± 0.7 over seeds)"]


def test_the_best_head_without_a_gain(tmp_path: Path) -> None:
    for head, top1 in (("ep", 50.0), ("simpool", 51.0)):
        write_probe(tmp_path, "mae", head, top1)
    result = section(inputs_of(tmp_path))
    assert words(result, "lead") == ["The most here: 51.0 ± 0.5 % top-1 accuracy of simpool on mae."]
    assert result is not None
    assert not [block for block in result.blocks if isinstance(block, Figures)]


def test_what_the_numbers_rest_on(tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        write(tmp_path / name, CLAIM)
    (note,) = words(section(inputs_of(tmp_path / "one", dataset="one", datasets=(tmp_path,))), "note")
    expected = "one: 4 encoders, 2 heads; 50 training and 7 test images of 3 classes, 3 seeds. 2 other data sets below."
    assert note.startswith(expected)


class TestPrimary:
    """Of 1,000 images AbMILP is right about 60 more than [cls] on mae, 2 more on dino, 20 more on random."""

    def inputs(self, root: Path, **of_folders: object) -> Inputs:
        return inputs_of(write(root, CLAIM, by_image=True), primary=Primary("mae", "abmilp", "cls"), **of_folders)

    def test_it_is_first_beside_others(self, tmp_path: Path) -> None:
        write_probe(tmp_path, "mae", "average", 63.0)
        first, *others = shown(tables(section(self.inputs(tmp_path)))["declared"])
        assert first[:2] == ["AbMILP − [cls] on mae", "+6.0 ± 0.1"]
        assert first[3:] == ["ahead", "+15.0 ± 0.3"]
        assert [(row[1][:4], row[3]) for row in others] == [("+5.8", "ahead"), ("+2.0", "ahead"), ("+3.0", "not shown")]
        assert [word in row[0] for word, row in zip(("dino", "random", "average"), others, strict=True)] == [True] * 3

    def test_one_that_was_not_measured_or_not_declared(self, tmp_path: Path) -> None:
        inputs = self.inputs(tmp_path, dataset="one")
        for primary, note in (
            (Primary("mae", "ep", "cls"), "ep − [cls] on mae was declared in advance and is not measured"),
            (None, "No "),
        ):
            summary = section(replace(inputs, folders=replace(inputs.folders, primary=primary)))
            assert note in words(summary, "note")[0]
            assert list(tables(summary)) == ["claims"]

    @pytest.mark.parametrize("given", ["abmilp", {"encoder": "mae", "head": "abmilp"}, {**PRIMARY, "over": 1}])
    def test_mistakes_are_refused(self, given: object) -> None:
        with pytest.raises(BeyondClsError, match=r"primary is .*, expected an encoder and two heads of this file"):
            primary_of({"primary": given})

    def test_a_project_declares_it(self) -> None:
        assert primary_of({"primary": PRIMARY}) == Primary("mae", "abmilp", "cls")
        assert primary_of({"primary": None}) is None
