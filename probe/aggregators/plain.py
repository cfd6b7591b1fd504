"""Vectors that no weighting by content makes: [cls], averages, maxima, and what the encoder's own pooling gives."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from probe.aggregators.aggregator import Aggregator, Features, Pooled, kinds_of_blocks, whole_number
from store import BeyondClsError


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


class ClsAverage(Aggregator):
    """[z_0, mean_t z_t]: W = 2 D. No parameters, and no weights, as a part of the vector does not come from the patches.

    Where a feature set has the average itself, that is read, as by `Average`.

    Args:
        blocks: stored blocks whose [cls] are concatenated with the average of the last one named, W = (n + 1) D; only the
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


class Max(Aggregator):
    """max_t x_{t,d} over the T patch tokens, of each channel d by itself. No parameters, and no weights."""

    reads = ("patch",)

    def __init__(self, dim: int):
        super().__init__(dim)

    def forward(self, features: Features) -> Pooled:
        return Pooled(features["patch"].amax(1), None)


class Central(Aggregator):
    """Mean of the k x k patches around the middle of the square grid of side s. No parameters.

    Rows and columns s // 2 - k // 2 to s // 2 - k // 2 + k - 1: exactly centred where s and k are both odd or both even. Of an
    even grid an odd k is centred on the patch right below the middle, the one whose attention is stored as "attention/centre";
    of an odd grid an even k reaches one patch further up and left.

    Source: `cp1` to `cp4` in the official code, which begin at s // 2 - ⌈k / 2⌉: the same for even k, and one patch further up
    and left for odd k (off the centre of an odd grid).

    Args:
        k: side of the square of patches.
    """

    reads = ("patch",)
    weighted = True
    uses_position = needs_square = True
    variants = ({}, {"k": 2})

    def __init__(self, dim: int, k: int = 1):
        super().__init__(dim)
        self.k = whole_number("k", k)

    def forward(self, features: Features) -> Pooled:
        patch = features["patch"]
        n_patches = patch.shape[1]
        side = math.isqrt(n_patches)
        if side * side != n_patches:
            raise BeyondClsError(f"there are {n_patches} patches, expected a square grid such as 14 x 14; use 'average'")
        if self.k > side:
            raise BeyondClsError(f"k is {self.k}, expected at most {side}, the side of the grid of patches")
        begin = side // 2 - self.k // 2
        square = (slice(None), slice(begin, begin + self.k), slice(begin, begin + self.k))
        weights = patch.new_zeros(len(patch), side, side)
        weights[square] = 1 / self.k**2
        return Pooled(patch.unflatten(1, (side, side))[square].mean((1, 2)), weights.flatten(1))


class EncoderPooling(Aggregator):
    """The vector that an encoder with a pooling by attention was trained through (SigLIP, Perception Encoder). No parameters.

    It is made of the last block's tokens after the final norm, by weights that belong to the encoder. Ours, not the paper's,
    whose encoders have none.
    """

    reads = ("pooled",)

    def __init__(self, dim: int):
        super().__init__(dim)

    def forward(self, features: Features) -> Pooled:
        return Pooled(features["pooled"], None)
