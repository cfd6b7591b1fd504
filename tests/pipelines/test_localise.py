"""`beyondcls localise` on a small feature set with boxes: what it writes, and what it says of bad input."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from probe.grid import HeadSpec
from probe.localisation.boxes import iou
from probe.localisation.maps import attention_maps, probe_maps
from probe.localisation.truths import truths_of
from probe.result_files import read_result
from probe.saved import save_probe
from tests.features import write_features
from tests.probe.localisation.features import write_boxed
from tests.truths import instances_of, with_truths


@pytest.fixture
def localise(beyondcls, tmp_path):
    def call(features, *given, workers=1, fails=False):
        options = ("--out", tmp_path / "out", "--size", 64, "--workers", workers)
        return beyondcls("localise", "--features", features, *options, *given, fails=fails)

    return call


def write_probes(
    folder: Path,
    aggregator: str = "abmilp",
    seeds=(0, 1),
    score: float = 1.0,
    weights: str = "w",
    transform: dict[str, object] | None = None,
    sizes=(4, 16),
    about=None,
    **options: str,
) -> Path:
    """Heads that look where channel 0 is large, or, with a negative score, where it is not."""
    spec = HeadSpec(aggregator, options)
    recorded = {"encoder": f"encoder-{weights}", "encoder_weights": weights, "architecture": "{}", "block": 1, **(about or {})}
    for seed in seeds:
        head = spec.build(*sizes, 2, seed=seed).eval()
        for parameter in head.aggregator.parameters():
            torch.nn.init.zeros_(parameter)
            if parameter.ndim == 2:
                parameter.data[0, 0] = score
        details = {"seed": seed, **recorded, "transform": transform or {"input_size": [3, 32, 32]}}
        save_probe(folder / f"trained/seed{seed}", head, spec, sizes[1], details)
    return folder


def written(tmp_path: Path) -> dict:
    return read_result(tmp_path / "out/localisation.json")


def maps(content: dict) -> dict:
    return {(entry["source"], entry["name"]): entry for entry in content["maps"]}


def test_finds_what_a_map_sees(localise, tmp_path):
    store = write_boxed(tmp_path / "set", 9, maps=("cls", "centre"))
    write_probes(tmp_path / "probes/mine/abmilp", seeds=(0, 10))
    write_probes(tmp_path / "probes/mine/abmilp", seeds=(2,), score=-1.0)
    write_probes(tmp_path / "probes/mine/away", score=-1.0)
    write_probes(tmp_path / "probes/mine/average", "average")
    out = localise(tmp_path / "set", "--probes", tmp_path / "probes/mine")
    assert f"{tmp_path / 'probes/mine/average'} does not weight patches, or all alike; left out" in out
    content = written(tmp_path)
    assert (content["encoder"], content["key"], content["size"], content["view"]) == ("encoder-w", store.spec.key, 64, 0)
    assert (content["block"], content["n_images"], content["n_boxes"]) == (1, 9, 9)
    entries = maps(content)
    names = [("attention", name) for name in ("cls", "cls-head-0", "cls-head-1", "centre-patch")]
    assert list(entries) == [*names, ("probe", "abmilp"), ("probe", "away"), ("baseline", "centre")]
    sees, noise = entries["attention", "cls-head-0"], entries["attention", "cls-head-1"]
    assert sees["max_box_acc_v2"] == {"mean": 100, "std": 0, "values": [100], "without": [100] * 9}
    assert sees["max_box_acc"]["mean"] == 100
    assert noise["max_box_acc"]["mean"] < 60
    abmilp, values = entries["probe", "abmilp"], entries["probe", "abmilp"]["max_box_acc_v2"]["values"]
    assert (abmilp["seeds"], values[0], values[2]) == ([0, 2, 10], 100, 100)
    assert values[1] == entries["probe", "away"]["max_box_acc_v2"]["mean"] < 100
    assert content["objects"] == {"truth": "boxes", "classes": []}
    weight = sees["on_objects"]
    assert (weight["chance"], weight["n_images"], weight["n_without"]) == (25, 9, 0)
    assert weight["gain"]["mean"] == pytest.approx(4 * 0.8 / 0.92, rel=1e-3)
    assert entries["baseline", "centre"]["on_objects"]["share"]["mean"] > 25
    words = "whole image, squashed to 64 x 64 pixels"
    assert content["frame"] == {"shows": "whole", "size": 64, "percent_outside": 0, "official": False, "words": words}
    assert "MaxBoxAccV2 100.0 %" in out
    assert "weight on objects 87.0 % of 25.0 % of the area" in out
    with (tmp_path / "out/localisation.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    of_seeds = [(entry, i, seed) for entry in entries.values() for i, seed in enumerate(entry["seeds"] or [""])]
    for row, (entry, i, seed) in zip(rows, of_seeds, strict=True):
        assert (row["source"], row["name"], row["seed"]) == (entry["source"], entry["name"], str(seed))
        expected = {f"at_iou_{iou}": of_iou["values"][i] for iou, of_iou in entry["by_iou"].items()}
        expected |= {f"threshold_{iou}": of_iou["thresholds"][i] for iou, of_iou in entry["by_iou"].items()}
        expected |= {"max_box_acc": entry["max_box_acc"]["values"][i], "area_of_objects": 25}
        expected |= {"gain_on_objects": entry["on_objects"]["gain"]["values"][i]}
        assert {column: float(row[column]) for column in expected} == expected


def test_maps_are_of_the_block_that_is_probed(tmp_path):
    """Attention of the deepest block or the one that is named; a head's of its own."""
    store = write_features(tmp_path / "set", blocks=(0, 1))
    rows, maps = np.arange(9), [store.array(f"attention/cls/block{block}/view0").rows(range(9)) for block in (0, 1)]
    for given, block in ((None, 1), (0, 0)):
        entries = attention_maps(store, rows, block=given)
        assert [one.name for one in entries] == ["cls", "cls-head-0", "cls-head-1", "cls-head-2"]
        np.testing.assert_array_equal(entries[2].maps[0].reshape(9, 9), maps[block][:, 1])
    about = {"block": 0, "attention_block": 0}
    folder = write_probes(tmp_path / "probes/rows", "cls-attention", (0,), sizes=(8, 9), about=about)
    given, expected = probe_maps(store, rows, folder).maps[0].reshape(9, 9), maps[0].astype(np.float32).mean(1)
    np.testing.assert_allclose(given, expected / expected.sum(1, keepdims=True), rtol=1e-4)


