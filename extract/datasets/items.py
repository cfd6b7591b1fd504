"""Images that a program gives one by one, such as a Dataset of PyTorch: each item is read once for its id, its labels and its
digest, and asked for again when its image is read.
"""

import io
import os
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xxhash
from jaxtyping import Int16, Shaped
from PIL import Image

from extract.datasets.classes import Labels
from extract.datasets.image_set import ImageSet
from extract.datasets.label_maps import VOID_INDEX, Indices, LabelMaps, labels_in, segmented
from extract.datasets.listed import lines
from extract.datasets.pixels import ORIENTATION, Pixels
from extract.datasets.reading import content_of, opening_bar, reason_of
from extract.datasets.sample import Box, DataError, Sample
from store import BeyondClsError
from store.errors import BeyondClsWarning
from store.truths.reading import VOID

BATCH = 1024  # items that are asked for at a time
ID_DIGITS = 16  # of a digest
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

    @property
    def _alone(self) -> AbstractContextManager[Any]:
        return nullcontext() if self.given.is_threaded else self._lock

    def parts(self, row: int) -> dict[str, Any]:
        """Image, label, id, boxes and label map of an item, which is asked for from one thread at a time unless several may.

        An item is an image; or a tuple of an image and a label, of an image and a label map (a picture of Pillow, or [H, W]),
        or of an image and a mapping of what is known about it (as torchvision's detection sets give it: `boxes` as x0, y0, x1,
        y1 with `labels` of their own); or one mapping of all.

        Raises:
            DataError: a mapping without an image; or whatever is raised by the user's code, with the number of the item.
        """
        try:
            with self._alone:
                item = self.given.items[row]
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
            raise DataError(f"an item has {', '.join(map(str, item))[:200]}, but no image; call one {' or '.join(IMAGE)}")
        found = {part: first_of(names, item) for part, names in (("label", LABEL), ("id", ID), ("segmentation", SEGMENTATION))}
        parts = {part: None if name is None else item[name] for part, name in found.items()}
        return {**parts, "image": item[image], "boxes": item.get("boxes"), "others": item.get("others", [])}

    def encoded(self, row: int, image: Any) -> bytes:
        """The image of an item as the bytes of a file, or a DataError."""
        try:
            with self._alone:  # a picture of Pillow may read its file only now
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
        f"is a {type(image).__name__}, expected a picture of Pillow, a uint8 array or tensor, bytes, or a pathlib.Path"
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


class _SeenItem(NamedTuple):
    """A label is a number, a name, or a tuple of several."""

    label: Any
    n_classes: int | None
    id: str | None
    boxes: tuple[Box, ...]
    size: int
    digest: bytes
    has_map: bool
    others: list[str]


