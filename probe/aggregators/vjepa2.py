"""The attentive probe of V-JEPA 2: blocks of self-attention over the tokens, then one learned query attends to them."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import gelu

from probe.aggregators.aggregator import Features, Pooled, Weighted, whole_number
from probe.aggregators.attentive import head_width

STD = 0.02  # of weights and of the query, at the start


class _Block(nn.Module):
    """x + MLP(LayerNorm(x)) of x + proj(attention(LayerNorm(x)))."""

    def __init__(self, dim: int, heads: int, hidden: int):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.fc1, self.fc2 = nn.Linear(dim, hidden), nn.Linear(hidden, dim)

    def forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        query, key, value = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).movedim(-3, 0).transpose(-2, -3)
        # By hand, as torch's fused attention has no rule for many members.
        weights = (query @ key.mT).mul(query.shape[-1] ** -0.5).softmax(-1)
        x = x + self.proj((weights @ value).transpose(-2, -3).flatten(-2))
        return x + self.fc2(gelu(self.fc1(self.norm2(x))))


class VJEPA2Pooler(Weighted):
    """`depth` - 1 blocks of self-attention, then y = q + attention(W_q q + b_q, LayerNorm(x)) and y + MLP(LayerNorm(y)).

    One learned query q, and no projection after its attention. Hidden width `ratio` · D with GELU; all layers have biases:
    (3 + 2 · ratio) D² + (9 + ratio) D parameters, and (4 + 2 · ratio) D² + (9 + ratio) D for each block.

    Source: Assran et al. 2025 (arXiv 2506.09985), which has 4 blocks, and its official code (`AttentivePooler` of V-JEPA 2; 12
    heads by default, eps 1e-5). Weights and the query start from N(0, 0.02²), biases at 0; `proj` of block i and the second
    layer of its MLP are divided by √(2 i), that of the last MLP as of the last block.

    Args:
        depth: blocks, the last one of which is the query's.
        heads: attention heads.
        ratio: hidden width of MLPs over D.
    """

    reads = ("patch",)
    random_start = True
    variants = ({"depth": 2}, {"heads": 2, "ratio": 1, "depth": 1, "top_k": 3})

    def __init__(self, dim: int, depth: int = 4, heads: int = 12, ratio: int = 4):
        super().__init__(dim)
        self.heads, hidden = whole_number("heads", heads), whole_number("ratio", ratio) * dim
        head_width(dim, heads)
        self.blocks = nn.ModuleList(_Block(dim, heads, hidden) for _ in range(whole_number("depth", depth) - 1))
        self.token = nn.Parameter(torch.zeros(1, 1, dim))
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.query, self.keys_values = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim)
        self.fc1, self.fc2 = nn.Linear(dim, hidden), nn.Linear(hidden, dim)
        nn.init.trunc_normal_(self.token, std=STD)
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.trunc_normal_(layer.weight, std=STD)
                nn.init.zeros_(layer.bias)
        with torch.no_grad():
            for i, block in enumerate(self.blocks, 1):
                for name in ("proj", "fc2"):
                    block.get_parameter(f"{name}.weight").div_(math.sqrt(2 * i))
            self.fc2.weight /= math.sqrt(2 * max(1, depth - 1))

    def forward(self, features: Features) -> Pooled:
        x = features["patch"]
        for block in self.blocks:
            x = block(x)
        key, value = self.keys_values(self.norm1(x)).unflatten(-1, (2, self.heads, -1)).movedim(-3, 0)  # [B, T, H, D / H]
        query = self.query(self.token).unflatten(-1, (self.heads, -1))[0, 0]
        weights = self.cut(torch.einsum("hc,bthc->bht", query, key).mul(query.shape[-1] ** -0.5).softmax(-1))
        y = self.token[0] + torch.einsum("bht,bthc->bhc", weights, value).flatten(1)
        return Pooled(y + self.fc2(gelu(self.fc1(self.norm2(y)))), weights.mean(1))
