"""The [cls] token beside the average patch token."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from probe.aggregators.aggregator import Aggregator, Features, Pooled
from probe.aggregators.options import kinds_of_blocks


class ClsAverage(Aggregator):
    """[z_0, mean_t z_t]: W = 2 D. No parameters, and no weights, as a part of the vector does not come from the patches.

    Where a feature set has the average itself, that is read, as by `Average`.

    Args:
        dim: D.
        blocks: stored blocks whose [cls] are side by side, beside the average of the last one named, W = (n + 1) D; only the
            probed block by default.

    Source: linear evaluation of DINOv2 (arXiv 2304.07193), with `blocks` that of the last four blocks (`create_linear_input` in
    its code, which applies the final norm to each), and of CAPI; `both` in the official code of the paper.
    """

    variants: Sequence[Mapping[str, Any]] = ({}, {"blocks": [3]}, {"blocks": [3, 5]})

    def __init__(self, dim: int, blocks: Sequence[int] | None = None):
        self._cls, last = kinds_of_blocks("cls", blocks), blocks and blocks[-1:]
        super().__init__(dim, dim * (len(self._cls) + 1))
        (self._patch,), (self._average,) = (kinds_of_blocks(kind, last) for kind in ("patch", "average"))
        self.reads = (*self._cls, self._patch)

    def use_vectors(self, has: Callable[[str], bool]) -> None:
        if has(self._average):
            self.reads = (*self._cls, self._average)

    def forward(self, features: Features) -> Pooled:
        average = features[self._average] if self._average in self.reads else features[self._patch].mean(1)
        return Pooled(torch.cat([*(features[kind] for kind in self._cls), average], -1), None)
