"""What an encoder sees of an image: the values that say how it is resized, cropped and normalised."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from store import BeyondClsError
from store.errors import unknown

# Names of timm; all are part of the key.
TRANSFORM = ("input_size", "interpolation", "mean", "std", "crop_pct", "crop_mode")
# Of what is decoded; part of the key where they are not these values, which stand for what older sets do not record.
OF_PIXELS: Mapping[str, Any] = {"scale": None, "orientation": "stored"}
ORIENTATIONS = ("stored", "exif")
MODES = ("center", "squash", "border")
INTERPOLATIONS = ("bicubic", "bilinear", "lanczos", "hamming", "box", "nearest")
STRIDE = 32  # of convolutional networks, from pixels to the last feature map


def checked_transform(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are not None, as timm takes them, and those of pixels: mean, std, crop_pct, crop_mode, interpolation,
    scale, orientation. What is as in sets that do not record it is left out.

    Raises:
        BeyondClsError: an unknown name or a bad value; the message gives the nearest name, or what was expected.
    """
    checked = {name: CHECKS[name](name, value) for name, value in options.items() if value is not None}
    return {name: value for name, value in checked.items() if value != OF_PIXELS.get(name)}


def _colours(name: str, value: Any) -> tuple[float, ...]:
    """One number for each of red, green and blue, on the scale on which pixels are 0…1."""
    values = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v) for v in values)
    if len(values) != 3 or not numbers:
        raise BeyondClsError(f"{name} is {value!r}, expected three numbers, of red, green and blue, e.g. 0.485,0.456,0.406")
    if name == "std" and min(values) <= 0:
        raise BeyondClsError(f"std is {value!r}, expected numbers above 0: pixels are divided by them; 1,1,1 leaves them")
    if max(abs(v) for v in values) > 1:
        raise BeyondClsError(
            f"{name} is {value!r}, expected numbers up to 1, as pixels are 0 to 1; divide those of 0 to 255 by 255"
        )
    return tuple(float(v) for v in values)


def _scale(name: str, value: Any) -> tuple[float, float]:
    """Values that become 0 and 255."""
    values = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v) for v in values)
    if len(values) != 2 or not numbers or values[0] >= values[1]:
        raise BeyondClsError(
            f"{name} is {value!r}, expected the values that become black and white, the lower one first, e.g. 0,65535"
        )
    return float(values[0]), float(values[1])


def _share(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise BeyondClsError(f"{name} is {value!r}, expected a share above 0 and up to 1, e.g. 0.875 (224 of 256 pixels)")
    return float(value)


def _one_of(kind: str, known: Sequence[str]) -> Callable[[str, Any], str]:
    def check(_: str, value: Any) -> str:
        if value not in known:
            raise BeyondClsError(unknown(kind, str(value), known))
        return str(value)

    return check


CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "mean": _colours,
    "std": _colours,
    "crop_pct": _share,
    "crop_mode": _one_of("crop mode", MODES),
    "interpolation": _one_of("interpolation", INTERPOLATIONS),
    "scale": _scale,
    "orientation": _one_of("orientation", ORIENTATIONS),
}


def input_sides(value: Any) -> tuple[int, int]:
    """Height and width of the input: from the side of a square, `336x448`, or two numbers.

    Raises:
        BeyondClsError: the value has another form, or a side that is not positive.
    """
    sides: Any = (value, value)
    if isinstance(value, str):
        matched = re.fullmatch(r"([0-9]{1,5})x([0-9]{1,5})", value)
        sides = tuple(map(int, matched.groups())) if matched else ()
    elif isinstance(value, Sequence):
        sides = tuple(value)
    if len(sides) != 2 or any(isinstance(side, bool) or not isinstance(side, int) or side <= 0 for side in sides):
        raise BeyondClsError(
            f"input_size is {value!r}, expected the side of the square input in pixels, e.g. 224, or its height and width, "
            "e.g. 336x448"
        )
    return sides


def resize_input(name: str, model: nn.Module, sides: tuple[int, int]) -> bool:
    """Make a model take images of this height and width; positions that it has learnt are interpolated.

    Returns:
        Whether that changed the model.

    Raises:
        BeyondClsError: a side is not a whole number of patches, or the model takes images of one size only.
    """
    embedding = getattr(model, "patch_embed", None)
    patch = getattr(embedding, "patch_size", (STRIDE, STRIDE))
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
    """`224`, or `336x448`: height and width."""
    return str(sides[0]) if sides[0] == sides[1] else f"{sides[0]}x{sides[1]}"


def options_of(transform: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `load_encoder` that give a transform as a feature set or a probe records it."""
    options = {name: transform[name] for name in (*TRANSFORM, *OF_PIXELS) if name in transform}
    size = options.pop("input_size", None)
    if size is None:
        return options
    return options | {"input_size": size[-1] if size[-1] == size[-2] else sides_text(size[-2:])}


def as_options(transform: Mapping[str, Any], names: Sequence[str] = (*TRANSFORM, *OF_PIXELS)) -> str:
    """The same as options of the command line, for some of its names: `--mean 0.5,0.5,0.5 --crop-pct 0.9`."""
    options = options_of({n: v for n, v in {**OF_PIXELS, **transform}.items() if n in names and v != OF_PIXELS.get(n, ())})
    return " ".join(f"--{name.replace('_', '-')} {_text(value)}" for name, value in options.items())


def differing_values(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """Names of the values in which two transforms differ; those that either does not record do not count, but for pixels."""
    plain = [{**OF_PIXELS, **{n: list(v) if isinstance(v, tuple) else v for n, v in t.items()}} for t in (first, second)]
    names = [name for name in (*TRANSFORM, *OF_PIXELS) if name in OF_PIXELS or (name in first and name in second)]
    return [name for name in names if plain[0][name] != plain[1][name]]


def values_text(transform: Mapping[str, Any], names: Sequence[str], instead_of: Mapping[str, Any] | None = None) -> str:
    """Some values, with those of another transform: `mean 0.5,0.5,0.5 (not 0.485,0.456,0.406), crop_pct 0.9 (not 0.875)`."""
    ours, theirs = options_of({**OF_PIXELS, **transform}), options_of({**OF_PIXELS, **(instead_of or {})})
    differing = {name: f" (not {_text(theirs[name])})" for name in names if name in theirs}
    return ", ".join(f"{name} {_text(ours[name])}{differing.get(name, '')}" for name in names if name in ours)


def _text(value: Any) -> str:
    """`0.5,0.5,0.5`."""
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else "none" if value is None else str(value)
