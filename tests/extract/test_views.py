"""Views: what they show of an image, that any machine draws the same, and that they are normalised as torchvision does."""

from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from timm.data import create_transform
from torch._subclasses.fake_tensor import FakeTensorMode
from torchvision.transforms import functional as F

from extract.encoders import load_encoder
from extract.transform import Crop, Normalisation, Views, random_crop
from store import BeyondClsError
from tests.extract.extracting import extract
from tests.extract.tiny import TINY, tiny_encoder

CONFIG = {
    "input_size": (3, 28, 28),
    "interpolation": "bicubic",
    "mean": (0.5, 0.4, 0.3),
    "std": (0.2, 0.3, 0.4),
    "crop_pct": 0.875,
    "crop_mode": "center",
}
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def gradient(width: int, height: int) -> Image.Image:
    x, y = np.meshgrid((np.arange(width) + 0.5) / width, (np.arange(height) + 0.5) / height)
    return Image.fromarray(np.round(255 * np.stack([x, y, 0 * x], -1)).astype(np.uint8))


def shown(tensor: torch.Tensor) -> tuple[float, float, float, float]:
    """Where the view of a gradient begins and ends, as shares of the whole: left, top, right, bottom; from its own colours."""
    colours = tensor / 255
    across, down = colours[0].mean(0), colours[1].mean(1)
    n = len(across)
    step = ((across[-4] - across[3]) / (n - 7), (down[-4] - down[3]) / (n - 7))
    left, top = across[3] - 3.5 * step[0], down[3] - 3.5 * step[1]
    return float(left), float(top), float(left + n * step[0]), float(top + n * step[1])


def as_shares(crop: Crop, width: int, height: int) -> tuple[float, float, float, float]:
    x0, y0, x1, y1 = crop.box
    return (x1 if crop.flip else x0) / width, y0 / height, (x0 if crop.flip else x1) / width, y1 / height


@pytest.mark.parametrize("mode", ["center", "squash", "border"])
@pytest.mark.parametrize("size", [(400, 300), (200, 500)])
def test_the_box_of_the_evaluation_crop_is_what_it_shows(mode, size):
    views = Views({**CONFIG, "crop_mode": mode, "crop_pct": 0.875 if mode != "border" else 1.0})
    tensor, crop = views.cut(gradient(*size), "a", 0)
    assert tensor.shape == (3, 28, 28)
    assert not crop.flip
    given = as_shares(crop, *size)
    if mode == "border":
        short = 0 if size[0] < size[1] else 1
        assert given[short] < 0 < 1 < given[short + 2], "padded"
    else:
        assert given == pytest.approx(shown(tensor), abs=0.03)


@pytest.mark.parametrize("mode", ["center", "squash", "border", "slide"])
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@pytest.mark.parametrize("sides", [(28, 28), (28, 42)])
@pytest.mark.parametrize("size", [(41, 97), (20, 16)])
def test_torch_cuts_as_pillow_does(mode, interpolation, sides, size):
    """Up to rounding: of weights, which lets values differ by one, and between the two passes, which Pillow may swap."""
    image = Image.fromarray(np.random.default_rng(0).integers(80, 176, (*size[::-1], 3), np.uint8))
    config = {**CONFIG, "crop_mode": mode, "interpolation": interpolation, "input_size": (3, *sides)}
    config["crop_pct"] = 1.0 if mode == "slide" else 0.875
    for view in (0, 1, 2):
        (expected, box), (got, same_box) = (Views(config, cut).cut(image, "a", view) for cut in ("pillow", "torch"))
        assert got.dtype == expected.dtype == torch.uint8
        assert same_box == box
        difference = (got.int() - expected.int()).abs()
        assert difference.max() <= (1 if mode == "center" and not view and sides == (28, 28) else 5)
        assert difference.float().mean() < 0.5


def test_the_box_of_a_random_crop_is_what_it_shows():
    views, flips = Views(CONFIG), set()
    for view in range(1, 9):
        tensor, crop = views.cut(gradient(400, 300), "a", view)
        assert as_shares(crop, 400, 300) == pytest.approx(shown(tensor), abs=0.03)
        flips.add(crop.flip)
    assert flips == {True, False}


