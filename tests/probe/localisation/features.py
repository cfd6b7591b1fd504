"""A feature set with boxes, written without an encoder."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from store import ArrayLayout, FeatureSpec, FeatureStore
from tests.features import write_arrays

SIDE = 4  # patches
PATCH = 8  # pixels of the original, which is 32 x 32
NONE = (-1.0, -1.0, -1.0, -1.0)


def write_boxed(
    path: Path,
    n: int = 6,
    *,
    n_patches: int = SIDE**2,
    boxes: Mapping[int, Sequence[Sequence[float]]] | None = None,
    maps: Sequence[str] = ("cls",),
    size: tuple[int, int] = (32, 32),
    crop: Sequence[float] = (0, 0, 32, 32),
    flip: bool = False,
    invalid: Sequence[int] = (),
    flat: Sequence[int] = (),
    weights: str = "w",
    transform: Mapping[str, object] | None = None,
    with_boxes: bool = True,
) -> FeatureStore:
    """Image i has one object, of 2 x 2 patches; attention head 0 sees it, and channel 0 of the tokens; head 1 sees noise.

    Args:
        boxes: of some images, instead.
        size: height and width that are recorded of each image.
        flat: images with constant attention.
    """
    generator = np.random.default_rng(0)
    corners = np.array([[8 * (i % 3), 8 * (i // 3 % 3), 8 * (i % 3) + 16, 8 * (i // 3 % 3) + 16] for i in range(n)], np.float32)
    stored = np.full((n, 2, 4), NONE, np.float32)
    stored[:, 0] = corners
    for row, given in (boxes or {}).items():
        stored[row] = NONE
        stored[row, : len(given)] = np.reshape(given, (-1, 4))
    seen = np.zeros((n, n_patches), bool)
    for row, (x0, y0, x1, y1) in enumerate(corners.astype(int) // PATCH if n_patches == SIDE**2 else ()):
        seen[row].reshape(SIDE, SIDE)[y0:y1, x0:x1] = True
    attention = np.stack([np.where(seen, 0.2, 0.01), generator.random((n, n_patches))], 1).astype(np.float16)  # [n, 2, T]
    attention[list(flat)] = 0.05
    patch = generator.normal(0, 0.1, (n, n_patches, 4)).astype(np.float16)
    patch[..., 0] += 4 * seen
    valid = np.ones(n, np.uint8)
    valid[list(invalid)] = 0
    arrays = {
        "images/id": (np.array([list(f"{i:03d}".encode()) for i in range(n)], np.uint8), ("image", "byte")),
        "images/label": (np.arange(n, dtype=np.int64) % 2, ("image",)),
        "images/size": (np.tile(np.array(size, np.int32), (n, 1)), ("image", "side")),
        "images/valid": (valid, ("image",)),
        "images/crop/view0": (np.tile(np.array(crop, np.float32), (n, 1)), ("image", "side")),
        "images/flip/view0": (np.full(n, flip, np.uint8), ("image",)),
        "patch/block1/view0": (patch, ("image", "patch", "channel")),
        **{f"attention/{kind}/block1/view0": (attention, ("image", "head", "patch")) for kind in maps},
    }
    if with_boxes:
        arrays["images/boxes"] = (stored, ("image", "box", "corner"))
        arrays["images/box_label"] = (np.where(stored[..., 2] >= 0, 0, -1).astype(np.int64), ("image", "box"))
    layouts = [ArrayLayout(name, values.shape, values.dtype.name, dims, 64) for name, (values, dims) in arrays.items()]
    seen, kinds = transform or {"input_size": [3, 32, 32]}, tuple(f"{kind}/block1" for kind in maps)
    spec = FeatureSpec(weights, "{}", seen, "data", n, (1,), (), kinds, 1)
    attributes = {"encoder": f"encoder-{weights}", "norm_eps": None, "problems": [], "classes": None}
    return write_arrays(path, spec, layouts, {name: values for name, (values, _) in arrays.items()}, attributes)
