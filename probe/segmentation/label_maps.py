"""True label maps of images as their views show them, and the way from the patches of a view to pixels."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int16, Integer
from torch import Tensor
from torch.nn.functional import one_hot

from probe.views import View
from store import FeatureStore
from store.truths import VOID
from store.truths.view import Crop, map_in_view

Resolution = str | int  # "original", or the shorter side of the view's frame in pixels
LOGITS_AT_ONCE = 1 << 26  # of pixels, whose mean over windows is taken at once


@dataclass(frozen=True, eq=False)
class Axis:
    """How the pixels along one axis, which the view shows without a gap, lie between its patches.

    Attributes:
        shown: the pixels that the view shows: from the first to one past the last.
        nearest: patch that covers each of them.
        weights: of the patches, bilinear: 1 at a patch's centre, falling to 0 at its neighbours'; beyond the outermost
            centres the outermost patch has all the weight.
    """

    shown: slice
    nearest: Integer[np.ndarray, "n"]
    weights: Float[Tensor, "n p"]

    @classmethod
    def between(cls, n_pixels: int, n_patches: int, low: float, high: float, flip: bool = False) -> "Axis":
        """The pixels of an image, of which a view shows those from `low` to `high` (in pixels, maybe beyond the image).

        A pixel belongs to where its centre lies. As `torch.nn.functional.interpolate(align_corners=False)` where low is 0
        and high is `n_pixels`.
        """
        place = (np.arange(n_pixels) + 0.5 - low) * (n_patches / (high - low))
        inside = np.flatnonzero((place >= 0) & (place < n_patches))
        shown = slice(int(inside[0]), int(inside[-1]) + 1) if len(inside) else slice(0, 0)
        place = place[shown]
        nearest = np.minimum(place.astype(np.int64), n_patches - 1)
        between = np.clip(place - 0.5, 0, n_patches - 1)
        before = between.astype(np.int64)
        weights = np.zeros((len(place), n_patches))
        weights[np.arange(len(place)), before] = 1 - (between - before)
        weights[np.arange(len(place)), np.minimum(before + 1, n_patches - 1)] += between - before
        if flip:
            nearest, weights = n_patches - 1 - nearest, weights[:, ::-1].copy()
        return cls(shown, nearest, torch.from_numpy(weights).float())

    def part(self, start: int, stop: int) -> "Axis":
        """Of the pixels from `start` to `stop` alone, which are counted from 0."""
        low, high = (min(max(end, self.shown.start), self.shown.stop) for end in (start, stop))
        inside = slice(low - self.shown.start, high - self.shown.start)
        return Axis(slice(low - start, high - start), self.nearest[inside], self.weights[inside])


@dataclass(frozen=True, eq=False)
class Upsampling:
    """From a grid of patches to the pixels of an image that its view shows."""

    down: Axis
    across: Axis

    @classmethod
    def to_original(cls, grid: tuple[int, int], crop: Crop, flip: bool, size: tuple[int, int]) -> "Upsampling":
        """To pixels of the original, `size` (height, width). `flip`: whether the view mirrors it."""
        x0, y0, x1, y1 = map(float, crop)
        down = Axis.between(size[0], grid[0], y0, y1)
        return cls(down, Axis.between(size[1], grid[1], x0, x1, flip))

    @classmethod
    def to_frame(cls, grid: tuple[int, int], size: tuple[int, int]) -> "Upsampling":
        """To a frame of `size` (rows, columns) that the view fills."""
        return cls.to_original(grid, (0, 0, size[1], size[0]), False, size)

    @property
    def shown(self) -> tuple[slice, slice]:
        """The pixels that the view shows."""
        return self.down.shown, self.across.shown

    def nearest(self, values: Any) -> Any:
        """The value of the patch that covers each shown pixel: an array or tensor [..., h, w] from one [..., rows, columns]."""
        return values[..., self.down.nearest[:, None], self.across.nearest]

    def bilinear(self, logits: Float[Tensor, "*many rows columns"]) -> Float[Tensor, "*many h w"]:
        """Values between the patches, at each shown pixel."""
        down, across = self.down.weights.to(logits), self.across.weights.to(logits)
        return down @ (logits @ across.T)

    def gradient(self, of_pixels: Float[Tensor, "*many h w"]) -> Float[Tensor, "*many rows columns"]:
        """The gradient of patches from that of pixels: the transpose of `bilinear`."""
        down, across = self.down.weights.to(of_pixels), self.across.weights.to(of_pixels)
        return down.T @ (of_pixels @ across)


def shown_by(upsamplings: Sequence[Upsampling], size: tuple[int, int]) -> Bool[np.ndarray, "h w"]:
    """Whether any view shows a pixel."""
    shown = np.zeros(size, bool)
    for one in upsamplings:
        shown[one.shown] = True
    return shown


def mean_logits(
    on_grids: Float[Tensor, "V K rows columns"], upsamplings: Sequence[Upsampling], size: tuple[int, int], interpolated: bool
) -> Float[Tensor, "K h w"]:
    """At each pixel of `size` (height, width) the mean over the views that show it; NaN where none does.

    Args:
        upsamplings: of each view, to these pixels.
        interpolated: between patches; else a pixel has the logits of the patch that covers it.
    """
    sums, n = on_grids.new_zeros(on_grids.shape[1], *size), on_grids.new_zeros(size)
    for on_grid, upsampling in zip(on_grids, upsamplings, strict=True):
        sums[:, *upsampling.shown] += upsampling.bilinear(on_grid) if interpolated else upsampling.nearest(on_grid)
        n[upsampling.shown] += 1
    return sums.div_(n)


def label_map_of(
    on_grids: Float[Tensor, "V K rows columns"] | Int16[np.ndarray, "V rows columns"],
    upsamplings: Sequence[Upsampling],
    size: tuple[int, int],
    interpolated: bool = True,
) -> Int16[np.ndarray, "h w"]:
    """The class of each pixel, from the logits or the labels of patches: -1 where no view shows it.

    Several views are windows: the highest of the `mean_logits` counts, of labels the most frequent, the lowest of those.

    Args:
        upsamplings, size, interpolated: as for `mean_logits`.
    """
    labels = np.full(size, VOID, np.int16)
    if len(on_grids) == 1:
        (upsampling,), (on_grid,) = upsamplings, on_grids
        if isinstance(on_grid, Tensor) and interpolated:
            labels[upsampling.shown] = upsampling.bilinear(on_grid).argmax(0).numpy()
        else:
            labels[upsampling.shown] = upsampling.nearest(on_grid.argmax(0).numpy() if isinstance(on_grid, Tensor) else on_grid)
        return labels
    if not isinstance(on_grids, Tensor):
        on_grids, interpolated = one_hot(torch.from_numpy(on_grids).long()).movedim(-1, 1).float(), False
    step = max(1, LOGITS_AT_ONCE // (on_grids.shape[1] * size[1]))
    for top in range(0, size[0], step):
        stop = min(top + step, size[0])
        parts = [Upsampling(one.down.part(top, stop), one.across) for one in upsamplings]
        labels[top:stop] = mean_logits(on_grids, parts, (stop - top, size[1]), interpolated).argmax(0).numpy()
    return np.where(shown_by(upsamplings, size), labels, np.int16(VOID))


def shows_more(store: FeatureStore, views: Sequence[int]) -> Bool[np.ndarray, "N V"]:
    """Whether a view of each image shows what none of those before it does; windows repeat where an image needs fewer."""
    crops = np.stack([store.array(f"images/crop/view{view}").all() for view in views], 1)  # [N, V, 4]
    same = (crops[:, :, None] == crops[:, None]).all(-1)  # [N, V, V]
    return ~np.tril(same, -1).any(-1)


class LabelMapsOfView(View):
    """Label maps of a feature set in one view."""

    def original(self, row: int) -> Int16[np.ndarray, "h w"]:
        """In pixels of the original."""
        return self.store.segmentation.label_map(row)

    def in_frame(self, row: int, size: tuple[int, int]) -> Int16[np.ndarray, "h w"]:
        """In a frame of `size` that the view fills."""
        return map_in_view(self.original(row), *self.shows(row), size)

    def at(self, row: int, resolution: Resolution) -> Int16[np.ndarray, "h w"]:
        """At a resolution."""
        return self.in_frame(row, self.frame(resolution)) if isinstance(resolution, int) else self.original(row)

    def upsampling(self, row: int, resolution: Resolution) -> Upsampling:
        """From the grid of patches to these pixels."""
        if isinstance(resolution, int):
            return Upsampling.to_frame(self.store.grid, self.frame(resolution))
        return Upsampling.to_original(self.store.grid, *self.shows(row), self.size(row))


def shown_of(maps: View, rows: Int[np.ndarray, "n"], labelled: int, inside: int) -> dict[str, Any]:
    """What the views of images show that have this many labelled pixels, of which `inside` are shown; plain values.

    - `shows`: the "whole" image, squashed where it is not square; all of it, "padded" or in "windows"; a central "crop"; a
      "random" crop;
    - `percent_outside`: of the labelled pixels, which nothing is predicted for and no measure counts;
    - `words`: both.
    """
    shows = "windows" if maps.store.spec.has_windows else maps.part(rows)
    outside = 100 * (1 - inside / labelled) if labelled else 0.0
    lost = f"; {outside:.1f} % of the labelled pixels lie outside of it and are not measured"
    words = {
        "whole": "whole image",
        "padded": "whole image, padded",
        "windows": "whole image, in windows that overlap",
        "crop": f"central crop{lost}",
        "random": f"random crop{lost}",
    }
    return {"shows": shows, "percent_outside": outside, "words": words[shows]}
