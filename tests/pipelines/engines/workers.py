"""Images, and encoders for workers: sound ones, and ones that die or fail in the middle of unit 4, the last."""

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image

from extract.datasets import ImageSet, open_images
from extract.encoders import Encoder
from pipelines.engines.engine import Engine
from pipelines.engines.watch import Watch
from store import FeatureStore
from tests.extract.extracting import extract
from tests.extract.pictures import picture, write_file
from tests.extract.tiny import tiny_encoder

N = 150  # 32 * 4 + 22: five units
GREY = 138  # its image is grey all over, as no other


def write_images(folder: Path) -> ImageSet:
    """A folder of pictures."""
    for i in range(N):
        write_file(folder / f"a/{i:04d}.png", picture(i))
    Image.fromarray(np.full((36, 36, 3), 128, np.uint8)).save(folder / f"a/{GREY:04d}.png")
    return open_images(str(folder))


@dataclass(frozen=True)
class Load:
    """Loads a tiny encoder in a worker.

    Attributes:
        folder: has a file for each process that has loaded it, and for each that has died or failed.
        n: how many batches with the grey image end badly; after these, they go well.
        how: what happens.
    """

    folder: Path
    n: int = 0
    how: Literal["kill", "raise", "hang"] = "kill"

    def __call__(self, device: str) -> Encoder:
        torch.set_num_threads(1)
        (self.folder / f"loaded-{os.getpid()}").touch()
        return Mortal(self)

    @property
    def n_loaded(self) -> int:
        return len(list(self.folder.glob("loaded-*")))


def node_id() -> str:
    """Of the node of a Ray cluster that this process is on."""
    ray = sys.modules.get("ray")
    return "" if ray is None or not ray.is_initialized() else ray.get_runtime_context().get_node_id()


class Mortal(Encoder):
    """The encoder that a `Load` loads."""

    def __init__(self, load: Load):
        super().__init__("tiny", tiny_encoder().model, {})
        self._load = load

    def __call__(self, images: torch.Tensor, *arguments: Any, **named: Any) -> Any:
        flat = images.float().flatten(1)
        if ((images.float().flatten(2).std(2) < 1e-3).all(1) & (flat != 0).all(1)).any():  # black is the example
            for i in range(self._load.n):
                with suppress(FileExistsError):
                    with (self._load.folder / f"ended-{i}").open("x") as file:
                        file.write(node_id())
                    self._end()
        return super().__call__(images, *arguments, **named)

    def _end(self) -> None:
        if self._load.how == "raise":
            raise RuntimeError("the memory of the GPU is broken")
        if self._load.how == "hang":
            time.sleep(600)
        os.kill(os.getpid(), signal.SIGKILL)


class Seen:
    """What an engine tells of itself."""

    def __init__(self, progress: Callable[[int], None] | None = None, stops: Callable[[], bool] = lambda: False):
        self.steps, self.warnings = list[int](), list[str]()
        self.watch = Watch(progress or self.steps.append, self.warnings.append, stops)


def extracted(images: ImageSet, out: Path, **options: Any) -> FeatureStore | None:
    """The set of a tiny encoder, in shards of 32."""
    encoder = Encoder("tiny", tiny_encoder().model, {})
    return extract(encoder, images, out, shard_rows=32, batch_size=8, workers=1, **options)


def extracted_on(engine: Engine, load: Load, images: ImageSet, out: Path, seen: Seen, **options: Any) -> FeatureStore | None:
    """Likewise, by an engine's workers."""
    return extracted(
        images, out, engine=engine.workers(load, seen.watch), progress=seen.watch.progress, stops=seen.watch.stops, **options
    )