def test_maps_of_a_grid_that_is_not_square(tmp_path):
    """4 x 9 patches are as many as 6 x 6, and 3 x 4 are no square."""
    for n_patches, grid in ((12, (3, 4)), (36, (4, 9))):
        store = write_features(tmp_path / f"{n_patches}", 5, n_patches, 4)
        store.attributes["grid"] = list(grid)
        stored = store.array("attention/cls/block1/view0").rows(range(5))
        given = attention_maps(store, np.arange(5))[2].maps[0]
        np.testing.assert_array_equal(given, stored[:, 1].reshape(5, *grid))
        folder = write_probes(tmp_path / f"probes{n_patches}/abmilp", seeds=(0,), sizes=(4, n_patches))
        (weights,) = probe_maps(store, np.arange(5), folder).maps
        expected = store.tokens("patch").rows(range(5))[..., 0].astype(np.float32)
        np.testing.assert_array_equal(weights.reshape(5, -1).argmax(1), expected.argmax(1))
        assert weights.shape == (5, *grid)


def test_boxes_of_instances_are_found_where_the_set_has_no_others(localise, tmp_path):
    mask = np.zeros((1, 32, 32), bool)
    mask[0, 8:16, 8:24] = True
    crowd = np.ones((1, 32, 32), bool)
    objects = [[*instances_of(mask, [0]), *instances_of(crowd, [0], [True])], instances_of(mask, [0])]
    plain = write_features(tmp_path / "plain", 2, 16, 4)
    store = with_truths(plain, tmp_path / "set", instances=objects, instance_classes=("cat",))
    truths = truths_of(store, 64)
    assert [boxes.tolist() for boxes in truths.boxes] == [[[16, 16, 48, 32]]] * 2
    localise(tmp_path / "set", "--foreground", "cat")
    assert written(tmp_path)["objects"] == {"truth": "masks", "classes": ["cat"]}
    assert written(tmp_path)["n_boxes"] == 2


def test_a_box_of_each_image_and_map(localise, tmp_path):
    store = write_boxed(tmp_path / "set", 9, boxes={1: [], 2: [[0, 0, 4, 4]]}, crop=(8, 8, 32, 32), flip=True, invalid=(4,))
    write_probes(tmp_path / "probes/mine/abmilp", seeds=(3, 5))
    write_probes(tmp_path / "probes/mine/away", seeds=(0,), score=-10.0)
    localise(tmp_path / "set", "--probes", tmp_path / "probes/mine")
    content, entries = json.loads((tmp_path / "out/boxes.json").read_text()), maps(written(tmp_path))
    of_maps, boxes = content.pop("maps"), [boxes.tolist() for boxes in truths_of(store, 64).boxes]
    ids = ["000", "002", "003", "005", "006", "007", "008"]
    shown = {"crops": [[8, 8, 32, 32]] * 7, "flips": [True] * 7, "boxes": boxes, "size": 64, "view": 0}
    assert content == {"data": store.spec.data, "ids": ids, **shown}
    assert boxes[1] == []
    of_each = [(entry["source"], entry["name"], entry["seed"]) for entry in of_maps]
    assert of_each == [("attention", "cls", None), ("probe", "abmilp", 3), ("probe", "away", 0)]
    away = entries["probe", "away"]
    assert away["max_box_acc"]["thresholds"] != away["by_iou"]["0.5"]["thresholds"]  # which is the other contours' too
    for entry in of_maps:
        measured = entries[entry["source"], entry["name"]]["max_box_acc"]
        assert entry["threshold"] == measured["thresholds"][0]
        assert 100 * sum(value >= 0.5 for value in entry["ious"]) / 7 == pytest.approx(measured["values"][0])
        both = zip(np.array(entry["boxes"])[:, None], boxes, strict=True)
        assert entry["ious"] == [iou(box, np.array(true, int).reshape(-1, 4)).max(initial=0) for box, true in both]


