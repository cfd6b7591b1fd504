"""COCO's average precision of boxes and of masks, by faster-coco-eval: the numbers of pycocotools; and examples."""

import copy
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from faster_coco_eval import COCO, COCOeval_faster  # on top, so that it is missed before anything trains

from probe.detection.sets import ImagesWithObjects
from store.truths import Instances

# The first of COCO's twelve numbers, and its recall; in percent here. None where no object has that size.
MEASURES = {"ap": 0, "ap50": 1, "ap75": 2, "ap_small": 3, "ap_medium": 4, "ap_large": 5, "ar100": 8}
EXAMPLES = "examples.json"


class AveragePrecision:
    """Results of one kind and the truths, both in COCO's format: `MEASURES` of all images, or of some.

    AP is the mean over IoU thresholds 0.50, 0.55, …, 0.95 and classes, of up to 100 detections an image. Crowds count neither
    as found nor as missed. Sizes are by the area that the truths state; that of a detection is its box's or its mask's.
    """

    def __init__(self, truths: Mapping[str, Any], results: Sequence[Mapping[str, Any]], kind: Literal["box", "mask"]):
        # With a box, COCO would take its area as that of the mask.
        left_out = "segmentation" if kind == "box" else "bbox"
        entries = [{name: value for name, value in entry.items() if name != left_out} for entry in results]
        self._known, self._type = COCO(copy.deepcopy(dict(truths))), "bbox" if kind == "box" else "segm"
        self._found = self._known.loadRes(entries)

    def of(self, image_ids: Collection[int] | None = None) -> dict[str, float | None]:
        """In percent; of all images by default."""
        evaluation = COCOeval_faster(self._known, self._found, self._type, print_function=lambda *_: None)
        if image_ids is not None:
            evaluation.params.imgIds = sorted(image_ids)
        evaluation.run()
        values = {name: float(evaluation.stats[place]) for name, place in MEASURES.items()}
        return {name: None if value < 0 else 100 * value for name, value in values.items()}


def coco_truths(instances: Instances, rows: np.ndarray, image_ids: Sequence[int]) -> dict[str, Any]:
    """Objects of some images in COCO's format; classes count from 1."""
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for row, image_id in zip(rows.tolist(), image_ids, strict=True):
        image = instances.of(row)
        height, width = image.size
        images.append({"id": image_id, "height": height, "width": width})
        corners = image.boxes.astype(np.float64)
        boxes = np.concatenate([corners[:, :2], corners[:, 2:] - corners[:, :2]], 1).tolist()
        for i, label in enumerate(image.labels.tolist()):
            annotation: dict[str, Any] = {
                "id": len(annotations) + 1,  # 0 would count as not matched
                "image_id": image_id,
                "category_id": label + 1,
                "bbox": boxes[i],
                "area": float(image.areas[i]),
                "iscrowd": int(image.crowds[i]),
            }
            if image.counts is not None:
                annotation["segmentation"] = {"size": [height, width], "counts": image.counts[i].decode("ascii")}
            annotations.append(annotation)
    categories = [{"id": label + 1, "name": name} for label, name in enumerate(instances.classes)]
    return {"info": {}, "images": images, "annotations": annotations, "categories": categories}


def examples(images: ImagesWithObjects, results: Iterable[Mapping[str, Any]], n: int) -> dict[str, Any]:
    """The content of examples.json, as plain values: `n` images that have objects, at even distances.

    Boxes are x0, y0, x1, y1 in pixels of the original, `counts` COCO's compressed run lengths of masks; labels count from 0.

    Args:
        results: of all images, in COCO's format.
    """
    instances = images.store.instances
    with_objects = np.flatnonzero([(~instances.of(int(row)).crowds).any() for row in images.rows])
    places = with_objects[np.unique(np.linspace(0, len(with_objects) - 1, min(n, len(with_objects))).round().astype(int))]
    shown = {images.image_ids[place]: _objects(images, int(images.rows[place])) for place in places.tolist()}
    for entry in results:
        if entry["image_id"] in shown:
            x, y, width, height = entry["bbox"]
            found = {"label": entry["category_id"] - 1, "score": entry["score"], "box": [x, y, x + width, y + height]}
            counts = {"counts": entry["segmentation"]["counts"]} if "segmentation" in entry else {}
            shown[entry["image_id"]]["detections"].append(found | counts)
    return {"data": images.store.spec.data, "classes": list(instances.classes), "images": list(shown.values())}


def _objects(images: ImagesWithObjects, row: int) -> dict[str, Any]:
    image = images.store.instances.of(row)
    objects: list[dict[str, Any]] = [
        {"label": label, "box": box, "crowd": crowd}
        for label, box, crowd in zip(image.labels.tolist(), image.boxes.tolist(), image.crowds.tolist(), strict=True)
    ]
    for entry, counts in zip(objects, image.counts or (), strict=False):
        entry["counts"] = counts.decode("ascii")
    return {"id": images.store.ids[row], "size": list(image.size), "objects": objects, "detections": []}
