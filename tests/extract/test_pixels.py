"""Images that are scaled or turned on their way into a feature set: what is stored, and under which key."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from extract.datasets import Box, DataError, ImageSet, open_images
from extract.datasets.pixels import TURNS, Pixels
from extract.datasets.truths import turn, turned_corners
from extract.encoders import Encoder, load_encoder
from extract.requests import Request
from extract.transform import as_options, checked_transform, differing_values, options_of
from store import BeyondClsError, FeatureStore
from tests.extract.datasets.deep import png16
from tests.extract.datasets.test_pixels import not_upright, saved
from tests.extract.extracting import extract
from tests.extract.pictures import picture, write_file, write_text
from tests.extract.tiny import TINY

SIZE = (48, 32)
PATCH_LABELS = ("images/patch_label/view0", "images/patch_label/view1")


def encoder(**options: Any) -> Encoder:
    return load_encoder("tiny", model="vit_tiny_patch16_224", arguments=TINY, random_seed=0, **options)


def annotated(folder: Path, images: Sequence[bytes], boxes: Sequence[Box], maps: Sequence[np.ndarray]) -> ImageSet:
    """Images with a box and a label map each."""
    lines = []
    for i, (image, box, label_map) in enumerate(zip(images, boxes, maps, strict=True)):
        write_file(folder / f"{i}.png", image)
        write_file(folder / f"maps/{i}.png", saved(Image.fromarray(label_map.astype(np.uint8)), "png"))
        lines.append(f"{i},{i}.png,{i % 2},maps/{i}.png,{' '.join(map(str, box[:4]))}")
    write_text(folder / "segmentation-classes.txt", "road", "wall", "sky")
    return open_images(str(write_text(folder / "images.csv", "id,path,label,segmentation,boxes", *lines)))


def run(images: ImageSet, out: Path, options: dict[str, Any], **others: Any) -> FeatureStore:
    return extract(encoder(**options), images, out, truths="all", views=2, shard_rows=32, **others)


def test_a_set_that_is_turned_is_that_of_images_that_were_turned_before(tmp_path):
    """Pixels, sizes, crops, boxes, label maps and labels of patches; all eight orientations."""
    orientations = range(1, 9)
    stored = [not_upright(orientation, "png", SIZE) for orientation in orientations]
    boxes = [Box(20, 4, 44, 10)] * 8
    label_map = np.arange(SIZE[1])[:, None] // 20 + np.arange(SIZE[0])[None] // 40
    as_stored = annotated(tmp_path / "d", stored, boxes, [label_map] * 8)
    pictures = [Pixels().decoded(image) for image in stored]
    upright = [p.transpose(TURNS[o]) if o in TURNS else p for o, p in zip(orientations, pictures, strict=True)]
    before = annotated(
        tmp_path / "upright",
        [saved(image, "png") for image in upright],
        [Box(*turned_corners(box[:4], o, SIZE[::-1])) for o, box in zip(orientations, boxes, strict=True)],
        [turn(label_map, o) for o in orientations],
    )
    got = run(as_stored, tmp_path / "got", {"orientation": "exif"})
    expected = run(before, tmp_path / "expected", {})
    names = [name for name in expected.arrays if name != "images/digest"]
    assert {"images/size", "images/crop/view1", "images/boxes", "images/segmentation/counts", *PATCH_LABELS} <= set(names)
    for name in names:
        one, other = (store.array(name).all() for store in (got, expected))
        assert np.array_equal(one, other), name
    assert {tuple(size) for size in got.array("images/size").all().tolist()} == {(32, 48), (48, 32)}
    assert got.spec.key != expected.spec.key
    as_they_are = run(as_stored, tmp_path / "stored", {})
    assert not np.array_equal(as_they_are.array("images/boxes").all(), got.array("images/boxes").all())


def test_it_is_said_once_that_images_are_not_upright(tmp_path):
    for i in range(3):
        write_file(tmp_path / f"d/cat/{i}.jpg", not_upright(6 if i else 1))
    for orientation, expected in (("stored", [True]), ("exif", [])):
        said = []
        run(open_images(str(tmp_path / "d")), tmp_path / orientation, {"orientation": orientation}, warn=said.append)
        assert ["'cat/1'" in note and "--orientation exif" in note for note in said if "EXIF" in note] == expected


def test_scaled_images_give_the_features_of_images_that_were_scaled_before(tmp_path):
    values = np.random.default_rng(0).integers(0, 256, (40, 36))
    write_file(tmp_path / "deep/cat/0.png", png16(values * 257))
    write_file(tmp_path / "d/cat/0.png", saved(Image.fromarray(values.astype(np.uint8)), "png"))
    with pytest.raises(DataError, match=r"its values, 0 to 65535, .*--scale 0,65535"):
        run(open_images(str(tmp_path / "deep")), tmp_path / "refused", {})
    got = run(open_images(str(tmp_path / "deep")), tmp_path / "got", {"scale": [0, 65535]})
    expected = run(open_images(str(tmp_path / "d")), tmp_path / "expected", {})
    name = f"patch/block{expected.spec.blocks[-1]}/view1"
    assert np.array_equal(got.array(name).all(), expected.array(name).all())
    assert got.spec.transform["scale"] == [0, 65535]
    assert "scale" not in expected.spec.transform


def test_large_jpegs_of_a_draft_are_decoded_at_a_fraction_of_their_size(tmp_path):
    """What is recorded of an image is that of its file; a draft is not needed of small ones, and PNGs have none."""
    gradient = np.add.outer(np.linspace(0, 120, 480), np.linspace(0, 130, 640)).astype(np.uint8)
    large = Image.fromarray(np.stack([gradient, gradient.T[:480, :480].repeat(2, 1)[:, :640], 255 - gradient], -1))
    for name, image, form in (("0.jpg", large, "jpeg"), ("1.jpg", large.resize(SIZE), "jpeg"), ("2.png", large, "png")):
        write_file(tmp_path / f"d/cat/{name}", saved(image, form))
    write_file(tmp_path / "d/cat/3.jpg", not_upright(6, "jpeg", (640, 480)))
    images, stores = open_images(str(tmp_path / "d")), {}
    for cut in ("torch", "draft"):
        tiny = encoder(cut=cut, orientation="exif")
        stores[cut] = extract(tiny, images, tmp_path / cut, shard_rows=32)
        decoded = images.with_pixels(tiny.pixels)
        sizes = [decoded.image(row).size for row in range(4)]
        assert sizes == [(640, 480), SIZE, (640, 480), (480, 640)] if cut == "torch" else [(80, 60), SIZE, (640, 480), (60, 80)]
    torch_set, draft = stores["torch"], stores["draft"]
    assert draft.spec.explained(torch_set.spec) == "transform (cut draft and torch)"
    usual = Request.resolve(encoder(orientation="exif"), images).spec
    assert draft.spec.explained(usual).endswith("(cut draft and by default)")
    assert draft.array("images/size").all().tolist() == [[480, 640], [32, 48], [480, 640], [640, 480]]
    for name in ("images/size", "images/crop/view0", "images/digest"):
        assert np.array_equal(draft.array(name).all(), torch_set.array(name).all()), name
    name = f"patch/block{draft.spec.blocks[-1]}/view0"
    tokens, others = (store.array(name).all() for store in (draft, torch_set))
    assert np.array_equal(tokens[1:3], others[1:3])
    assert not np.array_equal(tokens[0], others[0])
    np.testing.assert_allclose(tokens[[0, 3]], others[[0, 3]], atol=0.1)
    with pytest.raises(BeyondClsError, match="views is 2, expected 1"):
        extract(encoder(cut="draft"), images, tmp_path / "views", views=2)


def test_the_key(tmp_path):
    """It holds what is not usual, and not the limit."""
    write_file(tmp_path / "cat/0.png", picture(0))
    images = open_images(str(tmp_path))
    options = [{}, {"orientation": "exif"}, {"scale": (0, 9)}, {"scale": (0, 8)}, {"cut": "torch"}, {"cut": "draft"}]
    keys = [Request.resolve(encoder(**one), images).spec.key for one in options]
    assert len({*keys}) == 6
    usual = encoder(orientation="stored", cut="pillow")
    assert Request.resolve(usual, images.with_pixels(Pixels(max_pixels=10**9))).spec.key == keys[0]
    assert set(usual.described_transform) == {*options_of(usual.described_transform), "views"}
    assert not {"scale", "orientation"} & usual.described_transform.keys()


@pytest.mark.parametrize("value", [[0], [1, 1], [5, 0], [0, float("nan")], ["a", "b"], "0,1", [0, 1, 2], True])
def test_what_is_no_range(value):
    with pytest.raises(BeyondClsError, match=r"the lower one first, e\.g\. 0,65535"):
        checked_transform({"scale": value})


def test_transforms_differ_where_one_does_not_record_it():
    turned_one = encoder(orientation="exif", scale=[0, 9]).described_transform
    assert differing_values(turned_one, encoder().described_transform) == ["scale", "orientation"]
    assert as_options(turned_one, ["scale", "orientation"]) == "--scale 0.0,9.0 --orientation exif"
    assert encoder(**options_of(turned_one)).described_transform == turned_one
