"""Label maps and instances in a feature set: as they were given, image by image, as views show them, and nothing wrong."""

import shutil
from collections.abc import Callable
from fractions import Fraction
from math import floor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of
from torch.utils.data import DataLoader, Dataset

from store import FeatureStore, FeatureWriter, StoreError, verify
from store.exchange import EXCHANGES
from store.exchange.exchange import WRITTEN
from store.format import layout
from store.moving.receipt import Receipt
from store.moving.transfer import upload
from store.truths import Instance, rle
from store.truths.reading import Segmentation, TruthColumns
from store.truths.view import boxes_in_view, map_in_view, masks_in_view, patch_labels
from store.writing.shard import salvage
from tests.features import write_features
from tests.folders import files
from tests.forked import CONTEXT
from tests.store.conftest import flip
from tests.store.exported import export, import_as
from tests.truths import instances_of, with_truths

N = 5
CLASSES = ("sky", "road", "car")
COUNTS = "images/instances/counts"
GENERATOR = np.random.default_rng(0)
MAPS = [GENERATOR.integers(-1, 3, (3 + row, 7)).astype(np.int16) for row in range(N - 1)] + [np.full((4, 2), -1, np.int16)]
MASKS = [np.ones((0, 3, 7), bool), *(GENERATOR.random((row, *MAPS[row].shape)) < 0.6 for row in range(1, N))]
MASKS[2][:, 0, 0] = True
LABELS = [[2 - i % 3 for i in range(len(masks))] for masks in MASKS]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> FeatureStore:
    folder = tmp_path_factory.mktemp("truths")
    plain = write_features(folder / "plain", n=N)
    given = [instances_of(masks, labels, [i == 1 for i in labels]) for masks, labels in zip(MASKS, LABELS, strict=True)]
    return with_truths(plain, folder / "set", maps=MAPS, map_classes=CLASSES, instances=given, instance_classes=CLASSES[::-1])


def test_label_maps(store: FeatureStore) -> None:
    truths = store.segmentation
    assert (truths.classes, len(truths)) == (CLASSES, N)
    for row in (3, 0, 4, 1, 2):
        np.testing.assert_array_equal(truths.label_map(row), MAPS[row])
        assert truths.label_map(row).dtype == np.int16
        assert truths.present(row) == [label for label in range(3) if (MAPS[row] == label).any()]
    assert truths.patch_labels().shape == (N, np.prod(store.grid))
    assert (truths.patch_labels()[4] == -1).all()


def test_instances(store: FeatureStore) -> None:
    truths = store.instances
    assert (truths.classes, len(truths), truths.has_masks) == (CLASSES[::-1], N, True)
    for row in range(N):
        image = truths.of(row)
        assert (image.labels.tolist(), image.size, len(image)) == (LABELS[row], MAPS[row].shape, len(LABELS[row]))
        assert image.crowds.tolist() == [label == 1 for label in LABELS[row]]
        assert image.areas.tolist() == MASKS[row].sum((1, 2)).tolist()
        np.testing.assert_array_equal(image.masks(), MASKS[row])
        assert image.boxes.shape == (len(image), 4)
    assert truths.of(1).boxes.dtype == np.float32


def test_boxes_alone(tmp_path: Path) -> None:
    boxes = [[Instance(0, (1, 2, 3, 4.5), 6.0, True)], [], [Instance(1, (0, 0, 1, 1), 1.0)]]
    plain = write_features(tmp_path / "plain", n=3)
    stored = with_truths(plain, tmp_path / "set", instances=boxes, instance_classes=("a", "b"), sizes=[(9, 9)] * 3)
    image = stored.instances.of(0)
    assert (image.boxes.tolist(), image.counts, image.size) == ([[1, 2, 3, 4.5]], None, (9, 9))
    assert len(stored.instances.of(1)) == 0
    with pytest.raises(StoreError, match="have boxes, and no masks"):
        image.masks()
    stored = with_truths(plain, tmp_path / "none", instances=[[], [], []])
    assert [len(stored.instances.of(row)) for row in range(3)] == [0, 0, 0]


