"""AP of given detections is that of pycocotools, crowds and empty images included."""

import contextlib
import copy
import io

import numpy as np
import pytest

from probe.detection.average_precision import AveragePrecision, coco_truths
from store.truths import Instance
from store.truths.rle import encode
from tests.probe.detection.tiny import write_objects

SIDE = 150
MEASURES = ("ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large", "", "", "ar100")  # of COCO's twelve numbers


def random_boxes(generator: np.random.Generator, n: int) -> np.ndarray:
    """[n, 4] corners, of all of COCO's sizes."""
    sides = generator.choice([10, 30, 60, 110], (n, 2)) + generator.integers(0, 20, (n, 2))
    corner = generator.integers(0, SIDE - 5, (n, 2))
    return np.concatenate([corner, np.minimum(corner + sides, SIDE)], 1).astype(float)


def entry(generator: np.random.Generator, box: np.ndarray, image_id: int, category: int, kind: str) -> dict:
    """A box with a mask that covers most of it."""
    x0, y0, x1, y1 = box.astype(int)
    mask = np.zeros((1, SIDE, SIDE), bool)
    mask[0, y0:y1, x0:x1] = generator.random((y1 - y0, x1 - x0)) < 0.8
    rle = {"size": [SIDE, SIDE], "counts": encode(mask)[0].decode()}
    common = {"image_id": image_id, "category_id": category, "segmentation": rle}
    common["bbox"] = [float(x0), float(y0), float(x1 - x0), float(y1 - y0)]
    if kind == "result":
        return common | {"score": float(np.round(generator.random(), 2))}  # some are equal
    # The area as published, which is another than that of box and mask.
    return common | {"area": float(mask.sum()) * 0.7, "iscrowd": int(generator.random() < 0.2)}


def random_case(seed: int) -> tuple[dict, list[dict]]:
    generator, annotations, results = np.random.default_rng(seed), [], []
    for image_id in range(1, 7):
        true = random_boxes(generator, int(generator.integers(0, 7)))
        of_image = [entry(generator, box, image_id, int(generator.integers(1, 4)), "truth") for box in true]
        annotations += of_image
        moved = np.clip(true + generator.integers(-6, 7, true.shape), 0, SIDE)
        moved[:, 2:] = np.maximum(moved[:, 2:], moved[:, :2] + 1)
        boxes = np.minimum([*moved, *random_boxes(generator, 3)], SIDE)
        found = [entry(generator, box, image_id, int(generator.integers(1, 4)), "result") for box in boxes]
        for one, of_class in zip(found, of_image, strict=False):  # some have the right class
            one["category_id"] = of_class["category_id"]
        results += found
    annotations = [{**one, "id": number} for number, one in enumerate(annotations, 1)]
    images = [{"id": i, "height": SIDE, "width": SIDE} for i in range(1, 7)]
    return {"info": {}, "images": images, "annotations": annotations, "categories": [{"id": 1}, {"id": 2}, {"id": 3}]}, results


def by_pycocotools(truths: dict, results: list[dict], kind: str) -> list[float]:
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    with contextlib.redirect_stdout(io.StringIO()):
        known = COCO()
        known.dataset = copy.deepcopy(truths)
        known.createIndex()
        left_out = "bbox" if kind == "mask" else "segmentation"  # as detectron2 does, or masks would have their boxes' areas
        detected = known.loadRes([{k: v for k, v in one.items() if k != left_out} for one in copy.deepcopy(results)])
        evaluation = COCOeval(known, detected, "bbox" if kind == "box" else "segm")
        for step in (evaluation.evaluate, evaluation.accumulate, evaluation.summarize):
            step()
    return evaluation.stats.tolist()


@pytest.mark.parametrize("kind", ["box", "mask"])
@pytest.mark.parametrize("seed", range(3))
def test_is_that_of_pycocotools(kind, seed):
    truths, results = random_case(seed)
    expected = {name: v for name, v in zip(MEASURES, by_pycocotools(truths, results, kind), strict=False) if name}
    before = copy.deepcopy((truths, results))
    of_images = AveragePrecision(truths, results, kind)
    ours = of_images.of()
    assert (truths, results) == before
    assert any(annotation["iscrowd"] for annotation in truths["annotations"])
    assert 0 < ours["ap"] < 100
    assert ours == {name: None if v == -1 else pytest.approx(100 * v, abs=1e-4) for name, v in expected.items()}
    of_few = truths | {"images": truths["images"][:4], "annotations": [a for a in truths["annotations"] if a["image_id"] < 5]}
    found = [one for one in results if one["image_id"] < 5]
    assert of_images.of([1, 2, 3, 4]) == AveragePrecision(of_few, found, kind).of()


def test_perfect_and_none(tmp_path):
    """Truths in COCO's format: the area is the published one, and boxes have a width and a height."""
    store = write_objects(tmp_path / "set", n=4)
    truths = coco_truths(store.instances, np.arange(4), [7, 8, 9, 10])
    results = [
        {k: a[k] for k in ("image_id", "category_id", "bbox", "segmentation")} | {"score": 1.0} for a in truths["annotations"]
    ]
    for kind in ("box", "mask"):
        perfect = AveragePrecision(truths, results, kind).of()
        assert perfect["ap"] == perfect["ap50"] == perfect["ap_small"] == pytest.approx(100)
        assert perfect["ap_large"] is None, "where there is no such object"
        assert AveragePrecision(truths, [], kind).of()["ap"] == 0
    assert [image["id"] for image in truths["images"]] == [7, 8, 9, 10]
    assert truths["categories"] == [{"id": 1, "name": "round"}, {"id": 2, "name": "square"}]
    bare = write_objects(tmp_path / "crowd", n=2, objects=[[], [Instance(1, (2, 3, 12, 9), 7.5, True)]], masks=False)
    assert coco_truths(bare.instances, np.array([1]), [42])["annotations"] == [
        {"id": 1, "image_id": 42, "category_id": 2, "bbox": [2, 3, 10, 6], "area": 7.5, "iscrowd": 1}
    ]
