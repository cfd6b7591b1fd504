"""Norms of patch tokens, and the outliers among them: how many there are, where, and how much weight they draw.

Source: Darcet et al. 2023 (arXiv 2309.16588), section 2: tokens of high norm in patches of little content; registers end them.
Their cutoff is a number read off a histogram of one model; here it is a multiple of a block's median, so that encoders compare.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from probe.subsets import over_images, parts_of
from store import BeyondClsError, FeatureStore

TIMES = 3.0  # the median norm, beyond which a token is an outlier
QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)


@dataclass(frozen=True, eq=False)
class TokenNorms:
    """Norms of the patch tokens of N images in one block, before the final norm.

    Attributes:
        norms: ‖x_t‖.
        times: outliers are above this multiple of the median.

    Raises:
        BeyondClsError: `times` is not above 1.
    """

    norms: Float[np.ndarray, "N T"]
    times: float = TIMES

    def __post_init__(self) -> None:
        if not self.times > 1:
            raise BeyondClsError(f"times is {self.times:g}, expected a number above 1; half of all tokens are above the median")

    @cached_property
    def cutoff(self) -> float:
        return self.times * float(np.median(self.norms))

    @cached_property
    def outliers(self) -> Bool[np.ndarray, "N T"]:
        return self.norms > self.cutoff

    @property
    def where(self) -> Float[np.ndarray, "T"]:
        """The share of images in which each patch is an outlier, 0…1."""
        return self.outliers.mean(0)

    def measures(self, weights: Mapping[str, Float[np.ndarray, "N T"]]) -> dict[str, Any]:
        """`share`: of patches that are outliers, percent; `images`: that have one, percent; and for each weighting by its name
        how many times as much weight an outlier has as a patch has on average. Each is a mapping as `over_seeds` makes it.

        Groups of images are left out with the cutoff of all images. Without outliers they have no weight.

        Args:
            weights: over patches, each row summing to 1.
        """
        n_images, n_patches = self.norms.shape

        def relative_weight(of_images: np.ndarray, chosen: np.ndarray) -> float:  # their part of all weight, by that of patches
            outliers = self.outliers[chosen]
            return n_patches * float(of_images[chosen][outliers].sum()) / n if (n := int(outliers.sum())) else float("nan")

        found = {
            "share": over_images(n_images, lambda chosen: 100 * float(self.outliers[chosen].mean())),
            "images": over_images(n_images, lambda chosen: 100 * float(self.outliers[chosen].any(1).mean())),
        }
        of_weights = weights if self.outliers.any() else {}
        return found | {name: over_images(n_images, partial(relative_weight, given)) for name, given in of_weights.items()}


def norms_of(store: FeatureStore, block: int, rows: Int[np.ndarray, "N"]) -> Float[np.ndarray, "N T"]:
    """Norms of the stored patch tokens of a block, float32, view 0."""
    tokens = store.tokens("patch", block=block)
    return np.concatenate([np.linalg.norm(tokens.rows(part).astype(np.float32), axis=2) for part in parts_of(rows)])


def attention_of_cls(store: FeatureStore, block: int, rows: Int[np.ndarray, "N"]) -> Float[np.ndarray, "N T"]:
    """The stored attention of [cls] in a block, mean over attention heads, as shares of what patches get."""
    maps = store.attention("cls", block).rows(rows).astype(np.float64).mean(1)
    return maps / maps.sum(1, keepdims=True)
