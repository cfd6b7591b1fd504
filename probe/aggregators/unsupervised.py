"""Selection by the image's own tokens, without training: by their lengths, or of the patches that are the foreground."""

import math
from abc import abstractmethod

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import one_hot

from probe.aggregators.aggregator import Aggregator, Features, Pooled, Weighted, flag, whole_number
from store import BeyondClsError


class Norm(Weighted):
    """w_t ∝ ‖x_t‖, the tokens' L2 norms; with `top_k` those of the K longest tokens alone. No parameters.

    With largest=False w_t ∝ 1 / ‖x_t‖, and `top_k` keeps the K shortest; tokens of length 0, if there are any, then share all
    of the weight. Where all are of length 0, weights are equal. A final LayerNorm leaves little or no difference between norms:
    do not apply it here.

    Ours, not the paper's. Long tokens are what ViTs trained for long use as registers, on patches that say little of the image
    (Darcet et al. 2024, arXiv 2309.16588); which end is worth selecting is for the data to say.

    Args:
        largest: whether long tokens count most.
    """

    reads = ("patch",)
    variants = ({}, {"top_k": 3}, {"largest": False, "top_k": 5})

    def __init__(self, dim: int, largest: bool = True):
        super().__init__(dim)
        self.largest = flag("largest", largest)

    def forward(self, features: Features) -> Pooled:
        patch = features["patch"]
        return self.weigh(patch, self.shares(patch.norm(dim=-1)))

    def shares(self, norms: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
        """Weights that sum to 1. Ratios to the extreme one neither overflow nor, where that one is 0, divide by 0."""
        extreme = norms.amax(-1, keepdim=True) if self.largest else norms.amin(-1, keepdim=True)
        ratios = torch.where(norms == extreme, 1.0, norms / extreme if self.largest else extreme / norms)
        return ratios / ratios.sum(-1, keepdim=True)


class ForegroundMean(Aggregator):
    """Base: the mean over the patches that a subclass says are `chosen`, from the image's own tokens alone. No parameters.

    Objects are rarely cut by the border of the image: of two parts, the one at the border is the background. Weights are all
    equal, so there is nothing to select by (`top_k`).
    """

    reads = ("patch",)
    weighted = True
    uses_position = needs_square = True

    def forward(self, features: Features) -> Pooled:
        patch = features["patch"]
        chosen = self.chosen(patch.detach()).to(patch.dtype)
        weights = chosen / chosen.sum(-1, keepdim=True)
        return Pooled(torch.bmm(weights[:, None], patch).squeeze(1), weights)

    @abstractmethod
    def chosen(self, tokens: Float[Tensor, "B T D"]) -> Bool[Tensor, "B T"]:
        """The foreground, at least one patch of each image."""


def border(n_patches: int, device: torch.device) -> Bool[Tensor, "T"]:
    """Which patches are in the first or last row or column of the square grid.

    Raises:
        BeyondClsError: the grid is not square, or has no inside.
    """
    side = math.isqrt(n_patches)
    if side * side != n_patches or side < 3:
        raise BeyondClsError(f"there are {n_patches} patches, expected a square grid of 3 x 3 or more; use 'average' or 'norm'")
    edge = torch.ones(side, side, dtype=torch.bool, device=device)
    edge[1:-1, 1:-1] = False
    return edge.flatten()


class PCA(ForegroundMean):
    """The patches on the positive side of the image's own first principal component, with equal weights. No parameters.

    v is the direction of largest variance of the T tokens of one image, x̄ their mean; patch t is chosen if v · (x_t - x̄) > 0.
    v's sign is the one that puts the border of the square grid on the negative side on average (the solver's own, should that
    mean be 0). Where all tokens are the same, all are chosen. Computed from the smaller of the Gram matrices, T x T or D x D,
    by `torch.linalg.eigh`.

    Ours, not the paper's. That similarities of tokens part object and background is known of DINO: LOST (Siméoni et al. 2021,
    arXiv 2109.14279) and TokenCut (Wang et al. 2022, arXiv 2202.11539) cut their graph; DINOv2 (Oquab et al. 2023, arXiv
    2304.07193) thresholds the first component of several images together.
    """

    def __init__(self, dim: int):
        super().__init__(dim)

    def chosen(self, tokens: Float[Tensor, "B T D"]) -> Bool[Tensor, "B T"]:
        along = first_component(tokens - tokens.mean(1, keepdim=True))
        edge = border(tokens.shape[1], tokens.device)
        flipped = (along * edge).sum(1, keepdim=True) > 0
        positive = torch.where(flipped, -along, along) > 0
        return positive | ~positive.any(1, keepdim=True)


def first_component(centred: Float[Tensor, "B T D"]) -> Float[Tensor, "B T"]:
    """Where the tokens of each image lie along their first principal component, up to sign and scale.

    The eigenvector of X Xᵀ [T, T] is that already; the one v of Xᵀ X [D, D] gives it as X v.
    """
    # The solver does not see the size of the tokens: squares of large ones would overflow.
    x = centred / centred.abs().amax((1, 2), keepdim=True).clamp(min=torch.finfo(centred.dtype).tiny)
    if x.shape[1] <= x.shape[2]:
        return torch.linalg.eigh(x @ x.mT).eigenvectors[..., -1]
    return (x @ torch.linalg.eigh(x.mT @ x).eigenvectors[..., -1:]).squeeze(-1)


class KMeans(ForegroundMean):
    """The patches of one of k clusters of the image's own tokens, with equal weights. No parameters.

    The cluster with the smallest share of border patches is chosen; among equal shares the larger cluster, among equally large
    ones the one whose centre was taken first. Clusters are those of Lloyd's algorithm with Euclidean distances after a fixed
    number of steps. It starts from the token farthest from the mean of all, then repeatedly takes the token farthest from the
    centres so far (the first of equal ones). A cluster that has lost its tokens keeps its centre, and cannot be chosen.

    Ours, not the paper's.

    Args:
        clusters: k, from 2 on.
        steps: of Lloyd's algorithm.
    """

    variants = ({}, {"clusters": 3})

    def __init__(self, dim: int, clusters: int = 2, steps: int = 20):
        super().__init__(dim)
        self.clusters, self.steps = whole_number("clusters", clusters, 2), whole_number("steps", steps)

    def chosen(self, tokens: Float[Tensor, "B T D"]) -> Bool[Tensor, "B T"]:
        edge = border(tokens.shape[1], tokens.device)
        cluster = one_hot(self.assigned(tokens), self.clusters)  # [B, T, k]
        size, outside = cluster.sum(1), (cluster * edge[:, None]).sum(1)  # [B, k]
        share = torch.where(size > 0, outside / size, torch.inf)
        best = torch.where(share == share.amin(1, keepdim=True), size, 0).argmax(1)
        return cluster.gather(2, best[:, None, None].expand(-1, tokens.shape[1], 1)).squeeze(2) > 0

    def assigned(self, tokens: Float[Tensor, "B T D"]) -> Int[Tensor, "B T"]:
        """The cluster of each token, 0 to k - 1.

        Raises:
            BeyondClsError: there are fewer tokens than clusters.
        """
        if self.clusters > tokens.shape[1]:
            raise BeyondClsError(f"clusters is {self.clusters}, expected at most {tokens.shape[1]}, the number of patches")
        x = tokens - tokens.mean(1, keepdim=True)  # a common offset would only cost precision
        gram = x @ x.mT  # all that distances need: x is read once, not in each step
        centres = farthest(gram, self.clusters)
        for _ in range(self.steps):
            member = one_hot(nearest(gram, centres), self.clusters).to(x.dtype)
            size = member.sum(1, keepdim=True)
            centres = torch.where(size > 0, member / size.clamp(min=1), centres)
        return nearest(gram, centres)


def nearest(gram: Float[Tensor, "B T T"], centres: Float[Tensor, "B T k"]) -> Int[Tensor, "B T"]:
    """The centre nearest to each token, of equal ones the first; a centre is given as the shares of the tokens in it.

    ‖x_t - c‖² = ‖x_t‖² - 2 x_t · c + ‖c‖², of which the first is the same for all centres.
    """
    products = gram @ centres
    return ((centres * products).sum(1, keepdim=True) - 2 * products).argmin(-1)


def farthest(gram: Float[Tensor, "B T T"], k: int) -> Float[Tensor, "B T k"]:
    """k tokens to start from: farthest from the origin, then each farthest from those before it; [B, T] is 1 at each."""
    length = gram.diagonal(dim1=1, dim2=2)  # [B, T], squared
    distance, centres = length, []
    for _ in range(k):
        token = distance.argmax(1, keepdim=True)
        centres.append(one_hot(token.squeeze(1), gram.shape[1]).to(gram.dtype))
        product = gram.gather(1, token[..., None].expand(-1, 1, gram.shape[2])).squeeze(1)
        to_it = length - 2 * product + length.gather(1, token)
        distance = to_it if len(centres) == 1 else torch.minimum(distance, to_it)
    return torch.stack(centres, 2)
