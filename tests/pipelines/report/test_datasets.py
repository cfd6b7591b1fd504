"""The larger form of Table 1: several data sets, of one label an image or of several."""

from pathlib import Path

import pytest

from pipelines.report.collect import Folders, Inputs, collect
from pipelines.report.files import metrics
from pipelines.report.page import render
from pipelines.report.sections import sections
from pipelines.report.sections.datasets import section
from store import BeyondClsError
from tests.pipelines.report.written import best, several_labels, shown, tables, write_probe


@pytest.fixture
def inputs(tmp_path: Path) -> Inputs:
    write_probe(tmp_path / "p", "mae", "cls", 40.0)
    sets = tmp_path / "sets"
    for encoder, cls, abmilp in (("mae", 30.0, 36.0), ("dino", 50.0, 50.5), ("random", 10.0, 12.0)):
        write_probe(sets / "cub", encoder, "cls", cls)
        write_probe(sets / "cub", encoder, "abmilp", abmilp)
    for head, value in (("cls", 61.0), ("abmilp", 66.5)):
        several_labels(write_probe(sets / "coco<b>", "mae", head, value))
    write_probe(sets / "coco<b>", "random", "abmilp", 20.0, seeds=(0,))
    return collect(Folders(tmp_path / "p", datasets=(sets,)))


def test_a_row_for_each_encoder_on_each_set(inputs: Inputs) -> None:
    table = tables(section(inputs))["datasets"]
    assert shown(table, slice(3)) == [
        ["coco<b>", "mae", "mAP"],
        ["coco<b>", "random", "top-1"],
        ["cub", "dino", "top-1"],
        ["cub", "mae", "top-1"],
        ["cub", "random", "top-1"],
    ]
    of_mae, of_random, *_ = shown(table, slice(3, 6))
    assert (of_mae, of_random) == (["61.0 ± 0.5", "66.5 ± 0.5", "+5.5 ± 0.7"], ["–", "20.0", "–"])
    assert best(table, slice(3, 5)) == [[False, True]] * 5
    assert table.note.endswith("A dash on coco<b>: random: not probed with [cls].")
    assert [row.muted for row in table.rows] == [False, True, False, False, True]


def test_heads_that_one_set_alone_has_are_in_the_leaderboard(tmp_path: Path) -> None:
    write_probe(tmp_path / "p", "mae", "cls", 40.0)
    for name, heads in (("few", ("cls", "abmilp")), ("many", ("cls", "abmilp", "ep"))):
        for head in heads:
            write_probe(tmp_path / "sets" / name, "mae", head, 30.0)
    write_probe(tmp_path / "sets" / "many", "alone", "ep", 20.0)
    (table, *_) = tables(section(collect(Folders(tmp_path / "p", datasets=(tmp_path / "sets",))))).values()
    assert [column.name for column in table.columns][3:5] == ["cls", "abmilp"]
    assert "alone" not in {row.cells[1].text for row in table.rows}


def test_sets_of_several_folders_stand_side_by_side(tmp_path: Path) -> None:
    write_probe(tmp_path / "probes/cifar10", "mae", "cls", 40.0)
    write_probe(tmp_path / "kept/cifar10-60000", "mae", "cls", 45.0)
    folders = Folders(tmp_path / "probes/cifar10", datasets=(tmp_path / "probes", tmp_path / "kept"))
    assert list(collect(folders).datasets) == ["cifar10", "cifar10-60000"]
    write_probe(tmp_path / "kept/cifar10", "mae", "cls", 45.0)
    with pytest.raises(BeyondClsError, match=r"'cifar10' is in .*probes/cifar10 and in .*kept/cifar10, .* rename one of them"):
        collect(folders)


def test_one_label_and_several_are_of_different_images(tmp_path: Path) -> None:
    several_labels(write_probe(tmp_path / "p", "mae", "cls", 40.0))
    write_probe(tmp_path / "p", "mae", "abmilp", 40.0)
    with pytest.raises(BeyondClsError, match=r"p/mae/cls is of images with several labels, .*p/mae/abmilp of images with one"):
        collect(Folders(tmp_path / "p"))


def test_images_with_several_labels_have_all_sections(tmp_path: Path) -> None:
    for head, score in (("cls", 40.0), ("abmilp", 45.0)):
        several_labels(write_probe(tmp_path / "p", "mae", head, score))
        several_labels(write_probe(tmp_path / "studies/variants", "mae", f"{head}-2", score))
    inputs = collect(Folders(tmp_path / "p", studies=(tmp_path / "studies",)))
    shown_sections = sections(inputs)
    by_name = {table.name: table for section in shown_sections for table in tables(section).values()}
    assert by_name["accuracy"].title == "Mean average precision"
    assert "mAP, %" in [column.title for column in by_name["probes"].columns]
    assert "mAP, %" in [column.title for column in by_name["study-variants"].columns]
    assert "has no share of errors and no interval" in render(shown_sections)
    assert metrics(inputs) == {"mae": {"cls": {"map": 40.0, "std": 0.5}, "abmilp": {"map": 45.0, "std": 0.5}}}
