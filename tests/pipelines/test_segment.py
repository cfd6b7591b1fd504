"""`beyondcls segment` on small feature sets with label maps: what it writes, and what it says of bad input."""

import csv
import json
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from unittest.mock import Mock

import numpy as np
import pytest
from PIL import Image

from pipelines.predictions.label_maps import OPACITY, draw_label_map
from probe.grid import HeadPlan
from probe.result_files import read_result
from probe.segmentation.linear import SPEC
from probe.segmentation.logistic import PatchLogistic
from probe.segmentation.neighbours import PatchNeighbours
from probe.segmentation.patch_head import load_patch_head
from probe.segmentation.run import LINEAR, Protocols
from probe.segmentation.saved_maps import palette, save_label_map
from store import BeyondClsError, open_store
from tests.features import write_features
from tests.pipelines.test_localise import write_probes
from tests.probe.segmentation.features import CLASSES, SIDE, write_segmented

QUICK = ("--epochs", 30, "--base-lrs", "0.3,3,1e60", "--seeds", "0,1", "--ks", "1,3", "--cs", "0.1,10", "--loss-size", 16)


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


def rows(file):
    with file.open(newline="") as opened:
        return list(csv.DictReader(opened))


def test_writes_measures_tables_heads_and_maps(segment, sets):
    write_probes(sets / "probes/abmilp", sizes=(6, 16))
    (sets / "out/linear").mkdir(parents=True)
    (sets / "out/linear/seed7.json").write_text("{}")  # of an earlier run
    probes = ("--probes", sets / "probes", "--foreground", "sky")
    segment(*QUICK, "--at", "original", "--at", 64, "--save-maps", 2, "--log", "csv", *probes)
    content = read_result(sets / "out/metrics.json")
    assert (content["task"], content["classes"], content["grid"]) == ("segmentation", list(CLASSES), [SIDE, SIDE])
    assert (content["n_training"], content["n_test"], content["n_training_patches"]) == (24, 8, 24 * 16 - 8)
    assert content["shown"]["words"] == "whole image"
    assert content["features"] == {name: open_store(sets / name[:5]).spec.key for name in ("training", "test")}
    assert "--log" not in content["command"]
    assert (sets / "out/training_logs/training.csv").read_text().startswith("seed,base_lr,weight_decay,epoch,lr,loss\n0,")
    measured = content["protocols"]
    assert list(measured) == ["knn", "logistic", "linear", "most-frequent-class", "drawn-by-prior"]
    for name, resolution in (("logistic", "grid"), ("logistic", "original"), ("logistic", "64"), ("linear", "grid")):
        assert measured[name][f"miou_{resolution}"]["mean"] > 75, (name, resolution)
    assert measured["logistic"]["miou_original"]["mean"] == pytest.approx(measured["logistic"]["miou_grid"]["mean"], abs=1)
    assert 50 < measured["linear"]["miou_original"]["mean"] < 75, "between patches of noise, logits say little"
    assert measured["knn"]["miou_grid"]["mean"] > 60 > measured["most-frequent-class"]["accuracy_grid"]["mean"]
    assert (measured["linear"]["seeds"], measured["linear"]["selected"]["percent"][2]) == ([0, 1], None), "one diverges"
    assert (measured["knn"]["selected"]["on"], measured["knn"]["selected"]["n_images"]) == ("hold-out", 2)
    tried = {(s[0], s[1]) for s in measured["knn"]["selected"]["candidates"]}
    assert tried == {(m, k) for m in ("cosine", "euclidean") for k in (1, 3)}
    foreground = {entry["name"]: entry for entry in content["foreground"]["maps"]}
    assert foreground["abmilp"]["share"]["mean"] > foreground["abmilp"]["chance"] + 10, "its weight grows with channel 0"
    assert foreground["cls"]["gain"]["mean"] == pytest.approx(1, abs=0.2)
    check_tables(sets / "out", measured)
    kept = {f"seed{seed}.{kind}" for seed in (0, 1) for kind in ("json", "safetensors")}
    assert {file.name for file in (sets / "out/linear").iterdir()} == kept
    for seed in (0, 1):
        head, about = load_patch_head(sets / f"out/linear/seed{seed}")
        assert (about["classes"], about["encoder_weights"], head.grid) == (list(CLASSES), "w", (SIDE, SIDE))
        assert (about["seed"], about["protocol"], about["chosen"]) == (seed, "linear", measured["linear"]["chosen"])
        assert about["result"] == {k: v["values"][seed] for k, v in measured["linear"].items() if k.startswith(("miou", "acc"))}
    maps = sorted((sets / "out/maps/linear").iterdir())
    assert [file.name for file in maps] == ["000000.png", "000007.png"]
    described = json.loads((sets / "out/maps/images.json").read_text())
    assert (described["resolution"], described["unseen"]) == ("original", 255)
    assert [(image["id"], image["file"]) for image in described["images"]] == [(f.stem, f.name) for f in maps]
    assert (described["images"][0]["crop"], described["images"][0]["flip"]) == ([0, 0, 32, 32], False)
    assert described["data"] == content["data"] == open_store(sets / "test").spec.data
    for row, file in zip((0, 7), maps, strict=True):
        truth = np.asarray(Image.open(sets / "out/maps/truth" / file.name)).astype(np.int16)
        np.testing.assert_array_equal(np.where(truth == 255, -1, truth), open_store(sets / "test").segmentation.label_map(row))
    assert not (sets / ".unfinished").exists() or not list((sets / ".unfinished").iterdir())


