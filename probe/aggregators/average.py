"""The average patch token."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from probe.aggregators.aggregator import Aggregator, Features, Pooled
from probe.aggregators.options import kinds_of_blocks


class Average(Aggregator):
    """Mean over the T patch tokens (Sec. 3.1); every weight is 1 / T. No parameters.

    Where a feature set has the average of a block itself, that is read: a T-th of the bytes, and no rounding of tokens. Then
    there are no weights.

    Args:
        blocks: stored blocks whose averages are side by side, W = n · D; only the probed block by default.
    """

    weighted = True
    variants: Sequence[Mapping[str, Any]] = ({}, {"blocks": [3]}, {"blocks": [3, 5]})

    def __init__(self, dim: int, blocks: Sequence[int] | None = None):
        super().__init__(dim, dim * len(kinds_of_blocks("patch", blocks)))
        self.reads, self.vectors = (kinds_of_blocks(kind, blocks) for kind in ("patch", "average"))

    def use_vectors(self, has: Callable[[str], bool]) -> None:
        if all(map(has, self.vectors)):
            self.reads = self.vectors

    def forward(self, features: Features) -> Pooled:
        values = [features[kind] for kind in self.reads]
        if self.reads == self.vectors:
            return Pooled(torch.cat(values, -1), None)
        first = values[0]
        return Pooled(torch.cat([patch.mean(1) for patch in values], -1), first.new_full(first.shape[:2], 1 / first.shape[1]))
