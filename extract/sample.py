"""Whether a feature set holds what the program computes now: a few images of every shard, computed again."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch

from extract.annotations import is_annotation
from extract.decoding import Unit, decoders
from extract.difference import Difference, SampleCheck
from extract.layouts import codec_of
from extract.patch_labels import is_patch_label, patch_labels_of
from extract.requests import Request
from extract.settings import Settings
from extract.units import Units
from store import FeatureStore
from store.codecs import SCALE, Codec, get_codec
from store.format.layout import ArrayLayout, kind_of
from store.writing.shard import same_values

PER_SHARD, AT_LEAST = 2, 32  # images of each shard; of the whole set, where it has few shards
AT_ONCE = 64  # images in memory
# By how much features may differ, as a share of their size, beyond the rounding of the codec: the effect of another machine,
# batch or version of torch on the same computation, by the dtype in which matrices are multiplied.
TOLERANCE = {"float32": 5e-5, "float16": 4e-3, "bfloat16": 3e-2}
FLIPS = 8  # values of an image that may be rounded to the next step of the codec without counting


def check_by_sample(
    request: Request,
    store: FeatureStore,
    base_rows: np.ndarray | None = None,
    *,
    batch_size: int = 128,
    workers: int | None = None,
) -> SampleCheck:
    """Compute a few images of every shard again, all the way from their bytes to stored values, and compare.

    Two float values agree if they are no further apart than twice the codec's bound and TOLERANCE times the largest value of
    the image in that array; and an image's row of an array if the mean absolute difference is within TOLERANCE of the mean
    absolute value. The mean shows differences far below the steps of a codec, which an element does not: rounding is
    unbiased. Integers (sizes of images) must be equal. Images that are not valid are not sampled. Of what
    describes images only labels of patches are compared, and not where features are taken over from a set of other images.

    Args:
        request: what would be extracted.
        store: a set of the same encoder; arrays that either lacks are not compared, nor those without an image axis.
        base_rows: [n_images] the store's row of each image, -1 where it has none; by default they are the same.
    """
    if base_rows is None:
        request = request.named_as(store)
    rows = np.arange(len(store)) if base_rows is None else np.asarray(base_rows)
    layouts = request.layouts()
    described = {a.name for a in layouts if is_annotation(a.name) and not (base_rows is None and is_patch_label(a.name))}
    layouts = [a for a in layouts if a.name not in described]
    names = [a.name for a in layouts if a.name in store.arrays and same_values(a, store.arrays[a.name].layout)]
    computed_names = [name for name in names if not is_annotation(name)]
    tolerance = TOLERANCE[request.spec.compute_dtype]
    sampled = _rows_to_sample(request, store, rows)
    worst: dict[str, Difference] = {}
    if base_rows is None:
        worst |= {difference.array: difference for difference in _misfits(layouts, store)}
    with decoders(workers, request.encoder.device) as threads:
        units = Units(request, layouts, Settings(batch_size, on_error="record"), threads)
        parts = [sampled[i : i + AT_ONCE] for i in range(0, len(sampled), AT_ONCE)]
        for unit, arrays, _ in units.compute(Unit(i, part.tolist(), computed_names) for i, part in enumerate(parts)):
            arrays |= patch_labels_of(request.images, request.encoder, unit.rows, layouts)
            ids = [request.images.samples[row].id for row in unit.rows]
            for name in (name for name in names if not name.endswith(SCALE)):
                difference = _compare(store, name, rows[list(unit.rows)], arrays, ids, tolerance)
                if name not in worst or difference.ratio > worst[name].ratio:
                    worst[name] = difference
    ordered = sorted(worst.values(), key=lambda difference: -difference.ratio)
    return SampleCheck(len(sampled), len(store), tolerance, tuple(ordered))


def _rows_to_sample(request: Request, store: FeatureStore, rows: np.ndarray) -> np.ndarray:
    """Rows of images to compare, evenly from each of the store's shards; ascending."""
    valid = store.valid if "images/valid" in store.arrays else np.ones(len(store), bool)
    sound = np.array([not sample.problem for sample in request.images.samples])
    usable = np.flatnonzero((rows >= 0) & sound & valid[rows])  # a row of -1 is ruled out by the first
    shards = rows[usable] // store.shard_rows
    chosen: list[np.ndarray] = [_evenly(usable, AT_LEAST)]
    chosen += [_evenly(usable[shards == shard], PER_SHARD) for shard in np.unique(shards)]
    return np.unique(np.concatenate(chosen))


def _evenly(rows: np.ndarray, n: int) -> np.ndarray:
    """At most `n` of the rows, as far from one another as from the ends."""
    return rows[np.unique(((np.arange(n) + 0.5) / n * len(rows)).astype(int))] if len(rows) else rows