def test_a_set_without_truths_says_how_to_add_them(tmp_path: Path, store: FeatureStore) -> None:
    plain = write_features(tmp_path / "plain", n=3)
    for name in ("segmentation", "instances"):
        with pytest.raises(StoreError, match=rf"has no {name} \(it has no truths .* --extend --truths {name} with"):
            getattr(plain, name)
    assert "truths" not in plain.spec.to_dict()
    assert store.spec.encoder_key == plain.spec.encoder_key


def test_a_row_that_is_not_there(store: FeatureStore) -> None:
    for row in (-1, N):
        with pytest.raises(StoreError, match=f"row {row} asked for, it has rows 0 to {N - 1}"):
            store.segmentation.label_map(row)


def test_grid(store: FeatureStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    side = round(store.tokens("patch").shape[1] ** 0.5)
    assert store.grid == (side, side)
    monkeypatch.setitem(store.attributes, "grid", [1, side * side])  # type: ignore[arg-type]
    monkeypatch.delitem(store.__dict__, "grid")
    assert store.grid == (1, side * side)
    monkeypatch.delitem(store.__dict__, "grid")
    odd = write_features(tmp_path / "odd", n=3, n_tokens=6)
    with pytest.raises(StoreError, match="has 6 patches, which are no square"):
        _ = odd.grid


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("first", lambda values: values[[0, 2, 1, 3, 4, 5]], "first does not ascend from 0"),
        ("first", lambda values: np.concatenate([[1], values[1:]]), "first does not ascend from 0"),
        ("label", lambda values: values + 1, "labels 1 to 3 for 3 classes"),
        ("label", lambda values: values - 1, "labels -1 to 1 for 3 classes"),
        ("label", lambda values: values[:-1], r"label is \[\d+\] int32, expected"),
        ("label", None, r"label is missing, expected \[\d+\] int32; extract the truths again"),
        ("counts", lambda values: values[:-1], r"start ends at \d+, expected the \d+ bytes of counts"),
        ("start", lambda values: values.astype(np.int32), "start is .* int32, expected .* int64"),
    ],
)
def test_columns_that_do_not_fit(store: FeatureStore, name: str, wrong: Any, message: str) -> None:
    arrays: dict[str, Any] = {**store.arrays}
    array = arrays.pop(f"images/segmentation/{name}")
    if wrong is not None:
        values = wrong(array.all())
        arrays[array.name] = SimpleNamespace(shape=values.shape, dtype=values.dtype, all=lambda: values)
    with pytest.raises(StoreError, match=message):
        Segmentation("one", arrays, CLASSES, store.array)


def test_the_digest_is_of_all_that_they_are() -> None:
    """Classes, names, dtypes, shapes and values; not of the order in which arrays are given."""
    label, box = np.array([1, 2], np.int32), np.zeros((2, 4), np.float32)
    columns = TruthColumns("instances", {"label": label, "box": box})
    others = [
        {"label": label + 1, "box": box},
        {"label": label.view(np.float32), "box": box},
        {"label": label, "box": box.reshape(4, 2)},
        {"labels": label, "box": box},
    ]
    digests = [TruthColumns("instances", arrays).digest(["a"]) for arrays in others]
    digests += [columns.digest(["a"]), columns.digest(["b"]), TruthColumns("segmentation", columns.arrays).digest(["a"])]
    assert len(set(digests)) == len(digests) == 7
    assert TruthColumns("instances", {"box": box, "label": label}).digest(["a"]) == columns.digest(["a"])


def with_counts(folder: Path, counts: list[bytes]) -> FeatureStore:
    """A set of images with an instance of these run lengths each."""
    given = [[Instance(0, (0, 0, 1, 1), 1, False, one)] for one in counts]
    plain = write_features(folder / "plain", n=len(counts))
    return with_truths(plain, folder / "set", instances=given, instance_classes=("a",))


