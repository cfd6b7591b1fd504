"""Detectors from feature sets: what is written, that it can be loaded, and what is said of sets that don't do."""

import csv
import json
import pickle
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from probe import checkpoint as states
from probe.detection.average_precision import AveragePrecision, coco_truths, examples
from probe.detection.detected import detections, in_original
from probe.detection.detector import load_detector, load_detector_with
from probe.detection.recipe import DetectionRecipe, DetectorOptions
from probe.detection.run import Detection, detect
from probe.detection.sets import ImagesWithObjects, images_with_objects
from probe.detection.targets import Targets, detection_batches
from probe.result_files import read_result
from store import BeyondClsError, FeatureStore, StoreError
from store.truths import Instance
from tests.features import write_features
from tests.probe.detection.tiny import OPTIONS, tiny_detector, write_objects

RECIPE = DetectionRecipe(epochs=2, batch_size=4, lr=5e-3, warmup_steps=1, clip=1.0)
OF_DETECTOR = DetectorOptions(**OPTIONS)


@pytest.fixture(scope="module")
def sets(tmp_path_factory) -> tuple[FeatureStore, FeatureStore]:
    folder = tmp_path_factory.mktemp("sets")
    return write_objects(folder / "train", n=6, norm=True, views=3, invalid=[2]), write_objects(
        folder / "test", n=3, seed=1, norm=True, views=3
    )


@pytest.fixture(scope="module")
def written(sets, tmp_path_factory):
    out = tmp_path_factory.mktemp("written") / "out"
    done: list[int] = []
    training, test = map(images_with_objects, sets)
    detection = Detection(training, test, RECIPE, OF_DETECTOR, seeds=(0, 5), progress=done.append)
    measures = detect(detection, out, {"command": "beyondcls detect"})
    assert sum(done) == detection.n_units == 2 * (2 * 2 + 3)
    return out, measures, detection