def image_set(source: str, given: GivenItems | Callable[[], GivenItems], classes: Path | None = None) -> ImageSet:
    """The set of all items, each of which is read once for that, in order; images are not held in memory.

    Ids are those that the items have, or else made from the bytes of each image; of images that are the same the later ones
    end in -1, -2, … Labels are class numbers, names, or several of either; -1 is no label.
    Label maps hold indices of classes, 255 or -1 for void; the labels of an image are then those that its map shows. A
    BeyondClsWarning says that some images are the same and have no ids, or that items have parts that are not taken.

    Args:
        source: what the user named.
        given: as for `Items`; its items must be the same each time.
        classes: file of class names in the order of labels, where the items have none of their own.
    """
    items = Items(source, given)
    given = items.given
    n = len(given.items)
    with ThreadPoolExecutor(os.cpu_count() if given.is_threaded else 1) as threads, opening_bar(source, n, "images") as bar:
        seen: list[_SeenItem] = []
        for first in range(0, n, BATCH):
            seen += threads.map(partial(_inspect_item, items), range(first, min(first + BATCH, n)))
            bar(len(seen) - first)
    if ignored := sorted({name for one in seen for name in one.others}):
        warnings.warn(f"{source}: of its items {', '.join(ignored)} is not taken", BeyondClsWarning, stacklevel=2)
    if classes is not None and given.classes is not None:
        raise DataError(f"{source} names its classes itself; leave out --classes {str(classes)!r}")
    names = given.classes if classes is None else lines(classes)
    ids = _image_ids(source, seen)
    labels, names, multilabel = _class_numbers(source, seen, names)
    has_labels, file = any(label is not None for label in labels), Path(source)
    samples = []
    for row, (one, label) in enumerate(zip(seen, labels, strict=True)):
        problem = "is empty (0 bytes)" if not one.size else next((b.problem for b in one.boxes if b.problem), None)
        if label is None and has_labels:
            problem = problem or "has no label"
        boxes = tuple(box for box in one.boxes if not box.problem)
        if label is not None and len(label) == 1:
            boxes = tuple(box._replace(label=label[0]) if box.label < 0 else box for box in boxes)
        samples.append(Item(ids[row], label, file, 0, one.size, problem, boxes, one.digest, items, row))
    if not samples:
        raise DataError(f"{source} has no images; it has no items")
    if not any(one.has_map for one in seen):
        return ImageSet(source, samples, names, multilabel=multilabel)
    if names is None:
        raise DataError(f"{source} has label maps, but no names of classes; give them as `classes`, or in a file: --classes")
    if has_labels:
        raise DataError(f"{source} has label maps, which label their images, and other labels as well; leave these out")
    return segmented(source, samples, ItemMaps(names))


def _inspect_item(items: Items, row: int) -> _SeenItem:
    parts = items.parts(row)
    content = items.encoded(row, parts["image"])
    try:
        label, n_classes = _parse_label(parts["label"])
        boxes = _parse_boxes(parts["boxes"], label)
    except (ValueError, TypeError) as error:
        raise DataError(f"item {row} of {items.name} {error}") from error
    if boxes and isinstance(label, tuple):
        label = tuple(dict.fromkeys(label))
    named = None if parts["id"] is None else str(_to_python(parts["id"]))
    digest = xxhash.xxh3_128_digest(content)
    return _SeenItem(label, n_classes, named, boxes, len(content), digest, parts["segmentation"] is not None, parts["others"])


def _image_ids(source: str, seen: Sequence[_SeenItem]) -> list[str]:
    rows: dict[bytes, list[int]] = {}  # by digest, of items without an id
    ids, again = [], []
    for row, one in enumerate(seen):
        if one.id is not None:
            ids.append(one.id)
            continue
        same = rows.setdefault(one.digest, [])
        if same:
            again.append((row, same[0]))
        ids.append(one.digest.hex()[:ID_DIGITS] + (f"-{len(same)}" if same else ""))
        same.append(row)
    if again:
        warnings.warn(
            f"{source}: {len(again):,} of its {len(seen):,} images are the same as an earlier one, e.g. item {again[0][0]} as "
            f"item {again[0][1]}; their ids, which are made from their bytes, end in -1, -2, …; give items a field id to "
            "choose them yourself",
            BeyondClsWarning,
            stacklevel=3,
        )
    return ids


def _class_numbers(
    source: str, seen: Sequence[_SeenItem], names: Sequence[str] | None
) -> tuple[list[tuple[int, ...] | None], Sequence[str] | None, bool]:
    """Labels of all images as class numbers, names of classes, and whether an image may have several."""
    multilabel = any(isinstance(one.label, tuple) for one in seen)
    several = [one.label if isinstance(one.label, tuple) else () if one.label is None else (one.label,) for one in seen]
    if names is None and (n := max((one.n_classes or 0 for one in seen), default=0)):
        names = list(map(str, range(n)))
    labels = [label for of_image in several for label in of_image]
    if any(isinstance(label, str) for label in labels):
        texts = [[str(label) for label in of_image] for of_image in several]
        meaning = Labels.of(list(map(str, labels))) if names is None else Labels(names)
        try:
            several = [tuple(k for label in one if (k := meaning.number(label)) is not None) for one in texts]
        except ValueError as error:
            raise DataError(f"{source}: {error}") from error
        names = meaning.names
    return [one if one or multilabel else None for one in several], names, multilabel