def test_damage_of_one_image_is_seen_when_it_is_read(store: FeatureStore, tmp_path: Path) -> None:
    """Run lengths of 3 x 64 KiB: those of one image are read and compared alone."""
    counts = [GENERATOR.integers(48, 60, 50_000, np.uint8).tobytes() for _ in range(N)]
    stored = with_counts(tmp_path, counts)
    array = stored.arrays[COUNTS]
    assert (array.layout.checked_rows, array.layout.n_shards, array.layout.chunk_rows) == (1 << 16, 1, 1 << 16)
    flip(stored.path / array.layout.file(0), len(counts[0]) * N - 1, bit=6)
    again = FeatureStore.open(stored.path)
    assert again.instances.of(0).counts == (counts[0],)
    with pytest.raises(StoreError, match="counts/c/0 is damaged"):
        again.instances.of(N - 1)
    assert [problem[0] for problem in verify(stored.path) if problem[2]] == [COUNTS]


def coded(numbers: list[int]) -> bytes:
    content = b""
    for i, number in enumerate(numbers):
        rest, is_last = number - numbers[i - 2] if i > 2 else number, False
        while not is_last:
            bits, rest = rest & 31, rest >> 5
            is_last = rest == (-1 if bits & 16 else 0)
            content += bytes([48 + bits + 32 * (not is_last)])
    return content


class TestRunLengths:
    @given(arrays_of.arrays(bool, st.tuples(st.integers(1, 2), st.integers(1, 8), st.integers(1, 6))))
    def test_round_trip(self, masks: np.ndarray) -> None:
        """As faster-coco-eval writes and pycocotools reads."""
        from pycocotools import mask as published

        size = masks.shape[1:]
        for mask, counts in zip(masks, rle.encode(masks), strict=True):
            np.testing.assert_array_equal(rle.decode(counts, size), mask)
            np.testing.assert_array_equal(published.decode({"size": list(size), "counts": counts}), mask)
            drawn = np.full(size[::-1], -1, np.int16)
            rle.draw(counts, 5, drawn)
            np.testing.assert_array_equal(drawn.T, np.where(mask, 5, -1))
            assert rle.area(counts, size) == mask.sum()

    @given(arrays_of.arrays(np.int16, st.tuples(st.integers(0, 8), st.integers(1, 6)), elements=st.integers(-1, 3)))
    def test_labels_are_encoded_as_their_masks(self, label_map: np.ndarray) -> None:
        labels = np.unique(label_map[label_map >= 0])
        masks = rle.encode(label_map == labels[:, None, None])
        assert rle.encode_labels(label_map) == list(zip(labels.tolist(), masks, strict=True))

    def test_long_runs(self) -> None:
        mask = np.zeros((1, 600, 200), bool)
        mask[0, 599, 199] = mask[0, 5, 100] = True
        np.testing.assert_array_equal(rle.decode(rle.encode(mask)[0], (600, 200)), mask[0])

    @given(st.binary(max_size=30), st.integers(1, 9), st.integers(1, 9))
    def test_any_bytes_are_refused_or_a_mask_of_the_size(self, counts: bytes, height: int, width: int) -> None:
        message = "of the size"
        try:
            assert rle.decode(counts, (height, width)).shape == (height, width)
        except StoreError as error:
            message = str(error)
        assert message == "of the size" or f"not run lengths of a mask of {height} x {width}" in message

    @pytest.mark.parametrize("numbers", [[12, -4, 12], [-1, 21], [20, *[2**58] * 64]])
    def test_runs_that_only_add_up(self, numbers: list[int]) -> None:
        """Negative ones, and ones so long that 64 bits hold another sum."""
        with pytest.raises(StoreError, match=f"of 20 pixels, .* in runs of {min(numbers)} to {max(numbers)}"):
            rle.runs(coded(numbers), (4, 5))

    def test_bytes_that_none_writes(self) -> None:
        """Numbers that are longer than they have to be, up to 60 bits; characters beyond six bits; of another size."""
        (counts,) = rle.encode(np.ones((1, 4, 5), bool))
        assert rle.runs(b"P" * 11 + counts, (4, 5)).tolist() == [0, 20]
        with pytest.raises(StoreError, match="a number of 13 bytes"):
            rle.runs(b"P" * 12 + counts, (4, 5))
        with pytest.raises(StoreError, match="characters that none has"):
            rle.runs(bytes([counts[0] + 64]) + counts[1:], (4, 5))
        with pytest.raises(StoreError, match="they are of 20 pixels, expected 30"):
            rle.decode(counts, (6, 5))


