"""What pixels are made of: values of more than 8 bits, orientation by EXIF, large images; and what a feature set stores."""

import io
import pickle
import re
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from extract.datasets import Box, DataError, ImageSet, Sample, open_images
from extract.datasets.pixels import ROOM, TURNS, Pixels, Raster
from extract.datasets.truths import turn, turned_boxes, turned_corners, turned_items
from extract.encoders import Encoder, load_encoder
from extract.requests import Request
from extract.transform import as_options, checked_transform, differing_values, options_of
from store import BeyondClsError, FeatureStore
from store.truths import rle
from store.truths.reading import Instance, Segment
from tests.extract.datasets.deep import GREY_ALPHA, RGB, RGB_ALPHA, png16, tiff
from tests.extract.extracting import extract
from tests.extract.pictures import picture, write_file, write_text
from tests.extract.tiny import TINY

GREY = np.arange(12).reshape(3, 4)
COLOURS = np.stack([GREY * 5000, GREY * 300 + 7, 65535 - GREY], -1)
WITH_ALPHA = np.concatenate([COLOURS, COLOURS[..., :1]], -1)


def saved(image: Image.Image, form: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


# Values of each file, as they were written.
DEEP = {
    "png": (png16(GREY * 5000), GREY * 5000),
    "png with alpha": (png16(WITH_ALPHA, RGB_ALPHA), COLOURS),
    "tiff": (tiff((GREY * 5000).astype("<u2")), GREY * 5000),
    "tiff of 32 bits": (tiff((GREY * 300_000_000).astype("<u4")), GREY * 300_000_000),
    "tiff of signed bytes": (tiff((GREY - 5).astype("i1")), GREY - 5),
    "tiff of signed integers, all negative": (tiff((-GREY * 1000 - 1).astype(">i4")), -GREY * 1000 - 1),
    "tiff of floats, big-endian": (tiff((GREY - 0.5).astype(">f4")), GREY - 0.5),
    "tiff of colours, big-endian": (tiff(COLOURS.astype(">u2")), COLOURS),
    "tiff with alpha": (tiff(WITH_ALPHA.astype("<u2")), COLOURS),
    "pgm of 1000 values": (b"P5 4 3 1000\n" + (GREY * 50).astype(">u2").tobytes(), GREY * 50),
    "ppm": (b"P6 4 3 65535\n" + COLOURS.astype(">u2").tobytes(), COLOURS),
    "pfm": (b"Pf 4 3 -1.0\n" + np.flipud(GREY / 11).astype("<f4").tobytes(), GREY / 11),
    "jpeg 2000": (saved(Image.fromarray((GREY * 5000).astype(np.uint16)), "jpeg2000"), GREY * 5000),
}
# Pillow gives these in 8 bits, and no more.
LOST = {
    "png of grey with alpha": png16(np.stack([GREY * 5000, GREY], -1), GREY_ALPHA),
    "sgi": saved(Image.fromarray(GREY.astype(np.uint8)), "sgi", bpc=2),
    "plain pgm": b"P2 4 3 1000\n" + b" ".join(b"%d" % (value * 50) for value in GREY.ravel()),
    "plain ppm": b"P3 4 3 1000\n" + b" ".join(b"%d" % (value % 1000) for value in COLOURS.ravel()),
}


class TestDeepImages:
    @pytest.mark.parametrize("name", DEEP)
    def test_they_are_refused_or_a_range_is_mapped_in_proportion_and_what_is_beyond_is_cut(self, name: str) -> None:
        encoded, values = DEEP[name]
        full = values.max() if name.startswith(("tiff of floats", "pfm")) or values.max() > 65535 or values.min() < 0 else 65535
        said, proposed = f"its values, {values.min():g} to {values.max():g}, are", f"--scale {min(values.min(), 0):g},{full:g}"
        with pytest.raises(ValueError, match=f"{re.escape(said)}.* {re.escape(proposed)}$"):
            Pixels().decoded(encoded)
        for share in (0, 0.25):
            low, high = np.quantile(values, [share, 1 - share])
            expected = np.rint((np.clip(values, low, high) - low) / (high - low) * 255)
            got = np.asarray(Pixels(scale=(float(low), float(high))).decoded(encoded)).astype(int)
            assert np.abs(got - (expected if values.ndim == 3 else expected[..., None])).max() <= (1 if "float" in name else 0)
            assert (got.min(), got.max()) == (0, 255)

    @pytest.mark.parametrize("name", LOST)
    def test_what_pillow_cuts_is_refused(self, name: str) -> None:
        for scale in (None, (0, 65535)):
            with pytest.raises(ValueError, match="more than 8 bits, which Pillow would change; write it again"):
                Pixels(scale=scale).decoded(LOST[name])

    @pytest.mark.parametrize(
        "encoded",
        [png16(np.stack([GREY] * 3, -1), RGB), *(tiff(GREY.astype(kind)) for kind in (">u2", "<i4"))],
    )
    def test_values_that_fit_are_what_they_are(self, encoded: bytes) -> None:
        assert np.array_equal(np.asarray(Pixels().decoded(encoded)), np.stack([GREY] * 3, -1))

    @pytest.mark.parametrize("mode", ["1", "L", "P", "RGBA", "LA"])
    def test_images_of_8_bits_are_never_scaled(self, mode: str) -> None:
        image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (9, 7, 3), np.uint8)).convert(mode)
        encoded = saved(image, "png")
        expected = np.asarray(Image.open(io.BytesIO(encoded)).convert("RGB"))
        for scale in (None, (0, 65535)):
            assert np.array_equal(np.asarray(Pixels(scale=scale).decoded(encoded)), expected)

    @pytest.mark.parametrize("scale", [None, (0, 11)])
    def test_no_numbers(self, scale: tuple[float, float] | None) -> None:
        with pytest.raises(ValueError, match="are not all numbers"):
            Pixels(scale=scale).decoded(tiff(np.where(GREY == 3, np.nan, GREY).astype("<f4")))


