"""The frame in which boxes are compared: what of its images a view shows, and whether others compare in the same."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float, Int

OFFICIAL_SIZE = 224  # pixels; Choe et al. 2020 squash the whole image to it
TOLERANCE = 0.5  # pixels of the original


@dataclass(frozen=True)
class Frame:
    """What boxes are compared in.

    Attributes:
        shows: the "whole" image, squashed where it is not square; all of it, "padded" to a square; a central "crop"; or a
            "random" crop.
        size: its side in pixels.
        percent_outside: of the area of all boxes, what lies outside of it; 0…100.
    """

    shows: Literal["whole", "padded", "crop", "random"]
    size: int
    percent_outside: float

    @property
    def official(self) -> bool:
        """Whether it is the frame of Choe et al. 2020, and so numbers compare with published ones."""
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
        """As localisation.json has it."""
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
    """The frame of N images, as their crops say: a central crop where any image is cut, whatever the others are.

    Args:
        crops: x0, y0, x1, y1 that the view shows, in pixels of the original.
        sizes: height and width of the originals.
        size: side of the frame, pixels.
        area: of all boxes, in pixels of the frame; `area_shown` is what of it lies in the frame.
    """
    whole = np.concatenate([np.zeros_like(sizes), sizes[:, ::-1]], 1)
    beyond = (whole - crops) * (1, 1, -1, -1)  # how far the crop reaches over each border of the image; negative where it cuts
    shows: Literal["whole", "padded", "crop", "random"] = "random" if view else "crop"
    if (beyond >= -TOLERANCE).all():
        shows = "whole" if (beyond <= TOLERANCE).all() else "padded"
    return Frame(shows, size, 100 * (1 - area_shown / area) if area else 0.0)
