"""Small feature sets written by tests: tokens with a class signal, no encoder needed."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from store import ArrayLayout, FeatureSpec, FeatureStore, FeatureWriter


def write_features(
    path: Path,
    n: int = 96,
    n_tokens: int = 9,
    dim: int = 8,
    n_classes: int = 3,
    *,
    seed: int = 0,
    weights: str = "w",
    cls: bool = True,
    classes: Sequence[str] | None = None,
    invalid: Sequence[int] = (),
    signal: float = 3.0,
) -> FeatureStore:
    """A feature set whose class shows in one random patch of each image, and faintly in [cls]."""
    generator = np.random.default_rng(seed)
    labels = np.arange(n) % n_classes
    patch = generator.normal(size=(n, n_tokens, dim))
    spot = generator.integers(n_tokens, size=n)
    patch[np.arange(n), spot, labels] += signal
    valid = np.ones(n, np.uint8)
    valid[list(invalid)] = 0
    ids = np.array([list(f"{i:06d}".encode()) for i in range(n)], np.uint8)
    arrays = {
        "images/id": (ids, ("image", "byte")),
        "images/label": (labels.astype(np.int64), ("image",)),
        "images/size": (np.full((n, 2), 32, np.int32), ("image", "side")),
        "images/valid": (valid, ("image",)),
        "patch/block1/view0": (patch.astype(np.float16), ("image", "patch", "channel")),
        "statistics/cls_self/view0": (generator.random((n, 2, 3)).astype(np.float32), ("image", "block", "head")),
        "attention/cls/view0": (generator.random((n, 3, n_tokens)).astype(np.float16), ("image", "head", "patch")),
    }
    if cls:
        token = generator.normal(size=(n, dim))
        token[np.arange(n), labels] += signal / 3
        arrays["cls/block1/view0"] = (token.astype(np.float16), ("image", "channel"))
    layouts = [ArrayLayout(name, values.shape, values.dtype.name, dims, 64) for name, (values, dims) in arrays.items()]
    spec = FeatureSpec(weights, "{}", {"input_size": [3, 32, 32]}, f"data{seed}", n, (1,), ("cls_self",), ("cls",))
    writer = FeatureWriter(path, spec, layouts)
    for unit in writer.missing_units():
        writer.write_unit(unit, {a.name: arrays[a.name][0][slice(*a.rows(unit))] for a in layouts})
    writer.finish(
        {"encoder": f"encoder-{weights}", "norm_eps": None, "classes": list(classes) if classes else None, "problems": []}
    )
    return FeatureStore.open(path)