def _misfits(layouts: Sequence[ArrayLayout], store: FeatureStore) -> Iterator[Difference]:
    """Arrays of another shape or dtype than they would have now, or that would not be there; but for those on images."""
    expected = {layout.name: layout for layout in layouts}
    for name, array in store.arrays.items():
        if not array.layout.has_image_axis or (is_annotation(name) and name not in expected):
            continue
        ours = expected.get(name)
        if ours is None:
            yield Difference(name, np.inf, np.inf, 0, stored="there", computed="no such array")
        elif not same_values(ours, array.layout):
            shapes = [f"{list(a.shape)} {a.codec or a.dtype}" for a in (array.layout, ours)]
            yield Difference(name, np.inf, np.inf, 0, stored=shapes[0], computed=shapes[1])


def disagreement(
    request: Request, unit_ids: Sequence[str], theirs: Mapping[str, np.ndarray], ours: Mapping[str, np.ndarray]
) -> str | None:
    """How stored values of a unit differ from those that others have stored, if by more than a sample of a set may.

    Args:
        unit_ids: of its images.
        theirs: [n images, ...] arrays that differ, by name.
        ours: these and others.
    """
    worst: Difference | None = None
    for name in sorted({name.removesuffix(SCALE) for name in theirs}):
        codec = None if kind_of(name) == "images" else codec_of(name, request.dtype)
        ends = ("", SCALE) if name + SCALE in ours else ("",)
        for start in range(0, len(unit_ids), AT_ONCE):
            part = slice(start, start + AT_ONCE)
            ids = unit_ids[part]
            values = [
                _decoded(name, {name + end: {**ours, **which}[name + end][part] for end in ends}, codec)
                for which in (theirs, {})
            ]
            difference = _difference(name, values[0], values[1], codec, ids, TOLERANCE[request.spec.compute_dtype])
            worst = difference if worst is None or difference.ratio > worst.ratio else worst
    return None if worst is None or worst.ratio <= 1 else str(worst)


def _decoded(name: str, stored: Mapping[str, np.ndarray], codec: Codec | None) -> np.ndarray:
    """Values of stored parts; as they are where no codec made them."""
    if codec is None:
        return stored[name]
    parts = {end: torch.from_numpy(stored[name + end]) for end in ("", SCALE) if name + end in stored}
    parts[""] = parts[""].view(torch.uint8).view(codec.stored)
    return codec.decode(parts).numpy()


def _compare(
    store: FeatureStore, name: str, rows: np.ndarray, computed: dict[str, np.ndarray], ids: Sequence[str], tolerance: float
) -> Difference:
    """The largest difference of some images in one array."""
    array = store.arrays[name]
    codec = get_codec(array.layout.codec) if array.layout.codec is not None else None
    return _difference(name, array.rows(rows), _decoded(name, computed, codec), codec, ids, tolerance)


def _difference(
    name: str, theirs: np.ndarray, ours: np.ndarray, codec: Codec | None, ids: Sequence[str], tolerance: float
) -> Difference:
    """The largest difference of some images between two forms of one array."""
    stored, recomputed = (values.reshape(len(ids), -1).astype(np.float64) for values in (theirs, ours))
    apart = np.where(np.isnan(stored) & np.isnan(recomputed), 0, np.abs(stored - recomputed))
    if theirs.dtype.kind != "f":
        ratios = np.where(apart > 0, np.inf, 0.0)
        return _worst(name, ratios, apart, np.zeros_like(apart), stored, recomputed, ids, theirs.shape[1:])
    step = np.zeros_like(apart)
    if codec is not None:
        step = 2 * codec.bound(torch.from_numpy(theirs.astype(np.float32))).numpy().reshape(stored.shape)
    size = np.abs(stored)
    allowed = step + tolerance * np.maximum(size, np.abs(recomputed)).max(1, keepdims=True)
    value_difference = _worst(name, _ratios(apart, allowed), apart, allowed, stored, recomputed, ids, theirs.shape[1:])
    means = [values.mean(1, keepdims=True) for values in (apart, size, np.abs(recomputed))]
    mean_allowed = tolerance * means[1] + FLIPS * step.max(1, keepdims=True) / stored.shape[1]
    mean_difference = _worst(name, _ratios(means[0], mean_allowed), means[0], mean_allowed, means[1], means[2], ids, ())
    return max(value_difference, mean_difference, key=lambda difference: difference.ratio)


def _ratios(apart: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """0 where values are equal, also where no difference is allowed."""
    return np.divide(apart, allowed, out=np.where(apart > 0, np.inf, 0.0), where=allowed > 0)


def _worst(
    name: str,
    ratios: np.ndarray,
    apart: np.ndarray,
    allowed: np.ndarray,
    stored: np.ndarray,
    recomputed: np.ndarray,
    ids: Sequence[str],
    shape: Sequence[int],
) -> Difference:
    """The largest of `ratios` [n images, values]; `shape` of a row, for the index."""
    image, value = divmod(int(np.nan_to_num(ratios, nan=np.inf).argmax()), ratios.shape[1])
    index = tuple(int(i) for i in np.unravel_index(value, shape)) if shape else ()
    arrays = (ratios, apart, allowed, stored, recomputed)
    ratio, difference, limit, stored_value, computed_value = (float(values[image, value]) for values in arrays)
    return Difference(name, ratio, difference, limit, ids[image], index, stored_value, computed_value)
