"""The [cls] token itself."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from probe.aggregators.aggregator import Aggregator, Features, Pooled
from probe.aggregators.options import kinds_of_blocks


class Cls(Aggregator):
    """z_{L,0}, what linear probing usually reads. No parameters, no weights.

    Args:
        blocks: stored blocks whose [cls] are side by side, W = n · D; only the probed block by default.
    """

    variants: Sequence[Mapping[str, Any]] = ({}, {"blocks": [3]}, {"blocks": [3, 5]})

    def __init__(self, dim: int, blocks: Sequence[int] | None = None):
        super().__init__(dim, dim * len(kinds_of_blocks("cls", blocks)))
        self.reads = kinds_of_blocks("cls", blocks)

    def forward(self, features: Features) -> Pooled:
        return Pooled(torch.cat([features[kind] for kind in self.reads], -1), None)
