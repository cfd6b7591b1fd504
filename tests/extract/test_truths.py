"""Truths from the data set into the store: through every view, added without the encoder, by whoever computes them."""

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from extract.datasets import DataError, ImageSet, open_images
from extract.encoders import load_encoder
from extract.layouts import patch_labels_of
from extract.plan import total_nbytes
from extract.requests import Request
from extract.transform import Views
from store import BeyondClsError, StoreError, verify
from store.truths import map_in_view
from tests.extract.extracting import extract
from tests.extract.pictures import picture, write_file, write_text
from tests.extract.tiny import TINY, Counting, tiny_encoder
from tests.folders import files

N = 40
CLASSES = ("sky", "road", "car")
GIVEN: dict[str, Any] = {"shard_rows": 32, "batch_size": 8, "workers": 2, "statistics": (), "maps": False}
MAPS = [np.random.default_rng(row).integers(0, 4, (40, 36)).astype(np.int16) for row in range(N)]


def write_maps(folder: Path, maps: list[np.ndarray]) -> None:
    """Label maps, 3 being void."""
    for row, label_map in enumerate(maps):
        path = folder / f"labels/train/{row:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.where(label_map == 3, 255, label_map).astype(np.uint8)).save(path)


def write_images(folder: Path) -> Path:
    write_text(folder / "label-classes.txt", *CLASSES)
    for row in range(N):
        write_file(folder / f"images/train/{row:02d}.png", picture(row))
    write_maps(folder, MAPS)
    return folder


def opened(folder: Path) -> ImageSet:
    return open_images(str(folder), split="train")


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return opened(write_images(tmp_path_factory.mktemp("maps")))


