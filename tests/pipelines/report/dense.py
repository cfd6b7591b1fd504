"""Results on dense tasks in the form in which `beyondcls segment` and `beyondcls detect` write them."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from probe.result_files import METRICS, write_result
from tests.pipelines.report.written import pretraining_of

CLASSES = ("road", "sky", "car")
SQUARE = "b04400000>"  # the mask of the middle 4 x 4 of 8 x 8 pixels
UPPER = "04400000000000000"  # of the upper half


def over_seeds(*values: float) -> dict[str, Any]:
    std = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return {"mean": sum(values) / len(values), "std": std, "values": list(values)}


def protocol(
    *values: float, at: Sequence[str] = ("original",), held_out: float | None = None, **changes: Any
) -> dict[str, Any]:
    """One entry of `protocols`: mIoU of each seed at the grid, and 4 points below it elsewhere."""
    measures: dict[str, Any] = {}
    for place, resolution in enumerate(("grid", *at)):
        measures[f"miou_{resolution}"] = over_seeds(*(value - 4 * (place > 0) for value in values))
        measures[f"accuracy_{resolution}"] = over_seeds(*(value + 30 for value in values))
    selected = {"on": "hold-out", "by": "miou_grid", "n_images": 3, "candidates": [1, 3], "percent": [1.0, held_out]}
    content = {**measures, "seeds": list(range(len(values))) if len(values) > 1 else [], "chosen": {"k": 3}}
    return {**content, "selected": None if held_out is None else selected, "seconds": 1.5, "notes": [], **changes}


def on_foreground(source: str, name: str, *shares: float, area: float = 20.0) -> dict[str, Any]:
    """One entry of `foreground`: percent of its weight, a value a seed."""
    measures = {"share": over_seeds(*shares), "gain": over_seeds(*(share / area for share in shares))}
    return {"source": source, "name": name, "seeds": [], **measures, "chance": area, "n_images": 5, "n_without": 2}


def write_segmentation(
    root: Path,
    encoder: str,
    protocols: dict[str, Any] | None = None,
    classes: Sequence[str] = CLASSES,
    at: Sequence[str] = ("original",),
    **changes: Any,
) -> Path:
    """One DATASET/ENCODER below `root`; IoU of class i by protocol j is 10 i + j."""
    if protocols is None:
        protocols = {"knn": protocol(34.0, at=at, held_out=33.0), "linear": protocol(43.0, 45.0, at=at, held_out=40.0)}
    baselines = {"most-frequent-class": protocol(6.5, at=at), "drawn-by-prior": protocol(9.0, at=at)}
    content: dict[str, Any] = {"task": "segmentation", "encoder": encoder, **pretraining_of(encoder).to_dict(), "data": "d"}
    content |= {
        "features": {"training": "a", "test": "b"},
        "block": 11,
        "grid": [4, 4],
        "n_training": 12,
        "n_test": 7,
        "classes": list(classes),
    }
    content |= {"shown": {"shows": "whole", "percent_outside": 0.0, "words": "whole image"}, "protocols": protocols | baselines}
    folder = root / encoder
    folder.mkdir(parents=True)
    write_result(folder / METRICS, {**content, "notes": [], **changes})
    with (folder / "per_class.csv").open("w", newline="") as target:
        writer = csv.writer(target)
        columns = [f"{name} iou_{resolution}" for name in protocols for resolution in ("grid", *at)]
        writer.writerow(["class", "n_training_patches", "n_test_patches", *columns])
        for i, name in enumerate(classes):
            writer.writerow([name, 100 * i, 10 * i, *("" if i == 2 else 10 * i + j for j in range(len(columns)))])
    return folder


def write_maps(
    folder: Path, ids: Sequence[str], data: str = "d", classes: Sequence[str] = CLASSES, resolution: str | int = "original"
) -> None:
    """Maps of 8 x 8 pixels beside results: of truth the lower half is class 0, the upper half class 1 and its first row void.

    A protocol predicts class 0 everywhere, linear that the first column is class 2.
    """
    truth = np.zeros((8, 8), np.uint8)
    truth[:4], truth[0] = 1, 255
    linear = np.zeros((8, 8), np.uint8)
    linear[:, 0] = 2
    images = []
    for one in ids:
        for name, label_map in (("truth", truth), ("knn", np.zeros((8, 8), np.uint8)), ("linear", linear)):
            (folder / "maps" / name).mkdir(parents=True, exist_ok=True)
            Image.fromarray(label_map).save(folder / f"maps/{name}/{one}.png")
        images.append({"id": one, "file": f"{one}.png", "crop": [0, 0, 8, 8], "flip": False})
    content = {"data": data, "resolution": resolution, "unseen": 255, "classes": list(classes), "images": images}
    (folder / "maps/images.json").write_text(json.dumps(content))


def average_precisions(ap: float, *more: float, small: float | None = 2.0) -> dict[str, Any]:
    """Measures of boxes or masks, a value a seed; those of large objects are 10 higher."""
    values = (ap, *more)
    names = {"ap": 0, "ap50": 20, "ap75": 1, "ap_large": 10, "ap_medium": 0, "ar100": 5}
    measures = {name: over_seeds(*(value + higher for value in values)) for name, higher in names.items()}
    return {**measures, "ap_small": None if small is None else over_seeds(small)}


def write_detection(root: Path, encoder: str, box: dict[str, Any], mask: dict[str, Any] | None = None, **changes: Any) -> Path:
    """One DATASET/ENCODER below `root`."""
    counted = {"n_images": 7, "objects": {"small": 3, "medium": 1234, "large": 5}}
    content: dict[str, Any] = {"task": "detection", "encoder": encoder, **pretraining_of(encoder).to_dict(), "data": "d"}
    content |= {
        "features": {"training": "a", "test": "b"},
        "box": box,
        **({"mask": mask} if mask else {}),
        "seeds": list(range(len(box["ap"]["values"]))),
    }
    content |= {"recipe": {"epochs": 2, "lr": 0.001}, "detector": {"width": 8, "masks": bool(mask)}, "n_parameters": 1234}
    content |= {"grid": [4, 4], "frame": [64, 64], "views": [0], "block": 11, "n_training": 12, "n_test": 7}
    content |= {"classes": list(CLASSES), "objects": {"training": counted, "test": counted}, "notes": [], "preset": "small"}
    folder = root / encoder
    folder.mkdir(parents=True)
    write_result(folder / METRICS, content | changes)
    return folder


def write_examples(
    folder: Path, ids: Sequence[str], data: str = "d", classes: Sequence[str] = CLASSES, score: float = 0.8
) -> None:
    """examples.json beside results: each image of 8 x 8 pixels has an object of class 2 and a crowd, two are detected."""
    objects = [
        {"label": 2, "box": [2, 2, 6, 6], "crowd": False, "counts": SQUARE},
        {"label": 1, "box": [0, 0, 8, 4], "crowd": True, "counts": UPPER},
    ]
    detections = [
        {"label": 2, "score": score, "box": [2, 2, 6, 6], "counts": SQUARE},
        {"label": 0, "score": 0.1, "box": [0, 0, 8, 4], "counts": UPPER},
    ]
    images = [{"id": one, "size": [8, 8], "objects": objects, "detections": detections} for one in ids]
    (folder / "examples.json").write_text(json.dumps({"data": data, "classes": list(classes), "images": images}))
