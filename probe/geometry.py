"""What vectors of images tell without a head: how many directions they use, of which dimension they are, what clusters find.

Each measure is a function of `Points` and of the images among them that count, so that images can be left out in turn
(`probe.subsets`). To add one: a function here, and its line in GEOMETRY.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import scipy.linalg
from jaxtyping import Bool, Float, Int
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from sklearn.neighbors import NearestNeighbors

from probe.subsets import draws_of, nearest_chosen, over_images, parts_of
from store import BeyondClsError, FeatureStore
from store.errors import unknown
from store.format.layout import ArrayName

K = 20  # neighbours of which the dimension is estimated
# Neighbours that are looked for: K of them are left when a group of images is left out, of which there are 20.
N_NEAREST = 2 * K + 10
VECTORS = ("cls", "average", "pooled")  # kinds of arrays that hold a vector of an image
RANKS = (11, 100)  # of the eigenvalues through which α-ReQ lays its line
QUERIES = 256  # whose cosines are in memory
DELTA = 1e-4  # added to the diagonal of LiDAR's covariance within images

Chosen = Bool[np.ndarray, "N"]


@dataclass(frozen=True, eq=False)
class Points:
    """Vectors of N images, and what several measures take from them.

    Attributes:
        x: of view 0.
        views: all views that there are, view 0 among them.
        labels: the class of each image; None where images have none, or several.
        n_classes: of the data set.
    """

    x: Float[np.ndarray, "N D"]
    views: Float[np.ndarray, "N V D"] | None = None
    labels: Int[np.ndarray, "N"] | None = None
    n_classes: int = 0

    @cached_property
    def distinct(self) -> Int[np.ndarray, "n"]:
        """The first image of each vector that there is: copies are at distance 0, of which there is no logarithm."""
        return np.sort(np.unique(self.x, axis=0, return_index=True)[1])

    @cached_property
    def nearest(self) -> tuple[Float[np.ndarray, "n k"], Int[np.ndarray, "n k"]]:
        """Distances between distinct vectors, ascending, and places of the others in `distinct`."""
        return NearestNeighbors(n_neighbors=N_NEAREST, algorithm="brute").fit(self.x[self.distinct]).kneighbors()

    @cached_property
    def clusters(self) -> Int[np.ndarray, "N"]:
        """By k-means, as many clusters as classes: the best of ten starts."""
        return KMeans(self.n_classes, n_init=10, random_state=0).fit_predict(self.x)

    @cached_property
    def retrieved(self) -> tuple[Float[np.ndarray, "N"], Int[np.ndarray, "N"]]:
        """Of each image as a query for the others by cosine: average precision, NaN of one that is alone in its class, and the
        rank of the first of its class, from 1 on."""
        assert self.labels is not None
        x = self.x.astype(np.float32)
        x /= np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-30)
        precision, first = np.full(len(x), np.nan), np.full(len(x), len(x))
        for start in range(0, len(x), QUERIES):
            near = x[start : start + QUERIES] @ x.T
            for query, cosines in enumerate(near, start):
                cosines[query] = -np.inf  # not itself
                same = np.flatnonzero(self.labels == self.labels[query])
                of_class = np.sort(cosines[same[same != query]])[::-1]
                if len(of_class):
                    counted = np.arange(1, len(of_class) + 1)
                    # Among equal cosines those of the class come first.
                    ranks = np.maximum(1 + len(x) - np.searchsorted(np.sort(cosines), of_class, "right"), counted)
                    precision[query], first[query] = (counted / ranks).mean(), ranks[0]
        return precision, first

    def distances(self, chosen: Chosen, k: int) -> Float[np.ndarray, "n k"]:
        """From each distinct vector among the chosen images to its k nearest of these."""
        chosen = chosen[self.distinct]
        distances, places = self.nearest
        return np.take_along_axis(distances[chosen], nearest_chosen(places, chosen, k), 1)


def rankme(points: Points, chosen: Chosen) -> float:
    """exp of the entropy of the singular values as shares of their sum; 1…min(N, D), in directions. Vectors are not centred.

    Source: Garrido et al. 2023 (arXiv 2210.02885), Eq. 1 and 2, without the 1e-7 that their code adds to shares.
    """
    x = points.x[chosen]
    return _effective_number(np.sqrt(np.linalg.eigvalsh(x.T @ x).clip(min=0)))


def participation_ratio(points: Points, chosen: Chosen) -> float:
    """(Σ λ)² / Σ λ² of the eigenvalues of the covariance; 1…D, in directions. Few large ones count more than in RankMe.

    Source: Gao et al. 2017 (bioRxiv 214262), Eq. 5.
    """
    eigenvalues = _spectrum(points.x[chosen])
    return float(eigenvalues.sum() ** 2 / np.square(eigenvalues).sum())


def alpha_req(points: Points, chosen: Chosen) -> float:
    """-slope of ln λ over ln rank, λ the eigenvalues of the covariance; near 1 is said to be best. NaN where D is below 20.

    A line through ranks 11…100 (or D), each with the weight 1 / rank.

    Source: Agrawal et al. 2022 (α-ReQ), with the range and the weights of their package reptrix.
    """
    eigenvalues = _spectrum(points.x[chosen])[::-1]
    rank = np.arange(RANKS[0], min(RANKS[1], len(eigenvalues)) + 1)
    above_0 = eigenvalues[rank - 1] > eigenvalues[0] * 1e-14
    rank = rank[above_0]
    if len(rank) < 10:
        return float("nan")
    slope, _ = np.polyfit(np.log(rank), np.log(eigenvalues[rank - 1]), 1, w=rank**-0.5)  # weights of residuals, not of squares
    return -float(slope)


def two_nn(points: Points, chosen: Chosen) -> float:
    """Dimension, from how much farther the second neighbour is than the first; 0…infinity.

    The slope of -ln(1 - F(μ)) over ln μ, μ the ratio of both distances, by a line through the origin and the lower 90 % of μ.

    Source: Facco et al. 2017 (Scientific Reports 7, 12140), steps 1 to 5.
    """
    near = points.distances(chosen, 2)
    ratio = np.sort(np.log(near[:, 1] / near[:, 0]))
    n, below = len(ratio), int(0.9 * len(ratio))
    rise = -np.log1p(-np.arange(1, below + 1) / n)
    return float(ratio[:below] @ rise / np.square(ratio[:below]).sum())


def mle_dimension(points: Points, chosen: Chosen) -> float:
    """Dimension, from how the distances of 20 neighbours grow, by maximum likelihood; 0…infinity.

    (mean over images of Σ_{j<k} ln(T_k / T_j) / (k - 1))⁻¹, T_j the distance to the j-th neighbour.

    Source: Levina and Bickel 2004, averaged as MacKay and Ghahramani 2005 do.
    """
    near = points.distances(chosen, K)
    return 1 / float(np.log(near[:, -1:] / near[:, :-1]).mean())


def lidar(points: Points, chosen: Chosen) -> float:
    """Effective rank of what differs between images in units of what differs between views of one; 1…D. NaN of one view.

    exp of the entropy of the eigenvalues, as shares, of Σ_w^(-1/2) Σ_b Σ_w^(-1/2): Σ_b the covariance of the images' means, Σ_w
    that of views about them with 1e-4 on its diagonal.

    Source: Thilak et al. 2023 (arXiv 2312.04000), Eq. 2 to 5, without what they add to shares.
    """
    if points.views is None:
        return float("nan")
    views = points.views[chosen]
    means = views.mean(1)
    within, between = (views - means[:, None]).reshape(-1, views.shape[2]), means - means.mean(0)
    covariance = within.T @ within / len(within) + DELTA * np.eye(views.shape[2])
    return _effective_number(scipy.linalg.eigvalsh(between.T @ between / len(between), covariance).clip(min=0))


def cluster_nmi(points: Points, chosen: Chosen) -> float:
    """Normalised mutual information of clusters and classes; 0…1, 0 where they are independent. NaN without labels.

    Clusters are k-means' of all images, as many as classes: those that are left out are missing from the comparison alone.

    Source: Strehl and Ghosh 2002, normalised by the mean of both entropies.
    """
    labels = points.labels
    return float("nan") if labels is None else float(normalized_mutual_info_score(labels[chosen], points.clusters[chosen]))


def cluster_ari(points: Points, chosen: Chosen) -> float:
    """Adjusted Rand index of the same; at most 1, 0 on average where clusters are drawn. NaN without labels.

    Source: Hubert and Arabie 1985.
    """
    labels = points.labels
    return float("nan") if labels is None else float(adjusted_rand_score(labels[chosen], points.clusters[chosen]))


def retrieval_map(points: Points, chosen: Chosen) -> float:
    """Mean average precision, percent, of each image as a query for those of its class among all others, by cosine; 0…100.

    Images that are left out ask no more, and are still found. Images alone in their class do not ask. NaN without labels.

    Source: as category-level retrieval is measured in metric learning (Musgrave et al. 2020, arXiv 2003.08505, whole rankings).
    """
    return float("nan") if points.labels is None else 100 * float(np.nanmean(points.retrieved[0][chosen]))


def recall_at(points: Points, chosen: Chosen, k: int) -> float:
    """Percent of images of whose k nearest others by cosine one is of their class; 0…100. NaN without labels.

    Source: Jégou et al. 2011 (recall@R of product quantisation), as metric learning reports it.
    """
    if points.labels is None:
        return float("nan")
    precision, first = (values[chosen] for values in points.retrieved)
    return 100 * float((first[~np.isnan(precision)] <= k).mean())


GEOMETRY: dict[str, Callable[[Points, Chosen], float]] = {
    "rankme": rankme,
    "participation_ratio": participation_ratio,
    "alpha_req": alpha_req,
    "two_nn": two_nn,
    "mle_dimension": mle_dimension,
    "lidar": lidar,
    "cluster_nmi": cluster_nmi,
    "cluster_ari": cluster_ari,
    "retrieval_map": retrieval_map,
    "recall_at_1": partial(recall_at, k=1),
    "recall_at_10": partial(recall_at, k=10),
}


def measure(
    features: FeatureStore | str | os.PathLike[str],
    name: str,
    vector: str | None = None,
    block: int | None = None,
    images: int | None = None,
) -> float:
    """One measure of GEOMETRY of one vector of a feature set: a number.

    Args:
        features: the set, or where it is.
        name: "rankme", for example.
        vector: "cls", "average" or "pooled"; by default the first of these that it has.
        block: by default the deepest that has this vector.
        images: their number, the same on every machine; all by default.

    Raises:
        BeyondClsError: unknown measure, vector or block, or too few images.
    """
    store = features if isinstance(features, FeatureStore) else FeatureStore.open(features)
    known = vectors_in(store, VECTORS if vector is None else [vector])
    known = [array for array in known if kind_of_vector(array) == kind_of_vector(known[0])]
    chosen = [array for array in known if block in (None, array.block)]
    if not chosen:
        blocks = ", ".join(str(array.block) for array in known)
        raise BeyondClsError(
            f"block is {block}, expected one of {blocks}, of which {store.where} has {kind_of_vector(known[0])}"
        )
    found = geometry(store, chosen[-1], rows_of_all([store], images), [name])
    return float(found[name]["mean"]) if found else float("nan")


def geometry(
    store: FeatureStore, name: ArrayName, rows: Int[np.ndarray, "N"], measures: Iterable[str] = GEOMETRY
) -> dict[str, Any]:
    """Measures of the vectors of an array: each a mapping as `over_seeds` makes it, with `without`. What cannot be is left out.

    Args:
        name: as `vectors_in` gives it.
        rows: of the images, as `rows_of_all` gives them.
        measures: of GEOMETRY.

    Raises:
        BeyondClsError: unknown measure, or fewer than 51 images of different vectors.
    """
    for measure in measures:
        if measure not in GEOMETRY:
            raise BeyondClsError(unknown("measure", measure, GEOMETRY))
    in_views = [replace(name, view=view) for view in range(store.spec.n_views if "lidar" in measures else 1)]
    views = [vectors(store, one, rows) for one in in_views if str(one) in store.attributes["arrays"]]
    labels = None if store.multilabel or not store.labelled[rows].all() else store.labels[rows]
    points = Points(views[0], np.stack(views, 1) if len(views) > 1 else None, labels, store.n_classes)
    if len(points.distinct) <= N_NEAREST:
        raise BeyondClsError(
            f"{store.where} has {len(points.distinct):,} different vectors in {name}, expected more than {N_NEAREST}, of which "
            "neighbours are neighbours; measure more images"
        )
    found = {measure: over_images(len(rows), partial(GEOMETRY[measure], points)) for measure in measures}
    return {measure: value for measure, value in found.items() if np.isfinite(value["mean"])}


def vectors_in(store: FeatureStore, kinds: Iterable[str] = VECTORS) -> list[ArrayName]:
    """Arrays of vectors in view 0, of some kinds, by block; for an average that is not kept, those of the patch tokens.

    Raises:
        BeyondClsError: unknown kind, or none of them is there.
    """
    kinds = list(kinds)
    for kind in kinds:
        if kind not in VECTORS:
            raise BeyondClsError(unknown("vector", kind, VECTORS))
    names = [name for name in map(ArrayName.parse, store.attributes["arrays"]) if name.view == 0 and not name.is_scale]
    kept = {name.block for name in names if name.kind == "average"}
    found = [name for name in names if (name.kind, name.block in kept) != ("patch", True) and kind_of_vector(name) in kinds]
    if not found:
        raise BeyondClsError(
            f"{store.where} has no vectors {' or '.join(kinds)}; add them: beyondcls extract --extend --vectors all with the "
            "options that the set was made with"
        )
    return sorted(found, key=lambda name: (kinds.index(kind_of_vector(name)), name.block or 0))


def by_place(measured: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """What was measured of each vector, by `cls/block5`, or `pooled` of what is of no block."""
    return {"/block".join(str(part) for part in (one["vector"], one["block"]) if part is not None): one for one in measured}


def kind_of_vector(name: ArrayName) -> str:
    """One of VECTORS, for what `vectors_in` gives."""
    return "average" if name.kind == "patch" else name.kind


def vectors(store: FeatureStore, name: ArrayName, rows: Int[np.ndarray, "N"]) -> Float[np.ndarray, "N D"]:
    """Vectors of an array, or the average of its patch tokens."""
    array = store.array(str(name))
    if name.kind != "patch":
        return array.rows(rows).astype(np.float64)
    return np.concatenate([array.rows(part).mean(1, dtype=np.float64) for part in parts_of(rows)])


def rows_of_all(stores: Sequence[FeatureStore], n: int | None = None) -> Int[np.ndarray, "N"]:
    """Images that are usable in all sets, ascending; `n` of them, the same on every machine, if there are more.

    Raises:
        BeyondClsError: `n` is below 1, sets are of other images, or of windows.
    """
    for store in stores:
        store.check_evaluation_crop()
    for other in stores[1:]:
        if (other.spec.data, len(other)) != (stores[0].spec.data, len(stores[0])):
            raise BeyondClsError(
                f"{stores[0].where} and {other.where} are of other images ({stores[0].spec.data}, {other.spec.data}); compare "
                "feature sets of one split of a data set"
            )
    rows = np.flatnonzero(np.logical_and.reduce([store.valid for store in stores]))
    if n is None or n >= len(rows):
        return rows
    if n < 1:
        raise BeyondClsError(f"images is {n}, expected 1 or more; leave it out for all {len(rows):,}")
    return np.sort(rows[draws_of(rows, 0, "geometry").argsort()[:n]])


def _spectrum(x: np.ndarray) -> np.ndarray:
    """Eigenvalues of the covariance, ascending."""
    return np.linalg.eigvalsh(np.cov(x, rowvar=False)).clip(min=0)


def _effective_number(values: np.ndarray) -> float:
    """exp of the entropy of values as shares of their sum: of how many equal ones it would be."""
    shares = values[values > 0] / values.sum()
    return float(np.exp(-(shares * np.log(shares)).sum()))
