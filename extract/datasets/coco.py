"""COCO: `annotations/instances_SPLIT.json` and a folder of images of the same name, with boxes and masks."""

import json
from pathlib import Path
from typing import Any

from extract.datasets.coco_masks import CocoInstances
from extract.datasets.form import Example, Published, pictures
from extract.datasets.image_set import ImageSet
from extract.datasets.listed import listed, parsing, text, unlisted
from extract.datasets.sample import Box

SPLITS = ("train2017", "val2017", "train2014", "val2014")


def coco(root: Path, split: str) -> ImageSet:
    """Images by ascending number; their labels are the categories of their objects, crowds included, by ascending number.

    Some images have no object. Boxes are x, y, width, height in the file. Masks are read if they are asked for.

    Raises:
        DataError: the annotations are missing or damaged.
    """
    file = root / "annotations" / f"instances_{split}.json"
    objects: dict[int, list[Box]] = {}
    with parsing(file, "images, annotations and categories of COCO"):
        content: dict[str, Any] = json.loads(text(file))
        names = {int(category["id"]): str(category["name"]) for category in content["categories"]}
        label_of = {number: label for label, number in enumerate(sorted(names))}
        images = {int(image["id"]): str(image["file_name"]) for image in content["images"]}
        objects = {number: [] for number in images}
        for annotation in content["annotations"]:
            x, y, width, height = map(float, annotation["bbox"])
            if annotation["category_id"] not in label_of:
                raise ValueError(f"an annotation is of category {annotation['category_id']}, which is not among its categories")
            box = Box(x, y, x + width, y + height, label_of[annotation["category_id"]])
            objects[annotation["image_id"]].append(box)
    samples = [
        listed(root / split, images[number], tuple(sorted({box.label for box in objects[number]})), objects[number])
        for number in sorted(images)
    ]
    classes = [names[number] for number in sorted(names)]
    numbers = {sample.id: number for sample, number in zip(samples, sorted(images), strict=True)}
    truths = {"instances": CocoInstances(classes, file, numbers, label_of)}
    problems = unlisted(root / split, images.values())
    return ImageSet(str(root), samples, classes, problems, multilabel=True, truths=truths, usual_truths=())


OBJECTS = """{
"images": [
  {"id": 9, "file_name": "000000000009.jpg"},
  {"id": 3, "file_name": "000000000003.jpg"},
  {"id": 5, "file_name": "5.jpg"}],
"annotations": [
  {"image_id": 9, "category_id": 90, "bbox": [1.5, 2.0, 10.0, 20.0], "iscrowd": 0},
  {"image_id": 9, "category_id": 1, "bbox": [0, 0, 5, 0], "iscrowd": 1},
  {"image_id": 9, "category_id": 90, "bbox": [3, 3, 1, 1], "iscrowd": 0},
  {"image_id": 5, "category_id": 1, "bbox": [3, 3, 1, 1], "iscrowd": 0}],
"categories": [{"id": 90, "name": "toothbrush"}, {"id": 1, "name": "person"}, {"id": 13, "name": "stop sign"}]
}"""
LABELLED: dict[str, tuple[str, ...]] = {"000000000003": (), "5": ("person",), "000000000009": ("person", "toothbrush")}
EXAMPLE = Example(
    {
        "annotations/instances_val2017.json": OBJECTS,
        "annotations/instances_train2017.json": OBJECTS,
        **pictures("val2017", "000000000003.jpg", "000000000009.jpg", "5.jpg"),
        **pictures("train2017", "000000000003.jpg", "000000000009.jpg", "5.jpg"),
    },
    ("person", "stop sign", "toothbrush"),
    {"val2017": LABELLED, "train2017": LABELLED},
    truths=("instances",),
)
SIGNS = tuple(f"annotations/instances_{split}.json" for split in SPLITS)
COCO = Published(coco, SPLITS, SIGNS, EXAMPLE)
