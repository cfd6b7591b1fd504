"""What views show of images, and pictures that have a value for each pixel of one."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from store import BeyondClsError, FeatureStore

TOLERANCE = 0.5  # pixels of the original
Part = Literal["whole", "padded", "crop", "random"]


@dataclass(eq=False)
class View:
    """What one view shows of the images of a feature set.

    Attributes:
        crops: x0, y0, x1, y1 that the view shows, in pixels of the original.
        flips: whether it is mirrored.
        sizes: height and width of the originals.
    """

    store: FeatureStore
    view: int = 0
    crops: Float[np.ndarray, "N 4"] = field(init=False)
    flips: Bool[np.ndarray, "N"] = field(init=False)
    sizes: Int[np.ndarray, "N 2"] = field(init=False)

    def __post_init__(self) -> None:
        self.crops = self.store.array(f"images/crop/view{self.view}").all()
        self.flips = self.store.array(f"images/flip/view{self.view}").all().astype(bool)
        self.sizes = self.store.array("images/size").all()

    def shows(self, row: int) -> tuple[Float[np.ndarray, "4"], bool]:
        """The crop of an image, and whether it is mirrored."""
        return self.crops[row], bool(self.flips[row])

    def size(self, row: int) -> tuple[int, int]:
        """Height and width of an image."""
        height, width = self.sizes[row].tolist()
        return height, width

    def frame(self, shorter: int) -> tuple[int, int]:
        """Rows and columns of a frame of the view with this shorter side, as its grid is shaped."""
        rows, columns = self.store.grid
        return round(shorter * rows / min(rows, columns)), round(shorter * columns / min(rows, columns))

    def part(self, rows: Int[np.ndarray, "n"]) -> Part:
        """The part of some images that is shown: a central crop as soon as any image is cut."""
        whole = np.concatenate([np.zeros_like(self.sizes[rows]), self.sizes[rows, ::-1]], 1)
        beyond = (whole - self.crops[rows]) * (1, 1, -1, -1)  # how far crops reach over each border; negative where they cut
        if (beyond >= -TOLERANCE).all():
            return "whole" if (beyond <= TOLERANCE).all() else "padded"
        return "random" if self.view else "crop"


def read_png(file: Path, size: tuple[int, int], modes: Sequence[str], expected: str) -> Shaped[np.ndarray, "h w *c"]:
    """Pixels of a PNG, which is not decoded unless it has the size (height, width) of its image, and one of these modes.

    Raises:
        BeyondClsError: it has not, or is damaged.
    """
    from PIL import Image

    try:
        with Image.open(file, formats=["PNG"]) as picture:
            if picture.size != size[::-1] or picture.mode not in modes:
                raise ValueError(f"has {picture.size[0]} x {picture.size[1]} pixels of Pillow's mode {picture.mode}")
            return np.asarray(picture)
    except (ValueError, OSError, SyntaxError, Image.DecompressionBombError) as error:  # of Pillow
        raise BeyondClsError(f"{file} {error}; expected {expected}") from error
