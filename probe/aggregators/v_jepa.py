"""The attentive pooler of V-JEPA: a cross-attention block with a multilayer perceptron."""

import math

import torch
from torch import nn
from torch.nn.functional import gelu, layer_norm

from probe.aggregators.aggregator import Features, Parameters, Pooled
from probe.aggregators.attentive import Attentive
from probe.aggregators.layers import head_width, linear, through_keys, through_values
from probe.aggregators.options import whole_number


class VJEPAPooler(Attentive):
    """y = q + proj(attention(W_q q + b_q, LayerNorm(x))), then y + MLP(LayerNorm(y)), of one learned query q.

    Hidden width `ratio` · D with GELU; all layers have biases: (4 + 2 · ratio) D² + (10 + ratio) D parameters.

    Source: Bardes et al. 2024 (arXiv 2404.08471) and its official code (`AttentivePooler`, one query, depth 1, complete block;
    12 heads by default, eps 1e-5). Weights and the query start from N(0, 0.02²), biases at 0, `proj` and the second layer of
    the MLP divided by √2. Not implemented: depth above 1, more blocks on the resulting vector.

    Args:
        heads: attention heads.
        ratio: hidden width of the MLP over D.
    """

    reads = ("patch",)
    variants = ({}, {"heads": 2, "ratio": 1, "top_k": 3})

    def __init__(self, dim: int, heads: int = 12, ratio: int = 4):
        super().__init__(dim)
        self.heads, hidden = whole_number("heads", heads), whole_number("ratio", ratio) * dim
        head_width(dim, heads)
        self.token = nn.Parameter(torch.zeros(1, 1, dim))  # its authors' shape: LARS treats a parameter with one axis as a bias
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.query, self.keys_values, self.proj = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)
        self.fc1, self.fc2 = nn.Linear(dim, hidden), nn.Linear(hidden, dim)
        nn.init.trunc_normal_(self.token, std=0.02)
        for layer in (self.query, self.keys_values, self.proj, self.fc1, self.fc2):
            nn.init.trunc_normal_(layer.weight, std=0.02)
            nn.init.zeros_(layer.bias)
        with torch.no_grad():
            self.proj.weight /= math.sqrt(2)
            self.fc2.weight /= math.sqrt(2)

    def pool_members(self, parameters: Parameters, features: Features) -> Pooled:
        def layer(name: str, x: torch.Tensor) -> torch.Tensor:
            return linear(x, parameters[f"{name}.weight"], parameters[f"{name}.bias"])

        token = parameters["token"].squeeze(1)  # [M, 1, D]
        key, value = parameters["keys_values.weight"].chunk(2, 1)
        pooled, weights = self.attend_normalised(
            features["patch"],
            through_keys(layer("query", token).squeeze(1), key, self.heads),
            parameters["norm1.weight"],
            parameters["norm1.bias"],
            self.norm1.eps,
        )
        values = through_values(pooled, value) + parameters["keys_values.bias"][:, None, self.dim :]
        y = token + layer("proj", values)  # [M, B, D]
        scale, shift = parameters["norm2.weight"][:, None], parameters["norm2.bias"][:, None]
        normalised = torch.addcmul(shift, layer_norm(y, y.shape[-1:], eps=self.norm2.eps), scale)
        return Pooled(y + layer("fc2", gelu(layer("fc1", normalised))), weights.mean(2))