def _to_python(value: Any) -> Any:
    """A number or text of Python, where NumPy or PyTorch has a single one of its own."""
    if isinstance(value, bytes):
        return value.decode()
    return value.item() if hasattr(value, "item") and not getattr(value, "shape", ()) else value


def _parse_label(label: Any) -> tuple[Any, int | None]:
    """A label as a number, a name, or a tuple of several; None for no label. With the number of classes of a 0/1 vector."""
    if hasattr(label, "shape") and label.shape:
        values = np.asarray(label.tolist())
        if values.size == 1:
            label = values.reshape(-1)[0]
        elif values.ndim == 1 and values.dtype.kind in "biuf" and np.isin(values, (0, 1)).all():
            return tuple(np.flatnonzero(values).tolist()), len(values)
        else:
            raise ValueError(
                f"has as label an array {list(values.shape)} of {values.dtype}, expected a class, or 0 or 1 for each"
            )
    if isinstance(label, list | tuple | set | frozenset):
        parts = [_one_label(one) for one in (sorted(label) if isinstance(label, set | frozenset) else label)]
        return tuple(part for part in parts if part is not None), None
    return _one_label(label), None


def _one_label(label: Any) -> int | str | None:
    value = _to_python(label)
    if isinstance(value, str):
        return value.strip() or None
    if value is None or value != value or value == -1:
        return None
    if not isinstance(value, int | float) or int(value) != value or value < 0:
        raise ValueError(
            f"has label {str(value)[:60]!r}, a {type(value).__name__}; expected a class number from 0, a name, or several in a "
            "list; None or -1 says that there is none"
        )
    return int(value)


def _parse_boxes(boxes: Any, label: Any) -> tuple[Box, ...]:
    """Boxes x0, y0, x1, y1 in pixels; each has a label of its own where there are as many labels."""
    if boxes is None:
        return ()
    corners = np.asarray(boxes.tolist() if hasattr(boxes, "tolist") else boxes, float).reshape(-1, 4)
    labels = label if isinstance(label, tuple) and len(label) == len(corners) else [-1] * len(corners)
    if any(isinstance(one, str) for one in labels):
        raise ValueError("has boxes whose labels are names; give class numbers, and names as `classes`")
    sides = [tuple(map(float, four)) for four in corners]
    return tuple(Box(x0, y0, x1, y1, int(one)) for (x0, y0, x1, y1), one in zip(sides, labels, strict=True))


class ItemMaps(LabelMaps):
    """Label maps of items: indices from 0 in order of `classes`, with 255 or -1 for void."""

    def __init__(self, classes: Sequence[str]):
        self._indices = Indices.counted(len(classes))
        super().__init__(classes, {}, self._indices)

    def labels(self, sample: Sample) -> Int16[np.ndarray, "h w"]:
        assert isinstance(sample, Item), sample
        assert sample.items is not None
        return labels_in(_to_image(sample.items.parts(sample.row)["segmentation"]), self._indices)


def _to_image(values: Any) -> Image.Image:
    if values is None:
        raise ValueError("is not there")
    if isinstance(values, Image.Image):
        return values
    if isinstance(values, dict | bytes | os.PathLike):
        return Image.open(io.BytesIO(encode_image(values)))
    indices = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values).squeeze()
    if indices.ndim != 2 or indices.dtype.kind not in "iu":
        raise ValueError(f"is an array {list(indices.shape)} of {indices.dtype}, expected [H, W] of whole numbers")
    return Image.fromarray(np.where(indices == VOID, VOID_INDEX, indices).astype(np.int32))
