"""Feature sets with depth and normals in files beside them, which tokens hold linearly."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import interpolate, normalize

from store import FeatureStore
from tests.features import write_features
from tests.truths import with_truths

SIDE, SIZE = 4, (32, 40)  # patches along a side; height and width of images


def write_maps(
    folder: Path,
    n: int = 12,
    *,
    seed: int = 0,
    task: str = "depth",
    mirrored: bool = False,
    crop: tuple[float, ...] = (0, 0, 40, 32),
    **given: Any,
) -> FeatureStore:
    """Images of 4 x 4 patches whose first channels are depth, 3 m and more or less, or the normal, between patches bilinear.

    `folder`/features is the set, `folder`/maps has a .npy an image.

    Args:
        crop: x0, y0, x1, y1 that the view shows.
        mirrored: the view shows all images mirrored, as tokens do; maps are as otherwise.
    """
    plain = write_features(folder / "plain", n, SIDE**2, 6, seed=seed, signal=0, **given)
    tokens = torch.from_numpy(plain.tokens("patch").rows(np.arange(n)).astype(np.float32)).mT.unflatten(2, (SIDE, SIDE))
    values = (
        3 + tokens[:, :1].clamp(-2, 2) / 2
        if task == "depth"
        else normalize(tokens[:, :3] + torch.tensor([0, 0, 3.0])[:, None, None], dim=1)
    )
    stored = plain.tokens("patch")
    seen = stored.rows(np.arange(n)).reshape(n, SIDE, SIDE, -1)[:, :, ::-1].reshape(stored.shape)
    changed = {"images/crop/view0": np.tile(np.float32(crop), (n, 1))}
    changed |= {stored.name: seen, "images/flip/view0": np.ones(n, np.uint8)} if mirrored else {}
    store = with_truths(plain, folder / "features", sizes=[SIZE] * n, changed=changed)
    (folder / "maps").mkdir()
    pixels = interpolate(values, size=SIZE, mode="bilinear").numpy()
    for name, of_image in zip(store.ids, pixels, strict=True):
        np.save(folder / f"maps/{name}.npy", of_image[0] if task == "depth" else of_image.transpose(1, 2, 0))
    return store