def test_files(written):
    out, measures, _ = written
    assert read_result(out / "metrics.json") == json.loads(json.dumps(measures))
    with (out / "curves.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["seed"], row["epoch"]) for row in rows] == [("0", "1"), ("0", "2"), ("5", "1"), ("5", "2")]
    assert list(rows[0])[2:5] == ["lr", "loss", "loss_objectness"]
    kept = {f"seed{seed}.{kind}" for seed in (0, 5) for kind in ("json", "safetensors")}
    assert {path.name for path in (out / "trained").iterdir()} == kept
    assert not (out.parent / ".unfinished").exists()
    assert (measures["n_training"], measures["n_test"], measures["seeds"]) == (5, 3, [0, 5]), "a damaged image is left out"
    assert (measures["grid"], measures["frame"], measures["detector"]["final_norm"]) == ([8, 8], [128, 128], True)
    assert measures["objects"]["training"]["objects"] == {"small": 5, "medium": 0, "large": 0}
    assert "nothing is augmented" in measures["notes"][-1]
    values = measures["box"]["ap"]["values"]
    assert measures["box"]["ap"]["mean"] == pytest.approx(np.mean(values))
    assert len(measures["box"]["ap"]["without"]) == 3, "groups of the test images"
    assert measures["mask"]["ap_large"] is None


def test_what_is_written_is_what_is_measured(written, sets):
    """The saved detector, loaded again, finds what detections.json holds, whose AP is the first seed's."""
    out, measures, measured_on = written[0], written[1], written[2].test
    detector, about = load_detector_with(out / "trained/seed0.json")
    rows = np.arange(3)
    detected = list(detections(detector, sets[1], rows))
    results = json.loads((out / "detections.json").read_text())
    assert [entry for i, one in enumerate(detected) for entry in one.to_coco(i)] == results, (
        "images are numbered by their names"
    )
    truths = coco_truths(sets[1].instances, rows, [0, 1, 2])
    for kind in ("box", "mask"):
        assert AveragePrecision(truths, results, kind).of()["ap"] == measures[kind]["ap"]["values"][0]
    assert about["classes"] == ["round", "square"]
    shown = json.loads((out / "examples.json").read_text())
    assert (shown["data"], shown["classes"]) == (measures["data"], ["round", "square"])
    assert [image["id"] for image in shown["images"]] == list(sets[1].ids), "all three have objects"
    assert [image["id"] for image in examples(measured_on, results, 2)["images"]] == [sets[1].ids[0], sets[1].ids[2]]
    image, objects = shown["images"][0], sets[1].instances.of(0)
    assert (image["size"], [o["box"] for o in image["objects"]]) == (list(objects.size), objects.boxes.tolist())
    assert [o["counts"].encode() for o in image["objects"]] == list(objects.counts)
    assert [o["label"] for o in image["objects"]] == objects.labels.tolist()
    np.testing.assert_allclose([one["box"] for one in image["detections"]], detected[0].boxes, atol=1e-3)
    assert [one["label"] for one in image["detections"]] == detected[0].labels.tolist()
    assert (about["encoder"], about["encoder_weights"], about["block"]) == ("encoder-w", "w", 1)
    assert about["result"]["box"]["ap"] == measures["box"]["ap"]["values"][0]


def test_seeds_and_requests_differ(written, sets):
    """The same features with other objects, or of another block, are another request."""
    out, _, detection = written
    first, second = (load_detector(out / f"trained/seed{seed}").state_dict() for seed in (0, 5))
    assert not torch.equal(first["rpn.head.cls_logits.weight"], second["rpn.head.cls_logits.weight"])
    request, same = detection.request(), replace(detection, workers=2, seeds=(1,)).request()
    assert request == same
    assert [request[name]["truths"] for name in ("training", "test")] == [one.spec.truths for one in sets]
    assert (request["encoder"]["block"], request["encoder"]["encoder_weights"]) == (1, "w")
    fewer = ImagesWithObjects(detection.training.store, detection.training.rows[1:])
    assert replace(detection, views=(1,)).request() != request
    assert replace(detection, training=fewer).request() != request
    assert replace(detection, options=replace(OF_DETECTOR, final_norm=False)).request() != request
    assert replace(detection, recipe=replace(RECIPE, epochs=3)).request() != request


def test_views_and_block_are_those_that_were_asked_for(sets, tmp_path, monkeypatch):
    """Of the training images; test images are measured in view 0."""
    asked, tokens = set(), FeatureStore.tokens

    def recorded(store, kind, block=None, view=0):
        asked.add((store.path.name, block, view))
        return tokens(store, kind, block, view)

    monkeypatch.setattr(FeatureStore, "tokens", recorded)
    options = replace(OF_DETECTOR, final_norm=False)
    detection = Detection(*map(images_with_objects, sets), replace(RECIPE, epochs=1), options, views=(0, 2))
    (tmp_path / "out/trained").mkdir(parents=True)
    (tmp_path / "out/trained/seed9.json").touch()  # of an earlier run
    measures = detect(detection, tmp_path / "out")
    assert not (tmp_path / "out/trained/seed9.json").exists()
    assert asked == {("train", 1, 0), ("train", 1, 2), ("test", 1, 0)}
    assert (measures["views"], measures["block"], measures["detector"]["final_norm"]) == ([0, 2], 1, False)
    assert measures["features"] == {"training": sets[0].spec.key, "test": sets[1].spec.key}
    assert [measures["objects"][name]["n_images"] for name in ("training", "test")] == [5, 3]
    assert not [note for note in measures["notes"] if "augmented" in note]


def test_a_killed_run_writes_the_same(written, sets, tmp_path, monkeypatch):
    monkeypatch.setattr(states, "EVERY_S", 0)
    out, measures, detection = written
    counted, done, epochs = [], [], []

    def kill(n: int) -> None:
        torch.rand(3)  # others draw meanwhile
        counted.append(n)
        if len(counted) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        detect(replace(detection, progress=kill), tmp_path / "out")
    assert list((tmp_path / ".unfinished/out").iterdir())
    resumed = replace(detection, progress=done.append, on_epoch=epochs.append)
    assert detect(resumed, tmp_path / "out", {"command": "beyondcls detect"}) == measures
    assert (done[:2], sum(done)) == ([3, 1], detection.n_units), "steps that were done are not done again, and count"
    assert [one.is_replayed for one in epochs] == [True, False, False, False]
    assert not (tmp_path / ".unfinished").exists()
    for name in ("detections.json", "curves.csv", "trained/seed0.safetensors"):
        assert (tmp_path / "out" / name).read_bytes() == (out / name).read_bytes()


def test_detections_of_a_mirrored_view(sets):
    """In pixels of the original."""
    detector = tiny_detector().eval()
    detector.roi_heads.score_thresh = 0.2  # an untrained one is sure of nothing
    (found,) = detections(detector, sets[1], np.array([1]), view=1)
    with torch.no_grad():
        (in_frame,) = detector(torch.from_numpy(sets[1].tokens("patch", view=1).rows([1])).float())
    expected = in_original(in_frame, sets[1].array("images/crop/view1").all()[1], True, detector.frame, found.size)
    assert len(found.boxes)
    np.testing.assert_allclose(found.boxes, expected.boxes, atol=1e-4)


class TestBatches:
    def test_other_processes_would_make_the_same(self, sets):
        """They get copies of what makes targets; which processes these are: segmentation/test_linear.py."""
        targets = Targets(sets[0], (0, 2), masks=True)
        copied = pickle.loads(pickle.dumps(targets))
        for row_and_view in ((0, 0), (3, 2)):
            ours, theirs = targets[row_and_view], copied[row_and_view]
            assert all(torch.equal(values, theirs[name]) for name, values in ours.items())

    def test_targets_belong_to_their_tokens(self, sets):
        """To those of the same image and view; other views than the first are mirrored."""
        rows, seen = [0, 1, 3, 4], []
        batches = detection_batches(sets[0], np.array(rows), 3, views=(0, 2))
        plain = {view: sets[0].tokens("patch", view=view).rows(rows).astype(np.float32) for view in (0, 2)}
        for epoch in range(3):
            for batch in batches.epoch(epoch):
                for one, target in zip(batch["patch"].numpy(), batch["truths"], strict=True):
                    view, i = next((v, i) for v in (0, 2) for i in range(4) if np.array_equal(plain[v][i], one))
                    box = sets[0].instances.of(rows[i]).boxes * 2  # a patch has 8 pixels of the image, 16 of the frame
                    expected = np.stack([128 - box[:, 2], box[:, 1], 128 - box[:, 0], box[:, 3]], 1) if view else box
                    np.testing.assert_allclose(target["boxes"], expected)
                    seen.append((rows[i], view))
        assert sorted(row for row, _ in seen) == sorted(rows * 3)
        assert {view for _, view in seen} == {0, 2}
        assert [len(batch["truths"]) for batch in batches.epoch(7, 1)] == [1], "an epoch can go on"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"weights": "v"}, r"encoder-w.* are of two encoders or extractions: weights differ"),
        ({"classes": ("square", "round")}, r"have 2 classes, .* 2: their order differs; extract both"),
        ({"objects": [[], []]}, r"none of 2 images of .* could be read and has an object"),
    ],
)
def test_sets_that_do_not_fit(changed, message, sets, tmp_path):
    other = write_objects(tmp_path / "other", n=2, norm=True, views=3, **changed)
    with pytest.raises(BeyondClsError, match=message):
        Detection(*map(images_with_objects, (sets[0], other)))


