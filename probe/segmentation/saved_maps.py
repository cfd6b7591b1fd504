"""True and predicted label maps of a few test images as files, and which images they belong to: `maps` next to the results."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int16

from probe.segmentation.label_maps import LabelMapsOfView, Resolution
from probe.segmentation.patches import Patches
from store.truths import VOID

UNSEEN = 255  # in label maps of 8 bits: void, or what the view does not show
UNSEEN_OF_MANY = 65535  # the same in 16 bits
TRUTH, IMAGES = "truth", "images.json"


class SavedMaps:
    """Writes FOLDER/PROTOCOL/ID.png, FOLDER/truth/ID.png and FOLDER/images.json.

    Args:
        folder: of the maps.
        test: patches of the test images, of which `n` are taken at even distances.
        classes: names in order of labels.
        resolution: of the maps: "original", or the shorter side of the view's frame in pixels.

    Attributes:
        rows: of the images in their feature set.
    """

    def __init__(self, folder: Path, test: Patches, classes: tuple[str, ...], resolution: Resolution, n: int):
        self._folder, self._store, self._classes = folder, test.source.store, classes
        chosen = np.linspace(0, len(test.rows) - 1, min(n, len(test.rows))).round().astype(int)
        self.rows: list[int] = test.rows[np.unique(chosen)].tolist()
        maps, images = LabelMapsOfView(self._store), list[dict[str, Any]]()
        for row in self.rows:
            truth = maps.at(row, resolution)
            self.keep(TRUTH, row, truth)
            crop = [0, 0, *truth.shape[::-1]] if self._store.spec.has_windows else maps.crops[row].tolist()
            image = {"id": self._store.ids[row], "file": self._file_name(row), "crop": crop, "flip": bool(maps.flips[row])}
            images.append(image)
        if images:
            content = {
                "data": self._store.spec.data,
                "resolution": resolution,
                "unseen": UNSEEN if len(classes) <= UNSEEN else UNSEEN_OF_MANY,
                "classes": list(classes),
                "images": images,
            }
            (folder / IMAGES).write_text(json.dumps(content, indent=1) + "\n")

    def keep(self, protocol: str, row: int, label_map: Int16[np.ndarray, "h w"]) -> None:
        """Write the map that a protocol predicts for an image, if the image is one of these."""
        if row in self.rows:
            save_label_map(self._folder / protocol / self._file_name(row), label_map, len(self._classes))

    def _file_name(self, row: int) -> str:
        return f"{self._store.ids[row].replace('/', '_')}.png"


def save_label_map(file: Path, label_map: Int16[np.ndarray, "h w"], n_classes: int) -> None:
    """A PNG of indices with a palette, 255 where the view shows nothing; of 16 bits without one for more than 255 classes."""
    from PIL import Image

    file.parent.mkdir(parents=True, exist_ok=True)
    if n_classes > UNSEEN:
        Image.fromarray(np.where(label_map == VOID, np.uint16(UNSEEN_OF_MANY), label_map.astype(np.uint16))).save(file)
        return
    picture = Image.fromarray(np.where(label_map == VOID, UNSEEN, label_map).astype(np.uint8))
    picture.putpalette(palette().flatten().tolist())
    picture.save(file)


def palette() -> np.ndarray:
    """[256, 3] uint8 colours, as different as 256 can be: the bits of an index, in turn to red, green and blue from the top.

    Index 255 is black, index 0 grey.
    """
    colours = np.zeros((256, 3), np.uint8)
    index = np.arange(256)
    for bit in range(8):
        colours[:, bit % 3] |= (((index >> bit) & 1) << (7 - bit // 3)).astype(np.uint8)
    colours[0], colours[UNSEEN] = 128, 0
    return colours
