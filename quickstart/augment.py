"""Random crops and colour changes of a whole batch of images at once, on the device that holds it.

Pretraining the quickstart encoders draws 50,000 small crops an epoch; done image by image, that costs more than the ViT.
Images are float tensors [B, 3, H, W] in 0...1; every function draws one value per image from `generator`.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

Images = Float[Tensor, "B 3 H W"]


def uniform(n: int, low: float, high: float, images: Tensor, generator: torch.Generator) -> Tensor:
    """[n] values in low...high, on the device of `images`; drawn on the generator's device, so that a seed fixes them."""
    return (low + (high - low) * torch.rand(n, generator=generator)).to(images.device)


def random_resized_crop(
    images: Images,
    generator: torch.Generator,
    size: int,
    scale: tuple[float, float] = (0.2, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> Float[Tensor, "B 3 size size"]:
    """A crop of area `scale` (fraction of the image) and aspect `ratio`, resized bilinearly and flipped half of the time."""
    n = len(images)
    area = uniform(n, *scale, images, generator)
    aspect = torch.exp(uniform(n, math.log(ratio[0]), math.log(ratio[1]), images, generator))
    width, height = (area * aspect).sqrt().clamp(max=1), (area / aspect).sqrt().clamp(max=1)
    # The centre keeps the crop inside the image; in the coordinates of affine_grid the image spans -1...1.
    x = (1 - width) * uniform(n, -1, 1, images, generator)
    y = (1 - height) * uniform(n, -1, 1, images, generator)
    flip = torch.where(uniform(n, 0, 1, images, generator) < 0.5, -1.0, 1.0)
    theta = torch.zeros(n, 2, 3, device=images.device)
    theta[:, 0, 0], theta[:, 0, 2] = width * flip, x
    theta[:, 1, 1], theta[:, 1, 2] = height, y
    grid = F.affine_grid(theta, [n, 3, size, size], align_corners=False)
    return F.grid_sample(images, grid, padding_mode="reflection", align_corners=False)


def colour_jitter(
    images: Images,
    generator: torch.Generator,
    strength: float = 0.4,
    grey: float = 0.2,
    solarize: float = 0.1,
) -> Images:
    """Brightness, contrast and saturation changed by up to `strength` in 80 % of images, then grey and solarised ones.

    DINO's recipe without hue and blur: at 32 x 32 pixels blur removes the object.
    """
    n = len(images)

    def factor() -> Tensor:
        f = uniform(n, 1 - strength, 1 + strength, images, generator)
        return torch.where(jittered, f, torch.ones_like(f))[:, None, None, None]

    def drawn_with(probability: float) -> Tensor:
        return (uniform(n, 0, 1, images, generator) < probability)[:, None, None, None]

    jittered = uniform(n, 0, 1, images, generator) < 0.8
    images = (images * factor()).clamp(0, 1)
    mean = luminance(images).mean((2, 3), keepdim=True)
    images = ((images - mean) * factor() + mean).clamp(0, 1)
    images = torch.lerp(luminance(images).expand_as(images), images, factor()).clamp(0, 1)
    images = torch.where(drawn_with(grey), luminance(images).expand_as(images), images)
    return torch.where(drawn_with(solarize) & (images >= 0.5), 1 - images, images)


def mix(
    images: Images, targets: Float[Tensor, "B C"], generator: torch.Generator, share: float = 1.0
) -> tuple[Images, Float[Tensor, "B C"]]:
    """Each image with another of the batch: half of them blended (mixup, arXiv 1710.09412), half with a box of it (CutMix,
    arXiv 1905.04899). Targets, probabilities of the classes, are blended by the share of the pixels.

    How much of an image is kept is uniform in 0...1 (CutMix's Beta(1, 1); mixup's published 0.8 is close to it).

    Args:
        share: of the images that are mixed; the others stay as they are.
    """
    n, _, height, width = images.shape
    other = 1 - uniform(n, 0, 1, images, generator)  # [B], of the other image
    is_box = uniform(n, 0, 1, images, generator)[:, None, None] < 0.5
    is_mixed = uniform(n, 0, 1, images, generator)[:, None, None] < share

    def within_box(length: int) -> Tensor:
        centre = uniform(n, 0, length, images, generator)[:, None]
        pixels = torch.arange(length, device=images.device) + 0.5
        return (pixels - centre).abs() < other.sqrt()[:, None] * length / 2  # [B, length]

    box = within_box(height)[:, :, None] & within_box(width)[:, None, :]
    weight = torch.where(is_box, box.float(), other[:, None, None]) * is_mixed  # [B, H, W], of the other image
    mixed_targets = torch.lerp(targets, targets.roll(1, 0), weight.mean((1, 2))[:, None])
    return torch.lerp(images, images.roll(1, 0), weight[:, None]), mixed_targets


def luminance(images: Images) -> Float[Tensor, "B 1 H W"]:
    """ITU-R 601 luma."""
    weights = torch.tensor([0.299, 0.587, 0.114], device=images.device)
    return (images * weights[:, None, None]).sum(1, keepdim=True)
