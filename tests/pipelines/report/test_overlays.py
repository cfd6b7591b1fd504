import base64
import io
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import extract.datasets
from extract.datasets import open_images
from extract.datasets.image_set import ImageSet
from extract.datasets.sample import Box, Sample
from pipelines.live.overlay import blend, cut_out
from pipelines.report.chosen import chosen_rows, first_of_classes
from pipelines.report.collect import Examples, Folders, collect
from pipelines.report.content import Gallery, Picture, Text
from pipelines.report.pictures import SIDE, fitted
from pipelines.report.sections.overlays import section
from store import BeyondClsError
from tests.pipelines.report.written import N_IMAGES, write_all, write_images


@dataclass(frozen=True)
class Shown:
    """The contents of the section."""

    columns: list[tuple[str, str]]  # encoder, kind
    rows: list[tuple[Picture, ...]]
    reasons: str
    words: str

    @property
    def ids(self) -> list[str]:
        return [row[0].lines[1] for row in self.rows]

    def peak(self, image: str, column: int) -> str:
        return self.rows[self.ids.index(image)][1 + column].lines[0]


TWO = Examples(2)


def shown(paths: dict[str, Path], examples: Examples = TWO, data: str | None = None) -> Shown:
    folders = Folders(paths["probes"], paths["attention"], images=data or str(paths["data"]))
    blocks = section(collect(folders, examples)).blocks
    texts = [block for block in blocks if isinstance(block, Text)]
    reasons = " ".join(item for block in texts if block.kind == "notice" for item in (block.text, *block.items))
    galleries = [block for block in blocks if isinstance(block, Gallery)]
    words = " ".join(block.text for block in texts)
    if not galleries:
        return Shown([], [], reasons, words)
    (gallery,) = galleries
    encoders = [name for name, span in gallery.groups for _ in range(span)]
    return Shown(list(zip(encoders, gallery.columns, strict=True))[1:], list(gallery.rows), reasons, words)


def decoded(picture: Picture) -> np.ndarray:
    encoded = picture.uri.removeprefix("data:image/webp;base64,")
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(encoded))).convert("RGB"), int)


def test_a_column_per_map_and_a_row_per_class(tmp_path: Path):
    page = shown(write_all(tmp_path), Examples(3))
    assert page.columns == [(encoder, kind) for encoder in ("mae", "random") for kind in ("[cls] attention", "AbMILP weights")]
    assert page.ids == ["000", "002", "001"]  # classes 0, 1, 2
    assert [row[0].lines[0] for row in page.rows][1:] == ["dog", "cat"]
    assert page.reasons == ""
    assert (page.peak("000", 0), page.peak("000", 1)) == ("peak 3.0×", "peak 2.0×")
    assert "000" in page.rows[0][1].alt
    assert "The first test images of different classes." in page.words
    assert decoded(page.rows[0][1]).shape == (SIDE, SIDE, 3)


def test_every_head_with_weights_has_a_column_except_even_ones(tmp_path: Path):
    paths = write_all(tmp_path)
    even = np.full((7, 4), 0.25, np.float16)
    (paths["probes"] / "mae" / "average" / "trained").mkdir(exist_ok=True)
    np.save(paths["probes"] / "mae" / "average" / "trained" / "weights.npy", even)
    shutil.copytree(paths["probes"] / "mae" / "abmilp", paths["probes"] / "mae" / "simpool")
    page = shown(paths)
    kinds = ["[cls] attention", "AbMILP weights", "simpool weights"]
    assert [kind for encoder, kind in page.columns if encoder == "mae"] == kinds
    assert "Heads that weigh all patches alike are not drawn." in page.words


def test_each_image_gets_its_own_row_of_the_map(tmp_path: Path):
    paths = write_all(tmp_path)
    maps = np.full((7, 4), 0.25, np.float16)
    maps[2] = (0.7, 0.1, 0.1, 0.1)  # the image with id 002
    np.save(paths["attention"] / "mae" / "maps/cls_map.npy", maps)
    page = shown(paths, Examples(3))
    assert {image: page.peak(image, 0) for image in page.ids} == {"000": "peak 1.0×", "002": "peak 2.8×", "001": "peak 1.0×"}


