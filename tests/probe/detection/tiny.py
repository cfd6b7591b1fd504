"""Detectors and images small enough for tests: 8 x 8 patches, two classes, whose objects show in the tokens."""

from typing import Any

import torch

from probe.detection.detector import Detector
from probe.detection.recipe import DetectorOptions
from probe.detection.targets import STRIDE, Target

DIM, GRID, CLASSES = 12, (8, 8), ("round", "square")
OPTIONS: dict[str, Any] = {"width": 8, "anchors": (16, 32, 64, 128), "box_features": 16, "mask_layers": 1}
OPTIONS |= {"proposals": 40, "samples": 16}


def tiny_detector(seed: int = 0, grid: tuple[int, int] = GRID, **changed: Any) -> Detector:
    """An untrained detector."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Detector(DIM, grid, len(CLASSES), DetectorOptions(**{**OPTIONS, **changed}))


class Objects:
    """Tokens and targets in memory, in a new order each epoch: an object of 2 x 3 patches in each image, which they show."""

    def __init__(self, n: int = 6, batch_size: int = 2, seed: int = 0, masks: bool = True):
        generator = torch.Generator().manual_seed(seed)
        self.tokens = torch.randn(n, *GRID, DIM, generator=generator) / 10
        self.batch_size, self.targets = batch_size, []
        for i in range(n):
            row, column = (int(torch.randint(0, side - 3, (), generator=generator)) for side in GRID)
            self.tokens[i, row : row + 2, column : column + 3, i % 2] += 3
            box = torch.tensor([[column, row, column + 3, row + 2]]) * float(STRIDE)
            target: Target = {"boxes": box, "labels": torch.tensor([i % 2 + 1])}
            if masks:
                mask = torch.zeros(1, GRID[0] * STRIDE, GRID[1] * STRIDE, dtype=torch.uint8)
                x0, y0, x1, y1 = box[0].int().tolist()
                mask[0, y0:y1, x0:x1] = 1
                target["masks"] = mask
            self.targets.append(target)
        self.tokens = self.tokens.flatten(1, 2)

    def __len__(self) -> int:
        return -(-len(self.tokens) // self.batch_size)

    def epoch(self, seed: int, start: int = 0):
        order = torch.randperm(len(self.tokens), generator=torch.Generator().manual_seed(seed))
        for rows in order.split(self.batch_size)[start:]:
            yield {"patch": self.tokens[rows], "truths": [self.targets[row] for row in rows]}
