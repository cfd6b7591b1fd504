"""Objects of a few test images beside what was found in them, as the report draws both."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from probe.detection.sets import ImagesWithObjects

FILE = "examples.json"


def examples(images: ImagesWithObjects, results: Iterable[Mapping[str, Any]], n: int) -> dict[str, Any]:
    """The content of examples.json, as plain values: `n` images that have objects, at even distances.

    Boxes are x0, y0, x1, y1 in pixels of the original, `counts` COCO's compressed run lengths of masks; labels count from 0.

    Args:
        results: of all images, in COCO's format.
    """
    instances = images.store.instances
    with_objects = np.flatnonzero([(~instances.of(int(row)).crowds).any() for row in images.rows])
    places = with_objects[np.unique(np.linspace(0, len(with_objects) - 1, min(n, len(with_objects))).round().astype(int))]
    found: dict[int, list[dict[str, Any]]] = {images.image_ids[place]: [] for place in places.tolist()}
    for entry in results:
        if entry["image_id"] in found:
            found[entry["image_id"]].append(_detection(entry))
    return {
        "data": images.store.spec.data,
        "classes": list(instances.classes),
        "images": [
            _objects(images, int(images.rows[place])) | {"detections": found[images.image_ids[place]]}
            for place in places.tolist()
        ],
    }


def _objects(images: ImagesWithObjects, row: int) -> dict[str, Any]:
    image = images.store.instances.of(row)
    objects: list[dict[str, Any]] = [
        {"label": label, "box": box, "crowd": crowd}
        for label, box, crowd in zip(image.labels.tolist(), image.boxes.tolist(), image.crowds.tolist(), strict=True)
    ]
    for entry, counts in zip(objects, image.counts or (), strict=False):
        entry["counts"] = counts.decode("ascii")
    return {"id": images.store.ids[row], "size": list(image.size), "objects": objects}


def _detection(entry: Mapping[str, Any]) -> dict[str, Any]:
    x, y, width, height = entry["bbox"]
    detection = {"label": entry["category_id"] - 1, "score": entry["score"], "box": [x, y, x + width, y + height]}
    return detection | ({"counts": entry["segmentation"]["counts"]} if "segmentation" in entry else {})
