"""How the views of an image are cut, and become what an encoder takes.

View 0 is the evaluation crop, the others are random crops that any machine repeats.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import xxhash
from jaxtyping import Float, UInt8
from PIL import Image
from timm.data import create_transform
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as F

# Of linear probing with MAE: area and aspect ratio of the crop, as shares of the image's area and as width by height.
SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
SEED = 0


@dataclass(frozen=True)
class Crop:
    """What a view shows: x0, y0, x1, y1 in pixels of the original, beyond its borders where it was padded; mirrored or not."""

    box: tuple[float, float, float, float]
    flip: bool


class Views:
    """Cuts images.

    Args:
        config: of the encoder's input, as timm names it: input_size, interpolation, mean, std, crop_pct, crop_mode.
    """

    def __init__(self, config: Mapping[str, Any]):
        self.config = dict(config)
        self._evaluation = create_transform(**self.config, is_training=False, normalize=False)
        self._size = tuple(self.config["input_size"][1:])  # height, width

    @property
    def described(self) -> dict[str, Any]:
        """How random views are drawn, as plain values, for the key."""
        return {"seed": SEED, "scale": list(SCALE), "ratio": list(RATIO), "flip": 0.5}

    def cut(self, image: Image.Image, image_id: str, view: int) -> tuple[UInt8[Tensor, "3 H W"], Crop]:
        """The pixels of a view, which `Encoder.normalised` makes the encoder's input, and what it shows."""
        crop = self.crop(image.size, image_id, view)
        if view == 0:
            return self.evaluation(image), crop
        interpolation = Image.Resampling[InterpolationMode(self.config["interpolation"]).name]
        part = image.crop(crop.box).resize(self._size[::-1], interpolation)
        if crop.flip:
            part = part.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return F.pil_to_tensor(part), crop

    def evaluation(self, image: Image.Image) -> UInt8[Tensor, "3 H W"]:
        """The pixels of view 0."""
        return self._evaluation(image)

    def crop(self, size: tuple[int, int], image_id: str, view: int) -> Crop:
        """What a view shows of an image of this width and height."""
        return random_crop(image_id, view, size) if view else Crop(self._evaluation_box(*size), False)

    def _evaluation_box(self, width: int, height: int) -> tuple[float, float, float, float]:
        """The part of an image that its evaluation crop shows."""
        high, wide = self._size
        share, mode = self.config["crop_pct"], self.config["crop_mode"]
        scaled_high, scaled_wide = math.floor(high / share), math.floor(wide / share)  # then the central part is cut
        if mode == "squash":
            crop_width, crop_height = width * wide / scaled_wide, height * high / scaled_high
        else:  # one scale for both sides: the image fills the scaled size, or (border) fits into it
            fit = max if mode == "border" else min
            pixel = fit(width / scaled_wide, height / scaled_high)
            crop_width, crop_height = wide * pixel, high * pixel
        return ((width - crop_width) / 2, (height - crop_height) / 2, (width + crop_width) / 2, (height + crop_height) / 2)


def random_crop(image_id: str, view: int, size: tuple[int, int]) -> Crop:
    """A crop of random area and aspect ratio, mirrored half of the time; equal for equal id, view and size (width, height).

    Drawn once, and cut to the image where it is too wide or too high, as the official code does (torchvision draws again).
    """
    width, height = size
    generator = random.Random(xxhash.xxh3_128_intdigest(f"{SEED}\0{view}\0{image_id}".encode()))
    area = width * height * generator.uniform(*SCALE)
    aspect = math.exp(generator.uniform(math.log(RATIO[0]), math.log(RATIO[1])))
    crop_width = max(1, min(width, round(math.sqrt(area * aspect))))
    crop_height = max(1, min(height, round(math.sqrt(area / aspect))))
    x0, y0 = generator.randint(0, width - crop_width), generator.randint(0, height - crop_height)
    return Crop((x0, y0, x0 + crop_width, y0 + crop_height), generator.random() < 0.5)


class Normalisation:
    """(pixels / 255 - mean) / std in float32: bit for bit what torchvision's `ToTensor` and `Normalize` give.

    On the encoder's device: a fourth of the bytes travels there, and decoders do less.

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
