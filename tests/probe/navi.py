"""NAVI's layout made small: depth and cameras of two images of a plane."""

import json
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.spatial.transform import Rotation

NAMES = ["cup/wild_set/images/000.jpg", "cup/wild_set/images/001.jpg"]
FINER = 4  # pixels of the images, of which there are none, for each of depth


def navi(folder: Path) -> np.ndarray:
    """Write it; nothing is in the ten rows at the top of depth. The homography from pixels of the first image to the second."""
    scene, pairs = folder / "cup/wild_set", folder / "custom_splits/pairwise_pixel_correspondences"
    (scene / "depth").mkdir(parents=True)
    pairs.mkdir(parents=True)
    (pairs / "pairs-wild_set.txt").write_text(f"{' '.join(NAMES)} 20\n")
    planes, annotations = [], []
    for name, (h, w), angle, shift in zip(NAMES, ((120, 160), (90, 120)), (0, 20), ([0, 0, 400], [90, 10, 430]), strict=True):
        focal, half, turn = 0.9 * w, np.radians(angle) / 2, Rotation.from_euler("y", angle, degrees=True).as_matrix()
        to_pixels = np.array([[focal, 0, w / 2], [0, focal, h / 2], [0, 0, 1]])
        x, y = np.meshgrid(np.arange(w) + 0.5, np.arange(h) + 0.5)
        rays = np.stack([x, y, np.ones((h, w))], -1) @ np.linalg.inv(to_pixels).T
        normal = turn[:, 2]  # of the object's plane z = 0
        depth = (normal @ shift) / (rays @ normal)
        depth[:10] = np.inf
        Image.fromarray(np.round(65535 * 10 / depth).astype(np.uint16)).save(scene / f"depth/{Path(name).stem}.png")
        planes.append(np.diag([FINER, FINER, 1]) @ to_pixels @ np.column_stack([turn[:, :2], shift]))
        camera = {"q": [2 * np.cos(half), 0, 2 * np.sin(half), 0], "t": shift, "focal_length": FINER * focal}
        annotations.append({"filename": Path(name).name, "camera": camera, "image_size": [FINER * h, FINER * w]})
    (scene / "annotations.json").write_text(json.dumps(annotations))
    return planes[1] @ np.linalg.inv(planes[0])
