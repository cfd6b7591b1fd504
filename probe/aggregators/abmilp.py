"""Attention-based multiple-instance-learning pooling (AbMILP), the paper's selective aggregation."""

import torch
from torch import nn

from probe.aggregators.aggregator import Aggregator, Features, Pooled
from store import BeyondClsError
from store.errors import unknown

ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh}


class AbMILP(Aggregator):
    """Softmax over patches of a score t(z_i), then the weighted sum of the patch tokens (Eq. 6).

    t is a multilayer perceptron of `depth` linear layers: depth 1, the paper's choice, is a single layer D -> 1 with D + 1
    parameters; hidden layers are D wide with `activation` behind them.

    Source: Ilse et al. 2018 (arXiv 1802.04712); `ABMILPHead` with `content="patch"` in the official code.
    """

    reads = ("patch",)

    def __init__(self, dim: int, depth: int = 1, activation: str = "relu"):
        super().__init__()
        if depth < 1:
            raise BeyondClsError(f"AbMILP depth is {depth}, expected 1 or more linear layers")
        if activation not in ACTIVATIONS:
            raise BeyondClsError(unknown("activation", activation, ACTIVATIONS))
        hidden = [layer for _ in range(depth - 1) for layer in (nn.Linear(dim, dim), ACTIVATIONS[activation]())]
        self.score = nn.Sequential(*hidden, nn.Linear(dim, 1))

    def forward(self, features: Features) -> Pooled:
        patch = features["patch"]
        weights = self.score(patch).squeeze(-1).softmax(-1)  # [B, T]
        # A batched matrix product: the elementwise product of the sum would write B x T x D numbers.
        return Pooled(torch.bmm(weights[:, None], patch).squeeze(1), weights)
