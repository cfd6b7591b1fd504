"""The full CIFAR-10 (60,000 photographs of 32 x 32 pixels, 10 classes) as arrays."""

from pathlib import Path
from typing import TypeAlias

import numpy as np

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


Splits: TypeAlias = dict[str, tuple[np.ndarray, np.ndarray]]


def load(path: Path) -> Splits:
    """`{"train": (images, labels), "test": (images, labels)}`: images [n, 32, 32, 3] uint8, labels [n] int64.

    `path` is an .npz with arrays `x`, `y`, `xt`, `yt`, or a folder where torchvision keeps (or may download) CIFAR-10.
    """
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as data:
            return {"train": (data["x"], data["y"]), "test": (data["xt"], data["yt"])}
    from torchvision.datasets import CIFAR10

    def split(train: bool) -> tuple[np.ndarray, np.ndarray]:
        data = CIFAR10(str(path), train=train, download=True)
        return np.asarray(data.data), np.asarray(data.targets, dtype=np.int64)

    return {"train": split(True), "test": split(False)}
