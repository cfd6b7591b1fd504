"""A feature set whose tokens show objects with masks, written without an encoder."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from probe.detection.targets import STRIDE
from store import ArrayLayout, FeatureSpec, FeatureStore
from store.truths import Instance
from tests.features import write_arrays
from tests.probe.detection.tiny import CLASSES, DIM, GRID
from tests.truths import instances_of, with_truths

Box = tuple[int, int, int, int]
SIZE = (GRID[0] * STRIDE // 2, GRID[1] * STRIDE // 2)  # of the images: a patch has 8 x 8 pixels


def write_objects(
    path: Path,
    n: int = 6,
    *,
    objects: Sequence[Sequence[Instance]] | None = None,
    crop: Sequence[float] | None = None,
    flip: bool = False,
    classes: Sequence[str] = CLASSES,
    weights: str = "w",
    masks: bool = True,
    invalid: Sequence[int] = (),
    seed: int = 0,
    norm: bool = False,
    views: int = 1,
) -> FeatureStore:
    """Image i has an ellipse (class 0) or a rectangle (class 1), which the tokens of its patches show; see `ellipses`.

    Args:
        objects: of each image, instead.
        crop: what all views show; the whole image by default.
        masks: otherwise there are boxes alone.
        views: beside the first, tokens are noise, and views mirrored.
    """
    generator = np.random.default_rng(seed)
    kinds = np.arange(n) % 2
    drawn = [drawn_object(i, generator) for i in range(n)]
    patch = generator.normal(0, 0.1, (n, *GRID, DIM))
    for i, mask in enumerate(drawn):
        share = mask.reshape(GRID[0], 8, GRID[1], 8).mean((1, 3))
        patch[i, ..., kinds[i]] += 4 * share
    instances = objects or [instances_of(mask[None], [int(kind)]) for mask, kind in zip(drawn, kinds, strict=True)]
    if not masks:
        instances = [[Instance(one.label, one.box, one.area, one.crowd) for one in image] for image in instances]
    valid = np.ones(n, np.uint8)
    valid[list(invalid)] = 0
    arrays = {
        "images/id": (np.array([list(f"{i + 40:03d}".encode()) for i in range(n)], np.uint8), ("image", "byte")),
        "images/label": (kinds.astype(np.int64), ("image",)),
        "images/valid": (valid, ("image",)),
    }
    box = (0, 0, SIZE[1], SIZE[0]) if crop is None else crop
    for view in range(views):
        tokens = patch if view == 0 else generator.normal(size=patch.shape)
        arrays[f"patch/block1/view{view}"] = (tokens.reshape(n, -1, DIM).astype(np.float16), ("image", "patch", "channel"))
        arrays[f"images/crop/view{view}"] = (np.tile(np.array(box, np.float32), (n, 1)), ("image", "side"))
        arrays[f"images/flip/view{view}"] = (np.full(n, flip or view > 0, np.uint8), ("image",))
    layouts = [ArrayLayout(name, values.shape, values.dtype.name, dims, 64) for name, (values, dims) in arrays.items()]
    seen = {"input_size": [3, *SIZE]}
    spec = FeatureSpec(weights, "{}", seen, f"objects{seed}", n, (1,), (), (), views)
    attributes = {"encoder": f"encoder-{weights}", "norm_eps": 1e-6 if norm else None, "problems": [], "classes": None}
    constants = {"norm/weight": np.full(DIM, 2, np.float32), "norm/bias": np.zeros(DIM, np.float32)} if norm else None
    plain = write_arrays(
        path.with_name(f"{path.name}-plain"),
        spec,
        layouts,
        {name: values for name, (values, _) in arrays.items()},
        attributes,
        constants,
        [{"row": row, "id": str(row), "problem": "damaged"} for row in invalid],
    )
    return with_truths(plain, path, instances=instances, instance_classes=classes, sizes=[SIZE] * n)


def drawn_object(i: int, generator: np.random.Generator) -> np.ndarray:
    """The mask [h, w] of an ellipse, or for odd `i` of a rectangle."""
    height, width = generator.integers(18, 36, 2)
    top, left = (int(generator.integers(0, side - length)) for side, length in zip(SIZE, (height, width), strict=True))
    rows, columns = np.ogrid[: SIZE[0], : SIZE[1]]
    if i % 2:
        return (rows >= top) & (rows < top + height) & (columns >= left) & (columns < left + width)
    down, across = (rows + 0.5 - top) / height * 2 - 1, (columns + 0.5 - left) / width * 2 - 1
    return down**2 + across**2 <= 1