def test_a_head_that_was_trained_on_crops_is_shown_whole_images(localise, tmp_path):
    whole = {"input_size": [3, 32, 32], "mean": [0.5] * 3, "crop_mode": "squash", "crop_pct": 1.0}
    write_boxed(tmp_path / "set", transform=whole)
    write_probes(tmp_path / "probes/crops/abmilp", transform={**whole, "crop_mode": "center", "crop_pct": 0.9})
    localise(tmp_path / "set", "--probes", tmp_path / "probes/crops")
    assert ("probe", "abmilp") in maps(written(tmp_path))
    write_probes(tmp_path / "probes/other/abmilp", transform={**whole, "mean": [0] * 3})
    err = localise(tmp_path / "set", "--probes", tmp_path / "probes/other", fails=True)
    assert "with transform {'input_size': [3, 32, 32], 'mean': [0, 0, 0]}" in err


def test_two_processes_give_the_same(localise, tmp_path):
    write_boxed(tmp_path / "set", 70)
    localise(tmp_path / "set")
    alone = written(tmp_path)["maps"]
    localise(tmp_path / "set", workers=2)
    assert written(tmp_path)["maps"] == alone


def test_flat_maps_and_lost_objects_are_told(localise, tmp_path):
    write_boxed(tmp_path / "set", boxes={0: [[0, 0, 4, 4]]}, crop=(8, 8, 32, 32), flat=(1, 3))
    assert "nothing of the boxes of 1 images" in localise(tmp_path / "set")
    content = written(tmp_path)
    assert (content["n_images_outside"], content["frame"]["shows"]) == (1, "crop")
    assert content["frame"]["percent_outside"] == pytest.approx(100 * (1 - 896 / 1296))
    assert [entry["n_flat"] for entry in content["maps"]] == [[2], [2], [2], [0]]


def test_objects_outside_of_every_crop_are_not_found_and_have_no_weight(localise, tmp_path):
    write_boxed(tmp_path / "set", 2, boxes={row: [[0, 0, 4, 4]] for row in (0, 1)}, crop=(8, 8, 32, 32))
    assert "the weight on objects is not measured" in localise(tmp_path / "set")
    entries = written(tmp_path)["maps"]
    assert [entry["max_box_acc"]["mean"] for entry in entries] == [0] * 4
    assert not any("on_objects" in entry for entry in entries)


@pytest.mark.parametrize(
    ("options", "probe", "arguments", "said"),
    [
        ({"with_boxes": False}, {}, (), "has no boxes, so there is nothing to compare its maps with"),
        ({"n_patches": 12}, {}, (), "has 12 patches, which are no square, and does not say of what grid; extract it again"),
        ({"maps": ()}, {}, (), "there is nothing to score"),
        ({}, {}, ("--head", "abmilp"), "there is no --probes PROBES/ENCODER that it could be in"),
        ({}, {}, ("--probes", "PROBES", "--head", "nonesuch"), "there are no trained probes in"),
        ({}, {"weights": "other"}, ("--probes", "PROBES"), "was trained on 'encoder-other' with encoder_weights other, "),
        ({}, {"aggregator": "average"}, ("--probes", "PROBES", "--head", "abmilp"), "does not weight patches, or all alike"),
        ({}, {"aggregator": "cls-attention", "of": "joined"}, ("--probes", "PROBES"), "reads 'joined/attention/cls', of a"),
    ],
)
def test_what_cannot_be_localised(localise, tmp_path, options, probe, arguments, said):
    write_boxed(tmp_path / "set", **options)
    write_probes(tmp_path / "probes/abmilp", **probe)
    assert said in localise(tmp_path / "set", *(tmp_path / "probes" if a == "PROBES" else a for a in arguments), fails=True)
    assert not (tmp_path / "out").exists()
