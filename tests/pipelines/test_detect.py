"""`beyondcls detect`: what it writes and prints, and what it says of options."""

import sys
from unittest.mock import Mock

import numpy as np
import pytest

from pipelines.detect import summary
from pipelines.predictions.objects import COLOURS, OPACITY, draw_objects
from probe.detection.recipe import DetectorOptions, make_detection_recipe, preset_of_detection
from probe.result_files import read_result
from store import BeyondClsError
from tests.probe.detection.tiny import write_objects

SMALL = (
    "--epochs 1 --batch-size 2 --width 8 --anchors 16,32,64,128 --box-features 16 --mask-layers 1 --proposals 40 --samples 16"
)


@pytest.fixture(scope="module")
def sets(tmp_path_factory) -> list[str]:
    folder = tmp_path_factory.mktemp("sets")
    objects = write_objects(folder / "train", n=5), write_objects(folder / "test", n=4, seed=1, crop=(20, 20, 60, 60))
    return [str(store.path) for store in objects]


def test_writes_and_prints(beyondcls, sets, tmp_path):
    (tmp_path / "ids.txt").write_text("000001\n000002\n")
    out = tmp_path / "out"
    common = ("detect", "--features", sets[0], "--test", sets[1], "--out", out, "--device", "cpu", *SMALL.split())
    printed = beyondcls(*common, "--seeds", "0,3", "--ids", tmp_path / "ids.txt", "--preset", "small", "--log", "csv")
    measures = read_result(out / "metrics.json")
    assert (measures["n_training"], measures["n_test"], measures["seeds"]) == (2, 4, [0, 3])
    assert (measures["preset"], measures["ids"]) == ("small", "ids.txt")
    assert measures["command"].startswith("beyondcls detect --features")
    assert "--log" not in measures["command"]
    _, *logged = (out / "training_logs/training.csv").read_text().splitlines()
    assert [line.split(",")[:2] for line in logged] == [["0", "0.001"], ["3", "0.001"]]
    assert (measures["recipe"]["lr"], measures["recipe"]["epochs"]) == (1e-3, 1), "the preset's, but for what was given"
    for part in (f"{out}: box AP ", ", mask AP ", "large –", "2 seeds, 4 test images", *measures["notes"]):
        assert part in printed


def test_mistakes(beyondcls, sets, tmp_path):
    common = ("detect", "--features", sets[0], "--test", sets[1], "--out", tmp_path / "out")
    for arguments, message in (
        (("--preset", "v3"), "unknown preset of detection 'v3'; did you mean 'v1'"),
        (("--anchors", "a,b"), "--anchors is 'a,b', expected integers with commas"),
        (("--views", "1"), "views is (1,), expected numbers from 0 to 0"),
        (("--device", "tpu9"), "unknown device 'tpu9'"),
    ):
        assert message in beyondcls(*common, *arguments, fails=True)
    assert not (tmp_path / "out").exists()


def test_a_package_that_is_missing_is_missed_before_anything_trains(beyondcls, sets, tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("probe.detection.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "faster_coco_eval", None)
    printed = beyondcls("detect", "--features", sets[0], "--test", sets[1], "--out", tmp_path / "out", fails=True)
    assert "error: this needs faster_coco_eval, which is not installed here; pip install" in printed
    assert not (tmp_path / "out").exists()


def test_objects_are_drawn():
    picture = np.full((60, 80, 3), 100, np.uint8)
    mask = np.zeros((2, 60, 80), bool)
    mask[0, 20:50, 10:40], mask[1, 30:55, 50:70] = True, True
    boxes = np.array([[10, 20, 40, 50], [50, 30, 70, 55]], np.float32)
    drawn = draw_objects(picture, boxes, [3, 1], ["a", "b", "c", "d"], [0.9, 0.5], mask)
    assert (picture == 100).all(), "the picture stays as it is"
    first = np.round(255 * np.array(COLOURS[3]))
    assert (drawn[20, 25] == first).all(), "the border of the first box"
    np.testing.assert_allclose(drawn[45, 25], (1 - OPACITY) * 100 + OPACITY * first, atol=1)
    assert (drawn[5, 5] == 100).all(), "elsewhere it stays"
    plain = draw_objects(picture, boxes, [3, 1])
    assert (plain[45, 25] == 100).all(), "without masks there are boxes alone"


def test_options(beyondcls, monkeypatch, tmp_path):
    asked = Mock(side_effect=BeyondClsError("stopped"))
    monkeypatch.setattr("probe.detection.run.detect", asked)
    stores = [write_objects(tmp_path / name, n=5, seed=i, views=3) for i, name in enumerate(("train", "test"))]
    (tmp_path / "some.txt").write_text("000001\n000004\n")
    (tmp_path / "others.txt").write_text("000000\n000002\n000003\n")
    common = ("detect", "--features", stores[0].path, "--test", stores[1].path, "--out", tmp_path / "out")
    given = f"--ids {tmp_path / 'some.txt'} --test-ids {tmp_path / 'others.txt'} --seeds 3,1 --views 2,0 --block 1 --workers 2 "
    given += "--placement stream --preset small --epochs 7 --no-masks --no-final-norm --anchors 8,16,32,64"
    beyondcls(*common, *given.split(), fails=True)
    detection, out, notes = asked.call_args.args
    assert (detection.training.rows.tolist(), detection.test.rows.tolist()) == ([1, 4], [0, 2, 3])
    assert (detection.training.store.path, detection.test.store.path) == tuple(store.path for store in stores)
    assert (list(detection.seeds), list(detection.views), detection.block) == ([3, 1], [2, 0], 1)
    assert (detection.workers, detection.placement, out) == (2, "stream", tmp_path / "out")
    assert detection.recipe == make_detection_recipe("small", epochs=7)
    options = {**preset_of_detection("small")[1], "masks": False, "final_norm": False, "anchors": (8, 16, 32, 64)}
    assert detection.options == DetectorOptions(**options)
    assert [notes[name] for name in ("preset", "ids", "test_ids")] == ["small", "some.txt", "others.txt"]
    assert "has no array 'patch/block7/view0'" in beyondcls(*common, "--block", "7", fails=True)


def test_a_result_of_zero_is_one():
    """Where no object has a size, there is no number."""
    box = {name: {"mean": 0.0} for name in ("ap", "ap50", "ap_large", "ap_medium")} | {"ap_small": None}
    said = summary({"box": box, "seeds": [0], "n_test": 1234})
    assert said == "box AP 0.0 (at IoU 0.5 0.0, large 0.0, medium 0.0, small –), 1 seed, 1,234 test images"
