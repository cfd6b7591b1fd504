"""Images that a program gives one by one, such as a Dataset of PyTorch: the samples of its items, which are asked for again
when their images are read.
"""

import io
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from jaxtyping import Shaped
from PIL import Image

from extract.datasets.pixels import ORIENTATION, Pixels
from extract.datasets.reading import content_of, reason_of
from extract.datasets.sample import DataError, Sample
from store import BeyondClsError

# What the parts of an item, a column or an array are called, in the order in which they are looked for.
IMAGE = ("image", "img", "jpg", "jpeg", "png", "webp")
LABEL = ("label", "labels", "fine_label", "target", "cls")
ID = ("id", "key", "__key__", "image_id")
SEGMENTATION = ("segmentation", "mask", "label_map", "annotation")
CHANNELS = (1, 3, 4)  # grey, colours, colours and transparency, which is dropped


@dataclass(frozen=True)
class GivenItems:
    """What a program gives.

    Attributes:
        items: by number, from 0: an image, (image, label), (image, target) or a mapping; see `Items.parts`.
        classes: names by label, if known.
        is_threaded: whether several threads may ask for items at once, which nobody promises for a Dataset.
    """

    items: Any
    classes: Sequence[str] | None = None
    is_threaded: bool = False


class Items:
    """Items as encoded images, in any process; `name` is for messages.

    `source` gives them; or it is a function that makes what does, and makes the same in another process, to which items are not
    sent then.
    """

    def __init__(self, name: str, source: GivenItems | Callable[[], GivenItems]):
        self.name, self._source, self._lock = name, source, threading.RLock()
        self._given: GivenItems | None = None

    def __reduce__(self) -> Any:
        return Items, (self.name, self._source)

    @property
    def given(self) -> GivenItems:
        """What gives the items."""
        with self._lock:
            if self._given is None:
                self._given = self._source if isinstance(self._source, GivenItems) else self._source()
            return self._given

    def parts(self, row: int) -> dict[str, Any]:
        """Image, label, id, boxes and label map of an item, which is asked for from one thread at a time unless several may.

        An item is an image; or a tuple of an image and a label, of an image and a label map (a picture of Pillow, or [H, W]),
        or of an image and a mapping of what is known about it (as torchvision's detection sets give it: `boxes` as x0, y0, x1,
        y1 with `labels` of their own); or one mapping of all.

        Raises:
            DataError: a mapping without an image; or whatever is raised by the user's code, with the number of the item.
        """
        given = self.given
        try:
            with nullcontext() if given.is_threaded else self._lock:
                item = given.items[row]
        except BeyondClsError:
            raise
        except Exception as error:  # it is the user's code
            raise DataError(
                f"item {row} of {self.name} cannot be read ({type(error).__name__}: {reason_of(error)}); mend it, or let it "
                "give the bytes of its image, of which damaged ones can be recorded"
            ) from error
        if isinstance(item, tuple | list):
            if not item:
                raise DataError("an item is empty, expected an image, or an image and its label")
            target = item[1] if len(item) > 1 else None
            is_map = isinstance(target, Image.Image) or (len(shape := getattr(target, "shape", ())) == 2 and min(shape) > 1)
            named = dict(target) if isinstance(target, Mapping) else {"segmentation" if is_map else "label": target}
            item = {**named, "image": item[0], "others": [f"part {i} of {len(item)}" for i in range(2, len(item))]}
        elif not isinstance(item, Mapping) or item.keys() <= {"bytes", "path"}:
            item = {"image": item}
        image = first_of(IMAGE, item)
        if image is None:
            raise DataError(
                f"an item has {', '.join(map(str, item))[:200]}, but no image; call one of them {' or '.join(IMAGE)}"
            )
        found = {part: first_of(names, item) for part, names in (("label", LABEL), ("id", ID), ("segmentation", SEGMENTATION))}
        parts = {part: None if name is None else item[name] for part, name in found.items()}
        return {**parts, "image": item[image], "boxes": item.get("boxes"), "others": item.get("others", [])}

    def encoded(self, row: int, image: Any) -> bytes:
        """The image of an item as the bytes of a file, or a DataError."""
        try:
            with nullcontext() if self.given.is_threaded else self._lock:  # a picture of Pillow may read its file only now
                return encode_image(image)
        except BeyondClsError:
            raise
        except (ValueError, TypeError, OSError) as error:
            raise DataError(f"the image of item {row} of {self.name} {reason_of(error)}") from error


