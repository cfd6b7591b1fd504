"""`beyondcls detect`: what it writes and prints, and what it says of options."""

import sys

import numpy as np
import pytest

from pipelines.detect import settings
from pipelines.predictions.objects import COLOURS, OPACITY, draw_objects
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
    logged = (out / "training_logs/training.csv").read_text().splitlines()
    assert logged[0].startswith("seed,base_lr,weight_decay,epoch,lr,loss,loss_")
    assert [line.split(",")[:2] for line in logged[1:]] == [["0", "0.001"], ["3", "0.001"]]
    assert (measures["recipe"]["lr"], measures["recipe"]["epochs"]) == (1e-3, 1), "the preset's, but for what was given"
    assert measures["detector"]["anchors"] == [16, 32, 64, 128]
    assert f"{out}: box AP " in printed
    assert ", mask AP " in printed
    assert "large –" in printed
    assert "2 seeds, 4 test images" in printed
    assert "objects of test images are outside of the crop" in printed or not sum(
        measures["objects"]["test"]["outside"].values()
    )
    assert "note: every epoch shows the same view" in printed


def test_mistakes(beyondcls, sets, tmp_path):
    common = ("detect", "--features", sets[0], "--test", sets[1], "--out", tmp_path / "out")
    for arguments, message in (
        (("--preset", "v3"), "unknown preset of detection 'v3'; did you mean 'v1'"),
        (("--anchors", "a,b"), "--anchors is 'a,b', expected integers with commas"),
        (("--seeds", "x"), "--seeds is 'x', expected integers with commas"),
        (("--views", "1"), "views is (1,), expected numbers from 0 to 0"),
        (("--device", "tpu9"), "unknown device 'tpu9'"),
    ):
        assert message in beyondcls(*common, *arguments, fails=True)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [("torchvision.models.convnext", "torchvision", "probe"), ("faster_coco_eval", "faster_coco_eval", "probe")],
)
def test_a_package_that_is_missing_is_missed_before_anything_trains(
    module, package, extra, beyondcls, sets, tmp_path, monkeypatch
):
    for name in [name for name in sys.modules if name.startswith("probe.detection.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    printed = beyondcls("detect", "--features", sets[0], "--test", sets[1], "--out", tmp_path / "out", fails=True)
    assert f"error: this needs {package}, which is not installed here; pip install 'beyondcls[{extra}]'" in printed
    assert not (tmp_path / "out").exists()


def test_presets():
    recipe, options = settings("v1", {})
    assert (recipe.epochs, options.width, options.anchors) == (36, 256, (32, 64, 128, 256, 512))
    recipe, options = settings("small", {"width": 32, "clip": 5.0})
    assert (recipe.clip, options.width, options.box_features) == (5.0, 32, 256)
    with pytest.raises(BeyondClsError, match="width is 0"):
        settings(None, {"width": 0})


def test_objects_are_drawn():
    picture = np.full((60, 80, 3), 100, np.uint8)
    mask = np.zeros((2, 60, 80), bool)
    mask[0, 20:50, 10:40], mask[1, 30:55, 50:70] = True, True
    boxes = np.array([[10, 20, 40, 50], [50, 30, 70, 55]], np.float32)
    drawn = draw_objects(picture, boxes, [3, 1], ["a", "b", "c", "d"], [0.9, 0.5], mask)
    assert (picture == 100).all(), "the picture stays as it is"
    first, second = (np.round(255 * np.array(COLOURS[label])) for label in (3, 1))
    assert (drawn[20, 25] == first).all(), "the border of the first box"
    assert (drawn[54, 60] == second).all()
    np.testing.assert_allclose(drawn[45, 25], (1 - OPACITY) * 100 + OPACITY * first, atol=1)
    assert (drawn[5, 5] == 100).all(), "elsewhere it stays"
    plain = draw_objects(picture, boxes, [3, 1])
    assert (plain[45, 25] == 100).all(), "without masks there are boxes alone"
    assert draw_objects(picture, boxes[:0], []).tolist() == picture.tolist()
