"""From pixels to what an encoder takes, on its device: a fourth of the bytes travels there, and decoders do less."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, UInt8
from torch import Tensor


class Normalisation:
    """(pixels / 255 - mean) / std in float32: bit for bit what torchvision's `ToTensor` and `Normalize` give.

    Args:
        mean, std: of red, green and blue, on the scale on which pixels are 0…1.
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float]):
        # 255 is a tensor as well: by a plain number a GPU multiplies with the reciprocal, which may be one bit off.
        self._constants = torch.tensor([[255.0] * 3, mean, std])[..., None, None]  # [3 constants, 3 colours, 1, 1]

    def __call__(self, pixels: UInt8[Tensor, "*B 3 H W"] | Float[Tensor, "*B 3 H W"]) -> Float[Tensor, "*B 3 H W"]:
        """Normalised pixels, on their device; views that are not uint8 are normalised already."""
        if pixels.dtype != torch.uint8:
            return pixels
        if self._constants.device != pixels.device:
            self._constants = self._constants.to(pixels.device)
        white, mean, std = self._constants
        return pixels.to(torch.float32).div_(white).sub_(mean).div_(std)
