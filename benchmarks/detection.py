"""A training step of a detector from cached tokens, against the same step with the encoder in front.

    python -m benchmarks.detection [--quick] [--rounds 5] [--device cpu]

`loop_vs_cache`: seconds of a step of `--preset small` whose tokens a ViT-S/14 (random weights) computes from images that are
decoded and transformed already, 448 x 448 pixels / seconds of the same step whose tokens are in memory as float16, as they are
stored. Both take the same step: 8 images with random boxes and masks. Medians over interleaved rounds. The ratio is lower for a
wider detector, and higher for a larger encoder. With --quick one round of 2 images at 112 pixels, and no evidence.
The last line is JSON.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.timing import conclude
from extract.encoders import Encoder, load_encoder
from extract.layouts import arrays_by_name
from pipelines.process.device import keep_freed_memory
from probe.detection.detector import Detector
from probe.detection.recipe import PRESETS, DetectorOptions, make_detection_recipe
from probe.detection.targets import Target
from probe.detection.training import optimiser_of
from probe.train import isolated_randomness

CLASSES, OBJECTS, BATCH, SIDE = 80, 7, 8, 448  # COCO's classes and objects an image


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="within a minute, and no evidence")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    keep_freed_memory()  # as the commands do
    rounds, batch, side = (1, 2, 112) if given.quick else (given.rounds, BATCH, SIDE)
    encoder = load_encoder("vit_small_patch14_dinov2", random_seed=0, input_size=side)
    encoder.model.to(given.device)
    images = torch.randn(batch, 3, side, side, device=given.device)
    stored = tokens_of(encoder, images).half()
    grid = (side // 14, side // 14)
    step = step_of(Detector(stored.shape[2], grid, CLASSES, DetectorOptions(**PRESETS["small"][1])).to(given.device), batch)
    kinds: dict[str, Callable[[], Tensor]] = {"cache": stored.float, "loop": lambda: tokens_of(encoder, images)}
    times: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(rounds + 1):  # the first one warms up
        for name, tokens in kinds.items():
            began = time.perf_counter()
            step(tokens())
            if given.device.startswith("cuda"):
                torch.cuda.synchronize()
            times[name].append(time.perf_counter() - began)
    for name, seconds in times.items():
        print(f"{name:6} {statistics.median(seconds[1:]):7.2f} s a step of {batch} images, {side} pixels")
    ratios = [loop / cache for loop, cache in zip(times["loop"][1:], times["cache"][1:], strict=True)]
    conclude({"loop_vs_cache": statistics.median(ratios)}, not given.quick and rounds >= 3)


def tokens_of(encoder: Encoder, images: Tensor) -> Tensor:
    """Patch tokens of the block that the encoder is read at; a copy, as inference mode's own can't be trained on."""
    return arrays_by_name(encoder(images, (encoder.block,)), 0)[f"patch/block{encoder.block}/view0"].clone()


def step_of(detector: Detector, batch: int) -> Callable[[Tensor], None]:
    """A training step on random objects, from tokens."""
    optimiser, targets = optimiser_of(detector, make_detection_recipe("small")), random_targets(detector, batch)

    def step(tokens: Tensor) -> None:
        with isolated_randomness(0):
            losses: Any = detector(tokens, targets)
        optimiser.zero_grad(set_to_none=True)
        torch.stack(list(losses.values())).sum().backward()
        optimiser.step()

    return step


def random_targets(detector: Detector, batch: int) -> list[Target]:
    """Rectangles."""
    generator, (height, width), targets = torch.Generator().manual_seed(0), detector.frame, []
    device = next(detector.parameters()).device
    for _ in range(batch):
        sides = torch.rand(OBJECTS, 2, generator=generator) * 0.4 + 0.1
        corners = torch.rand(OBJECTS, 2, generator=generator) * (1 - sides)
        boxes = torch.cat([corners, corners + sides], 1) * torch.tensor([width, height] * 2)
        masks = torch.zeros(OBJECTS, height, width, dtype=torch.uint8)
        for mask, (x0, y0, x1, y1) in zip(masks, boxes.int().tolist(), strict=True):
            mask[y0:y1, x0:x1] = 1
        labels = torch.randint(1, CLASSES + 1, (OBJECTS,), generator=generator)
        target = {"boxes": boxes, "labels": labels, "masks": masks}
        targets.append({name: values.to(device) for name, values in target.items()})
    return targets


if __name__ == "__main__":
    main()
