"""COCO's panoptic segmentation: `annotations/panoptic_SPLIT.json` and a folder of PNGs of the same name, by their classes."""

import json
from pathlib import Path
from typing import Any

from extract.datasets.coco import SIGNS as OBJECTS_SIGNS
from extract.datasets.coco import SPLITS
from extract.datasets.example_maps import colour_png
from extract.datasets.form import Example, Published, pictures
from extract.datasets.image_set import ImageSet
from extract.datasets.label_codes import Codes, Colours
from extract.datasets.label_maps import LabelMaps, segmented
from extract.datasets.listed import inside, listed, parsing, text, unlisted
from store.truths.reading import VOID

VOID_NUMBER = 0  # of pixels of no segment


def coco_panoptic(root: Path, split: str) -> ImageSet:
    """Images by ascending number, with things and stuff as one label map; classes by ascending number of the category.

    A pixel R, G, B of a PNG belongs to the segment R + 256 G + 65536 B of its image.

    Raises:
        DataError: the annotations are missing or damaged.
    """
    file = root / "annotations" / f"panoptic_{split}.json"
    folder = next((f for f in (root / "annotations" / f"panoptic_{split}", root / f"panoptic_{split}") if f.is_dir()), root)
    files: dict[str, Path] = {}
    codes: dict[str, Codes] = {}
    with parsing(file, "images, annotations with segments_info, and categories of COCO panoptic"):
        content: dict[str, Any] = json.loads(text(file))
        names = {int(category["id"]): str(category["name"]) for category in content["categories"]}
        label_of = {number: label for label, number in enumerate(sorted(names))}
        images = {int(image["id"]): str(image["file_name"]) for image in content["images"]}
        annotations = {int(annotation["image_id"]): annotation for annotation in content["annotations"]}
        samples = [listed(root / split, images[number], ()) for number in sorted(images)]
        for sample, number in zip(samples, sorted(images), strict=True):
            annotation = annotations.get(number, {"file_name": f"{sample.id}.png", "segments_info": []})
            files[sample.id] = inside(folder, str(annotation["file_name"]))
            segments = {VOID_NUMBER: VOID}
            for segment in annotation["segments_info"]:
                if segment["category_id"] not in label_of:
                    raise ValueError(f"a segment is of category {segment['category_id']}, which is not among its categories")
                segments[int(segment["id"])] = label_of[segment["category_id"]]
            codes[sample.id] = Colours(segments)
    classes = [names[number] for number in sorted(names)]
    problems = unlisted(root / split, images.values())
    return segmented(str(root), samples, LabelMaps(classes, files, codes), problems=problems)


CONTENT = """{
"images": [{"id": 9, "file_name": "000000000009.jpg"}, {"id": 3, "file_name": "000000000003.jpg"}],
"annotations": [
  {"image_id": 9, "file_name": "000000000009.png", "segments_info": [
    {"id": 258, "category_id": 184}, {"id": 65536, "category_id": 1}, {"id": 7, "category_id": 1}]},
  {"image_id": 3, "file_name": "000000000003.png", "segments_info": [{"id": 1, "category_id": 184}]}],
"categories": [{"id": 184, "name": "tree-merged"}, {"id": 1, "name": "person"}]
}"""
LABELLED: dict[str, tuple[str, ...]] = {"000000000003": ("tree-merged",), "000000000009": ("person", "tree-merged")}
EXAMPLE = Example(
    {
        name: content
        for split in ("train2017", "val2017")
        for name, content in {
            f"annotations/panoptic_{split}.json": CONTENT,
            f"annotations/panoptic_{split}/000000000003.png": colour_png([(1, 0, 0), (0, 0, 0)]),
            f"annotations/panoptic_{split}/000000000009.png": colour_png([(2, 1, 0), (0, 0, 1), (7, 0, 0), (0, 0, 0)]),
            **pictures(split, "000000000003.jpg", "000000000009.jpg"),
        }.items()
    },
    ("person", "tree-merged"),
    {"val2017": LABELLED, "train2017": LABELLED},
    truths=("segmentation",),
)
SIGNS = tuple(f"annotations/panoptic_{split}.json" for split in SPLITS)
COCO_PANOPTIC = Published(coco_panoptic, SPLITS, SIGNS, EXAMPLE, yields_to=OBJECTS_SIGNS)
