"""How alike two vectors of the same images are, whatever their widths: between encoders, blocks and kinds of vectors.

Each measure is a function of two `ImageVectors` and of the images that count, so that images can be left out in turn
(`probe.subsets`). To add one: a function here, and its line in SIMILARITY.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from sklearn.neighbors import NearestNeighbors

from probe.subsets import nearest_chosen, over_images
from store import BeyondClsError

K = 10  # neighbours that are compared
N_NEAREST = 2 * K + 10  # neighbours that are looked for: K of them are left when a group of images is left out

Chosen = Bool[np.ndarray, "N"]


@dataclass(frozen=True, eq=False)
class ImageVectors:
    """One vector of each of N images.

    Raises:
        BeyondClsError: no more images than neighbours that are looked for.
    """

    x: Float[np.ndarray, "N D"]

    def __post_init__(self) -> None:
        if len(self.x) <= N_NEAREST:
            raise BeyondClsError(f"vectors are of {len(self.x)} images, expected more than {N_NEAREST}; compare more images")

    @cached_property
    def nearest(self) -> Int[np.ndarray, "N k"]:
        """The images whose vectors make the smallest angles with that of each, from the smallest on."""
        found = NearestNeighbors(n_neighbors=N_NEAREST, metric="cosine", algorithm="brute").fit(self.x)
        return found.kneighbors(return_distance=False)

    def centred(self, chosen: Chosen) -> Float[np.ndarray, "n D"]:
        """The vectors of chosen images, less their mean."""
        x = self.x[chosen]
        return x - x.mean(0)

    def neighbours(self, chosen: Chosen) -> Int[np.ndarray, "n K"]:
        """The K nearest among the chosen images of each of these, ascending by image."""
        return np.sort(np.take_along_axis(self.nearest[chosen], nearest_chosen(self.nearest, chosen, K), 1), 1)


def cka(a: ImageVectors, b: ImageVectors, chosen: Chosen) -> float:
    """Linear centred kernel alignment, ‖XᵀY‖² / (‖XᵀX‖ ‖YᵀY‖) of centred vectors; 0…1. Biased upwards for few images.

    Source: Kornblith et al. 2019 (arXiv 1905.00414), Eq. 3 and 4.
    """
    x, y = a.centred(chosen), b.centred(chosen)
    return float(np.square(x.T @ y).sum() / (np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y)))


def debiased_cka(a: ImageVectors, b: ImageVectors, chosen: Chosen) -> float:
    """The same of the unbiased estimate of HSIC, in which no image is compared with itself; at most 1, about 0 if unrelated.

    Source: Song et al. 2012 (JMLR 13), Eq. 5, for linear kernels of centred vectors, so that no N x N matrix is needed.
    """
    x, y = a.centred(chosen), b.centred(chosen)
    return _unbiased(x, y) / float(np.sqrt(_unbiased(x, x) * _unbiased(y, y)))


def mutual_knn(a: ImageVectors, b: ImageVectors, chosen: Chosen) -> float:
    """The share of each image's 10 nearest, by cosine, that both vectors have in common, mean over images; 0…1.

    Source: Huh et al. 2024 (arXiv 2405.07987), Eq. 11.
    """
    near = np.concatenate([a.neighbours(chosen), b.neighbours(chosen)], 1)
    near.sort(axis=1)
    return float((near[:, 1:] == near[:, :-1]).sum(1).mean() / K)


def procrustes(a: ImageVectors, b: ImageVectors, chosen: Chosen) -> float:
    """‖XᵀY‖_* / (‖X‖ ‖Y‖) of centred vectors: the cosine of the angle between them after the best rotation; 0…1.

    The Procrustes distance of vectors of norm 1 is the square root of 2 (1 - this).

    Source: Ding, Denain and Steinhardt 2021 (arXiv 2108.01661), section 2.
    """
    x, y = a.centred(chosen), b.centred(chosen)
    return float(np.linalg.norm(x.T @ y, "nuc") / (np.linalg.norm(x) * np.linalg.norm(y)))


SIMILARITY: dict[str, Callable[[ImageVectors, ImageVectors, Chosen], float]] = {
    "debiased_cka": debiased_cka,
    "cka": cka,
    "mutual_knn": mutual_knn,
    "procrustes": procrustes,
}


def similarity(a: ImageVectors, b: ImageVectors, measures: Iterable[str] = SIMILARITY) -> dict[str, Any]:
    """Measures of two vectors of the same images: each a mapping as `over_seeds` makes it, with `without`."""
    return {name: over_images(len(a.x), partial(SIMILARITY[name], a, b)) for name in measures}


def _unbiased(x: np.ndarray, y: np.ndarray) -> float:
    """N (N - 3) times the unbiased estimate of HSIC."""
    n, in_x, in_y = len(x), np.square(x).sum(1), np.square(y).sum(1)
    of_pairs = float(np.square(x.T @ y).sum())
    return of_pairs - n / (n - 2) * float(in_x @ in_y) + float(in_x.sum() * in_y.sum()) / ((n - 1) * (n - 2))
