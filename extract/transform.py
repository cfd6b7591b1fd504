"""What an encoder sees of an image: the values that say how it is resized, cropped and normalised."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from store import BeyondClsError
from store.errors import unknown

# Names of timm; all are part of the key.
TRANSFORM = ("input_size", "interpolation", "mean", "std", "crop_pct", "crop_mode")
MODES = ("center", "squash", "border")
INTERPOLATIONS = ("bicubic", "bilinear", "lanczos", "hamming", "box", "nearest")
STRIDE = 32  # of convolutional networks, from pixels to the last feature map


def checked_transform(given: Mapping[str, Any]) -> dict[str, Any]:
    """What a user gives of a transform, None meaning nothing: mean, std, crop_pct, crop_mode, interpolation; as timm takes it.

    Raises:
        BeyondClsError: a name or a value that is none; gives the nearest name, or what was expected.
    """
    return {name: CHECKS[name](name, value) for name, value in given.items() if value is not None}


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


def _share(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise BeyondClsError(f"{name} is {value!r}, expected a share above 0 and up to 1, e.g. 0.875 (224 of 256 pixels)")
    return float(value)


def _one_of(what: str, known: Sequence[str]) -> Callable[[str, Any], str]:
    def check(_: str, value: Any) -> str:
        if value not in known:
            raise BeyondClsError(unknown(what, str(value), known))
        return str(value)

    return check


CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "mean": _colours,
    "std": _colours,
    "crop_pct": _share,
    "crop_mode": _one_of("crop mode", MODES),
    "interpolation": _one_of("interpolation", INTERPOLATIONS),
}


def resize_input(name: str, model: nn.Module, side: Any) -> bool:
    """Make a model take images of `side` x `side` pixels; positions that it has learnt are interpolated.

    Returns: whether that changed the model.

    Raises:
        BeyondClsError: a side that is none, or of which its patches make no whole grid; or a model of one size only.
    """
    if isinstance(side, bool) or not isinstance(side, int) or side <= 0:
        raise BeyondClsError(f"input_size is {side!r}, expected the side of the square input in pixels, e.g. 224")
    embedding = getattr(model, "patch_embed", None)
    patch = getattr(embedding, "patch_size", (STRIDE, STRIDE))
    if any(side % pixels for pixels in patch):
        below = side // patch[0] * patch[0]
        near = " or ".join(str(n) for n in (below, below + patch[0]) if n)
        raise BeyondClsError(
            f"input_size is {side}, expected a multiple of the {patch[0]} pixels of a patch of {name}; give {near}"
        )
    if embedding is None or tuple(embedding.img_size) == (side, side):  # convolutions take any size
        return False
    if not hasattr(model, "set_input_size"):
        sides = " x ".join(map(str, embedding.img_size))
        raise BeyondClsError(f"input_size is {side}, but {name} takes images of {sides} pixels only; leave it out")
    model.set_input_size((side, side))  # type: ignore[operator]
    return True


def options_of(transform: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `load_encoder` that give a transform as a feature set or a probe records it."""
    given = {name: transform[name] for name in TRANSFORM if name in transform}
    size = given.pop("input_size", None)
    return given | ({"input_size": size[-1]} if size is not None and size[-1] == size[-2] else {})


def as_options(transform: Mapping[str, Any], names: Sequence[str] = TRANSFORM) -> str:
    """The same on the command line, of some of its names: `--mean 0.5,0.5,0.5 --crop-pct 0.9`."""
    given = options_of({name: value for name, value in transform.items() if name in names})
    return " ".join(f"--{name.replace('_', '-')} {_text(value)}" for name, value in given.items())


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Names of the values in which two transforms differ; those that either does not record do not count."""
    plain = [{name: list(v) if isinstance(v, tuple) else v for name, v in t.items()} for t in (one, other)]
    return [name for name in TRANSFORM if name in one and name in other and plain[0][name] != plain[1][name]]


def in_words(transform: Mapping[str, Any], names: Sequence[str], instead: Mapping[str, Any] | None = None) -> str:
    """Some of its values, with those of another one: `mean 0.5,0.5,0.5 (not 0.485,0.456,0.406), crop_pct 0.9 (not 0.875)`."""
    ours, theirs = options_of(transform), options_of(instead or {})
    other = {name: f" (not {_text(theirs[name])})" for name in names if name in theirs}
    return ", ".join(f"{name} {_text(ours[name])}{other.get(name, '')}" for name in names if name in ours)


def _text(value: Any) -> str:
    """`0.5,0.5,0.5`."""
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
