"""SimPool: cross-attention whose query is the image's average token."""

from torch import nn

from probe.aggregators.aggregator import Features, Parameters, Pooled
from probe.aggregators.attentive import Attentive
from probe.aggregators.layers import linear, through_keys


class SimPool(Attentive):
    """Σ_t softmax_t(W_q x̄ · W_k n_t / √D) n_t with x̄ = mean_t x_t and n = LayerNorm(x). 2 D² + 2 D parameters.

    One query, no projection of values. Not here: the power mean over tokens (γ = 1.25 for ViTs in the paper; γ = 1 is this
    average), which is not linear in the tokens; the authors' own probing benchmark leaves it out too.

    Source: Psomas et al. 2023 (arXiv 2309.06891); as a probe: the code of arXiv 2506.10178, "simpool". W_q and W_k have no bias
    and start as torch's linear layers; layer normalisation with eps 1e-6, scale 1 and shift 0.
    """

    reads = ("patch",)
    variants = ({}, {"top_k": 3})

    def __init__(self, dim: int):
        super().__init__(dim)
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.query = nn.Linear(dim, dim, bias=False)
        self.key = nn.Linear(dim, dim, bias=False)

    def pool_members(self, parameters: Parameters, features: Features) -> Pooled:
        tokens, by_query = features["patch"], parameters["query.weight"]
        queries = linear(tokens.mean(1).expand(len(by_query), -1, -1), by_query)  # [M, B, D]
        pooled, weights = self.attend_normalised(
            tokens,
            through_keys(queries, parameters["key.weight"]),
            parameters["norm.weight"],
            parameters["norm.bias"],
            self.norm.eps,
        )
        return Pooled(pooled.squeeze(2), weights.squeeze(2))