def test_images_that_are_asked_for(tmp_path: Path):
    paths = write_all(tmp_path)
    page = shown(paths, Examples(ids=("005", "001", "005")))
    assert page.ids == ["005", "001"]
    assert "The test images that were asked for." in page.words
    with pytest.raises(BeyondClsError, match=r"no image '0005' among the 7 of .*data; did you mean '00\d'\? \(--image\)"):
        shown(paths, Examples(ids=("0005",)))


def test_images_drawn_by_a_seed(tmp_path: Path):
    paths = write_all(tmp_path)
    draws = [shown(paths, Examples(3, seed=seed)) for seed in (0, 0, 1, 2)]
    assert draws[0].ids == draws[1].ids
    assert len({tuple(draw.ids) for draw in draws}) > 1
    assert all(len(set(draw.ids)) == 3 for draw in draws)
    assert "drawn at random (seed 1)" in draws[2].words
    images = open_images(str(paths["data"]))
    assert chosen_rows(images, Examples(99, seed=0)) == list(range(7))


SEEN = (10, 0, 30, 20)  # the centre square of a picture of 40 x 20 pixels


@pytest.fixture
def wide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Wide images, black in the centre square and green beside it; the first has a box half in the square, and one beyond."""
    paths = write_all(tmp_path)
    file = tmp_path / "wide.png"
    picture = Image.new("RGB", (40, 20), (0, 250, 0))
    picture.paste((0, 0, 0), SEEN)
    picture.save(file)
    boxes = (Box(5, 5, 15, 15), Box(35, 0, 40, 20))
    size = file.stat().st_size
    samples = [Sample(str(i), (0,), file, 0, size, boxes=boxes if i == 0 else ()) for i in range(N_IMAGES)]
    images = ImageSet("x", samples, ["one"])
    for name in ("mae", "random"):
        summary = paths["attention"] / name / "summary.json"
        summary.write_text(json.dumps(json.loads(summary.read_text()) | {"data": images.digest}))
        shows(paths, SEEN, name)
    monkeypatch.setattr(extract.datasets, "open_images", lambda *_, **__: images)
    return paths


def shows(paths: dict[str, Path], crop: tuple[float, ...], encoder: str = "mae") -> None:
    np.save(paths["attention"] / encoder / "maps/crops.npy", np.tile(np.array(crop, np.float32), (N_IMAGES, 1)))


def test_the_first_picture_is_the_whole_image_with_its_boxes(wide: dict[str, Path]):
    framed, plain = (row[0] for row in shown(wide, Examples(2)).rows)
    assert "boxes of objects in pixels of 128 x 64: from 16, 16 to 48, 48, from 112, 0 to 128, 64" in framed.alt
    assert "boxes" not in plain.alt
    assert decoded(plain).shape == (SIDE // 2, SIDE, 3)
    white = decoded(framed).min(-1) > 150
    assert white[16, 18:46].all()  # upper edge
    assert white[48, 18:46].all()  # lower edge
    assert white[18:46, 48].all()  # right edge
    assert not white[:, 52:108].any()
    assert not white[20:44, 20:44].any()  # within


def test_boxes_over_a_map_are_where_they_are_in_the_crop(wide: dict[str, Path]):
    framed = shown(wide, Examples(1)).rows[0][1]
    assert "boxes of objects in pixels of 128 x 128: from -32, 32 to 32, 96" in framed.alt
    assert framed.alt.count("from") == 1
    assert (decoded(framed)[32, 5:30].min(-1) > 150).all()


@pytest.mark.parametrize("crop", [SEEN, (5, 2.5, 20, 17.5), (0, 0, 40, 20), (0, -10, 40, 30)])  # …, squashed, padded
def test_a_map_lies_over_just_what_the_encoder_saw(wide: dict[str, Path], crop: tuple[float, ...]):
    weights = np.array([0.001, 0.997, 0.001, 0.001], np.float16)
    np.save(wide["attention"] / "mae" / "maps/cls_map.npy", np.tile(weights, (N_IMAGES, 1)))
    shows(wide, crop)
    seen = cut_out(Image.open(wide["data"].parent / "wide.png"), crop, fitted(crop))
    expected = blend(seen, weights.astype(float).reshape(2, 2)).astype(int)
    assert np.abs(decoded(shown(wide, Examples(2)).rows[1][1]) - expected).mean() < 4, "but for the compression"


def test_each_encoder_has_its_own_crop(wide: dict[str, Path]):
    shows(wide, (0, 0, 40, 20), "random")
    mae, random = (shown(wide, Examples(2)).rows[1][i] for i in (1, 3))
    assert (decoded(mae).shape, decoded(random).shape) == ((128, 128, 3), (64, 128, 3))


PLACE = "it was not recorded which part of an image its maps show; run `beyondcls attention`"
ATTENTION, ABMILP = "[cls] attention", "AbMILP weights"


def other_features(folder: Path) -> None:
    metrics = folder / "probes/mae/abmilp/metrics.json"
    metrics.write_text(metrics.read_text().replace('"test-mae"', '"other"'))


@pytest.mark.parametrize(
    ("damage", "left", "reason"),
    [
        (lambda at: (at / "attention/mae/maps/crops.npy").unlink(), [], PLACE),
        (lambda at: (at / "attention/mae/maps").rename(at / "gone"), [], PLACE),
        (
            lambda at: np.save(at / "attention/mae/maps/crops.npy", np.zeros((6, 4))),
            [],
            "its crops are of shape [6, 4], expected one row for each of 7 images",
        ),
        (lambda at: shutil.rmtree(at / "attention/mae"), [], "attention was not computed"),
        (
            lambda at: np.save(at / "attention/mae/maps/cls_map.npy", np.full((6, 4), 0.25)),
            [ABMILP],
            f"{ATTENTION}: the maps are of shape [6, 4], expected one row for each of 7 images",
        ),
        (
            lambda at: np.save(at / "attention/mae/maps/cls_map.npy", np.full((7, 5), 0.2)),
            [ABMILP],
            f"{ATTENTION}: its 5 patches are not a square grid",
        ),
        (lambda at: (at / "attention/mae/maps/cls_map.npy").unlink(), [ABMILP], f"{ATTENTION}: it has no [cls] map."),
        (other_features, [ATTENTION], f"{ABMILP}: this head was tested on another feature set"),
        (
            lambda at: (at / "probes/mae/abmilp/trained/weights.npy").unlink(),
            [ATTENTION],
            f"{ABMILP}: it kept no weights.",
        ),
        (lambda at: shutil.rmtree(at / "probes/mae/abmilp"), [ATTENTION], "weights: there is no head with weights."),
    ],
)
def test_maps_that_are_not_certainly_of_the_images_are_left_out_and_named(tmp_path: Path, damage, left: list[str], reason: str):
    paths = write_all(tmp_path)
    damage(tmp_path)
    page = shown(paths)
    assert page.columns == [*(("mae", kind) for kind in left), ("random", ATTENTION), ("random", ABMILP)]
    assert f"mae: {reason}" in page.reasons or f"mae, {reason}" in page.reasons


@pytest.mark.parametrize(
    ("images", "reason"),
    [
        (lambda at: write_images(at / "other", n=8), "mae: its maps are of other images (data set {digest})"),
        (lambda at: write_images(at / "bad", problem=True), "1 problem(s)"),
        (lambda at: str(at / "gone.tar"), "cannot be read"),
    ],
)
def test_without_the_images_nothing_is_shown(tmp_path: Path, images, reason: str):
    paths = write_all(tmp_path)
    overlays = shown(paths, data=images(tmp_path))
    assert overlays.rows == []
    assert reason.format(digest=open_images(str(paths["data"])).digest) in overlays.reasons


def test_damaged_maps_are_an_error(tmp_path: Path):
    paths = write_all(tmp_path)
    (paths["attention"] / "mae" / "maps/cls_map.npy").write_bytes(b"no array")
    with pytest.raises(BeyondClsError, match=r"cls_map.npy is damaged .*expected an array \[N, T\]; run its stage again"):
        shown(paths)


def test_no_examples_asked(tmp_path: Path):
    assert shown(write_all(tmp_path), Examples(0)).reasons == "Overlays are left out: No examples were asked for."


def test_examples_take_turns_over_classes():
    assert first_of_classes([2, 2, 0, 1, 0], 5) == [2, 3, 0, 4, 1]
    assert first_of_classes([2, 2, 0, 1, 0], 2) == [2, 3]
