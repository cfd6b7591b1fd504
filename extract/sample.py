"""Whether a feature set holds what the program computes now: a few images of every shard, computed again."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from extract.layouts import codec_of, is_annotation, is_patch_label, patch_labels_of
from extract.loop import Passes, Unit, Units, decoders
from extract.requests import Request
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


@dataclass(frozen=True)
class LargestDifference:
    """The value of an array that differs most, in units of what is allowed.

    Attributes:
        array: its name; or the name of the attribute that differs.
        ratio: of the difference to what is allowed; the two agree up to 1.
        at: index of the value in the image's row; empty where it is the mean over the row that differs most.
        stored, computed: the two values; of a mean those of absolute values, and `difference` is the mean absolute difference.
    """

    array: str
    ratio: float
    difference: float
    allowed: float
    image: str = ""
    at: tuple[int, ...] = ()
    stored: float | str = ""
    computed: float | str = ""

    def __str__(self) -> str:
        if not self.image:
            return f"{self.array}: it is {self.stored}, the program now gives {self.computed}"
        where = f"at {list(self.at)}" if self.at else "on average (absolute values)"
        return (
            f"{self.array}: image {self.image!r} has {self.stored:.7g} {where}, the program now gives {self.computed:.7g} "
            f"({self.difference:.2g} apart, {self.allowed:.2g} allowed)"
        )


@dataclass(frozen=True)
class SampleCheck:
    """What comparing a sample gave: of each array the `worst` difference, the largest ratio first. `tolerance`: share of a
    value's size by which it may differ.
    """

    n_sampled: int
    n_images: int
    tolerance: float
    worst: tuple[LargestDifference, ...]

    @property
    def agrees(self) -> bool:
        return all(difference.ratio <= 1 for difference in self.worst)

    @property
    def described(self) -> str:
        sample = f"a sample of {self.n_sampled:,} of its {self.n_images:,} images"
        if not self.worst:
            return f"{sample} has nothing to compare"
        if self.agrees:
            return f"{sample} agrees (at most {self.worst[0].ratio:.2g} of what is allowed, in {self.worst[0].array})"
        n = sum(difference.ratio > 1 for difference in self.worst)
        return f"{sample} differs in {n} of {len(self.worst)} arrays, most in {self.worst[0]}"

    def to_dict(self) -> dict[str, Any]:
        plain = lambda x: x if not isinstance(x, float) else float(f"{x:.6g}") if np.isfinite(x) else str(x)  # noqa: E731
        worst = [{name: plain(value) for name, value in asdict(difference).items()} for difference in self.worst]
        return {"n_sampled": self.n_sampled, "n_images": self.n_images, "tolerance": self.tolerance, "arrays": worst}


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
    describes images only labels of patches are compared, and not where features are copied from a set of other images.

    Args:
        request: what would be extracted.
        store: a set of the same encoder; arrays that either lacks are not compared, nor those without an image axis.
        base_rows: [n_images] the store's row of each image, -1 where it has none; by default they are the same.
    """
    rows = np.arange(len(store)) if base_rows is None else np.asarray(base_rows)
    layouts = request.layouts()
    described = {a.name for a in layouts if is_annotation(a.name) and not (base_rows is None and is_patch_label(a.name))}
    layouts = [a for a in layouts if a.name not in described]
    names = [a.name for a in layouts if a.name in store.arrays and same_values(a, store.arrays[a.name].layout)]
    computed_names = [name for name in names if not is_annotation(name)]
    tolerance = TOLERANCE[request.spec.compute_dtype]
    sampled = _rows_to_sample(request, store, rows)
    differences = list(_layout_differences(layouts, store)) if base_rows is None else []
    with decoders(workers, request.encoder.device) as threads:
        units = Units(Passes(request, batch_size, threads), layouts, "record")
        parts = [sampled[i : i + AT_ONCE] for i in range(0, len(sampled), AT_ONCE)]
        for unit, arrays, _ in units.compute(Unit(i, part.tolist(), computed_names) for i, part in enumerate(parts)):
            arrays |= patch_labels_of(request.images, request.encoder, unit.rows, layouts)
            ids = [request.images.samples.ids[row] for row in unit.rows]
            for name in (name for name in names if not name.endswith(SCALE)):
                array = store.arrays[name]
                codec = get_codec(array.layout.codec) if array.layout.codec is not None else None
                theirs, ours = array.rows(rows[list(unit.rows)]), _decode(name, arrays, codec)
                differences.append(_largest_difference(name, theirs, ours, codec, ids, tolerance))
    worst: dict[str, LargestDifference] = {}
    for difference in sorted(differences, key=lambda difference: -difference.ratio):
        worst.setdefault(difference.array, difference)
    return SampleCheck(len(sampled), len(store), tolerance, tuple(worst.values()))


