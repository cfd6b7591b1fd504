"""Detectors, images and feature sets small enough for tests: 8 x 8 patches, two classes, whose objects show in the tokens."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from probe.detection.detector import Detector
from probe.detection.recipe import DetectorOptions
from probe.detection.targets import STRIDE, Target
from store import FeatureStore
from store.truths import Instance
from tests.features import write_features
from tests.truths import instances_of, with_truths

DIM, GRID, CLASSES = 12, (8, 8), ("round", "square")
OPTIONS: dict[str, Any] = {"width": 8, "anchors": (16, 32, 64, 128), "box_features": 16, "mask_layers": 1}
OPTIONS |= {"proposals": 40, "samples": 16}
SIZE = (GRID[0] * STRIDE // 2, GRID[1] * STRIDE // 2)  # of images: a patch has 8 x 8 pixels


def tiny_detector(seed: int = 0, grid: tuple[int, int] = GRID, **changed: Any) -> Detector:
    """An untrained detector."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Detector(DIM, grid, len(CLASSES), DetectorOptions(**{**OPTIONS, **changed}))


class Objects:
    """Tokens and targets in memory, in a new order each epoch: an object of 2 x 3 patches in each image, which they show."""

    def __init__(self, n: int = 6, batch_size: int = 2):
        generator = torch.Generator().manual_seed(0)
        self.tokens = torch.randn(n, *GRID, DIM, generator=generator) / 10
        self.batch_size, self.targets = batch_size, list[Target]()
        for i in range(n):
            row, column = (int(torch.randint(0, side - 3, (), generator=generator)) for side in GRID)
            self.tokens[i, row : row + 2, column : column + 3, i % 2] += 3
            box = torch.tensor([[column, row, column + 3, row + 2]]) * STRIDE
            mask = torch.zeros(1, GRID[0] * STRIDE, GRID[1] * STRIDE, dtype=torch.uint8)
            x0, y0, x1, y1 = box[0].tolist()
            mask[0, y0:y1, x0:x1] = 1
            self.targets.append({"boxes": box.float(), "labels": torch.tensor([i % 2 + 1]), "masks": mask})
        self.tokens = self.tokens.flatten(1, 2)

    def __len__(self) -> int:
        return -(-len(self.tokens) // self.batch_size)

    def epoch(self, seed: int, start: int = 0):
        order = torch.randperm(len(self.tokens), generator=torch.Generator().manual_seed(seed))
        for rows in order.split(self.batch_size)[start:]:
            yield {"patch": self.tokens[rows], "truths": [self.targets[row] for row in rows]}


def write_objects(
    path: Path,
    n: int = 6,
    *,
    objects: Sequence[Sequence[Instance]] | None = None,
    crop: Sequence[float] = (0, 0, SIZE[1], SIZE[0]),
    flip: bool = False,
    classes: Sequence[str] = CLASSES,
    masks: bool = True,
    seed: int = 0,
    views: int = 1,
    **given: Any,
) -> FeatureStore:
    """Image i has an ellipse (class 0) or a rectangle (class 1), which the tokens of its patches show.

    Args:
        objects: of each image, instead.
        crop: what all views show.
        masks: otherwise there are boxes alone.
        views: beside the first, tokens are noise, and views mirrored.
    """
    plain = write_features(
        path.with_name(f"{path.name}-plain"), n, GRID[0] * GRID[1], DIM, seed=seed, views=views, maps=(), **given
    )
    generator = np.random.default_rng(seed)
    kinds = (np.arange(n) % 2).tolist()
    drawn = [drawn_object(i, generator) for i in range(n)]
    patch = generator.normal(0, 0.1, (n, *GRID, DIM))
    for i, mask in enumerate(drawn):
        patch[i, ..., kinds[i]] += 4 * mask.reshape(GRID[0], 8, GRID[1], 8).mean((1, 3))
    instances = objects or [instances_of(mask[None], [kind]) for mask, kind in zip(drawn, kinds, strict=True)]
    if not masks:
        instances = [[Instance(one.label, one.box, one.area, one.crowd) for one in image] for image in instances]
    changed = {"patch/block1/view0": patch.reshape(n, -1, DIM).astype(np.float16)}
    for view in range(views):
        changed[f"images/crop/view{view}"] = np.tile(np.float32(crop), (n, 1))
        changed[f"images/flip/view{view}"] = np.full(n, flip or view > 0, np.uint8)
    return with_truths(plain, path, instances=instances, instance_classes=classes, sizes=[SIZE] * n, changed=changed)


def drawn_object(i: int, generator: np.random.Generator) -> np.ndarray:
    """The mask [h, w] of an ellipse, or for odd `i` of a rectangle."""
    height, width = generator.integers(18, 36, 2)
    top, left = (int(generator.integers(0, side - length)) for side, length in zip(SIZE, (height, width), strict=True))
    rows, columns = np.ogrid[: SIZE[0], : SIZE[1]]
    if i % 2:
        return (rows >= top) & (rows < top + height) & (columns >= left) & (columns < left + width)
    down, across = (rows + 0.5 - top) / height * 2 - 1, (columns + 0.5 - left) / width * 2 - 1
    return down**2 + across**2 <= 1