def test_fixed_draws():
    """Features that were stored before belong to these."""
    assert random_crop("0001", 1, (400, 300)) == Crop((83, 37, 341, 264), False)
    assert random_crop("0001", 2, (400, 300)) == Crop((125, 18, 391, 281), False)
    assert random_crop("é", 1, (400, 300)) == Crop((69, 0, 380, 300), True)


@settings(max_examples=30)
@given(st.text(max_size=5), st.integers(1, 9), st.integers(1, 600), st.integers(1, 600))
def test_crops_lie_in_the_image(image_id, view, width, height):
    x0, y0, x1, y1 = random_crop(image_id, view, (width, height)).box
    assert 0 <= x0 < x1 <= width
    assert 0 <= y0 < y1 <= height


def test_areas_and_aspects_are_those_of_the_protocol():
    """Uniform area from 0.08 to 1; aspect from 3/4 to 4/3, as often below 1 as above. Wide crops of a large image."""
    crops = [random_crop(str(i), 1, (3000, 3000)) for i in range(2000)]
    boxes = np.array([crop.box for crop in crops])
    across, down = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    area, aspect = across * down / 9e6, across / down
    assert area.min() == pytest.approx(0.08, abs=0.01)
    assert area.mean() == pytest.approx(0.54, abs=0.02)
    assert aspect.min() == pytest.approx(3 / 4, abs=0.01)
    assert aspect.max() == pytest.approx(4 / 3, abs=0.02)
    assert np.log(aspect).mean() == pytest.approx(0, abs=0.01)
    assert np.mean([crop.flip for crop in crops]) == pytest.approx(0.5, abs=0.04)


def test_views_are_stored_with_their_crops(forty, tmp_path):
    encoder = tiny_encoder()
    store = extract(encoder, forty, tmp_path / "f", views=3, dtype="float32")
    tensor, crop = encoder.views.cut(forty.image(7), "0007", 2)
    boxes, flips = (store.array(f"images/{what}/view2").all() for what in ("crop", "flip"))
    assert Crop(tuple(boxes[7]), bool(flips[7])) == crop
    expected = encoder(encoder.normalised(tensor[None]), [1], ["patch_self"])
    given = (("patch/block1", expected.patch[1], 1e-5), ("statistics/patch_self", expected.statistics["patch_self"], 1e-6))
    for name, values, atol in given:
        np.testing.assert_allclose(store.array(f"{name}/view2").rows([7]), values, rtol=0, atol=atol)
    assert not np.array_equal(store.array("patch/block1/view1").all(), store.array("patch/block1/view2").all())


