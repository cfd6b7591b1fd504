"""Attentive probing (AP): cross-attention of one learned query."""

import torch
from torch import nn

from probe.aggregators.aggregator import Features, Parameters, Pooled
from probe.aggregators.attentive import Attentive
from probe.aggregators.layers import head_width, through_keys, through_values
from probe.aggregators.options import flag, whole


class AttentiveProbing(Attentive):
    """The heads' Σ_t softmax_t(q_h · W_{k,h} x_t / √(D / H)) W_{v,h} x_t, side by side.

    2 D² + D parameters, 2 D more with `norm`.

    One head keeps the width of the vector (Table 7, "1 head").

    Source: Chen et al. 2022 (CAE, arXiv 2202.03026) and El-Nouby et al. 2024 (AIM, arXiv 2401.08541), whose form this is: a
    query from N(0, 0.02²), keys and values without bias, which start as torch's linear layers, no projection behind them.
    AIM normalises each channel of the tokens over the batch first; here the head normalises behind the pooling, and `norm`
    does so per token, as CAE does. CAE projects query and output too.

    Args:
        heads: H; 12 in AIM and in the paper, whose other variant has 1.
        norm: layer normalisation of the tokens (eps 1e-6, scale and shift trained, from 1 and 0) before keys and values.
    """

    reads = ("patch",)

    def __init__(self, dim: int, heads: int = 12, norm: bool = False):
        super().__init__(dim)
        self.heads = whole("heads", heads)
        head_width(dim, heads)
        self.query = nn.Parameter(torch.randn(dim) * 0.02)
        self.key = nn.Linear(dim, dim, bias=False)
        self.value = nn.Linear(dim, dim, bias=False)
        self.norm = nn.LayerNorm(dim, eps=1e-6) if flag("norm", norm) else None

    @property
    def takes_stored(self) -> bool:
        return self.norm is None and self.top_k is None

    def pool_members(self, parameters: Parameters, features: Features) -> Pooled:
        tokens = features["patch"]
        queries = through_keys(parameters["query"], parameters["key.weight"], self.heads)
        if self.norm is None:
            pooled, weights = self.attend(tokens, queries)
        else:
            affine = parameters["norm.weight"], parameters["norm.bias"]
            pooled, weights = self.attend_normalised(tokens, queries, *affine, self.norm.eps)
        return Pooled(through_values(pooled, parameters["value.weight"]), weights.mean(2))
