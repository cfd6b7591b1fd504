"""The frame in which boxes are compared: which part of the images a view shows, and whether published results share it."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float, Int

OFFICIAL_SIZE = 224  # pixels; Choe et al. 2020 squash the whole image to it
TOLERANCE = 0.5  # pixels of the original


@dataclass(frozen=True)
class Frame:
    """The frame in which boxes are compared.

    Attributes:
        shows: the "whole" image, squashed where it is not square; all of it, "padded" to a square; a central "crop"; or a
            "random" crop.
        size: its side in pixels.
        percent_outside: share of the area of all boxes that is outside of the frame, 0…100.
    """

    shows: Literal["whole", "padded", "crop", "random"]
    size: int
    percent_outside: float

    @property
    def official(self) -> bool:
        """Whether it is the frame of Choe et al. 2020, so that numbers compare with published ones."""
        return self.shows == "whole" and self.size == OFFICIAL_SIZE

    @property
    def words(self) -> str:
        side = f"{self.size} x {self.size} pixels"
        outside = f"{self.percent_outside:.1f} % of the boxes' area lies outside of it"
        return {
            "whole": f"whole image, squashed to {side}",
            "padded": f"whole image, padded to a square, in {side}",
            "crop": f"central crop, in {side}; {outside}",
            "random": f"random crop, in {side}; {outside}",
        }[self.shows]

    def to_dict(self) -> dict[str, object]:
        """Plain values, as in localisation.json."""
        return {
            "shows": self.shows,
            "size": self.size,
            "percent_outside": self.percent_outside,
            "official": self.official,
            "words": self.words,
        }


def frame_of(
    crops: Float[np.ndarray, "N 4"], sizes: Int[np.ndarray, "N 2"], size: int, view: int, area: float, area_shown: float
) -> Frame:
    """The frame of N images, from their crops: a central crop as soon as any image is cut.

    Args:
        crops: x0, y0, x1, y1 that the view shows, in pixels of the original.
        sizes: height and width of the originals.
        size: side of the frame, pixels.
        area: of all boxes, in pixels of the frame; `area_shown` is the part of it in the frame.
    """
    whole = np.concatenate([np.zeros_like(sizes), sizes[:, ::-1]], 1)
    beyond = (whole - crops) * (1, 1, -1, -1)  # how far the crop reaches over each border of the image; negative where it cuts
    shows: Literal["whole", "padded", "crop", "random"] = "random" if view else "crop"
    if (beyond >= -TOLERANCE).all():
        shows = "whole" if (beyond <= TOLERANCE).all() else "padded"
    return Frame(shows, size, 100 * (1 - area_shown / area) if area else 0.0)