def noise(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


@pytest.mark.parametrize(("mean", "std"), [(MEAN, STD), ((0.1, -0.3, 1.0), (1e-3, 0.7, 1.0))])
def test_every_value_in_every_colour(mean, std):
    pixels = torch.arange(256, dtype=torch.uint8).view(1, 16, 16).expand(3, -1, -1).contiguous()
    expected = F.normalize(F.to_tensor(F.to_pil_image(pixels)), list(mean), list(std))
    normalise = Normalisation(mean, std)
    assert torch.equal(normalise(pixels), expected)
    assert torch.equal(normalise(torch.stack([pixels, pixels])), torch.stack([expected, expected]))
    assert pixels.flatten()[-1] == 255, "not changed in place"


@pytest.mark.parametrize("mode", ["center", "squash", "border"])
@pytest.mark.parametrize(("sides", "interpolation"), [((28, 28), "bicubic"), ((28, 42), "bilinear")])
def test_view_0_is_that_of_timm(mode, sides, interpolation):
    config = {**CONFIG, "input_size": (3, *sides), "interpolation": interpolation, "crop_mode": mode}
    image = noise(61, 47)
    pixels = Views(config).evaluation(image)
    assert pixels.dtype == torch.uint8
    normalised = Normalisation(config["mean"], config["std"])(pixels)
    assert torch.equal(normalised, create_transform(**config, is_training=False)(image))


SLIDE = {**CONFIG, "crop_mode": "slide", "crop_pct": 1.0}


@pytest.mark.parametrize(("size", "n"), [((47, 47), 1), ((150, 60), 4), ((50, 90), 3)])
def test_windows_slide_as_those_of_mmsegmentation(size, n):
    """28 pixels wide, each 18 after the last; the last one is flush."""
    image, views, factor = noise(*size), Views(SLIDE), 28 / min(size)
    whole = image.resize([int(side * factor + 0.5) for side in size], Image.Resampling.BICUBIC)
    boxes = []
    for row in range(max(whole.height - 28 + 18 - 1, 0) // 18 + 1):
        for column in range(max(whole.width - 28 + 18 - 1, 0) // 18 + 1):
            bottom, right = min(row * 18 + 28, whole.height), min(column * 18 + 28, whole.width)
            boxes.append((right - 28, bottom - 28, right, bottom))
    assert views.covering(size) == range(len(boxes)) == range(n)
    for view in range(2 * n):
        box = boxes[view % n]
        pixels, crop = views.cut(image, "a", view)
        assert torch.equal(pixels, F.pil_to_tensor(whole.crop(box)))
        assert not crop.flip
        ratio = size[0] / whole.width, size[1] / whole.height
        assert crop.box == pytest.approx([box[0] * ratio[0], box[1] * ratio[1], box[2] * ratio[0], box[3] * ratio[1]])
    assert torch.equal(views.evaluation(image), views.cut(image, "a", 0)[0])
    resized = Mock(wraps=views._resize)
    views._resize = resized
    at_once = [pixels for pixels, _ in views.cuts(image, "a", range(2 * n))]
    assert resized.call_count == 1
    assert all(torch.equal(pixels, views.cut(image, "a", view)[0]) for view, pixels in enumerate(at_once))
    assert views.cut(image, "a", n - 1)[1].box[2:] == pytest.approx(size), "the whole image is shown"


def test_the_window_of_a_square_is_its_evaluation_crop():
    image = noise(61, 61)
    pixels, crop = Views(SLIDE).cut(image, "a", 3)
    assert torch.equal(pixels, Views({**SLIDE, "crop_mode": "center"}).evaluation(image))
    assert crop == Crop((0, 0, 61, 61), False)
    assert Views({**SLIDE, "input_size": (3, 512, 518)}).described == {"stride": [341, 345]}, "two thirds"
    assert "stride" not in Views(CONFIG).described, "keys of other sets stay"


def test_windows_and_dropped_branches(forty, tmp_path):
    encoder = load_encoder("tiny", model="vit_tiny_patch16_224", arguments=TINY, random_seed=0, crop_mode="slide")
    assert encoder.described_transform["crop_pct"] == 1
    with pytest.raises(BeyondClsError, match=r"drop_path is 0.1, expected 0 with the crop mode slide"):
        extract(encoder, forty, tmp_path / "f", views=2, drop_path=0.1)


def test_an_encoder_takes_pixels_too():
    encoder, pixels = tiny_encoder(), torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    normalised = encoder.normalised(pixels)
    assert torch.equal(encoder.normalised(normalised), normalised)
    assert torch.equal(encoder(pixels, [1]).patch[1], encoder(normalised, [1]).patch[1])
    image = noise(50, 40)
    assert torch.equal(encoder.normalised(encoder.views.cut(image, "a", 0)[0][None])[0], encoder.transform(image))


def test_on_the_device_of_the_pixels():
    """As far as shows without a GPU: no operation mixes devices."""
    with FakeTensorMode():
        normalised = Normalisation(MEAN, STD)(torch.zeros(2, 3, 8, 8, dtype=torch.uint8, device="cuda"))
    assert (normalised.device.type, normalised.dtype) == ("cuda", torch.float32)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_the_same_bits_on_a_gpu():
    pixels = torch.arange(256, dtype=torch.uint8).view(1, 16, 16).expand(3, -1, -1).contiguous()
    assert torch.equal(Normalisation(MEAN, STD)(pixels.cuda()).cpu(), Normalisation(MEAN, STD)(pixels))
