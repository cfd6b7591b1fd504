"""What an encoder sees of an image: the values that say how it is resized, cropped and normalised, and how its views are cut.

View 0 is the evaluation crop, the others are random crops that any machine repeats; with the crop mode "slide" all are windows.
"""

import math
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch
import xxhash
from jaxtyping import Float, UInt8
from PIL import Image
from timm.data import create_transform
from timm.data.transforms import CenterCropOrPad
from torch import Tensor, nn
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as F

from extract.datasets.pixels import Picture, Raster
from store import BeyondClsError
from store.errors import unknown
from store.format.spec import SLIDE

# Names of timm; all are part of the key.
TRANSFORM = ("input_size", "interpolation", "mean", "std", "crop_pct", "crop_mode")
# Part of the key where they are not these values, so that sets without them keep their keys.
UNRECORDED: Mapping[str, Any] = {"scale": None, "orientation": "stored", "cut": "pillow"}
CUTS = ("pillow", "torch", "draft")  # what resizes; draft: as torch, of JPEGs that are decoded at a fraction of their size
OF_TORCH = ("bicubic", "bilinear")  # its interpolations that smooth
STRIDE = 32  # of convolutional networks, from pixels to the last feature map


def checked_transform(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are not None, as timm takes them, and ours: mean, std, crop_pct, crop_mode, interpolation, scale,
    orientation, cut. What is as in sets that do not record it is left out; unknown names and bad values are refused.
    """
    checked = {name: CHECKS[name](name, value) for name, value in options.items() if value is not None}
    if checked.get("crop_mode") == SLIDE and checked.setdefault("crop_pct", 1.0) != 1:
        raise BeyondClsError(f"crop_pct is {checked['crop_pct']}, expected 1 with the crop mode {SLIDE}; leave it out")
    return {name: value for name, value in checked.items() if value != UNRECORDED.get(name)}


def _numbers(n: int, holds: Callable[..., bool], expected: str) -> Callable[[str, Any], Any]:
    """A check of so many finite numbers, for which something holds."""

    def check(name: str, value: Any) -> Any:
        values = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
        are_numbers = all(isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v) for v in values)
        if not are_numbers or len(values) != n or not holds(*values):
            raise BeyondClsError(f"{name} is {value!r}, expected {expected}")
        return tuple(map(float, values)) if n > 1 else float(values[0])

    return check


def _one_of(kind: str, known: Sequence[str]) -> Callable[[str, Any], str]:
    def check(_: str, value: Any) -> str:
        if value not in known:
            raise BeyondClsError(unknown(kind, str(value), known))
        return str(value)

    return check


CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "mean": _numbers(
        3,
        lambda *values: max(map(abs, values)) <= 1,
        "three numbers, of red, green and blue, up to 1, e.g. 0.485,0.456,0.406; divide those of 0 to 255 by 255",
    ),
    "std": _numbers(
        3,
        lambda *values: 0 < min(values) <= max(values) <= 1,
        "numbers above 0: pixels are divided by them; three, of red, green and blue, up to 1, as pixels are 0 to 1; 1,1,1 "
        "leaves them",
    ),
    "crop_pct": _numbers(1, lambda share: 0 < share <= 1, "a share above 0 and up to 1, e.g. 0.875 (224 of 256 pixels)"),
    "crop_mode": _one_of("crop mode", ("center", "squash", "border", SLIDE)),
    "interpolation": _one_of("interpolation", ("bicubic", "bilinear", "lanczos", "hamming", "box", "nearest")),
    "scale": _numbers(
        2, lambda low, high: low < high, "the values that become black and white, the lower one first, e.g. 0,65535"
    ),
    "orientation": _one_of("orientation", ("stored", "exif")),
    "cut": _one_of("cut", CUTS),
}


def input_sides(value: Any) -> tuple[int, int]:
    """Height and width of the input: from the side of a square, `336x448`, or two numbers."""
    sides: Any = (value, value)
    if isinstance(value, str):
        matched = re.fullmatch(r"([0-9]{1,5})x([0-9]{1,5})", value)
        sides = tuple(map(int, matched.groups())) if matched else ()
    elif isinstance(value, Sequence):
        sides = tuple(value)
    if len(sides) != 2 or any(isinstance(side, bool) or not isinstance(side, int) or side <= 0 for side in sides):
        raise BeyondClsError(f"input_size is {value!r}, expected the side in pixels, or its height and width, e.g. 336x448")
    return sides


def patch_sides(model: nn.Module) -> tuple[int, int]:
    """Height and width of a patch, in pixels; of convolutional networks, of a place in the last feature map."""
    return input_sides(getattr(getattr(model, "patch_embed", None), "patch_size", STRIDE))


def resize_input(name: str, model: nn.Module, sides: tuple[int, int]) -> bool:
    """Make a model take images of this height and width, and say whether that changed it; positions that it has learnt are
    interpolated.
    """
    embedding, patch = getattr(model, "patch_embed", None), patch_sides(model)
    given = sides_text(sides)
    if any(side % pixels for side, pixels in zip(sides, patch, strict=True)):
        lower = [side // pixels * pixels for side, pixels in zip(sides, patch, strict=True)]
        upper = [low + pixels * (low != side) for low, pixels, side in zip(lower, patch, sides, strict=True)]
        nearest = " or ".join(sides_text(near) for near in (lower, upper) if all(near))
        raise BeyondClsError(
            f"input_size is {given}, expected a multiple of the {patch[0]} pixels of a patch of {name}; give {nearest}"
        )
    if embedding is None or tuple(embedding.img_size) == sides:  # convolutions take any size
        return False
    if not hasattr(model, "set_input_size"):
        known = " x ".join(map(str, embedding.img_size))
        raise BeyondClsError(f"input_size is {given}, but {name} takes images of {known} pixels only; leave it out")
    model.set_input_size(sides)  # type: ignore[operator]
    return True


def sides_text(sides: Sequence[int]) -> str:
    return str(sides[0]) if sides[0] == sides[1] else f"{sides[0]}x{sides[1]}"


def options_of(transform: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `load_encoder` that give a transform as a feature set or a probe records it."""
    options = {name: transform[name] for name in (*TRANSFORM, *UNRECORDED) if name in transform}
    size = options.pop("input_size", None)
    if size is None:
        return options
    return options | {"input_size": size[-1] if size[-1] == size[-2] else sides_text(size[-2:])}


def as_options(transform: Mapping[str, Any], names: Sequence[str] = (*TRANSFORM, *UNRECORDED)) -> str:
    """The same as options of the command line, for some of its names: `--mean 0.5,0.5,0.5 --crop-pct 0.9`."""
    options = options_of({n: v for n, v in {**UNRECORDED, **transform}.items() if n in names and v != UNRECORDED.get(n, ())})
    return " ".join(f"--{name.replace('_', '-')} {_text(value)}" for name, value in options.items())


def differing_values(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """Names of the values in which two transforms differ; those that either does not record do not count, but for
    `UNRECORDED`.
    """
    plain = [{**UNRECORDED, **{n: list(v) if isinstance(v, tuple) else v for n, v in t.items()}} for t in (first, second)]
    names = [name for name in (*TRANSFORM, *UNRECORDED) if name in UNRECORDED or (name in first and name in second)]
    return [name for name in names if plain[0][name] != plain[1][name]]


def values_text(transform: Mapping[str, Any], names: Sequence[str], instead_of: Mapping[str, Any] | None = None) -> str:
    """Some values, with those of another transform: `mean 0.5,0.5,0.5 (not 0.485,0.456,0.406), crop_pct 0.9 (not 0.875)`."""
    ours, theirs = options_of({**UNRECORDED, **transform}), options_of({**UNRECORDED, **(instead_of or {})})
    differing = {name: f" (not {_text(theirs[name])})" for name in names if name in theirs}
    return ", ".join(f"{name} {_text(ours[name])}{differing.get(name, '')}" for name in names if name in ours)


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else "none" if value is None else str(value)


# Of linear probing with MAE: area and aspect ratio of the crop, as shares of the image's area and as width by height.
SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
SEED = 0


@dataclass(frozen=True)
class Crop:
    """What a view shows: x0, y0, x1, y1 in pixels of the original, beyond its borders where it was padded; mirrored or not."""

    box: tuple[float, float, float, float]
    flip: bool


def original_size(image: Picture) -> tuple[int, int]:
    """Width and height of an image in its file, pixels: more than its own where it was decoded at a fraction of its size."""
    return image.info.get("size", image.size)


def _resized_by_pillow(image: Image.Image, sides: tuple[int, ...], interpolation: str) -> UInt8[Tensor, "3 H W"]:
    return F.pil_to_tensor(image.resize(sides[::-1], Image.Resampling[InterpolationMode(interpolation).name]))  # type: ignore[arg-type]


def _resized_by_torch(image: Picture, sides: Sequence[int], interpolation: str) -> UInt8[Tensor, "3 H W"]:
    """As Pillow resizes, with weights of 15 bits where those have 22: a value may differ by one."""
    if isinstance(image, Raster):
        pixels = torch.from_numpy(image.pixels)
    else:  # Pillow keeps four bytes a pixel, and PyTorch computes with four
        pixels = torch.frombuffer(bytearray(image.tobytes("raw", "RGBX")), dtype=torch.uint8).view(image.height, image.width, 4)
    channels_first = pixels.permute(2, 0, 1)[None]
    return nn.functional.interpolate(channels_first, tuple(sides), mode=interpolation, antialias=True)[0, :3]


class Views:
    """Cuts images; `evaluation` gives the pixels of view 0 [3, H, W].

    Args:
        config: of the encoder's input, as timm names it: input_size, interpolation, mean, std, crop_pct, crop_mode.
        cut: what resizes, one of `CUTS`.

    Raises:
        BeyondClsError: PyTorch has no such interpolation, or the crops need whole images.
    """

    def __init__(self, config: Mapping[str, Any], cut: str = "pillow"):
        self.config, self._cut = dict(config), cut
        resized: Callable[..., Tensor] = _resized_by_torch if self.is_by_torch else _resized_by_pillow
        self._resize = partial(resized, interpolation=self.config["interpolation"])
        if self.is_by_torch and self.config["interpolation"] not in OF_TORCH:
            raise BeyondClsError(
                f"cut is {cut}, which resizes {' and '.join(OF_TORCH)}, but the interpolation is "
                f"{self.config['interpolation']}; give cut pillow, or another interpolation"
            )
        if cut == "draft" and self.config["crop_mode"] == SLIDE:
            raise BeyondClsError(f"cut is draft, expected pillow or torch with the crop mode {SLIDE}, as windows show details")
        self._size = tuple(self.config["input_size"][1:])  # height, width
        self.evaluation: Callable[[Any], Tensor]
        # How views are placed or drawn, for the key.
        self.described: dict[str, Any] = {"seed": SEED, "scale": list(SCALE), "ratio": list(RATIO), "flip": 0.5}
        self._slides = self.config["crop_mode"] == SLIDE
        if self._slides:
            self.evaluation = self._first_window
            self.described = {"stride": [_stride(side) for side in self._size]}
        else:
            steps = create_transform(**self.config, is_training=False, normalize=False)
            self.evaluation = partial(self._evaluated_by_torch, steps.transforms) if self.is_by_torch else steps

    def cut(self, image: Picture, image_id: str, view: int) -> tuple[UInt8[Tensor, "3 H W"], Crop]:
        """The pixels of a view, which `Encoder.normalised` makes the encoder's input, and what it shows."""
        return next(self.cuts(image, image_id, [view]))

    def cuts(self, image: Picture, image_id: str, views: Iterable[int]) -> Iterator[tuple[UInt8[Tensor, "3 H W"], Crop]]:
        """`cut` of each of these views; an image is resized once for all its windows."""
        whole = self._filling(image) if self._slides else None
        for view in views:
            crop = self.crop(original_size(image), image_id, view)
            if whole is not None:
                yield self._window(whole, image, view), crop
            elif view == 0:
                yield self.evaluation(image), crop
            else:
                part = self._resize(image.crop(crop.box), self._size)
                # Mirrored by NumPy: PyTorch would wake threads for each decoder, which take turns with those that encode.
                yield (torch.from_numpy(part.numpy()[..., ::-1].copy()) if crop.flip else part), crop

    def _evaluated_by_torch(self, transforms: Sequence[Any], image: Picture) -> UInt8[Tensor, "3 H W"]:
        """View 0 by timm's transforms, the first of which, the resizing, only says what size it gives."""
        sides = transforms[0](torch.empty(3, *original_size(image)[::-1], device="meta")).shape[1:]
        pixels = self._resize(image, sides)
        cut = F.to_pil_image(pixels) if isinstance(transforms[1], CenterCropOrPad) else pixels  # only pictures take a colour
        for transform in transforms[1:]:
            cut = transform(cut)
        return cut

    def covering(self, size: tuple[int, int]) -> range:
        """Views that are measured of an image of `size` (width, height): view 0, or its windows, which later views repeat."""
        return range(len(self._windows(size)[1]) if self._slides else 1)

    def _windows(self, size: tuple[int, int]) -> tuple[tuple[int, int], list[tuple[int, int]]]:
        """Width and height to which an image is resized, so that it just fills the input, and left and top of its windows, as
        mmsegmentation slides: the last is flush with the border.
        """
        sides = self._size[::-1]
        scale = max(side / length for side, length in zip(sides, size, strict=True))
        scaled = tuple(max(side, int(scale * length + 0.5)) for side, length in zip(sides, size, strict=True))
        starts = (
            [min(i * _stride(side), length - side) for i in range(1 - (side - length) // _stride(side))]
            for side, length in zip(sides, scaled, strict=True)
        )
        return scaled, list(product(*starts))

    def _filling(self, image: Picture) -> UInt8[Tensor, "3 height width"]:
        """The whole image, from which windows are cut: one resized alone would differ at its borders."""
        return self._resize(image, self._windows(image.size)[0][::-1])

    def _window(self, whole: UInt8[Tensor, "3 height width"], image: Picture, view: int) -> UInt8[Tensor, "3 H W"]:
        places = self._windows(image.size)[1]
        left, top = places[view % len(places)]
        return whole[:, top : top + self._size[0], left : left + self._size[1]]

    def _first_window(self, image: Picture) -> UInt8[Tensor, "3 H W"]:
        return self._window(self._filling(image), image, 0)

    @property
    def is_by_torch(self) -> bool:
        return self._cut != "pillow"

    @property
    def least(self) -> tuple[int, int] | None:
        """Width and height that suffice for view 0, if JPEGs may be decoded at a fraction of their size.

        Twice what is cut, as Pillow advises for its thumbnails (`reducing_gap`): what was decoded is smoothed once more.
        """
        high, wide = (2 * math.floor(side / self.config["crop_pct"]) for side in self._size)
        return (wide, high) if self._cut == "draft" else None

    def crop(self, size: tuple[int, int], image_id: str, view: int) -> Crop:
        (width, height), (high, wide) = size, self._size
        if self._slides:
            (across, down), places = self._windows(size)
            left, top = places[view % len(places)]
            x0, x1, y0, y1 = left / across, (left + wide) / across, top / down, (top + high) / down
            return Crop((x0 * width, y0 * height, x1 * width, y1 * height), flip=False)
        if view:
            return random_crop(image_id, view, size)
        share, mode = self.config["crop_pct"], self.config["crop_mode"]
        scaled_high, scaled_wide = math.floor(high / share), math.floor(wide / share)  # then the central part is cut
        if mode == "squash":
            crop_width, crop_height = width * wide / scaled_wide, height * high / scaled_high
        else:  # one scale for both sides: the image fills the scaled size, or (border) fits into it
            fit = max if mode == "border" else min
            pixel = fit(width / scaled_wide, height / scaled_high)
            crop_width, crop_height = wide * pixel, high * pixel
        box = ((width - crop_width) / 2, (height - crop_height) / 2, (width + crop_width) / 2, (height + crop_height) / 2)
        return Crop(box, flip=False)


def _stride(side: int) -> int:
    """From a window of `side` pixels to the next: two thirds of it, 341 of 512."""
    return max(1, 2 * side // 3)


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

    On the encoder's device: a fourth of the bytes travels there, and decoders do less. `mean`, `std`: of red, green and blue,
    on the scale on which pixels are 0…1.
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