class Broken(Counting):
    def __call__(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("the encoder was run")


def tiny(kind: type[Counting] = Counting) -> Counting:
    return kind("tiny", tiny_encoder().model, {})


@pytest.fixture(scope="module")
def whole(images, tmp_path_factory):
    made = {}

    def whole(**options):
        if (key := repr(options)) not in made:
            made[key] = extract(tiny(), images, tmp_path_factory.mktemp("whole") / "f", **GIVEN, **options)
        return made[key]

    return whole


def test_maps_and_classes(whole, images):
    store = whole()
    assert ([*store.spec.truths], store.segmentation.classes) == (["segmentation"], CLASSES)
    for row in (0, 7, N - 1):
        np.testing.assert_array_equal(store.segmentation.label_map(row), np.where(MAPS[row] == 3, -1, MAPS[row]))
    assert (store.multilabel, store.attributes["classes"]) == (True, list(CLASSES))
    assert not any("box" in name for name in store.arrays)
    assert store.labels[3].tolist() == [int((MAPS[3] == label).any()) for label in range(3)]
    assert [problem for *_, problem in verify(store.path) if problem] == []


@pytest.mark.parametrize(("views", "grid"), [(3, (4, 4)), (1, (4, 6))])
def test_labels_of_patches_are_what_each_view_shows(views, grid, whole, images, tmp_path):
    """Of patches of 8 x 8 pixels, also where the input is no square, which alone records a grid."""
    high, wide = grid
    if high == wide:
        store = whole(views=views)
        assert "grid" not in store.attributes, "so that sets have the bytes that they had"
    else:
        encoder = load_encoder("tiny", model="vit_tiny_patch16_224", arguments=TINY, random_seed=0, input_size="32x48")
        store = extract(encoder, images, tmp_path / "f", **{**GIVEN, "maps": True})
        assert (encoder.layout.grid, store.attributes["grid"], store.tokens("patch").shape[1]) == (grid, [*grid], 24)
        assert store.spec.transform["input_size"] == [3, 32, 48]
        assert store.attention("centre").shape == (N, 2, 24)
    assert store.grid == grid
    for view in range(views):
        crops, flips = store.array(f"images/crop/view{view}").all(), np.zeros(N, bool)
        if view:
            flips = store.array(f"images/flip/view{view}").all()
            assert 0 < flips.sum() < N
        for row in (0, 5, 33):
            shown = map_in_view(store.segmentation.label_map(row), crops[row], bool(flips[row]), (8 * high, 8 * wide))
            patches = shown.reshape(high, 8, wide, 8).swapaxes(1, 2).reshape(-1, 64)
            expected = [max((0, 1, 2, -1), key=lambda label: (patch == label).sum()) for patch in patches]
            assert store.segmentation.patch_labels(view)[row].tolist() == expected


@pytest.mark.parametrize("verb", ["extend", "update"])
def test_added_without_the_encoder(verb, images, whole, tmp_path):
    plain = extract(tiny(), images, tmp_path / "f", **GIVEN, truths="none")
    assert not [name for name in plain.arrays if "segmentation" in name or "patch_label" in name]
    store = extract(tiny(Broken), images, tmp_path / "f", **GIVEN, existing=verb, truths="segmentation")
    assert (store.spec.key, files(store.path)) == (whole().spec.key, files(whole().path)), "as if extracted at once"


def test_taken_out_without_the_encoder(images, whole, tmp_path):
    plain = extract(tiny(), images, tmp_path / "plain", **GIVEN, truths="none")
    store = extract(tiny(Broken), images, tmp_path / "out", **GIVEN, source=whole(), truths="none")
    assert files(store.path) == files(plain.path)


def test_maps_that_have_changed(whole, tmp_path):
    """Same classes in each image: only the maps are others, and so are the key and the labels of patches."""
    write_images(tmp_path / "d")
    store = extract(tiny(), opened(tmp_path / "d"), tmp_path / "f", **GIVEN)
    assert store.spec.key == whole().spec.key
    write_maps(tmp_path / "d", [label_map[::-1] for label_map in MAPS])
    changed = opened(tmp_path / "d")
    with pytest.raises(StoreError, match=r"\(truths differ\).*--extend"):
        extract(tiny(), changed, tmp_path / "f", **GIVEN)
    after = extract(tiny(Broken), changed, tmp_path / "f", **GIVEN, existing="update")
    assert after.spec.differences(store.spec) == ["truths"]
    assert files(after.path) == files(extract(tiny(), changed, tmp_path / "fresh", **GIVEN).path)


def test_a_worker_that_is_sent_the_images_reads_the_maps_that_it_needs(images):
    request = Request.resolve(tiny(), images, views=2)
    sent = pickle.loads(pickle.dumps(images))
    assert sent.truths["segmentation"]._read == sent._columns == {}
    elsewhere = replace(request, images=sent)
    layouts = request.truth_layouts(32)
    expected, given = (patch_labels_of(one.images, one.encoder, range(4, 9), layouts) for one in (request, elsewhere))
    assert len(sent.truths["segmentation"]._read) == 5
    assert list(given) == ["images/patch_label/view0", "images/patch_label/view1"]
    for name, values in given.items():
        np.testing.assert_array_equal(values, expected[name])


def test_truths_that_are_not_there(images):
    with pytest.raises(BeyondClsError, match="has no instances"):
        Request.resolve(tiny(), images, truths="instances")


def test_a_plan_counts_them_and_their_digest_is_kept_with_them(images):
    with_them, without = (Request.resolve(tiny(), images, truths=truths) for truths in ("all", "none"))
    sizes = [total_nbytes(request)[0]["images"] for request in (with_them, without)]
    assert sizes[0] - sizes[1] > N * 16 * 2, "labels of patches"
    assert ["truths" in request.spec.to_dict() for request in (with_them, without)] == [True, False]


def test_a_recorded_problem_keeps_its_row(tmp_path):
    """A map that is missing, an image that is cut, and one that is missing: all are noted, and have no truths."""
    write_images(tmp_path / "d")
    (tmp_path / "d/labels/train/03.png").unlink()
    cut = tmp_path / "d/images/train/05.png"
    cut.write_bytes(cut.read_bytes()[:-60])
    (tmp_path / "d/images/train/07.png").unlink()
    images = opened(tmp_path / "d")
    with pytest.raises(DataError, match=r"its label map 03\.png is not there"):
        extract(tiny(), images, tmp_path / "f", **GIVEN)
    store = extract(tiny(), images, tmp_path / "f", **GIVEN, on_error="record")
    assert [note["row"] for note in store.attributes["invalid"]] == [3, 5, 7]
    for row in (3, 5, 7):
        assert (store.segmentation.label_map(row) == -1).all()
    assert (store.segmentation.patch_labels()[[3, 7]] == -1).all(), "that one is cut is seen when it is decoded"
    np.testing.assert_array_equal(store.segmentation.label_map(4), np.where(MAPS[4] == 3, -1, MAPS[4]))


@pytest.mark.parametrize("mode", ["center", "squash", "border"])
@pytest.mark.parametrize("size", [(90, 60), (50, 80)])
def test_a_view_and_its_labels_show_the_same(mode, size):
    """A picture of flat blocks through the real resize: its colours are those of the label map, but at the edges of blocks."""
    width, height = size
    blocks = np.random.default_rng(1).integers(0, 3, (4, 4)).repeat(height // 4 + 1, 0).repeat(width // 4 + 1, 1)
    label_map = blocks[:height, :width].astype(np.int16)
    share = 0.875 if mode == "center" else 1.0
    config = {"input_size": (3, 48, 64), "interpolation": "nearest", "mean": (0, 0, 0), "std": (1, 1, 1)}
    views = Views({**config, "crop_pct": share, "crop_mode": mode})
    image = Image.fromarray((np.stack([label_map + 1] * 3, -1) * 60).astype(np.uint8))
    for view in (0, 1, 2):
        tensor, crop = views.cut(image, "a", view)
        seen = np.round(tensor[0].numpy() / 60).astype(int) - 1
        shown = map_in_view(label_map, crop.box, crop.flip, (48, 64))
        assert (seen != shown).mean() < 0.06, view
        if mode == "border" and view == 0:
            assert ((seen == -1) == (shown == -1)).mean() > 0.97