def check_tables(out, protocols):
    """Measures follow from confusion.csv; per_class.csv has means over seeds, nothing for a class that is nowhere."""
    ious = {}
    for (name, seed, resolution), of_model in groupby(
        rows(out / "confusion.csv"), itemgetter("protocol", "seed", "resolution")
    ):
        counts = np.array([[int(row[true]) for true in CLASSES] for row in of_model])
        assert resolution != "original" or counts.sum() == 8 * 32 * 31 - 16 * 32, "void pixels are not counted"
        protocol, union = protocols[name], counts.sum(0) + counts.sum(1) - np.diag(counts)
        i = protocol["seeds"].index(int(seed)) if seed else 0
        ious.setdefault(f"{name} iou_{resolution}", []).append(100 * np.diag(counts) / np.where(union, union, np.nan))
        assert protocol[f"accuracy_{resolution}"]["values"][i] == pytest.approx(100 * np.trace(counts) / counts.sum())
        assert protocol[f"miou_{resolution}"]["values"][i] == pytest.approx(np.nanmean(ious[f"{name} iou_{resolution}"][-1]))
    table = rows(out / "per_class.csv")
    assert [row.pop("class") for row in table] == list(CLASSES)
    for column, of_models in ious.items():
        np.testing.assert_allclose([float(row[column] or "nan") for row in table], np.mean(of_models, 0))
    assert table[0].keys() == {*ious, "n_training_patches", "n_test_patches"}


def test_validation_images_select(segment, sets):
    write_segmented(sets / "val", 5, seed=2)
    segment("--protocol", "knn", "--ks", "1,5", "--val", sets / "val")
    content = read_result(sets / "out/metrics.json")
    selected = content["protocols"]["knn"]["selected"]
    assert (selected["on"], selected["n_images"]) == ("validation set", 5)
    assert "validation" in content["features"]


def test_a_class_without_patches_is_reported(segment, sets):
    """What is not a number is none."""
    for name, n in (("two", 12), ("test-of-two", 8)):
        write_segmented(sets / name, n, labelled=2)
    said = segment("--protocol", "logistic", "--cs", "1", "--test", sets / "test-of-two", train="two")
    assert "note: no training patch is of car" in said
    assert not [*(sets / "out/linear").iterdir(), *(sets / "out/maps").iterdir()], "DVC expects these folders of every run"
    check_tables(sets / "out", read_result(sets / "out/metrics.json")["protocols"])
    assert rows(sets / "out/per_class.csv")[2]["logistic iou_grid"] == ""


def test_saved_maps_are_of_this_run(segment, sets):
    """Of all images, where there are fewer than were asked for; at the first of the resolutions."""
    for file in ("linear/old.png", "mine/notes.png"):
        (sets / "out/maps" / file).parent.mkdir(parents=True)
        (sets / "out/maps" / file).touch()
    (sets / "out/maps/images.json").write_text('{"images": [{"file": "old.png"}]}')
    segment(*["--protocol", "knn", "--ks", "1", "--metric", "cosine", "--save-maps", "99", "--at", "8", "--at", "original"])
    assert not (sets / "out/maps/linear").exists()
    assert (sets / "out/maps/mine/notes.png").exists(), "what no run wrote stays"
    maps = list((sets / "out/maps/knn").iterdir())
    assert len(maps) == 8
    assert {Image.open(file).size for file in maps} == {(8, 8)}


@pytest.mark.parametrize(("n_classes", "mode", "unseen"), [(255, "P", 255), (256, "I;16", 65535)])
def test_label_maps_in_files(tmp_path, n_classes, mode, unseen):
    """Of 255 classes the last is 254, so that 255 is free for what a view does not show; it is black, class 0 grey."""
    save_label_map(tmp_path / "deep/a.png", np.array([[0, -1], [n_classes - 1, 1]], np.int16), n_classes)
    with Image.open(tmp_path / "deep/a.png") as image:
        assert image.mode == mode
        assert np.asarray(image).tolist() == [[0, unseen], [n_classes - 1, 1]]
        assert mode != "P" or np.asarray(image.convert("RGB"))[0].tolist() == [[128] * 3, [0] * 3]
    assert len(np.unique(palette()[1:], axis=0)) == 255


MANY = [f"class {label}" for label in range(300)]


