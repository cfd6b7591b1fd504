"""AbMILP after a self-attention layer."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from probe.aggregators.abmilp import AbMILP
from probe.aggregators.aggregator import Features, Parameters, Pooled
from probe.aggregators.options import choice


class SelfAttentionAbMILP(AbMILP):
    """AbMILP of y = proj(softmax(q kᵀ / √D) v), a self-attention layer of one head over the bag, without residual or norm.

    Scores are of y + position; what is summed is y too, or the tokens themselves. 4 D² + D parameters more than AbMILP: q, k
    and v have no bias, proj has one.

    Each member attends for itself, N x N products an image: it costs M times what one member costs.

    Source: Rymarczyk et al. 2021 (arXiv 2005.12991); Table 3; `self_attention_apply_to` in the official code. Linear layers
    start as torch's. The paper could train it with SGD, not with LARS.

    Args:
        apply_to: "both" scores and sum, or the "map" alone (tokens are summed as they are).
        depth, activation, tokens, position, branches, combine, blocks, n_patches: see `AbMILP`.
    """

    variants = (
        {},
        {"apply_to": "map", "depth": 2},
        {"branches": 2, "tokens": "all"},
        {"position": "sin-cos", "blocks": [3, 5]},
        {"top_k": 2},
    )

    def __init__(
        self,
        dim: int,
        apply_to: str = "both",
        depth: int = 1,
        activation: str = "relu",
        tokens: str = "patch",
        position: str = "none",
        branches: int = 1,
        combine: str = "concatenate",
        blocks: Sequence[int] | None = None,
        n_patches: int | None = None,
    ):
        super().__init__(dim, depth, activation, tokens, position, branches, combine, blocks, n_patches)
        self.sums_attended = choice("use of self-attention", apply_to, ("both", "map")) == "both"
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim)

    @property
    def takes_stored(self) -> bool:
        return False

    def pool_members(self, parameters: Parameters, features: Features) -> Pooled:
        bag = self.bag(features)
        attended = self.attended(parameters, bag)
        return self.combined(*self.attend_by(self.scores(parameters, attended), attended if self.sums_attended else bag))

    def attended(self, parameters: Parameters, bag: Float[Tensor, "B N D"]) -> Float[Tensor, "M B N D"]:
        """y; tokens are projected by q, k and v of all members in one product."""
        weight = parameters["qkv.weight"]  # [M, 3 D, D]
        qkv = nn.functional.linear(bag, weight.flatten(0, 1)).unflatten(-1, (len(weight), 3, -1))
        q, k, v = qkv.permute(3, 2, 0, 1, 4)  # each [M, B, N, D]
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        bias = parameters["proj.bias"][:, None]
        return torch.baddbmm(bias, y.flatten(1, 2), parameters["proj.weight"].mT).unflatten(1, y.shape[1:3])
