"""The files of a run: each seed by its number, what is not a number is none, and nothing of an earlier run stays."""

import csv
import json

import numpy as np
import pytest
import torch
from PIL import Image

from probe.grid import Member
from probe.result_files import read_result
from probe.segmentation.evaluate import ModelPredictions, evaluate
from probe.segmentation.label_maps import LabelMapsOfView
from probe.segmentation.linear import NAME, TrainedMember
from probe.segmentation.patch_head import PatchHead, load_patch_head
from probe.segmentation.results import files_in, write
from probe.segmentation.run import ProtocolOutcome, Protocols, SegmentationResult
from probe.segmentation.saved_maps import palette, save_label_map
from probe.segmentation.sets import Sets
from store.writing.results import ResultFolder
from tests.probe.segmentation.features import CLASSES, SIDE, write_segmented


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """No patch is of a car; images were read in a smaller number for the test."""
    folder = tmp_path_factory.mktemp("sets")
    return Sets(write_segmented(folder / "train", 6, labelled=2), *(write_segmented(folder / n, 3, labelled=2) for n in "ab"))


@pytest.fixture
def written(sets, tmp_path):
    right = PatchHead(torch.zeros(6), torch.ones(6), torch.eye(3, 6), torch.tensor([0.0, 0.0, -99.0]), (SIDE, SIDE))
    wrong = PatchHead(torch.zeros(6), torch.ones(6), torch.zeros(3, 6), torch.tensor([1.0, 0.0, 0.0]), (SIDE, SIDE))
    heads = {3: right, 5: wrong}
    models = {("linear", i): ModelPredictions(head=head, interpolated=False) for i, head in enumerate(heads.values())}
    measured, _ = evaluate(sets.tested, models, ("original",), LabelMapsOfView(sets.test))
    trained = [
        TrainedMember(Member(NAME, 1.0, 0.0, seed), head, [{"epoch": 1, "loss": float(seed)}]) for seed, head in heads.items()
    ]
    outcome = ProtocolOutcome(list(models.values()), {"base_lr": 1.0}, seeds=(3, 5), trained=trained)
    (tmp_path / "linear").mkdir()
    (tmp_path / "linear/seed7.json").write_text("{}")  # of an earlier run
    outcome.measured = list(measured.values())
    result = SegmentationResult({"linear": outcome}, {"shows": "crop", "percent_outside": 12.5, "words": "central crop"})
    about = {"command": "beyondcls segment", "foreground": [{"share": float("nan"), "gain": (1.0, float("nan"))}]}
    with ResultFolder(tmp_path, "description.json", lambda: files_in(tmp_path)).written() as folder:
        write(folder, sets, Protocols(), result, about)
    return tmp_path


def rows(file):
    with file.open(newline="") as opened:
        return list(csv.DictReader(opened))


def test_measures(written, sets):
    for file in ("metrics.json", "description.json"):
        json.loads((written / file).read_text(), parse_constant=lambda name: pytest.fail(name))
    content = read_result(written / "metrics.json")
    linear = content["protocols"]["linear"]
    assert (linear["accuracy_grid"]["values"][0], linear["seeds"]) == (100, [3, 5])
    assert linear["accuracy_grid"]["values"][1] == pytest.approx(100 * sets.tested.counts[0] / sets.tested.n_labelled)
    assert content["features"] == {name: getattr(sets, name).spec.key for name in ("training", "test", "validation")}
    assert content["command"] == "beyondcls segment"
    assert content["foreground"] == [{"share": None, "gain": [1, None]}]
    for note, part in zip(content["notes"], ("training patch is of car", "test patch is of car", "central crop"), strict=True):
        assert part in note


def test_tables(written, sets):
    by_class = rows(written / "per_class.csv")
    for name, counts in (("n_training_patches", sets.learnt.counts), ("n_test_patches", sets.tested.counts)):
        assert [int(row[name]) for row in by_class] == counts.tolist()
    assert by_class[2]["linear iou_grid"] == "", "a class that is neither there nor predicted"
    assert float(by_class[1]["linear iou_original"]) == 50, "mean over seeds, 100 and 0"
    confusion = rows(written / "confusion.csv")
    assert [(row["seed"], row["resolution"], row["truth"]) for row in confusion] == [
        (seed, resolution, name) for seed in "35" for resolution in ("grid", "original") for name in CLASSES
    ]
    assert [int(confusion[1][name]) for name in CLASSES] == [0, sets.tested.counts[1], 0]
    assert [int(confusion[7][name]) for name in CLASSES] == [sets.tested.counts[1], 0, 0]
    assert [(row["seed"], float(row["loss"])) for row in rows(written / "curves.csv")] == [("3", 3), ("5", 5)]


def test_heads(written, sets):
    kept = {f"seed{seed}.{kind}" for seed in (3, 5) for kind in ("json", "safetensors")}
    assert {file.name for file in (written / "linear").iterdir()} == kept
    head, about = load_patch_head(written / "linear/seed5")
    assert head.bias.tolist() == [1, 0, 0]
    assert (about["seed"], about["protocol"], about["chosen"]) == (5, "linear", {"base_lr": 1.0})
    accuracy = read_result(written / "metrics.json")["protocols"]["linear"]["accuracy_original"]["values"]
    assert about["result"]["accuracy_original"] == accuracy[1] < accuracy[0]


@pytest.mark.parametrize(("n_classes", "mode", "unseen"), [(3, "P", 255), (255, "P", 255), (256, "I;16", 65535)])
def test_label_maps(tmp_path, n_classes, mode, unseen):
    """Of 255 classes the last is 254, so that 255 is free for what a view does not show; it is black, class 0 grey."""
    save_label_map(tmp_path / "deep/a.png", np.array([[0, -1], [n_classes - 1, 1]], np.int16), n_classes)
    with Image.open(tmp_path / "deep/a.png") as image:
        assert image.mode == mode
        assert np.asarray(image).tolist() == [[0, unseen], [n_classes - 1, 1]]
        assert mode != "P" or np.asarray(image.convert("RGB"))[0].tolist() == [[128] * 3, [0] * 3]
    assert len(np.unique(palette()[1:], axis=0)) == 255
