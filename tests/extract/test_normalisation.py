"""Pixels to the encoder's input: the same numbers as torchvision's, whichever way they come."""

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data import create_transform
from torch._subclasses.fake_tensor import FakeTensorMode
from torchvision.transforms import functional as F

from extract.views import Normalisation, Views
from tests.extract.test_views import CONFIG
from tests.extract.tiny import tiny_encoder

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def noise(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


@pytest.mark.parametrize(("mean", "std"), [(MEAN, STD), ((0.5,) * 3, (0.5,) * 3), ((0.1, -0.3, 1.0), (1e-3, 0.7, 1.0))])
def test_every_value_in_every_colour(mean: tuple[float, ...], std: tuple[float, ...]) -> None:
    pixels = torch.arange(256, dtype=torch.uint8).view(1, 16, 16).expand(3, -1, -1).contiguous()
    expected = F.normalize(F.to_tensor(F.to_pil_image(pixels)), list(mean), list(std))
    normalise = Normalisation(mean, std)
    assert torch.equal(normalise(pixels), expected)
    assert torch.equal(normalise(torch.stack([pixels, pixels])), torch.stack([expected, expected]))
    assert pixels.flatten()[-1] == 255, "not changed in place"


@pytest.mark.parametrize("mode", ["center", "squash", "border"])
@pytest.mark.parametrize(("sides", "interpolation"), [((28, 28), "bicubic"), ((28, 42), "bilinear")])
def test_view_0_is_that_of_timm(mode: str, sides: tuple[int, int], interpolation: str) -> None:
    config = {**CONFIG, "input_size": (3, *sides), "interpolation": interpolation, "crop_mode": mode}
    image = noise(61, 47)
    pixels = Views(config).evaluation(image)
    assert pixels.dtype == torch.uint8
    normalised = Normalisation(config["mean"], config["std"])(pixels)  # type: ignore[arg-type]
    assert torch.equal(normalised, create_transform(**config, is_training=False)(image))  # type: ignore[arg-type]


def test_an_image_by_itself_and_in_a_batch() -> None:
    encoder, image = tiny_encoder(), noise(50, 40)
    batch = torch.stack([encoder.views.cut(image, "a", view)[0] for view in (0, 1)])
    assert torch.equal(encoder.normalised(batch)[0], encoder.transform(image))


def test_what_is_normalised_already_stays() -> None:
    encoder, images = tiny_encoder(), torch.randn(2, 3, 32, 32)
    assert torch.equal(encoder.normalised(images), images)


def test_an_encoder_takes_pixels_too() -> None:
    encoder, pixels = tiny_encoder(), torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    of_pixels, of_normalised = (encoder(images, [1]).patch[1] for images in (pixels, encoder.normalised(pixels)))
    assert torch.equal(of_pixels, of_normalised)


def test_on_the_device_of_the_pixels() -> None:
    """As far as shows without a GPU: no operation mixes devices."""
    with FakeTensorMode():
        normalised = Normalisation(MEAN, STD)(torch.zeros(2, 3, 8, 8, dtype=torch.uint8, device="cuda"))
    assert (normalised.device.type, normalised.dtype) == ("cuda", torch.float32)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_the_same_bits_on_a_gpu() -> None:
    pixels = torch.arange(256, dtype=torch.uint8).view(1, 16, 16).expand(3, -1, -1).contiguous()
    normalise = Normalisation(MEAN, STD)
    assert torch.equal(normalise(pixels.cuda()).cpu(), normalise(pixels))