def test_a_set_without_instances(tmp_path):
    with pytest.raises(BeyondClsError, match=r"has no instances .*extract --extend --truths instances"):
        images_with_objects(write_features(tmp_path / "plain", n=4, n_tokens=64))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        *(({"views": views}, "expected numbers from 0 to 2") for views in ((3,), (-1,), ())),
        *(({"seeds": seeds}, "expected whole numbers") for seeds in ((1, 1), ())),
        ({"block": 7}, "has no array 'patch/block7/view0'; it has: "),
    ],
)
def test_choices_that_cannot_be(changed, message, sets):
    with pytest.raises(BeyondClsError, match=message):
        Detection(*map(images_with_objects, sets), **changed)


def test_boxes_alone(sets, tmp_path):
    """Where either set has no masks."""
    bare = images_with_objects(write_objects(tmp_path / "set", n=3, masks=False, norm=True, views=3))
    measures = detect(Detection(images_with_objects(sets[0]), bare, replace(RECIPE, epochs=1), OF_DETECTOR), tmp_path / "out")
    assert "mask" not in measures
    assert any(note.startswith("boxes alone") for note in measures["notes"])
    assert "segmentation" not in next(iter(json.loads((tmp_path / "out/detections.json").read_text())), {})
    assert "loss_mask" not in (tmp_path / "out/curves.csv").read_text()


@pytest.mark.parametrize(
    ("ids", "rows", "expected"),
    [
        (["val2017/000000000042", "000000000007.jpg"], [0, 1], [42, 7]),
        (["a/07", "b/7", "c/8"], [0, 1, 2], [1, 2, 3]),
        (["x", "12", "13"], [0, 2], [1, 3]),
        (["²", "5"], [0, 1], [1, 2]),
    ],
    ids=["named", "twice", "names", "no-digit"],
)
def test_numbers_of_images(ids, rows, expected):
    """What they are named after, where each is; else rows, from 1."""
    assert ImagesWithObjects(SimpleNamespace(ids=ids), np.array(rows)).image_ids == expected


def test_images_with_objects(tmp_path):
    crowd, one = (Instance(0, (1, 1, 9, 9), 64.0, is_crowd) for is_crowd in (True, False))
    store = write_objects(tmp_path / "set", n=5, objects=[[crowd], [one], [], [one], [crowd]], masks=False, invalid=[3])
    assert images_with_objects(store).rows.tolist() == [0, 1, 2, 4], "crowds alone, and nothing at all, are negatives"
    assert images_with_objects(store, [4, 1, 1]).rows.tolist() == [1, 4]
    with pytest.raises(StoreError, match=r"none of 3 images of .* could be read and has an object; .* or name others"):
        images_with_objects(store, [0, 3, 4])
