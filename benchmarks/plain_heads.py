"""Heads as anyone would write them, without this project."""

import torch
from torch import Tensor, nn

from probe.head import Head

QUERIES = 32  # of efficient probing


class PlainHead(nn.Module):
    """Pooling, batch normalisation, a linear layer.

    Args:
        name: "cls" takes [cls], [B, D]; "average", "abmilp" and "ep" (efficient probing) take patch tokens, [B, T, D].
    """

    def __init__(self, name: str, dim: int, n_classes: int):
        super().__init__()
        self.name, self.kind = name, "cls" if name == "cls" else "patch"
        if name == "abmilp":
            self.score = nn.Linear(dim, 1)
        if name == "ep":
            self.queries = nn.Parameter(torch.randn(QUERIES, dim) * 0.02)
            self.value = nn.Linear(dim, dim, bias=False)
        self.classify = nn.Sequential(nn.BatchNorm1d(dim, affine=False, eps=1e-6), nn.Linear(dim, n_classes))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.classify(self.pooled(tokens))

    def pooled(self, tokens: Tensor) -> Tensor:
        """[B, D]."""
        if self.name == "average":
            return tokens.mean(1)
        if self.name == "abmilp":
            return (self.score(tokens).softmax(1) * tokens).sum(1)
        if self.name == "ep":
            weights = (tokens @ self.queries.T * tokens.shape[-1] ** -0.5).softmax(1)  # [B, T, Q]
            values = self.value(tokens).unflatten(-1, (QUERIES, -1))  # [B, T, Q, D / Q]
            return torch.einsum("btq,btqw->bqw", weights, values).flatten(1)
        return tokens

    @torch.no_grad()
    def start_as(self, head: Head) -> None:
        """Take over the parameters of a head of this project, so that both take the same steps."""
        ours = dict(head.named_parameters())
        names = {"classify.1.": "classifier.", "score.": "aggregator.score.0.", "": "aggregator."}
        for name, parameter in self.named_parameters():
            prefix = next(start for start in names if name.startswith(start))
            parameter.copy_(ours.pop(names[prefix] + name.removeprefix(prefix)))
        assert not ours, list(ours)
