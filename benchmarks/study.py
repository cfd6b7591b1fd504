"""The small study that benchmarks.peers has done in several ways, and its images."""

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from benchmarks.timing import ROOT
from extract.datasets import ImageSet, Sample, open_images
from probe.recipe import Recipe
from probe.train import epoch_seed
from store.format.layout import shard_rows_of
from store.loading.order import Order

HEADS = ("cls", "average", "abmilp", "ep")
SPLITS = ("train", "test")
DATA = ROOT / "quickstart/data/cifar10"


@dataclass(frozen=True)
class Study:
    """Heads on one frozen encoder, each trained from several seeds: `n_runs` head-runs.

    Attributes:
        encoder: one of the quickstart's, or a ViT of timm with random weights.
        images: folder with train/ and test/, each with a folder per class.
        workers: processes of a DataLoader.
    """

    encoder: str
    images: str
    heads: tuple[str, ...] = HEADS
    seeds: tuple[int, ...] = (0, 1, 2)
    epochs: int = 10
    batch_size: int = 256
    base_lr: float = 0.03
    workers: int = 0

    @property
    def n_runs(self) -> int:
        return len(self.heads) * len(self.seeds)

    @property
    def is_trained(self) -> bool:
        """Whether the encoder has learnt anything, so that accuracies mean something."""
        return self.encoder.startswith("quickstart-")

    @property
    def recipe(self) -> Recipe:
        """SGD with momentum, warm-up over a tenth of the epochs, half a cosine."""
        return Recipe(self.epochs, self.batch_size, base_lr=self.base_lr, warmup_epochs=self.epochs // 10)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        values: dict[str, Any] = json.loads(text)
        return cls(**values | {name: tuple(value) for name, value in values.items() if isinstance(value, list)})


class SharedOrder:
    """Rows of each batch, epoch after epoch: the batches that the program takes for the same study.

    Args:
        row_nbytes: bytes of an image's patch tokens in a feature set, which decide how it is cut into shards.
    """

    def __init__(self, n_rows: int, batch_size: int, row_nbytes: int):
        self.n_rows, self.batch_size, self.epoch = n_rows, batch_size, 0
        self.order = Order(np.arange(n_rows), shard_rows_of(row_nbytes, n_rows), 1, n_rows)

    def __len__(self) -> int:
        return -(-self.n_rows // self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        rows = self.order.visited(epoch_seed(0, self.epoch))
        self.epoch += 1
        for start in range(0, len(rows), self.batch_size):
            yield rows[start : start + self.batch_size].tolist()


def write_images(folder: Path, n_training: int | None, n_test: int | None) -> tuple[int, int]:
    """Write the quickstart's images into a folder per class: all of them, or the first of each class.

    Returns:
        How many training and test images were written.
    """
    counts = []
    for split, n in zip(SPLITS, (n_training, n_test), strict=True):
        images = open_images(str(DATA / split))
        chosen = images.samples if n is None else first_of_each_class(images, n)
        assert images.classes is not None
        for sample in chosen:
            assert sample.label is not None
            file = folder / split / images.classes[sample.label] / f"{sample.id}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(sample.read())
        counts.append(len(chosen))
    return counts[0], counts[1]


def first_of_each_class(images: ImageSet, n: int) -> list[Sample]:
    """As many images of each class, n in all, or a few more."""
    by_class: dict[int | None, list[Sample]] = defaultdict(list)
    for sample in images.samples:
        by_class[sample.label].append(sample)
    each = -(-n // len(by_class))
    return [sample for samples in by_class.values() for sample in samples[:each]]
