"""The report's section on detection: its tables, what it says, and its pictures."""

import json
from pathlib import Path

import pytest

from pipelines.report.collect import Examples, Folders, Inputs, collect
from pipelines.report.dense import REMEMBERED
from pipelines.report.sections.detection import section
from tests.pipelines.report.everything import average_precisions as ap
from tests.pipelines.report.everything import write_detection, write_examples
from tests.pipelines.report.written import best, shown, tables, words


def collected(root: Path, **others: object) -> Inputs:
    return collect(Folders(detection=root, **others), Examples(2))


def test_boxes_and_masks_by_size_and_against_the_twin(tmp_path):
    write_detection(tmp_path / "coco", "mae", ap(12.0, 14.0), ap(10.0, 11.0, small=None))
    write_detection(tmp_path / "coco", "random", ap(1.0, 2.0))
    by_name = tables(section(collected(tmp_path)))
    boxes, masks = by_name["detection-coco-box"], by_name["detection-coco-mask"]
    names = "encoder box_ap box_ap50 box_ap75 box_ap_large box_ap_medium box_ap_small twin box_ap_against_twin"
    assert [column.name for column in boxes.columns] == names.split()
    of_sizes = ["23.0 ± 1.4", "13.0 ± 1.4", "2.0"]
    assert shown(boxes)[0][1:] == ["13.0 ± 1.4", "33.0 ± 1.4", "14.0 ± 1.4", *of_sizes, "random", "+11.5 ± 1.6"]
    assert shown(masks) == [
        ["mae", "10.5 ± 0.7", "30.5 ± 0.7", "11.5 ± 0.7", "20.5 ± 0.7", "10.5 ± 0.7", "–", "random", "–"],
        ["random", *["–"] * 8],
    ]
    assert best(boxes, slice(1, 2)) == [[True], [False]]
    settings = ["small", "epochs 2, lr 0.001", "width 8, masks True", "4 x 4", "0, 1", "1,234", "12", "7", "5", "1,234", "3"]
    assert shown(by_name["detection-coco-settings"])[0][1:] == settings


def test_encoders_of_other_families_against_masked_ones(tmp_path):
    write_detection(tmp_path / "coco", "mae", ap(12.0))
    alone = tables(section(collected(tmp_path)))
    assert not {"detection-coco-families", "detection-coco-mask"} & set(alone)
    assert shown(alone["detection-coco-box"])[0][1] == "12.0", "one seed has no spread"
    write_detection(tmp_path / "coco", "dino", ap(14.0, small=None))
    write_detection(tmp_path / "coco", "deit", ap(11.0, small=3.0))
    assert shown(tables(section(collected(tmp_path)))["detection-coco-families"]) == [
        ["dino", "joint embedding", "mae", "+2.0", "+2.0", "–"],
        ["deit", "labels", "mae", "−1.0", "−1.0", "+1.0"],
    ]


def test_says_where_training_images_may_have_been_measured(tmp_path):
    write_detection(tmp_path / "coco", "mae", ap(12.0), features={"training": "a", "test": "a"})
    write_detection(tmp_path / "coco", "dino", ap(12.0))
    assert words(section(collected(tmp_path)), "notice")[:2] == [REMEMBERED, "mae"]


def test_only_sections_that_were_asked_for_need_no_probes(tmp_path, beyondcls):
    """The command on results of dense tasks alone: tables as files, and measures for `dvc metrics`."""
    write_examples(write_detection(tmp_path / "det/coco", "mae", ap(12.0, 14.0), ap(10.0)), ["000", "001"])
    write_detection(tmp_path / "det/coco", "dino", ap(11.0))
    given = ("--only", "detection", "--detection", tmp_path / "det", "--out", tmp_path / "out")
    beyondcls("report", *given, "--encoder", "mae", "--score", "0.9")
    assert json.loads((tmp_path / "out/metrics.json").read_text()) == {
        "mae": {
            "detection/coco/box": {"ap": 13.0, "ap50": 33.0, "std": pytest.approx(2**0.5)},
            "detection/coco/mask": {"ap": 10.0, "ap50": 30.0, "std": 0.0},
        }
    }
    rows = (tmp_path / "out/tables/detection-coco-box.csv").read_text().splitlines()
    assert [row.partition(",")[0] for row in rows] == ["encoder", "mae"]
    assert "has a score of 0.9; the highest is 0.80" in (tmp_path / "out/index.html").read_text()
