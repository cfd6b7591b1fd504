"""Pictures of the page: attention, label maps, objects and boxes, over the images that were measured and no others."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.spatial.distance import pdist

import extract.datasets
from extract.datasets import open_images
from extract.datasets.image_set import ImageSet
from extract.datasets.sample import Box, Sample
from pipelines.live.overlay import blend, cut_out
from pipelines.report import files
from pipelines.report.collect import Examples, Folders, Inputs, collect
from pipelines.report.content import Gallery, Picture, Section
from pipelines.report.galleries.images import DenseImages
from pipelines.report.galleries.pictures import COLOURS, SIDE, VOID, choose_rows, colour_map, colours_of, fit_size, rgb, uri
from pipelines.report.sections import detection, localisation, overlays, segmentation
from store import BeyondClsError
from tests.pipelines.report import everything as results
from tests.pipelines.report.written import N_IMAGES, gallery, words, write_all, write_images

IDS = ("000", "001", "002")
GREY = (96, 96, 96)
ONE, TWO = Examples(1), Examples(2)


def drawn(section: Section | None) -> Gallery:
    found = gallery(section)
    assert found is not None
    return found


def ids(section: Section | None) -> list[str]:
    found = gallery(section)
    return [row[0].lines[-1] for row in found.rows] if found else []


def over_attention(paths: dict[str, Path], examples: Examples = TWO, data: str | None = None) -> Section:
    images = data or str(paths["data"])
    return overlays.section(collect(Folders(paths["probes"], paths["attention"], images=images), examples))


def test_a_column_per_map_and_a_row_per_class(tmp_path: Path):
    """Heads that weigh all patches alike have no column, further heads have one; each image has its own row of a map."""
    paths = write_all(tmp_path)
    maps = np.load(paths["attention"] / "mae/maps/cls_map.npy")
    maps[2] = (0.7, 0.1, 0.1, 0.1)  # the image with id 002
    np.save(paths["attention"] / "mae/maps/cls_map.npy", maps)
    (paths["probes"] / "mae/average/trained").mkdir(exist_ok=True)
    np.save(paths["probes"] / "mae/average/trained/weights.npy", np.full((7, 4), 0.25, np.float16))
    shutil.copytree(paths["probes"] / "mae/abmilp", paths["probes"] / "mae/simpool")
    section = over_attention(paths, Examples(3))
    page = drawn(section)
    assert page.groups == (("", 1), ("mae", 3), ("random", 2))
    assert page.columns[1:] == ("[cls] attention", "AbMILP weights", "simpool weights", "[cls] attention", "AbMILP weights")
    assert ids(section) == ["000", "002", "001"]  # classes 0, 1, 2
    assert [row[0].lines[0] for row in page.rows][1:] == ["dog", "cat"]
    peaks = [picture.lines for row in page.rows[:2] for picture in row[1:3]]
    assert peaks == [("peak 3.0×",), ("peak 2.0×",), ("peak 2.8×",), ("peak 2.0×",)]
    assert words(section, "notice") == []


def test_which_images_are_shown():
    assert choose_rows("0123456", Examples(ids=("5", "x", "1", "5")), None) == [5, 1]
    assert choose_rows("0123456", Examples(3), None) == [0, 2, 4]
    assert choose_rows("0123456", Examples(5), [2, 2, 0, 1, 0, 2, 2]) == [2, 3, 0, 4, 1]
    assert choose_rows("0123456", Examples(99, seed=0), None) == [*range(7)]
    draws = [choose_rows([*map(str, range(99))], Examples(9, seed=seed)) for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]


def test_an_image_that_is_not_there_is_an_error(tmp_path: Path):
    with pytest.raises(BeyondClsError, match=r"no image '0005' among the 7 of .*data"):
        over_attention(write_all(tmp_path), Examples(ids=("0005",)))


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


def test_boxes_are_over_the_whole_image_and_over_the_part_that_was_seen(wide: dict[str, Path]):
    (whole, seen, *_), (plain, *_) = drawn(over_attention(wide)).rows
    assert "in pixels of 256 x 128: from 32, 32 to 96, 96, from 224, 0 to 256, 128" in whole.alt
    assert "in pixels of 256 x 256: from -64, 64 to 64, 192" in seen.alt
    assert seen.alt.count("from") == 1
    assert "boxes" not in plain.alt
    assert plain.pixels.shape == (SIDE // 2, SIDE, 3)
    white = (whole.pixels == 255).all(-1)
    assert white[32, 36:92].all()
    assert white[36:92, 96].all()
    assert not white[:, 104:216].any()
    assert not white[40:88, 40:88].any()  # within
    assert (seen.pixels[64, 10:60] == 255).all()


@pytest.mark.parametrize("crop", [SEEN, (5, 2.5, 20, 17.5), (0, 0, 40, 20), (0, -10, 40, 30)])  # …, squashed, padded
def test_a_map_lies_over_just_what_the_encoder_saw(wide: dict[str, Path], crop: tuple[float, ...]):
    weights = np.array([0.001, 0.997, 0.001, 0.001], np.float16)
    np.save(wide["attention"] / "mae/maps/cls_map.npy", np.tile(weights, (N_IMAGES, 1)))
    shows(wide, crop)
    seen = cut_out(Image.open(wide["data"].parent / "wide.png"), crop, fit_size(crop))
    _, of_mae, _, of_random, _ = drawn(over_attention(wide)).rows[1]
    assert (of_mae.pixels == blend(seen, weights.astype(float).reshape(2, 2))).all()
    assert of_random.pixels.shape == (SIDE, SIDE, 3), "each encoder has its own crop"


def other_features(folder: Path) -> None:
    metrics = folder / "probes/mae/abmilp/description.json"
    metrics.write_text(metrics.read_text().replace('"test-mae"', '"other"'))


ATTENTION, ABMILP = "[cls] attention", "AbMILP weights"
MAPS = "attention/mae/maps"
SHAPE = "shape [6, 4], expected one row for each of 7 images"


@pytest.mark.parametrize(
    ("damage", "left", "reason"),
    [
        (lambda at: (at / MAPS / "crops.npy").unlink(), [], "it was not recorded which part of an image its maps show"),
        (lambda at: np.save(at / MAPS / "crops.npy", np.zeros((6, 4))), [], f"its crops are of {SHAPE}"),
        (lambda at: shutil.rmtree(at / "attention/mae"), [], "attention was not computed"),
        (
            lambda at: np.save(at / MAPS / "cls_map.npy", np.full((6, 4), 0.25)),
            [ABMILP],
            f"{ATTENTION}: the maps are of {SHAPE}",
        ),
        (lambda at: np.save(at / MAPS / "cls_map.npy", np.full((7, 5), 0.2)), [ABMILP], f"{ATTENTION}: its 5 patches"),
        (lambda at: (at / MAPS / "cls_map.npy").unlink(), [ABMILP], f"{ATTENTION}: it has no [cls] map."),
        (other_features, [ATTENTION], f"{ABMILP}: this head was tested on another feature set"),
        (lambda at: (at / "probes/mae/abmilp/trained/weights.npy").unlink(), [ATTENTION], f"{ABMILP}: it kept no weights."),
        (lambda at: shutil.rmtree(at / "probes/mae/abmilp"), [ATTENTION], "weights: there is no head with weights."),
    ],
)
def test_maps_that_are_not_certainly_of_the_images_are_left_out_and_named(tmp_path: Path, damage, left: list[str], reason: str):
    paths = write_all(tmp_path)
    damage(tmp_path)
    section = over_attention(paths)
    assert drawn(section).columns[1:] == (*left, ATTENTION, ABMILP)
    assert re.search(f"mae[:,] {re.escape(reason)}", " ".join(words(section, "notice")))


@pytest.mark.parametrize(
    ("images", "reason"),
    [
        (lambda at: write_images(at / "other", n=8), "mae: its maps are of other images (data set "),
        (lambda at: write_images(at / "bad", problem=True), "1 problem(s)"),
        (lambda at: str(at / "gone.tar"), "cannot be read"),
    ],
)
def test_without_the_images_there_are_no_overlays(tmp_path: Path, images, reason: str):
    section = over_attention(write_all(tmp_path), data=images(tmp_path))
    assert gallery(section) is None
    assert reason in " ".join(words(section, "notice"))


def of_dense(root: Path, kind: str, examples: Examples = TWO) -> Section | None:
    images = DenseImages(str(root / "dense"), split=None)
    inputs = collect(Folders(**{kind: root / kind}, dense_images=images), examples)
    return {"segmentation": segmentation, "detection": detection}[kind].section(inputs)


def write_dense(root: Path, kind: str, encoder: str, digest: str = "d", ids: tuple[str, ...] = IDS) -> Path:
    """Results on one data set with what is shown of them."""
    if kind == "segmentation":
        results.write_maps(folder := results.write_segmentation(root / kind / "one", encoder, data=digest), ids, digest)
    else:
        folder = results.write_detection(root / kind / "one", encoder, results.average_precisions(12.0), data=digest)
        results.write_examples(folder, ids, digest)
    return folder


@pytest.fixture
def grey(tmp_path: Path) -> str:
    """The digest of grey images of 8 x 8 pixels."""
    return open_images(write_images(tmp_path / "dense/one", pictures=[Image.new("RGB", (8, 8), GREY)] * 3)).digest


def test_label_maps_of_the_protocol_that_is_best_on_held_out_images(tmp_path: Path, grey: str):
    for encoder in ("mae", "dino"):
        write_dense(tmp_path, "segmentation", encoder, grey)
    section = of_dense(tmp_path, "segmentation")
    found = drawn(section)
    assert found.columns == ("image", "true label map", "dino", "mae")
    assert ids(section) == ["000", "001"]
    image, truth, predicted, _ = (picture.pixels for picture in found.rows[0])
    assert (image == GREY).all()
    assert truth.shape == (SIDE, SIDE, 3)
    assert [tuple(truth[y, -1]) for y in (5, 100, 200)] == [VOID, rgb(COLOURS[1]), rgb(COLOURS[0])]
    assert [tuple(predicted[100, x]) for x in (5, 200)] == [rgb(COLOURS[2]), rgb(COLOURS[0])], "linear, not k-NN"
    assert found.rows[0][2].lines == ("50.0 % right",), "of 56 labelled pixels, 28 are 0, of which 4 are predicted as 2"
    assert [swatch.name for swatch in found.legend] == ["road", "sky", "car", "void, or not shown by the view"]


def test_objects_are_beside_what_was_detected(tmp_path: Path, grey: str):
    for encoder in ("mae", "random"):
        write_dense(tmp_path, "detection", encoder, grey)
    found = drawn(of_dense(tmp_path, "detection"))
    assert found.columns == ("image", "objects", "mae", "random")
    image, objects, detected, _ = (picture.pixels.astype(int) for picture in found.rows[0])
    tinted = {label: (np.array(GREY) + rgb(COLOURS[label])) / 2 for label in (1, 2)}
    assert (image == GREY).all()
    assert np.abs(objects[160, 128] - tinted[2]).max() < 1, "the mask of the car"
    assert np.abs(objects[40, 128] - tinted[1]).max() < 1, "that of a crowd"
    assert np.abs(detected[160, 128] - tinted[2]).max() < 1
    assert (detected[40, 128] == GREY).all(), "a score of 0.1 is below 0.5"
    assert (detected == rgb(COLOURS[2])).all(-1).any(), "outlined in the colour of its class"
    assert [swatch.name for swatch in found.legend] == ["sky", "car"]
    assert [picture.lines for picture in found.rows[0]] == [("000",), ("2 objects",), ("1 detected",), ("1 detected",)]
    lower = drawn(of_dense(tmp_path, "detection", Examples(1, score=0.05)))
    assert lower.rows[0][2].alt == "image 000, detected from mae: car 80 %, road 10 %"
    assert [swatch.name for swatch in lower.legend] == ["road", "sky", "car"]
    assert "score of 0.9; the highest is 0.80" in words(of_dense(tmp_path, "detection", Examples(1, score=0.9)), "notice")[0]


@pytest.mark.parametrize("kind", ["segmentation", "detection"])
def test_over_other_images_or_none_predictions_are_drawn_alone(tmp_path: Path, kind: str):
    write_dense(tmp_path, kind, "mae")
    without = of_dense(tmp_path, kind)
    assert "image" not in drawn(without).columns
    assert ids(without) == (["000", "001"] if kind == "segmentation" else ["2 objects"] * 2)
    assert "--dense-data" in words(without, "notice")[-1]
    write_images(tmp_path / "dense/one", 3)
    assert drawn(of_dense(tmp_path, kind)).columns == drawn(without).columns
    assert "holds other images" in words(of_dense(tmp_path, kind), "notice")[-1]


@pytest.mark.parametrize(("kind", "file"), [("segmentation", "maps/images.json"), ("detection", "examples.json")])
def test_encoders_of_which_nothing_or_something_else_was_kept_are_named(tmp_path: Path, kind: str, file: str):
    kept = write_dense(tmp_path, kind, "dino")
    write_dense(tmp_path, kind, "mae", ids=IDS[1:])
    found = of_dense(tmp_path, kind)
    assert drawn(found).columns[1:] == ("dino",)
    assert "What was kept of mae is of other images" in words(found, "notice")[0]
    next(kept.glob(file)).unlink()
    notice = words(of_dense(tmp_path, kind), "notice")[0]
    assert "Nothing of dino was kept" in notice
    assert gallery(of_dense(tmp_path, kind, Examples(0))) is None


def test_label_maps_of_another_shape_or_of_no_common_protocol(tmp_path: Path):
    folder = write_dense(tmp_path, "segmentation", "mae")
    results.write_maps(results.write_segmentation(tmp_path / "segmentation/one", "dino", {"other": results.protocol(1.0)}), IDS)
    section = of_dense(tmp_path, "segmentation")
    assert gallery(section) is None
    assert "No protocol was saved for all encoders" in words(section, "notice")[-1]
    shutil.rmtree(tmp_path / "segmentation/one/dino")
    Image.new("L", (4, 4)).save(folder / "maps/linear/000.png")
    with pytest.raises(BeyondClsError, match=r"000.png is \[4, 4\] pixels, the true label map \[8, 8\]; run"):
        of_dense(tmp_path, "segmentation")


def of_boxes(root: Path, localised: str, examples: Examples = ONE) -> Section | None:
    return localisation.section(Inputs({}, folders=Folders(localisation=root, localised=localised), examples=examples))


def boxes(root: Path, encoder: str, data: str, **others: object) -> None:
    results.write_localisation(root, encoder, results.score_maps())
    results.write_boxes(root, encoder, data, list(IDS), **others)


def test_predicted_boxes_are_beside_the_true_ones_over_what_was_seen(tmp_path: Path):
    picture = Image.new("RGB", (40, 20), (0, 0, 0))
    picture.paste((250, 250, 0), (0, 0, 20, 20))  # the left half is yellow
    picture.save(tmp_path / "one.png")
    data = tmp_path / "images.csv"
    data.write_text("id,path,label\n" + "".join(f"{name},one.png,0\n" for name in IDS))
    digest, root = open_images(str(data)).digest, tmp_path / "localisation"
    boxes(root, "mae", digest)
    boxes(root, "mirrored", digest, flips=[True] * 3)
    boxes(root, "others", "other")
    results.write_localisation(root, "older", results.score_maps())
    section = of_boxes(root, str(data), Examples(3))
    found = drawn(section)
    assert found.columns == ("image", "mae", "mirrored")
    assert ids(section) == list(IDS)
    assert found.rows[0][1].lines == ("[cls] IoU 0.25", "AbMILP IoU 1.00")
    image, mae, mirrored = (picture.pixels for picture in found.rows[0])
    assert image.shape == (SIDE // 2, SIDE, 3)
    for pixels, bright, dark in ((image, 15, 245), (mae, 15, 245), (mirrored, 245, 15)):
        assert pixels[115, bright, :2].min() > 200
        assert pixels[115, dark].max() < 50

    def has(pixels: np.ndarray, colour: str) -> np.ndarray:
        return (pixels == rgb(colour)).all(-1)

    blue, red, green = "#2f8cff", "#ff4020", "#10d080"
    assert has(image, blue)[33, 40:150].all()  # 8…40 of 64 across is 32…160 of 256; 16…48 of 64 down is 32…96 of 128
    assert not has(image, red).any()
    assert has(mae, green)[33, 40:150].all()  # over the true box
    assert 30 < has(mae, red)[2, 8:120].sum() < 90  # dashed
    assert not has(found.rows[1][0].pixels, blue).any()  # the frame shows nothing of its box
    notices = " ".join(words(section, "notice"))
    assert "Nothing of older was kept" in notices
    assert "What was kept of others is of other images" in notices
    without = of_boxes(root, str(tmp_path / "gone.csv"))
    assert drawn(without).columns == found.columns
    assert tuple(drawn(without).rows[0][0].pixels[-1, -1]) == GREY
    assert "gone.csv cannot be read" in words(without, "notice")[-1]


def test_pictures_are_files_of_their_own_to_which_the_page_links(tmp_path: Path):
    paths = write_all(tmp_path)
    section, out = over_attention(paths), tmp_path / "out"
    files.write(out, collect(Folders(paths["probes"])), [section])
    written = {file.name for file in (out / "figures").iterdir()}
    assert {"overlays-1-image.png", "overlays-2-random-abmilp-weights.png"} < written
    assert all(f'href="figures/{name}"' in (out / "index.html").read_text() for name in written)
    with Image.open(out / "figures/overlays-1-mae-cls-attention.png") as picture:
        assert (np.asarray(picture) == drawn(section).rows[0][1].pixels).all()


def test_a_photograph_is_small_in_the_page():
    coarse = Image.fromarray(np.random.default_rng(0).integers(0, 256, (24, 24, 3), np.uint8))
    photograph = Picture(np.asarray(coarse.resize((SIDE, SIDE), Image.Resampling.BICUBIC)), "")
    assert len(uri(photograph, Gallery("x", "X", (), (), ()))) < 6_000


# What remains of linear sRGB without long, middle and short cones (Machado et al. 2009, severity 1).
EYES = {
    "normal": np.eye(3),
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def lab(colours: np.ndarray, eyes: str) -> np.ndarray:
    """CIELAB of colours, 0…255, as these eyes see them."""
    share = colours / 255
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    xyz = (linear @ np.array(EYES[eyes]).T).clip(0, 1) @ TO_XYZ.T / TO_XYZ.sum(1)
    f = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.stack([116 * f[:, 1] - 16, 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])], 1)


@pytest.mark.parametrize("eyes", EYES)
def test_any_two_colours_differ(eyes: str):
    """2.3 is just noticeable; the first are further apart."""
    for n, least in ((8, 17), (len(COLOURS), 6)):
        seen = lab(np.array([*map(rgb, COLOURS[:n]), VOID], float), eyes)
        assert pdist(seen).min() > least


def test_a_class_has_one_colour_and_no_other_class_has_it():
    n = len(COLOURS)
    assert colours_of(range(n)) == dict(enumerate(COLOURS))
    assert colours_of([n + 1, 1, 2, n - 1]) == {1: COLOURS[1], 2: COLOURS[2], n - 1: COLOURS[-1], n + 1: COLOURS[3]}
    many = colours_of(range(2 * n))
    assert sorted(many.values()) == sorted(2 * COLOURS), "colours repeat where there are more classes"
    assert colour_map(np.array([[-1]]), {}).tolist() == [[list(VOID)]]
