"""Patch tokens at one scale, as measured on those that are learnt from."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from probe.closed.scaling import Scaling
from probe.segmentation.patches import Patches

BLOCK = 8192


@dataclass(frozen=True, eq=False)
class PatchScaling:
    """Subtract a mean and divide by a standard deviation; float32.

    Attributes:
        mean: of each channel; `scale` is 1 / standard deviation.
    """

    mean: Float[Tensor, "D"]
    scale: Float[Tensor, "D"]

    @classmethod
    def from_patches(cls, patches: Patches, standardise: bool) -> "PatchScaling":
        """Of all labelled patches, in one pass; without `standardise` only the mean is subtracted."""
        n, shift = 0, torch.zeros(patches.dim, dtype=torch.float64, device=patches.device)
        sums = torch.zeros(2, patches.dim, dtype=torch.float64, device=patches.device)
        for tokens, _ in patches.blocks(BLOCK):
            shift = tokens.double().mean(0) if not n else shift  # so that little cancels in the variance
            centred = tokens.double() - shift
            n, sums = n + len(tokens), sums + torch.stack([centred.sum(0), centred.square().sum(0)])
        mean, square = sums / n
        std = (square - mean.square()).clamp(min=0).sqrt()
        exact = Scaling.of(mean + shift, std, standardise)
        return cls(exact.mean.float(), (1 / exact.std).float())

    def __call__(self, tokens: Float[Tensor, "*n D"]) -> Float[Tensor, "*n D"]:
        return (tokens - self.mean).mul_(self.scale)

    def in_place(self, tokens: Float[Tensor, "*n D"]) -> Float[Tensor, "*n D"]:
        """The same tokens, overwritten."""
        return tokens.sub_(self.mean).mul_(self.scale)