def _rows_to_sample(request: Request, store: FeatureStore, rows: np.ndarray) -> np.ndarray:
    """Rows of images to compare, evenly from each of the store's shards; ascending."""
    valid = store.valid if "images/valid" in store.arrays else np.ones(len(store), bool)
    usable = np.flatnonzero((rows >= 0) & request.images.samples.is_sound & valid[rows])  # -1 is ruled out by the first
    shards = rows[usable] // store.shard_rows
    groups = [(usable, AT_LEAST), *((usable[shards == shard], PER_SHARD) for shard in np.unique(shards))]
    # As far from one another as from the ends.
    evenly = [rows[(((np.arange(n) + 0.5) / n) * len(rows)).astype(int)] for rows, n in groups if len(rows)]
    return np.unique(np.concatenate([usable[:0], *evenly]))


def _layout_differences(layouts: Sequence[ArrayLayout], store: FeatureStore) -> Iterator[LargestDifference]:
    """Arrays that would have another shape or dtype now, or not exist; except those that describe images."""
    expected = {layout.name: layout for layout in layouts}
    for name, array in store.arrays.items():
        if not array.layout.has_image_axis or (is_annotation(name) and name not in expected):
            continue
        ours = expected.get(name)
        if ours is None:
            yield LargestDifference(name, np.inf, np.inf, 0, stored="there", computed="no such array")
        elif not same_values(ours, array.layout):
            shapes = [f"{list(a.shape)} {a.codec or a.dtype}" for a in (array.layout, ours)]
            yield LargestDifference(name, np.inf, np.inf, 0, stored=shapes[0], computed=shapes[1])


def disagreement(
    request: Request, unit_ids: Sequence[str], theirs: Mapping[str, np.ndarray], ours: Mapping[str, np.ndarray]
) -> str | None:
    """How stored values of a unit (arrays that differ, and all of `ours`) differ from those that others have stored, if by more
    than a sample of a set may.
    """
    differences: list[LargestDifference] = []
    for name in sorted({name.removesuffix(SCALE) for name in theirs}):
        codec = None if kind_of(name) == "images" else codec_of(name, request.dtype)
        ends = ("", SCALE) if name + SCALE in ours else ("",)
        for start in range(0, len(unit_ids), AT_ONCE):
            part = slice(start, start + AT_ONCE)
            stored, computed = (
                _decode(name, {name + end: {**ours, **which}[name + end][part] for end in ends}, codec)
                for which in (theirs, {})
            )
            tolerance = TOLERANCE[request.spec.compute_dtype]
            differences.append(_largest_difference(name, stored, computed, codec, unit_ids[part], tolerance))
    worst = max(differences, key=lambda difference: difference.ratio, default=None)
    return None if worst is None or worst.ratio <= 1 else str(worst)


def _decode(name: str, stored: Mapping[str, np.ndarray], codec: Codec | None) -> np.ndarray:
    """Values of stored parts; as they are where no codec made them."""
    if codec is None:
        return stored[name]
    parts = {end: torch.from_numpy(stored[name + end]) for end in ("", SCALE) if name + end in stored}
    parts[""] = parts[""].view(torch.uint8).view(codec.stored)
    return codec.decode(parts).numpy()


def _largest_difference(
    name: str, theirs: np.ndarray, ours: np.ndarray, codec: Codec | None, ids: Sequence[str], tolerance: float
) -> LargestDifference:
    def worst(shape: Sequence[int], apart: np.ndarray, allowed: np.ndarray, *both: np.ndarray) -> LargestDifference:
        """The largest of `apart` [n images, values] in units of `allowed`, with `both` values there; `shape` of a row."""
        # 0 where values are equal, also where no difference is allowed.
        ratios = np.divide(apart, allowed, out=np.where(apart > 0, np.inf, 0.0), where=allowed > 0)
        ratios[np.isnan(ratios)] = np.inf
        image, value = divmod(int(ratios.argmax()), ratios.shape[1])
        index = tuple(int(i) for i in np.unravel_index(value, shape)) if shape else ()
        ratio, difference, limit, stored, computed = (float(v[image, value]) for v in (ratios, apart, allowed, *both))
        return LargestDifference(name, ratio, difference, limit, ids[image], index, stored, computed)

    stored, computed = (values.reshape(len(ids), -1).astype(np.float64) for values in (theirs, ours))
    apart = np.where(np.isnan(stored) & np.isnan(computed), 0, np.abs(stored - computed))
    step = np.zeros_like(apart)
    if theirs.dtype.kind != "f":
        tolerance = 0.0
    elif codec is not None:
        step = 2 * codec.bound(torch.from_numpy(theirs.astype(np.float32))).numpy().reshape(stored.shape)
    sizes = np.abs(stored), np.abs(computed)
    allowed = step + tolerance * np.maximum(*sizes).max(1, keepdims=True)
    means = [values.mean(1, keepdims=True) for values in (apart, *sizes)]
    allowed_mean = tolerance * means[1] + FLIPS * step.max(1, keepdims=True) / stored.shape[1]
    of_values = worst(theirs.shape[1:], apart, allowed, stored, computed)
    of_means = worst((), means[0], allowed_mean, *means[1:])
    return max(of_values, of_means, key=lambda difference: difference.ratio)
