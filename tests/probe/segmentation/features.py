"""Feature sets with label maps whose patches are classified by their largest channel."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from store import FeatureStore
from tests.features import write_features
from tests.truths import with_truths

CLASSES = ("sky", "road", "car")
SIDE, CELL = 4, 8  # patches along a side; pixels of each


def write_segmented(
    path: Path,
    n: int = 12,
    *,
    seed: int = 0,
    classes: tuple[str, ...] = CLASSES,
    noise: float = 0.0,
    labelled: int = 0,
    mirrored: Sequence[int] = (),
    **given: Any,
) -> FeatureStore:
    """Images of 4 x 4 patches, 32 x 32 pixels, whose first row of pixels is void, and image 0 all of the lower half.

    Args:
        noise: share of patches with another class than that of their largest channel.
        labelled: number of classes that occur; all by default.
        mirrored: views that show all images mirrored, as their tokens do; others beside the first are noise.
    """
    plain = write_features(path.with_name(f"{path.name}-plain"), n, SIDE**2, 6, seed=seed, signal=0, **given)
    stored = plain.tokens("patch").rows(np.arange(n))
    tokens = stored.astype(np.float32)
    labels = tokens[..., : labelled or len(classes)].argmax(-1).astype(np.int16)
    generator = np.random.default_rng(seed)
    wrong = generator.random(labels.shape) < noise
    labels[wrong] = generator.integers(len(classes), size=int(wrong.sum()))
    maps = np.kron(labels.reshape(n, SIDE, SIDE), np.ones((CELL, CELL), np.int16))
    maps[:, 0] = -1
    maps[0, SIDE * CELL // 2 :] = -1
    changed = {}
    for view in mirrored:
        seen = stored.reshape(n, SIDE, SIDE, -1)[:, :, ::-1].reshape(stored.shape)
        changed |= {plain.tokens("patch", view=view).name: seen, f"images/flip/view{view}": np.ones(n, np.uint8)}
    return with_truths(plain, path, maps=list(maps), map_classes=classes, changed=changed)
