"""Foreground by clusters of the tokens."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import one_hot

from probe.aggregators.foreground import Foreground, border
from probe.aggregators.options import whole_number
from store import BeyondClsError


class KMeans(Foreground):
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
