"""Which arrays a set has: features of an encoder, and what a data set says about its images other than their pixels (ids,
digests, labels, boxes, and labels of patches); and how their values are stored. Annotations belong to the images as they are
now, features to bytes: annotations are never copied from another feature set.
"""

import math
from collections.abc import Container, Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from extract.datasets import ImageSet
from extract.datasets.label_maps import LabelMaps
from extract.datasets.truths import turn, turning_of
from extract.encoders import Encoded, Encoder
from store import ArrayLayout, BeyondClsError, FeatureStore
from store.codecs import SCALE, Codec, get_codec
from store.format.layout import DIGEST, ArrayName, kind_of
from store.truths.reading import VOID
from store.truths.view import patch_labels

DIMENSIONS = {
    "patch": ("image", "patch", "channel"),
    "cls": ("image", "channel"),
    "registers": ("image", "register", "channel"),
    "average": ("image", "channel"),
    "pooled": ("image", "channel"),
    "statistics": ("image", "block", "head"),  # or without the last
    "attention": ("image", "head", "patch"),
}

NARROW = ("float8_e4m3", "int8", "int4")  # codecs


def arrays_by_name(encoded: Encoded, view: int) -> dict[str, Tensor]:
    """Features of a view by the name of their array in the store."""
    arrays: dict[str, Tensor] = {}
    for kind in ("patch", "cls", "registers", "average"):
        arrays |= {str(ArrayName(kind, "", block, view)): values for block, values in getattr(encoded, kind).items()}
    if encoded.pooled is not None:
        arrays[str(ArrayName("pooled", view=view))] = encoded.pooled
    arrays |= {str(ArrayName("statistics", name, None, view)): values for name, values in encoded.statistics.items()}
    return arrays | {f"attention/{name}/view{view}": values for name, values in encoded.maps.items()}


def codec_of(name: str, dtype: str) -> Codec:
    """Codec of an array: `dtype` for patch tokens. Statistics stay float32, and maps have float16 at least.

    Averages, and what the encoder's own pooling gives, are float16 with float16 tokens and float32 with all others: on the
    quickstart, float16 averages change what nearest neighbours predict for 1 image in 2,000, bfloat16 ones for 1 in 150.

    [cls] and registers are float32 where patch tokens have fewer than 16 bits: few bytes, and some encoders have channels
    there that are a hundred times larger than the others, with which they share one scale.
    """
    kind = kind_of(name)
    if kind in ("average", "pooled"):
        return get_codec("float16" if dtype == "float16" else "float32")
    if kind == "statistics" or (kind in ("cls", "registers") and dtype in NARROW):
        return get_codec("float32")
    return get_codec(dtype if kind != "attention" or dtype == "float32" else "float16")


def stored_parts(
    features: Mapping[str, Tensor], names: Container[str], dtype: str
) -> Iterator[tuple[tuple[str, str | None], Tensor]]:
    """Arrays as they are stored, by name and suffix, made on the device of the features: it rounds, and fewer bytes are copied.

    Those of a feature follow its least and its largest value [2], of suffix None, for `check`: to ask here would be to wait for
    the device. `names`: arrays to store, suffixes included; one of the two of a codec with scales may be there already.
    """
    for name, values in features.items():
        if name in names or name + SCALE in names:
            if values.numel():
                yield (name, None), torch.stack(values.float().aminmax())
            for end, part in codec_of(name, dtype).encode(values.float()).items():
                if name + end in names:
                    yield (name, end), part.contiguous()


def check(extremes: np.ndarray, name: str, dtype: str, encoder: str) -> None:
    """Refuse values that cannot be stored, by the bytes of the least and the largest of them, which are NaN if any is.

    Never is a finite value turned into an infinite one.
    """
    low, high = extremes.view(np.float32).tolist()
    codec = codec_of(name, dtype)
    if -codec.largest <= low and high <= codec.largest:  # false if they are NaN
        return
    if not (math.isfinite(low) and math.isfinite(high)):
        raise BeyondClsError(f"{encoder} gives NaN or Inf in {name}; its weights or its input are broken")
    codec.check(torch.tensor([low, high]), name)


def as_array(part: np.ndarray, name: str, end: str, dtype: str) -> np.ndarray:
    """A stored part, of its bytes, in the dtype that Zarr knows."""
    return part.view(codec_of(name, dtype).parts((1, 2))[end][1])


NONE = -1  # no label; corners of padding boxes
ANNOTATIONS = ("images/id", DIGEST, "images/label", "images/labels", "images/boxes", "images/box_label")


def is_annotation(name: str) -> bool:
    """Whether an array is known without decoding an image."""
    return name in ANNOTATIONS or is_patch_label(name)


