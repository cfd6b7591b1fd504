"""`beyondcls predict` with heads for patches and detectors: what it prints, keeps, draws and refuses."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from extract.encoders import load_encoder
from pipelines.live.detections import online_detector
from pipelines.live.online import online
from pipelines.predictions.label_maps import Segmented
from pipelines.predictions.objects import FoundObjects
from probe.detection.detected import Detected
from probe.detection.detector import Detector, save_detector
from probe.detection.recipe import DetectorOptions
from probe.saved import first_seed
from probe.segmentation.patch_head import PatchHead, save_patch_head
from store.truths.rle import encode
from tests.extract.pictures import picture
from tests.probe.detection.tiny import OPTIONS

CLASSES = ("sky", "road", "car")
NAME = "quickstart-random"
SIZE = (40, 60)  # height and width of the pictures, of which the encoder sees the square in the middle


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Path:
    """A folder with photos, and with a head of each kind of `beyondcls segment` and a detector, none of which was trained."""
    folder = tmp_path_factory.mktemp("world")
    encoder = load_encoder(NAME)
    recorded = {"architecture": encoder.architecture, "transform": encoder.described_transform, "block": encoder.block}
    about = {"encoder": NAME, "encoder_weights": encoder.weights, "classes": CLASSES, **recorded}
    torch.manual_seed(0)
    dim, grid = 192, encoder.grid
    for name in ("linear", "logistic"):
        head = PatchHead(torch.zeros(dim), torch.ones(dim), torch.randn(3, dim), torch.zeros(3), grid)
        save_patch_head(folder / f"segmentation/{name}/seed0", head, {**about, "protocol": name})
    detector = Detector(dim, grid, 3, DetectorOptions(**OPTIONS))
    save_detector(folder / "detection/trained/seed10", detector, about)
    torch.nn.init.normal_(detector.roi_heads.box_predictor.cls_score.weight)
    save_detector(folder / "detection/trained/seed2", detector, about)
    (folder / "photos").mkdir()
    for name, seed in (("000007.png", 0), ("000003.png", 1)):
        (folder / "photos" / name).write_bytes(picture(seed, height=SIZE[0], width=SIZE[1]))
    return folder


@pytest.fixture
def predict(command, world):
    """Standard output of `beyondcls predict` with what is in a folder of the world, and what it says beside that."""

    def predict(trained, *options, fails=False) -> tuple[str, str]:
        where = ("--probe", world / trained, "--encoder", NAME)
        status, out, err = command("predict", world / "photos", *where, *options)
        assert status == int(fails), err
        return out, " ".join(err.split())

    return predict


def test_label_maps_in_pixels_of_the_pictures(predict, world, tmp_path):
    options = ("--out", tmp_path, "--overlays", tmp_path / "look", "--json", "--batch-size", 1)
    out, _ = predict("segmentation/linear/seed0", *options)
    model = online(load_encoder(NAME), world / "segmentation/linear/seed0")
    entries, table = [json.loads(line) for line in out.splitlines()], pd.read_csv(tmp_path / "predictions.csv")
    assert [Path(entry["image"]).name for entry in entries] == ["000003.png", "000007.png"]
    for i, entry in enumerate(entries):
        label_map = np.asarray(Image.open(entry["label_map"]))
        assert entry["label_map"] == str(tmp_path / f"label-maps/{i}-{Path(entry['image']).stem}.png")
        (expected,) = model.label_maps(entry["image"])
        np.testing.assert_array_equal(label_map, np.where(expected < 0, 255, expected))
        counts = np.bincount(label_map[:, 10:50].ravel(), minlength=3)
        order = np.argsort(-counts)[: (counts > 0).sum()].tolist()
        assert [(one["class"], one["label"]) for one in entry["classes"]] == [(CLASSES[k], k) for k in order]
        np.testing.assert_allclose([one["share"] for one in entry["classes"]], counts[order] / 1600, atol=1e-6)
        of_image = table[table.image == entry["image"]][["class", "label", "share"]]
        assert of_image.to_dict("records") == entry["classes"]
        over = np.asarray(Image.open(entry["overlay"])).astype(int)
        plain = np.asarray(Image.open(entry["image"]).convert("RGB").resize((336, 224), Image.Resampling.LANCZOS))
        np.testing.assert_array_equal(over[:, :50], plain[:, :50])
        assert np.abs(over[:, 60:270] - plain[:, 60:270]).mean() > 10


def test_a_folder_stands_for_its_first_seed(predict, world):
    shown, err = predict("segmentation")
    assert f"of {world / 'segmentation'}, linear/seed0 is used" in err
    assert shown == predict("segmentation/linear/seed0.json")[0]
    folders = {"detection": "trained/seed2", "detection/trained": "seed2", "segmentation/logistic": "seed0"}
    for folder, seed in (folders | {"detection/trained/seed10": ""}).items():
        assert first_seed(world / folder) == world / folder / seed


def test_objects_with_their_scores(predict, world, tmp_path):
    model = online_detector(load_encoder(NAME), world / "detection/trained/seed2")
    files = [world / f"photos/{name}.png" for name in ("000003", "000007")]
    detected = model.detect(files)
    threshold = round(float(np.median(detected[0].scores)), 4)
    options = ("--score-threshold", threshold, "--json", "--out", tmp_path)
    entries = [json.loads(line) for line in predict("detection", *options)[0].splitlines()]
    for entry, one in zip(entries, detected, strict=True):
        found, n = pd.DataFrame(entry["objects"]), int((one.scores >= threshold).sum())
        assert found["label"].tolist() == one.labels[:n].tolist()
        assert found["class"].tolist() == [CLASSES[label] for label in one.labels[:n]]
        np.testing.assert_allclose(found["score"], one.scores[:n], atol=1e-5)
        np.testing.assert_allclose(found["box"].tolist(), one.boxes[:n], atol=0.01)
    n_all, n_shown = sum(len(one.labels) for one in detected), sum(len(entry["objects"]) for entry in entries)
    assert 0 < n_shown < n_all
    table, results = pd.read_csv(tmp_path / "predictions.csv"), json.loads((tmp_path / "detections.json").read_text())
    assert len(table) == len(results) == n_all, "files have every object, whatever its score"
    assert {(one["image_id"], one["file_name"]) for one in results} == {(3, str(files[0])), (7, str(files[1]))}
    assert (table.label + 1).tolist() == [one["category_id"] for one in results]
    boxes = np.stack([table.x0, table.y0, table.x1 - table.x0, table.y1 - table.y0], 1)
    np.testing.assert_allclose(boxes, [one["bbox"] for one in results], atol=0.02)
    assert results[0]["segmentation"]["size"] == list(SIZE)


def test_objects_are_drawn_at_the_size_of_the_overlay():
    """A mask and its box lie at the same place of an overlay that is enlarged."""
    mask = np.zeros((1, 20, 30), bool)
    mask[0, 10:20, 15:30] = True
    found = Detected(
        np.array([1, 0]), np.array([0.9, 0.3], np.float32), np.array([[15, 10, 30, 20], [0, 0, 9, 9]], np.float32),
        tuple(encode(np.concatenate([mask, ~mask]))), (20, 30),
    )  # fmt: skip
    over = np.asarray(FoundObjects(Image.new("RGB", (30, 20)), found, ("a", "b"), 0.5).pictures()["overlay"])
    assert over.shape == (224, 336, 3)
    assert (over[:110, :].max(), over[:, :160].max()) == (0, 0), "what has a low score is not drawn"
    assert (over[180:220, 172:330] > 0).any(2).all()
    shown = Segmented(Image.new("RGB", (3, 2)), np.array([[2, 2, -1], [0, 2, 0]], np.int16), CLASSES)
    assert shown.to_lines() == ["   60.0 %  car", "   40.0 %  sky"]


@pytest.mark.parametrize(
    ("trained", "options", "messages"),
    [
        ("photos", (), ["photos' has neither heads nor detectors; expected trained/seed0.json, of `beyondcls probe`"]),
        ("segmentation/linear", ("--top", 3), ["--top was given", "segmentation/linear/seed0, a head for patches"]),
        ("detection", ("--threshold", 0.5), ["--threshold was given"]),
        ("detection", ("--score-threshold", 50), ["--score-threshold is 50, expected a number from 0 to 1"]),
        ("detection", ("--crop-mode", "squash"), ["crop_mode center (not squash)"]),
    ],
)
def test_what_does_not_fit_is_refused(predict, trained, options, messages):
    err = predict(trained, *options, fails=True)[1]
    assert all(message in err for message in messages)
