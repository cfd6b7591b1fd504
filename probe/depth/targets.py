"""What is predicted of a pixel, depth or the normal of its surface: its values in files, from logits, its loss and measures."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float, Float32, Shaped
from torch import Tensor
from torch.nn.functional import normalize

from probe.segmentation.label_maps import Upsampling
from store import BeyondClsError

FINER = 4  # times as many rows and columns as patches, at which bins become depths, as in DINOv2
LEAST_BIN = 0.1  # added to what relu leaves of a bin's logit, as in AdaBins' linear normalisation
LOG_EPS, ROOT_EPS = 1e-3, 1e-6  # metres; below the root of the loss, whose gradient at 0 has no end
SHARE_OF_MEAN = 0.15  # of the squared mean in the loss: 1 - λ
MOST_COSINE = 1 - 1e-4  # at which acos has a gradient
LENGTHS = (0.5, 1.5)  # of what is a normal: others point nowhere
WITHIN = (11.25, 22.5, 30.0)  # degrees


class Target(ABC):
    """What is predicted of a pixel: C values."""

    name: ClassVar[str]
    expected: ClassVar[str]  # of a file
    of_pixel: ClassVar[tuple[int, ...]]  # shape of its values
    of_png: ClassVar[type[np.generic]]  # dtype of a PNG; arrays have floats

    @property
    @abstractmethod
    def n_outputs(self) -> int:
        """K logits of a patch."""

    @abstractmethod
    def decoded(self, values: Shaped[np.ndarray, "..."]) -> Float32[np.ndarray, "c h w"]:
        """Values of a file's pixels, NaN where they are missing."""

    def usable(self, values: Float32[np.ndarray, "c h w"]) -> Float32[np.ndarray, "c h w"]:
        """NaN also where values are not learnt and not measured."""
        return values

    def starting_at(self, mean: Float[np.ndarray, "C"]) -> Self:
        """The same, predicted from the mean of the training pixels on."""
        return self

    def mirrored(self, values: Shaped[np.ndarray, "c h w"]) -> Shaped[np.ndarray, "c h w"]:
        """The values of pixels of an image that is mirrored, pixels where they were."""
        return values

    def on_grid(self, logits: Float[Tensor, "*many K rows columns"]) -> Float[Tensor, "*many C _r _c"]:
        """Values on a grid that is upsampled to pixels."""
        return logits

    def at_pixels(self, values: Float[Tensor, "*many C h w"]) -> Float[Tensor, "*many C h w"]:
        """Values that were upsampled."""
        return values

    def predicted(
        self, logits: Float[Tensor, "*many K rows columns"], upsampling: Callable[[tuple[int, int]], Upsampling]
    ) -> Float[Tensor, "*many C h w"]:
        """Values of the pixels to which `upsampling` leads from a grid with these numbers of rows and columns."""
        values = self.on_grid(logits)
        return self.at_pixels(upsampling((values.shape[-2], values.shape[-1])).bilinear(values))

    @abstractmethod
    def losses(self, predicted: Float[Tensor, "M C n"], truth: Float[Tensor, "C n"]) -> Float[Tensor, "M"]:
        """Of an image, by its pixels that have a truth."""

    @abstractmethod
    def measures(self, predicted: Float[np.ndarray, "C n"], truth: Float[np.ndarray, "C n"]) -> dict[str, float]:
        """Of an image, by its pixels that have a truth."""


@dataclass(frozen=True)
class Depth(Target):
    """Metres along the axis of the camera, as DINOv2 predicts them: a mean of the depths of uniform bins, weighted by logits.

    What is nearer than `low` or farther than `high` is neither learnt nor measured.

    Attributes:
        low, high: metres, of the first and the last bin.
        per_metre: whole numbers of a 16-bit PNG that are a metre.
    """

    low: float = 1e-3
    high: float = 10.0
    n_bins: int = 256
    per_metre: float = 1000.0
    name: ClassVar[str] = "depth"
    expected: ClassVar[str] = "a 16-bit PNG of one channel, or a .npy of floats [height, width], metres"
    of_pixel, of_png = (), np.uint16

    def __post_init__(self) -> None:
        if not 0 < self.low < self.high < math.inf:
            raise BeyondClsError(f"depths are from {self.low} to {self.high} m, expected 0 < --min-depth < --max-depth")
        if not 0 < self.per_metre < math.inf:
            raise BeyondClsError(f"--per-metre is {self.per_metre}, expected a positive number, 1000 for millimetres")

    @property
    def n_outputs(self) -> int:
        return self.n_bins

    def decoded(self, values: Shaped[np.ndarray, "..."]) -> Float32[np.ndarray, "c h w"]:
        metres = values / self.per_metre if values.dtype == self.of_png else values
        with np.errstate(invalid="ignore"):
            return np.where(metres > 0, metres, np.nan).astype(np.float32)[None]

    def usable(self, values: Float32[np.ndarray, "c h w"]) -> Float32[np.ndarray, "c h w"]:
        return np.where((values >= self.low) & (values <= self.high), values, np.float32(np.nan))

    def on_grid(self, logits: Float[Tensor, "*many K rows columns"]) -> Float[Tensor, "*many C _r _c"]:
        grid = (logits.shape[-2], logits.shape[-1])
        weights = Upsampling.to_frame(grid, (FINER * grid[0], FINER * grid[1])).bilinear(logits).relu() + LEAST_BIN
        bins = torch.linspace(self.low, self.high, self.n_bins, device=logits.device, dtype=logits.dtype)
        return (weights * bins[:, None, None]).sum(-3, keepdim=True) / weights.sum(-3, keepdim=True)

    def losses(self, predicted: Float[Tensor, "M C n"], truth: Float[Tensor, "C n"]) -> Float[Tensor, "M"]:
        """Scale-invariant in the logarithm, λ = 0.85 (Eigen et al. 2014), its root as in AdaBins and DINOv2."""
        difference = ((predicted + LOG_EPS).log() - (truth + LOG_EPS).log())[:, 0]
        mean = difference.mean(1)
        return ((difference - mean[:, None]).square().mean(1) + SHARE_OF_MEAN * mean.square() + ROOT_EPS).sqrt()

    def measures(self, predicted: Float[np.ndarray, "C n"], truth: Float[np.ndarray, "C n"]) -> dict[str, float]:
        """RMSE in metres, mean relative error, mean difference of log10, 100 times the deviation of the natural logarithms'
        difference, percent of pixels within a factor of 1.25, 1.25² and 1.25³; and once scale and shift are those that fit
        the image's truth best (Probe3D)."""
        p, t = predicted[0], truth[0]
        log = np.log(p) - np.log(t)
        variance = p.var()
        scale = ((p - p.mean()) * (t - t.mean())).mean() / variance if variance > 1e-12 else 0.0
        aligned = t.mean() + scale * (p - p.mean())
        return {
            "rmse": _root_mean_square(p - t),
            "abs_rel": float((abs(p - t) / t).mean()),
            "log10": float(abs(log).mean() / math.log(10)),
            "si_log": 100 * float(log.std()),
            **{f"delta{k}": _within_factor(p, t, 1.25**k) for k in (1, 2, 3)},
            "aligned_rmse": _root_mean_square(aligned - t),
            "aligned_delta1": _within_factor(aligned, t, 1.25),
        }


