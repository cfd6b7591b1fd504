"""True label maps of images as their views show them, and where views and originals meet."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, Int16

from probe.localisation.frame import frame_of
from probe.segmentation.upsampling import Upsampling
from store import FeatureStore
from store.truths.view import map_in_view

Resolution = str | int  # "original", or the shorter side of the view's frame in pixels
KEPT_NBYTES = 1 << 28  # of label maps that training sees again in each epoch


@dataclass(eq=False)
class LabelMaps:
    """Label maps of a feature set in one view.

    Attributes:
        crops: x0, y0, x1, y1 that the view shows, in pixels of the original.
        flips: whether it is mirrored.
    """

    store: FeatureStore
    view: int = 0
    crops: Float[np.ndarray, "N 4"] = field(init=False)
    flips: Bool[np.ndarray, "N"] = field(init=False)
    _kept: dict[tuple[int, tuple[int, int]], Int16[np.ndarray, "_h _w"]] = field(default_factory=dict, init=False)
    _kept_nbytes: int = field(default=0, init=False)
    _handed: dict[tuple[int, tuple[int, int]], Int16[np.ndarray, "_h _w"]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.crops = self.store.array(f"images/crop/view{self.view}").all()
        self.flips = self.store.array(f"images/flip/view{self.view}").all().astype(bool)

    def frame(self, shorter: int) -> tuple[int, int]:
        """Rows and columns of a frame of the view with this shorter side, as its grid is shaped."""
        rows, columns = self.store.grid
        return round(shorter * rows / min(rows, columns)), round(shorter * columns / min(rows, columns))

    def original(self, row: int) -> Int16[np.ndarray, "h w"]:
        """In pixels of the original."""
        return self.store.segmentation.label_map(row)

    def in_frame(self, row: int, size: tuple[int, int]) -> Int16[np.ndarray, "h w"]:
        """In a frame of `size` that the view fills; kept for the next time while there is room."""
        if (label_map := self._kept.get((row, size))) is None:
            label_map = self._handed.pop((row, size), None)
            label_map = self.decoded(row, size) if label_map is None else label_map
            if self._kept_nbytes + label_map.nbytes <= KEPT_NBYTES:
                self._kept[row, size] = label_map
                self._kept_nbytes += label_map.nbytes
        return label_map

    def decoded(self, row: int, size: tuple[int, int]) -> Int16[np.ndarray, "h w"]:
        """Likewise, from the bytes of the set."""
        return map_in_view(self.original(row), self.crops[row], bool(self.flips[row]), size)

    def keeps(self, row: int, size: tuple[int, int]) -> bool:
        """Whether a label map is kept."""
        return (row, size) in self._kept

    def take(self, row: int, label_map: Int16[np.ndarray, "h w"]) -> None:
        """Take one that another process decoded, for `in_frame` to give."""
        self._handed[row, label_map.shape] = label_map

    def __getstate__(self) -> dict[str, Any]:
        """Without what is kept: another process decodes what it is asked for."""
        return {**self.__dict__, "_kept": {}, "_kept_nbytes": 0, "_handed": {}}

    def upsampling(self, row: int, resolution: Resolution) -> Upsampling:
        """From the grid of patches to these pixels."""
        if isinstance(resolution, int):
            return Upsampling.to_frame(self.store.grid, self.frame(resolution))
        size = self.store.segmentation.size(row)
        return Upsampling.to_original(self.store.grid, self.crops[row], bool(self.flips[row]), size)


@dataclass(frozen=True)
class Shown:
    """What a view shows of the labelled pixels of some images.

    Attributes:
        shows: the "whole" image, squashed where it is not square; all of it, "padded"; a central "crop"; a "random" crop.
        percent_outside: of the labelled pixels of the originals, which nothing is predicted for and no measure counts.
    """

    shows: str
    percent_outside: float

    @property
    def words(self) -> str:
        outside = f"{self.percent_outside:.1f} % of the labelled pixels lie outside of it and are not measured"
        return {
            "whole": "whole image",
            "padded": "whole image, padded",
            "crop": f"central crop; {outside}",
            "random": f"random crop; {outside}",
        }[self.shows]


def shown_of(maps: LabelMaps, rows: Int[np.ndarray, "n"], labelled: int, inside: int) -> Shown:
    """The frame of images with this many labelled pixels, of which their views show `inside`."""
    sizes = maps.store.array("images/size").rows(rows)
    frame = frame_of(maps.crops[rows], sizes, max(maps.store.grid), maps.view, labelled, inside)
    return Shown(frame.shows, frame.percent_outside)