def test_pixels_are_tinted_in_the_colours_of_saved_maps():
    picture = np.full((60, 80, 3), 100, np.uint8)
    label_map = np.full((60, 80), -1, np.int16)
    label_map[:30, :40], label_map[30:, :40] = 2, 256
    drawn = draw_label_map(picture, label_map, MANY)
    assert (picture == 100).all(), "the picture stays as it is"
    assert (drawn[:, 40:80] == 100).all()
    for rows, label in ((slice(0, 30), 2), (slice(30, 60), 256 % 255)):
        expected = (1 - OPACITY) * 100 + OPACITY * palette()[label].astype(float)
        np.testing.assert_allclose(drawn[rows, :40].astype(float), np.broadcast_to(expected, (30, 40, 3)), atol=1)


def test_classes_that_occur_are_named_beside_the_picture():
    """The largest first, in a square of its full colour; in further columns, where one is too short for all of them."""
    label_map = np.zeros((64, 64), np.int16)
    label_map[40:] = 3
    drawn = draw_label_map(np.zeros((64, 64, 3), np.uint8), label_map, MANY)
    legend = drawn[:, 64:]
    first, second, never = (np.flatnonzero((legend == palette()[k]).all(2).any(1)) for k in (0, 3, 1))
    assert first[0] < second[0]
    assert not len(never)
    for i in range(12):
        label_map[i] = i
    many = draw_label_map(np.zeros((64, 64, 3), np.uint8), label_map, MANY)
    assert many.shape[0] == 64
    assert all((many[:, 64:] == palette()[k]).all(2).any() for k in range(12))


@pytest.fixture
def asked(monkeypatch):
    """With what `segment` is called; it then stops."""
    asked = Mock(side_effect=BeyondClsError("stopped"))
    monkeypatch.setattr("probe.segmentation.run.segment", asked)
    return asked


@pytest.fixture(scope="module")
def views(tmp_path_factory):
    """Sets of two blocks and three views, and where they are in options."""
    folder = tmp_path_factory.mktemp("sets")
    for name, n in (("train", 8), ("test", 5), ("val", 3)):
        write_segmented(folder / name, n, blocks=(0, 1), views=3, norm=True)
    return folder, ("--features", folder / "train", "--test", folder / "test")


def test_defaults(segment, views, asked, tmp_path):
    assert "error: stopped" in segment(*views[1], fails=True)
    (sets, protocols, resolutions), options = asked.call_args
    assert [len(store) for store in (sets.training, sets.test)] == [8, 5]
    assert (sets.validation, sets.block, sets.final_norm, sets.share, sets.placement) == (None, 1, False, 0.1, "auto")
    assert list(sets.views) == [1, 2], "random crops, where there are any"
    linear = replace(LINEAR, recipe=replace(LINEAR.recipe, base_lr=0.032), weight_decays=(0.01,))
    assert (protocols, list(resolutions)) == (Protocols(linear=linear, loss_size=32), ["original"])
    assert (options["unfinished"].folder, options["keep"]) == (tmp_path / ".unfinished/out", None)


def test_options(segment, views, asked):
    given = "--protocol knn --protocol linear --at 64 --at original --ks 2,5 --metric cosine --cs 0.5 --as-stored --epochs 4 "
    given += "--batch-size 3 --base-lrs 0.2,0.4 --weight-decays 0.1 --seeds 4 --loss-size 24 --views 1 --block 0 --final-norm "
    given += f"--held-out 0.3 --placement stream --save-maps 1 --val {views[0] / 'val'} --max-passes 9"
    segment(*views[1], *given.split(), fails=True)
    (sets, protocols, resolutions), options = asked.call_args
    assert len(sets.validation) == 3
    assert (sets.block, sets.final_norm, sets.share, sets.placement, list(sets.views)) == (0, True, 0.3, "stream", [0])
    recipe = replace(LINEAR.recipe, epochs=4, batch_size=3, base_lr=0.2, weight_decay=0.1)
    linear, neighbours = HeadPlan(SPEC, recipe, (4,), (0.2, 0.4), (0.1,)), PatchNeighbours((2, 5), ("cosine",), False)
    assert protocols == Protocols(("knn", "linear"), neighbours, PatchLogistic((0.5,), False, 9), linear, 24)
    assert list(resolutions) == [64, "original"]
    assert options["keep"] is not None


def test_mistakes(segment, views, sets, asked, tmp_path):
    write_features(sets / "plain", 4, SIDE**2, 6)
    write_segmented(sets / "others", 6, classes=("sky", "lane", "car"))
    assert "extract --extend --truths segmentation" in segment(train="plain", fails=True)
    assert "class 'lane' is 'road' there" in segment(train="others", fails=True)
    for given, message in (
        (("--at", "0"), "--at is '0', expected original or a number of pixels such as 512"),
        (("--block", "7"), "has no array 'patch/block7/view0'"),
        (("--metric", "cosin"), "did you mean 'cosine'"),
        (("--foreground", "tree"), "has no class 'tree'; it has: sky, road, car"),
        (("--probes", tmp_path / "none"), "every labelled pixel would be foreground; choose classes of sky, road, car"),
        (("--probes", tmp_path / "none", "--foreground", "car"), "there are no probes in"),
    ):
        assert message in segment(*views[1], *given, fails=True)
    assert not asked.called