def _root_mean_square(values: np.ndarray) -> float:
    return math.sqrt(float((values**2).mean()))


def _within_factor(predicted: np.ndarray, truth: np.ndarray, factor: float) -> float:
    return 100 * float(((predicted < factor * truth) & (truth < factor * predicted)).mean())


@dataclass(frozen=True)
class Normals(Target):
    """Unit vectors, of which the first value is along the rows of the image. What has no length, or half of 1 too much or too
    little, points nowhere: it is missing.

    Attributes:
        start: what logits are added to. Where they are 0, and a direction has no length, gradients have no bound, and AdamW
            hardly moves after them.
    """

    start: tuple[float, ...] = (0.0, 0.0, 0.0)
    name: ClassVar[str] = "normals"
    expected: ClassVar[str] = "an RGB PNG of 8 bits in which 0 … 255 is -1 … 1, or a .npy of floats [height, width, 3]"
    of_pixel, of_png = (3,), np.uint8
    n_outputs: ClassVar[int] = 3

    def decoded(self, values: Shaped[np.ndarray, "..."]) -> Float32[np.ndarray, "c h w"]:
        vectors = (values / 127.5 - 1 if values.dtype == self.of_png else values.astype(np.float64)).transpose(2, 0, 1)
        length = np.sqrt((vectors**2).sum(0))
        points = (length > LENGTHS[0]) & (length < LENGTHS[1])
        return np.where(points, vectors / np.where(points, length, 1), np.nan).astype(np.float32)

    def starting_at(self, mean: Float[np.ndarray, "C"]) -> Self:
        return replace(self, start=tuple((mean / max(float(np.linalg.norm(mean)), 1e-12)).tolist()))

    def mirrored(self, values: Shaped[np.ndarray, "c h w"]) -> Shaped[np.ndarray, "c h w"]:
        return values * np.array([-1, 1, 1], values.dtype)[:, None, None]

    def on_grid(self, logits: Float[Tensor, "*many K rows columns"]) -> Float[Tensor, "*many C _r _c"]:
        return logits + torch.tensor(self.start, dtype=logits.dtype, device=logits.device)[:, None, None]

    def at_pixels(self, values: Float[Tensor, "*many C h w"]) -> Float[Tensor, "*many C h w"]:
        return normalize(values, dim=-3)

    def losses(self, predicted: Float[Tensor, "M C n"], truth: Float[Tensor, "C n"]) -> Float[Tensor, "M"]:
        """Mean angle, radians (Probe3D)."""
        return (predicted * truth).sum(1).clamp(-MOST_COSINE, MOST_COSINE).acos().mean(1)

    def measures(self, predicted: Float[np.ndarray, "C n"], truth: Float[np.ndarray, "C n"]) -> dict[str, float]:
        """Mean, median and root mean square of the angle between both, degrees, and percent of pixels within some angles."""
        lengths = np.linalg.norm(predicted, axis=0) * np.linalg.norm(truth, axis=0)
        cosine = (predicted * truth).sum(0) / np.maximum(lengths, 1e-12)
        angles = np.degrees(np.arccos(cosine.clip(-1, 1)))
        of_all = {"mean_angle": angles.mean(), "median_angle": np.median(angles), "rmse_angle": _root_mean_square(angles)}
        shares = {f"within_{degrees:g}": 100 * (angles < degrees).mean() for degrees in WITHIN}
        return {name: float(value) for name, value in (of_all | shares).items()}