def annotation_layouts(images: ImageSet, shard_rows: int, id_width: int) -> list[ArrayLayout]:
    """Arrays for ids (of `id_width` bytes), digests and labels of `images`, and for their boxes if they have any."""
    n, n_boxes = len(images), images.n_boxes
    layouts = [
        ArrayLayout("images/id", (n, id_width), "uint8", ("image", "byte"), shard_rows),
        ArrayLayout(DIGEST, (n, 16), "uint8", ("image", "byte"), shard_rows),
    ]
    if images.multilabel:
        layouts.append(ArrayLayout("images/labels", (n, len(images.classes or ())), "uint8", ("image", "class"), shard_rows))
    else:
        layouts.append(ArrayLayout("images/label", (n,), "int64", ("image",), shard_rows))
    if n_boxes:
        layouts.append(ArrayLayout("images/boxes", (n, n_boxes, 4), "float32", ("image", "box", "corner"), shard_rows))
        layouts.append(ArrayLayout("images/box_label", (n, n_boxes), "int64", ("image", "box"), shard_rows))
    return layouts


def annotations_of(
    images: ImageSet, encoder: Encoder, rows: Sequence[int], layouts: Sequence[ArrayLayout]
) -> dict[str, np.ndarray]:
    """The annotations of some images, as they are stored. `encoder`: whose views show labels of patches; it does not run."""
    return _describe_samples(images, rows, layouts) | patch_labels_of(images, encoder, rows, layouts)


def _describe_samples(images: ImageSet, rows: Sequence[int], layouts: Sequence[ArrayLayout]) -> dict[str, np.ndarray]:
    arrays = {a.name: np.zeros((len(rows), *a.shape[1:]), a.dtype) for a in layouts if a.name in ANNOTATIONS}
    for i, row in enumerate(rows):
        sample = images.samples[row]
        id_bytes = np.frombuffer(sample.id.encode(), np.uint8)
        arrays["images/id"][i, : len(id_bytes)] = id_bytes
        if DIGEST in arrays:
            arrays[DIGEST][i] = images.image_digests[row]
        if "images/labels" in arrays:
            arrays["images/labels"][i, list(sample.labels or ())] = 1
        else:
            arrays["images/label"][i] = NONE if sample.label is None else sample.label
        if "images/boxes" in arrays:
            boxes = images.boxes(row)
            n = len(boxes)
            arrays["images/boxes"][i, n:] = arrays["images/box_label"][i, n:] = NONE
            if n:
                arrays["images/boxes"][i, :n] = [box[:4] for box in boxes]
                arrays["images/box_label"][i, :n] = [box.label for box in boxes]
    return arrays


def stale_annotations(store: FeatureStore, images: ImageSet) -> list[str]:
    """Names of a feature set's annotations that are not those of its images: another label under an id, for instance.

    Labels of patches are not read: the key vouches for the label maps that they come from.
    """
    if "images" not in store.kinds:
        return []
    stored = {name: store.arrays[name] for name in ANNOTATIONS if name in store.arrays}
    shapes = {(name, array.shape) for name, array in stored.items()}
    shapes ^= {(layout.name, layout.shape) for layout in annotation_layouts(images, store.shard_rows, 0)}
    if differing := {name for name, _ in shapes} - {"images/id", DIGEST}:
        return sorted(differing)
    if images.samples.ids.nbytes.max() > stored["images/id"].shape[1]:
        return ["images/id"]
    current = _describe_samples(images, range(len(images)), [array.layout for array in stored.values()])
    return [name for name, array in stored.items() if not np.array_equal(array.all(), current[name])]


def is_patch_label(name: str) -> bool:
    parts = ArrayName.parse(name)
    return parts.kind == "images" and parts.what == "patch_label"


def patch_labels_of(
    images: ImageSet, encoder: Encoder, rows: Sequence[int], layouts: Sequence[ArrayLayout]
) -> dict[str, np.ndarray]:
    """Labels of the patches of some images, by name; void where a map cannot be read, or an image is missing.

    Of an image that turns out to be cut when it is decoded they are those of its map; it is not valid, so nobody reads them.
    """
    views = {a.name: ArrayName.parse(a.name).view for a in layouts if is_patch_label(a.name)}
    if not views:
        return {}
    maps = images.truths["segmentation"]
    assert isinstance(maps, LabelMaps)
    height, width = encoder.config["input_size"][1:]
    arrays = {name: np.full((len(rows), encoder.grid[0] * encoder.grid[1]), VOID, np.int16) for name in views}
    for i, row in enumerate(rows):
        sample = images.samples[row]
        label_map = turn(maps.label_map(sample), turning_of(sample, images.pixels)[0])
        if sample.problem or not label_map.size:
            continue
        for name, view in views.items():
            crop = encoder.views.crop(label_map.shape[::-1], sample.id, view or 0)
            box = np.array(crop.box, np.float32)  # as the store has it
            arrays[name][i] = patch_labels(label_map, box, crop.flip, (height, width), encoder.grid)
    return arrays