class Images(Dataset[Any]):
    def __init__(self, store: FeatureStore):
        self.segmentation, self.instances = store.segmentation, store.instances

    def __len__(self) -> int:
        return N

    def __getitem__(self, row: int) -> tuple[np.ndarray, ...]:
        objects = self.instances.of(row)
        return self.segmentation.label_map(row), objects.boxes, objects.labels, objects.masks()


def test_workers_of_a_data_loader(store: FeatureStore) -> None:
    """They are sent what they read, and open files themselves."""
    images = Images(FeatureStore.open(store.path))
    images[0]  # files are open in this process when the others begin
    loader = DataLoader(images, None, num_workers=1, multiprocessing_context=CONTEXT)
    for row, read in enumerate(loader):
        for ours, theirs in zip(images[row], read, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        np.testing.assert_array_equal(read[0], MAPS[row])
    assert row == N - 1


class TestAsPartOfTheSet:
    def test_in_several_shards(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Two chunks a shard: 150,000 bytes are two shards; the second can be fetched and exchanged."""
        monkeypatch.setattr(layout, "SHARD_CHUNKS", 2)
        counts = GENERATOR.integers(48, 60, (3, 50_000), np.uint8)
        stored = with_counts(tmp_path, [one.tobytes() for one in counts])
        assert stored.arrays[COUNTS].layout.n_shards == 2
        for form in EXCHANGES:
            import_as(form, export(stored, form, tmp_path / form), tmp_path / form / "again")
            assert files(tmp_path / form / "again") == files(stored.path)
        flip(tmp_path / "npy/exported" / f"{COUNTS}.npy", -1)
        with pytest.raises(StoreError, match=rf"rows 131072 to 149999 of {COUNTS} are not those that were exported"):
            import_as("npy", tmp_path / "npy/exported", tmp_path / "changed")
        upload(stored, "memory://truths/set")
        assert FeatureStore.open("memory://truths/set").instances.of(2).counts == (counts[2].tobytes(),)
        assert Receipt.from_store(stored).arrays[COUNTS].shape == (150_000,)

    @pytest.mark.parametrize("lost", [f"{COUNTS}/zarr.json", f"{COUNTS}/c/0"])
    def test_repair(self, lost: str, store: FeatureStore, tmp_path: Path) -> None:
        shutil.copytree(store.path, tmp_path / "set")
        (tmp_path / "set" / lost).unlink()
        constants = {name: array.all() for name, array in store.arrays.items() if not array.layout.has_image_axis}
        layouts = [array.layout for array in store.arrays.values() if array.layout.has_image_axis]
        base, _, skip = salvage(tmp_path / "set", store.spec, lambda _: layouts)
        with FeatureWriter(tmp_path / "set", store.spec, layouts, constants, base, None, skip, replaces=True) as writer:
            for unit in writer.missing_units():
                writer.write_unit(unit, {a.name: store.arrays[a.name].stored(np.arange(*a.rows(unit))) for a in layouts})
            writer.finish({k: v for k, v in store.attributes.items() if k not in WRITTEN})
        assert files(tmp_path / "set") == files(store.path)


# -- what views show, compared with drawing pixel by pixel with fractions ----------------------------------------------------

DRAWN_MAPS = arrays_of.arrays(np.int16, st.tuples(st.integers(0, 9), st.integers(0, 9)), elements=st.integers(-1, 3))
SIZES = st.tuples(st.integers(1, 12), st.integers(1, 12))
CORNERS = st.floats(-6, 9, width=32)
LENGTHS = st.floats(0.25, 15, width=32)


@st.composite
def crops(draw: Callable[..., float]) -> np.ndarray:
    """Boxes that may reach beyond the image, as a store has them."""
    x, y = draw(CORNERS), draw(CORNERS)
    return np.array([x, y, x + draw(LENGTHS), y + draw(LENGTHS)], np.float32)


def drawn(label_map: np.ndarray, crop: np.ndarray, flip: bool, size: tuple[int, int]) -> np.ndarray:
    """Each pixel of the view is the pixel of the image at its centre."""
    x0, y0, x1, y1 = (Fraction(float(corner)) for corner in crop)
    out = np.full(size, -1, np.int16)
    for i in range(size[0]):
        for j in range(size[1]):
            across = size[1] - 1 - j if flip else j
            row = floor(y0 + (i + Fraction(1, 2)) * (y1 - y0) / size[0])
            column = floor(x0 + (across + Fraction(1, 2)) * (x1 - x0) / size[1])
            if 0 <= row < label_map.shape[0] and 0 <= column < label_map.shape[1]:
                out[i, j] = label_map[row, column]
    return out


@settings(max_examples=80)
@given(DRAWN_MAPS, crops(), st.booleans(), SIZES)
def test_maps_and_masks(label_map: np.ndarray, crop: np.ndarray, flip: bool, size: tuple[int, int]) -> None:
    expected = drawn(label_map, crop, flip, size)
    shown = map_in_view(label_map, crop, flip, size)
    assert shown.dtype == np.int16
    np.testing.assert_array_equal(shown, expected)
    masks = np.stack([label_map == label for label in range(3)])
    np.testing.assert_array_equal(masks_in_view(masks, crop, flip, size), expected == np.arange(3)[:, None, None])


@settings(max_examples=60)
@given(DRAWN_MAPS, crops(), st.booleans(), st.tuples(st.integers(1, 3), st.integers(1, 3)), st.integers(1, 4))
def test_labels_of_patches(label_map: np.ndarray, crop: np.ndarray, flip: bool, grid: tuple[int, int], pixels: int) -> None:
    """The most frequent of a patch's pixels; the lowest of those that tie, and void last."""
    size = (grid[0] * pixels, grid[1] * pixels)
    expected, view = [], drawn(label_map, crop, flip, size)
    for row in range(grid[0]):
        for column in range(grid[1]):
            patch = view[row * pixels : (row + 1) * pixels, column * pixels : (column + 1) * pixels]
            expected.append(max((0, 1, 2, 3, -1), key=lambda label: (patch == label).sum()))
    assert patch_labels(label_map, crop, flip, size, grid).tolist() == expected


def test_a_centre_between_two_pixels_is_of_the_latter() -> None:
    """Exactly, where the seventh tenth of 90 would be rounded to less than 63."""
    label_map = np.arange(90, dtype=np.int16)[None]
    assert map_in_view(label_map, (0, 0, 90, 1), False, (1, 5)).tolist() == [[9, 27, 45, 63, 81]]


def test_an_image_wider_than_16_bits() -> None:
    label_map = np.zeros((1, 40_000), np.int16)
    label_map[0, -1] = 1
    assert map_in_view(label_map, (39_998, 0, 40_000, 1), False, (1, 2)).tolist() == [[0, 1]]


@pytest.mark.parametrize("flip", [False, True])
def test_boxes_go_where_their_masks_go(flip: bool) -> None:
    mask = np.zeros((1, 10, 20), bool)
    mask[0, 2:6, 4:8] = True
    crop, size = (2, 1, 18, 9), (16, 32)  # twice as large
    (box,) = boxes_in_view(np.array([[4, 2, 8, 6]], np.float32), crop, flip, size)
    shown = masks_in_view(mask, crop, flip, size)[0]
    rows, columns = np.flatnonzero(shown.any(1)), np.flatnonzero(shown.any(0))
    assert box.tolist() == [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]
    beyond = boxes_in_view(np.array([[0, 0, 20, 10]], np.float32), crop, flip, size)
    assert beyond.tolist() == [[-4, -2, 36, 18]], "not cut"