def not_upright(orientation: int, form: str = "jpeg", size: tuple[int, int] = (48, 32)) -> bytes:
    """An image whose EXIF says that it is to be turned: a gradient from left to right in red, from top to bottom in green."""
    width, height = size
    red, green = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 255, height))
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = Image.fromarray(np.stack([red, green, 0 * red], -1).astype(np.uint8))
    return saved(image, form, exif=exif, **({"quality": 100} if form != "png" else {}))


class TestOrientation:
    @pytest.mark.parametrize("orientation", range(1, 9))
    def test_pixels_are_turned_if_that_is_asked_for(self, orientation: int) -> None:
        encoded = not_upright(orientation, "png")
        stored, upright = Pixels().decoded(encoded), Pixels(orientation="exif").decoded(encoded)
        assert stored.size == (48, 32)
        assert stored.info == ({} if orientation == 1 else {"orientation": orientation})
        expected = stored.transpose(TURNS[orientation]) if orientation in TURNS else stored
        assert np.array_equal(np.asarray(upright), np.asarray(expected))
        assert not upright.info
        assert np.array_equal(turn(np.asarray(stored)[..., 0], orientation), np.asarray(upright)[..., 0])

    def test_a_tiff_is_turned_once(self) -> None:
        encoded = tiff(COLOURS.astype(np.uint8), orientation=6)
        for pixels in (Pixels(), Pixels(orientation="exif")):
            assert np.array_equal(np.asarray(pixels.decoded(encoded)), np.rot90(COLOURS.astype(np.uint8), -1))

    @pytest.mark.parametrize("tags", [b"no header of tags", b"II*\0\x08\0\0\0\x01\0\x12\x01\x02\0\x02\0\0\0x\0\0\0\0\0\0\0"])
    def test_damaged_exif_says_nothing(self, tags: bytes) -> None:
        encoded = saved(Image.new("RGB", (9, 7)), "jpeg", exif=b"Exif\0\0" + tags)
        assert Pixels(orientation="exif").decoded(encoded).size == (9, 7)

    @pytest.mark.parametrize("orientation", [2, 4, 5, 6])
    def test_boxes_and_masks_follow(self, orientation: int, tmp_path: Path) -> None:
        """They mark the same pixels as before, wherever these are now."""
        mask = np.zeros((32, 48), bool)
        mask[4:10, 20:44] = True
        file = write_file(tmp_path / "x.jpg", not_upright(orientation))
        box = Box(20, 4, 44, 10, 3)
        sample = Sample("x", None, file, 0, file.stat().st_size, boxes=(box,))
        exif = Pixels(orientation="exif")
        counts = rle.encode(mask[None])[0]
        [turned_box] = turned_boxes(sample, exif)
        [segment] = turned_items([Segment(2, counts)], sample, exif)
        [instance, boxed] = turned_items([Instance(1, box[:4], 144.0, True, counts), Instance(1, box[:4], 1.0)], sample, exif)
        upright = exif.decoded(sample.read())
        shown = rle.decode(segment.counts, (upright.height, upright.width))
        rows, columns = np.nonzero(shown)
        assert turned_box == (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1, 3)
        assert (instance.box, boxed.box, instance.counts) == (turned_box[:4], turned_box[:4], segment.counts)
        assert (instance.area, instance.crowd, boxed.counts) == (144.0, True, None)
        stored = Pixels().decoded(sample.read())
        before, after = (np.asarray(image)[at].astype(int) for image, at in ((stored, mask), (upright, shown)))
        assert np.array_equal(np.sort(before, 0), np.sort(after, 0))
        assert list(turned_boxes(sample, Pixels())) == [box]

    def test_annotations_of_a_tiff_follow_its_pixels(self, tmp_path: Path) -> None:
        file = write_file(tmp_path / "x.tif", tiff(np.zeros((32, 48), np.uint8), orientation=6))
        sample = Sample("x", None, file, 0, file.stat().st_size, boxes=(Box(0, 0, 48, 4),))
        assert list(turned_boxes(sample, Pixels(orientation="exif"))) == [Box(28, 0, 32, 48)]

    def test_the_digest_is_that_of_before_unless_pixels_change(self, tmp_path: Path) -> None:
        write_file(tmp_path / "cat/0.jpg", not_upright(6))
        images = open_images(str(tmp_path))
        before = images.digest
        others = (Pixels(max_pixels=10**9), Pixels(orientation="exif"), Pixels((0, 9)), Pixels((0, 8)))
        same, *digests = (images.with_pixels(pixels).digest for pixels in others)
        assert same == before
        assert len({same, *digests}) == 4
        assert images.with_pixels(Pixels(orientation="exif")).part([0]).image(0).size == (32, 48)


