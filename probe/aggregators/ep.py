"""Efficient probing (EP): several learned queries on the tokens themselves."""

import torch
from torch import nn

from probe.aggregators.aggregator import Features, Parameters, Pooled
from probe.aggregators.attentive import Attentive
from probe.aggregators.bag import bag, kinds_in_bag
from probe.aggregators.layers import through_values
from probe.aggregators.options import whole_number
from store import BeyondClsError


class EfficientProbing(Attentive):
    """Query j pools Σ_t softmax_t(q_j · x_t / √D) V_j x_t; the Q results stand side by side: W = D / `divide`.

    The V_j are the Q parts of one projection D -> W. Keys are the tokens: Q · D + D² / `divide` parameters.

    Source: Psomas et al. 2025 (arXiv 2506.10178) and its official code: 32 queries from N(0, 0.02²), a projection without bias
    that starts as torch's linear layers. Of the 37 encoders in its authors' table, 10 are read with [cls] in the bag (`ep_all`
    there), as their pretraining defines an objective on it. That decides the sign of the gain: DINO ViT-B/16 reaches 77.4 with
    it and 75.7 without, [cls] alone 77.2.

    Args:
        queries: Q.
        divide: by how much the vector is narrower than the tokens (`d_out` in the official code).
        tokens: "patch", or "all" for [cls] and patches (never registers); weights then are [B, 1 + T], [cls] first.
    """

    variants = (
        {},
        {"queries": 8, "divide": 2},
        {"queries": 4, "top_k": 1},
        {"tokens": "all"},
    )

    def __init__(self, dim: int, queries: int = 32, divide: int = 1, tokens: str = "patch"):
        super().__init__(dim, dim // whole_number("divide", divide))
        if dim % divide or self.width % whole_number("queries", queries):
            raise BeyondClsError(
                f"queries is {queries} and divide {divide}, expected queries · divide to divide the width of the tokens, {dim}"
            )
        self.reads = kinds_in_bag(tokens)
        self.queries = nn.Parameter(torch.randn(queries, dim) * 0.02)
        self.value = nn.Linear(dim, self.width, bias=False)

    @property
    def takes_stored(self) -> bool:
        return self.top_k is None

    def pool_members(self, parameters: Parameters, features: Features) -> Pooled:
        pooled, weights = self.attend(bag(features, self.reads), parameters["queries"] * self.dim**-0.5)
        return Pooled(through_values(pooled, parameters["value.weight"]), weights.mean(2))
