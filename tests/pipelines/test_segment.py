"""`beyondcls segment` on small feature sets with label maps: what it writes, and what it says of bad input."""

import csv
import json

import numpy as np
import pytest
from PIL import Image

from probe.result_files import read_result
from probe.segmentation.patch_head import load_patch_head
from store import open_store
from tests.features import write_features
from tests.pipelines.test_localise import write_probes
from tests.probe.segmentation.features import CLASSES, SIDE, write_segmented

QUICK = ("--epochs", 30, "--base-lrs", "0.3,3", "--seeds", "0,1", "--ks", "1,3", "--cs", "0.1,10", "--loss-size", 16)


@pytest.fixture
def sets(tmp_path):
    write_segmented(tmp_path / "train", 24, noise=0.1)
    write_segmented(tmp_path / "test", 8, seed=1)
    return tmp_path


@pytest.fixture
def segment(beyondcls, tmp_path):
    def call(*given, train="train", fails=False):
        options = ("--features", tmp_path / train, "--test", tmp_path / "test", "--out", tmp_path / "out")
        return beyondcls("segment", *options, *given, fails=fails)

    return call


def test_writes_measures_tables_heads_and_maps(segment, sets):
    write_probes(sets / "probes/abmilp", sizes=(6, 16))
    probes = ("--probes", sets / "probes", "--foreground", "sky")
    said = segment(*QUICK, "--at", "original", "--at", 64, "--save-maps", 2, "--log", "csv", *probes)
    content = read_result(sets / "out/metrics.json")
    assert (content["task"], content["classes"], content["grid"]) == ("segmentation", list(CLASSES), [SIDE, SIDE])
    assert (content["n_training"], content["n_test"], content["n_training_patches"]) == (24, 8, 24 * 16 - 8)
    assert content["shown"]["words"] == "whole image"
    assert "--log" not in content["command"]
    logged = (sets / "out/training_logs/training.csv").read_text().splitlines()
    assert logged[0] == "seed,base_lr,weight_decay,epoch,lr,loss"
    assert {line.partition(",")[0] for line in logged[1:]} == {"0", "1"}
    measured = content["protocols"]
    assert list(measured) == ["knn", "logistic", "linear", "most-frequent-class", "drawn-by-prior"]
    for name, resolution in (("logistic", "grid"), ("logistic", "original"), ("logistic", "64"), ("linear", "grid")):
        assert measured[name][f"miou_{resolution}"]["mean"] > 75, (name, resolution)
    assert measured["logistic"]["miou_original"]["mean"] == pytest.approx(measured["logistic"]["miou_grid"]["mean"], abs=1)
    assert 50 < measured["linear"]["miou_original"]["mean"] < 75, "between patches of noise, logits say little"
    assert measured["knn"]["miou_grid"]["mean"] > 60 > measured["most-frequent-class"]["accuracy_grid"]["mean"]
    assert (measured["linear"]["seeds"], len(measured["linear"]["miou_grid"]["values"])) == ([0, 1], 2)
    assert measured["knn"]["selected"]["on"] == "hold-out"
    assert measured["knn"]["selected"]["n_images"] == 2
    tried = {(s[0], s[1]) for s in measured["knn"]["selected"]["candidates"]}
    assert tried == {(m, k) for m in ("cosine", "euclidean") for k in (1, 3)}
    foreground = {entry["name"]: entry for entry in content["foreground"]["maps"]}
    assert foreground["abmilp"]["share"]["mean"] > foreground["abmilp"]["chance"] + 10, "its weight grows with channel 0"
    assert foreground["cls"]["gain"]["mean"] == pytest.approx(1, abs=0.2)
    rows = list(csv.DictReader((sets / "out/per_class.csv").open()))
    assert [row["class"] for row in rows] == list(CLASSES)
    ious = [float(row["linear iou_grid"]) for row in rows]
    assert np.mean(ious) == pytest.approx(measured["linear"]["miou_grid"]["mean"])
    counts = [row for row in csv.DictReader((sets / "out/confusion.csv").open()) if row["resolution"] == "original"]
    of_knn = sum(int(row[name]) for row in counts if row["protocol"] == "knn" for name in CLASSES)
    assert of_knn == 8 * 32 * 31 - 16 * 32, "void pixels are not counted"
    head, about = load_patch_head(sets / "out/linear/seed1")
    assert (about["classes"], about["encoder_weights"], head.grid) == (list(CLASSES), "w", (SIDE, SIDE))
    maps = sorted((sets / "out/maps/linear").iterdir())
    assert [file.name for file in maps] == ["000000.png", "000007.png"]
    assert set(np.unique(np.asarray(Image.open(maps[0])))) <= {0, 1, 2}
    assert Image.open(maps[0]).mode == "P"
    described = json.loads((sets / "out/maps/images.json").read_text())
    assert (described["resolution"], described["unseen"], described["classes"]) == ("original", 255, list(CLASSES))
    assert [(image["id"], image["file"]) for image in described["images"]] == [(f.stem, f.name) for f in maps]
    assert (described["images"][0]["crop"], described["images"][0]["flip"]) == ([0, 0, 32, 32], False)
    assert described["data"] == content["data"] == open_store(sets / "test").spec.data
    truths = [np.asarray(Image.open(sets / "out/maps/truth" / file.name)).astype(np.int16) for file in maps]
    kept = open_store(sets / "test").segmentation
    for row, truth in zip((0, 7), truths, strict=True):
        np.testing.assert_array_equal(np.where(truth == 255, -1, truth), kept.label_map(row))
    assert "of its weight on the foreground" in said
    assert not (sets / ".unfinished").exists() or not list((sets / ".unfinished").iterdir())


def test_validation_images_select(segment, sets):
    write_segmented(sets / "val", 5, seed=2)
    segment("--protocol", "knn", "--ks", "1,5", "--val", sets / "val")
    content = read_result(sets / "out/metrics.json")
    selected = content["protocols"]["knn"]["selected"]
    assert (selected["on"], selected["n_images"]) == ("validation set", 5)
    assert "validation" in content["features"]


def test_what_does_not_fit_is_refused(segment, sets):
    write_features(sets / "plain", 4, SIDE**2, 6)
    assert "extract --extend --truths segmentation" in segment(train="plain", fails=True)
    write_segmented(sets / "others", 6, classes=("sky", "lane", "car"))
    assert "class 'lane' is 'road' there" in segment(train="others", fails=True)
    write_segmented(sets / "of-another", 6, weights="v")
    assert "are of two encoders or extractions: weights" in segment(train="of-another", fails=True)
    assert "did you mean 'linear'" in segment("--protocol", "liner", fails=True)
    assert "has no class 'tree'; it has: sky, road, car" in segment("--foreground", "tree", fails=True)
    assert "k is 500, but" in segment("--protocol", "knn", "--ks", "500", fails=True)


def test_a_class_without_training_patches_is_reported(segment, sets):
    write_segmented(sets / "two", 12, classes=CLASSES, labelled=2)
    said = segment("--protocol", "logistic", "--cs", "1", train="two")
    assert "note: no training patch is of car" in said
    assert not [*(sets / "out/linear").iterdir(), *(sets / "out/maps").iterdir()], "DVC expects these folders of every run"