@dataclass(frozen=True)
class Item(Sample):
    """The image of an item."""

    items: Items | None = None
    row: int = 0

    def read(self) -> bytes:
        """The encoded image, as when the set was opened; BeyondClsError if it is another one."""
        if self.size == 0:
            return b""
        assert self.items is not None
        content = self.items.encoded(self.row, self.items.parts(self.row)["image"])
        if xxhash.xxh3_128_digest(content) != self.digest:
            raise BeyondClsError(
                f"item {self.row} of {self.items.name} is another image than when it was opened; leave random transforms out "
                "of it (random crops are an option of extraction, --views), and run again when nothing writes to its files"
            )
        return content


def first_of(names: Sequence[str], known: Any) -> str | None:
    return next((name for name in names if name in known), None)


def encode_image(image: Any) -> bytes:
    """An image as the bytes of a file: its own, or else those of a PPM, a TIFF or a PNG that hold its pixels as they are.

    Args:
        image: encoded bytes; the path of a file; a mapping of either, as Hugging Face's `Image(decode=False)` gives it; a
            picture of Pillow; or an array or tensor of uint8 (or uint16, for `--scale`): [H, W, 3], [3, H, W] or [H, W].
            A tensor whose first and last axes could both be colours has them first, an array last.

    Raises:
        ValueError: it is none of these; the message begins after the name of the item.
    """
    if isinstance(image, Mapping):
        image = image["bytes"] if image.get("bytes") is not None else Path(image["path"]) if image.get("path") else b""
    if image is None or isinstance(image, bytes | bytearray | memoryview):
        return bytes(image or b"")
    if isinstance(image, os.PathLike):
        if (content := content_of(Path(image))) is None:
            raise ValueError(f"is not there: {Path(image)}")
        return content
    if isinstance(image, Image.Image):
        return _encode_picture(image)
    if hasattr(image, "detach"):
        return _encode_array(image.detach().cpu().numpy(), are_first=True)
    if hasattr(image, "__array__"):
        return _encode_array(np.asarray(image), are_first=False)
    raise ValueError(
        f"is a {type(image).__name__}, expected a picture of Pillow, an array or tensor of uint8, encoded bytes, or a path as "
        "pathlib.Path"
    )


def _encode_picture(image: Image.Image) -> bytes:
    """More than 8 bits stay as they are; where EXIF says that an image is turned, so does the file."""
    file = io.BytesIO()
    if image.mode[0] in "IF":
        image.save(file, "TIFF")
        return file.getvalue()
    rgb = Pixels().rgb(image)
    if (orientation := rgb.info.get("orientation")) is None:
        return _encode_array(np.asarray(rgb), are_first=False)
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    rgb.save(file, "PNG", compress_level=0, exif=exif)
    return file.getvalue()


def _encode_array(values: Shaped[np.ndarray, "..."], are_first: bool) -> bytes:
    """Pixels as a PPM; `are_first`: colours, where their axis could be the first or the last."""
    if values.dtype.kind == "f":
        lowest, highest = float(values.min(initial=0)), float(values.max(initial=0))
        remedy = "leave ToTensor out" if lowest >= 0 and highest <= 1 else "leave ToTensor and Normalize out"
        raise ValueError(
            f"has values of {values.dtype}, {lowest:.3g} to {highest:.3g}, so it was transformed already; the encoder's own "
            f"transform is applied, so give 8-bit pixels: {remedy}, or where files have such values, (255 * image).round() as "
            "uint8"
        )
    if values.dtype not in (np.uint8, np.uint16):
        raise ValueError(f"has values of {values.dtype}, expected uint8; convert it, as 0 to 255 are black and white")
    if values.ndim == 3:
        first, last = (values.shape[axis] in CHANNELS for axis in (0, -1))
        if first and (are_first or not last):
            values = np.moveaxis(values, 0, -1)
    else:
        values = values[..., None]
    if values.ndim != 3 or values.shape[-1] not in CHANNELS or not values.size:
        raise ValueError(f"has shape {list(values.shape)}, expected [H, W, 3], [3, H, W] or [H, W]")
    values = values[..., :3]
    height, width, n_channels = values.shape
    highest, dtype = (255, "u1") if values.dtype == np.uint8 else (65535, ">u2")
    return f"P{6 if n_channels == 3 else 5} {width} {height} {highest}\n".encode() + values.astype(dtype).tobytes()
