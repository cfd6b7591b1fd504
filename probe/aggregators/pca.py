"""Foreground by the first principal component."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from probe.aggregators.foreground import Foreground, border


class PCA(Foreground):
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
