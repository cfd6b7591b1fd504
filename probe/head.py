"""A head: an aggregator and a classifier."""

from jaxtyping import Float
from torch import Tensor, nn

from probe.aggregators import Aggregator, Features


class Head(nn.Module):
    """Aggregator, batch normalisation without parameters, linear classifier.

    BatchNorm1d(affine=False, eps=1e-6) stands before the classifier in the official code (and in MAE's), so that one learning
    rate fits encoders whose tokens differ in scale. The classifier starts from N(0, 0.01²) with zero bias, as there.
    """

    def __init__(self, aggregator: Aggregator, dim: int, n_classes: int):
        super().__init__()
        self.aggregator = aggregator
        self.norm = nn.BatchNorm1d(dim, affine=False, eps=1e-6)
        self.classifier = nn.Linear(dim, n_classes)
        nn.init.trunc_normal_(self.classifier.weight, std=0.01)
        nn.init.zeros_(self.classifier.bias)

    def forward(self, features: Features) -> tuple[Float[Tensor, "B K"], Float[Tensor, "B T"] | None]:
        """Logits, and the weights over patches where the aggregator has them."""
        vector, weights = self.aggregator(features)
        return self.classifier(self.norm(vector)), weights