def jpeg(mode: str, size: tuple[int, int], **options: Any) -> bytes:
    values = np.random.default_rng(0).integers(0, 256, (*size[::-1], len(mode)), np.uint8)
    smooth = Image.frombytes(mode, size, values.tobytes()).resize(size, box=(0, 0, size[0] / 4, size[1] / 4))
    return saved(smooth, "jpeg", **options)


class TestRasters:
    """What simplejpeg decodes is what Pillow decodes."""

    @pytest.fixture(autouse=True)
    def _installed(self):
        pytest.importorskip("simplejpeg")

    @pytest.mark.parametrize("size", [(63, 47), (1, 1)])
    @pytest.mark.parametrize("subsampling", [0, 2])
    def test_pixels_are_equal(self, size, subsampling):
        encoded = jpeg("RGB", size, subsampling=subsampling, progressive=True, quality=80)
        raster, image = Pixels().picture(encoded), Pixels().decoded(encoded)
        assert isinstance(raster, Raster)
        assert np.array_equal(raster.pixels, np.asarray(image))
        assert (raster.size, raster.info) == (image.size, image.info)
        box = (0, 0, -(-size[0] // 2), -(-size[1] // 3))
        assert np.array_equal(raster.crop(box).pixels, np.asarray(image.crop(box)))

    def test_other_images_are_left_to_pillow(self):
        turned = not_upright(6)
        for encoded in (jpeg("L", (20, 10)), jpeg("CMYK", (20, 10)), saved(Image.new("RGB", (20, 10)), "png")):
            assert isinstance(Pixels().picture(encoded), Image.Image)
        with pytest.raises(OSError, match="truncated"):
            Pixels().picture(turned[:-30])
        assert isinstance(Pixels(orientation="exif").picture(turned), Image.Image)
        width, height = Pixels().decoded(turned).size
        for least, kind in (((width // 2, height // 2), Image.Image), ((width // 2 + 1, height // 2), Raster)):
            assert isinstance(Pixels(least=least).picture(turned), kind), "only what is decoded at a fraction of its size"
        raster = Pixels().picture(turned)
        assert isinstance(raster, Raster)
        assert raster.info == Pixels().decoded(turned).info == {"orientation": 6}


class TestLargeImages:
    @pytest.fixture
    def source(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 500)  # the file has 36 x 40 pixels, and twice the limit is refused
        write_file(tmp_path / "cat/0.png", picture(0))
        return str(tmp_path)

    def test_pillows_limit_holds_unless_it_is_raised(self, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """In other processes, too, where label maps are read before any image; and it can be lowered for a set alone."""
        with pytest.raises(DataError, match=r"exceeds limit of 1000 pixels.*; if it is sound, raise the limit: --max-pixels"):
            open_images(source).image(0)
        for limit in (900, 100):
            with pytest.raises(DataError, match=f"it has 36 x 40 pixels, more than --max-pixels {limit}"):
                open_images(source, max_pixels=limit).image(0)
            assert Image.MAX_IMAGE_PIXELS == 900
        sent = pickle.dumps(open_images(source, max_pixels=1440))
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 500)
        images = pickle.loads(sent)
        assert Image.MAX_IMAGE_PIXELS == 1440
        assert images.image(0).size == (36, 40)

    def test_images_of_all_threads_have_room_for_a_few_large_ones(self, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
        images, taken, meeting, rgb = open_images(source, max_pixels=1440), [], threading.Barrier(2), Pixels.rgb
        monkeypatch.setattr("extract.datasets.pixels.AT_ONCE", 1)  # twice the limit: 2,880 pixels

        def counted(*args: Any) -> Image.Image:
            meeting.wait(10)
            taken.append(ROOM._taken)
            return rgb(*args)

        monkeypatch.setattr(Pixels, "rgb", counted)
        with ThreadPoolExecutor(6) as threads:
            assert {image.size for image in threads.map(images.image, [0] * 6)} == {(36, 40)}
        assert max(taken) == 2880

    def test_room_is_held_until_it_is_given_back(self, source: str) -> None:
        images = open_images(source, max_pixels=1440)
        with ExitStack() as held:
            images.image(0, held)
            assert ROOM._taken == 1440
        with pytest.raises(DataError):
            images.with_pixels(Pixels(max_pixels=100)).image(0, held)
        assert ROOM._taken == 0


SIZE = (48, 32)
PATCH_LABELS = ("images/patch_label/view0", "images/patch_label/view1")


def encoder(**options: Any) -> Encoder:
    return load_encoder("tiny", model="vit_tiny_patch16_224", arguments=TINY, random_seed=0, **options)


def annotated(folder: Path, images: Sequence[bytes], boxes: Sequence[Box], maps: Sequence[np.ndarray]) -> ImageSet:
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


@pytest.mark.parametrize("value", [[0], [1, 1], [0, float("nan")], ["a", "b"], "0,1", True], ids=str)
def test_what_is_no_range(value):
    with pytest.raises(BeyondClsError, match="the lower one first"):
        checked_transform({"scale": value})


def test_transforms_differ_where_one_does_not_record_it():
    turned_one = encoder(orientation="exif", scale=[0, 9]).described_transform
    assert differing_values(turned_one, encoder().described_transform) == ["scale", "orientation"]
    assert as_options(turned_one, ["scale", "orientation"]) == "--scale 0.0,9.0 --orientation exif"
    assert as_options({"input_size": [3, 32, 48]}) == "--input-size 32x48"
    assert encoder(**options_of(turned_one)).described_transform == turned_one
