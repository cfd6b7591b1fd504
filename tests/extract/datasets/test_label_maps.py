"""Label maps that are missing, damaged or of something else: each is named, and none is dropped."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from extract.datasets import DataError, ImageSet, open_images
from extract.datasets.map_folders import CITY_CLASSES
from tests.extract.datasets.examples import stripes
from tests.extract.datasets.test_pixels import saved
from tests.extract.pictures import change, picture, write_example, write_file, write_text


def opened(folder: Path, content: bytes | None, classes: str = "sky\nroad\n", name: str = "label-classes.txt") -> ImageSet:
    write_file(folder / name, classes.encode())
    write_file(folder / "images/train/a.png", picture(0))
    if content is not None:
        write_file(folder / "labels/train/a.png", content)
    return open_images(str(folder), split="train")


def encoded(pixels: np.ndarray, form: str = "png") -> bytes:
    return saved(Image.fromarray(pixels), form)


MAP = np.zeros((40, 36), np.uint8)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "is not there"),
        (encoded(MAP[:30]), r"has 36 x 30 pixels \(width x height\), its image 36 x 40"),
        (encoded(MAP + 2), "has the value 2 in 1440 pixels, expected 0 to 1, 255"),
        (encoded(MAP.astype(np.int32) - 1, "tiff"), "has values -1 to -1, expected 0 to 1, 255"),
        *((encoded(MAP, form), f"is a {form.upper()}, whose values are not those") for form in ("jpeg", "webp")),
        (encoded(np.zeros((40, 36, 3), np.uint8)), r"is no index image \(PIL's mode RGB\)"),
        (stripes(0, 1)()[:60], "cannot be decoded: "),
        (encoded(np.zeros((2001, 1000), np.uint8)), r"cannot be decoded: Image size \(2001000 pixels\) exceeds limit"),
        (stripes((1, 2, 3), (4, 5, 6))(), r"has the colour \[4, 5, 6\] \(number 394500\) in 720 pixels, which is in no list$"),
        (encoded(MAP.astype(np.uint16)), r"is no colour image \(PIL's mode I;16\)$"),
    ],
)
def test_what_is_wrong_with_a_map(content: bytes | None, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1_000_000)  # refused from twice as many on
    table = ("1 2 3 sky\n", "label-colours.txt") if "colour " in problem else ()
    images = opened(tmp_path, content, *table)
    (line,) = images.all_problems()
    assert re.match(rf"'a' in {tmp_path}/images/train/a\.png: its label map a\.png .*{problem}", line), line
    assert images.samples[0].labels == ()
    assert images.truth_columns("segmentation").arrays["first"].tolist() == [0, 0], "what has a problem has no truths"


def test_two_images_of_one_map(tmp_path: Path) -> None:
    """In any order in which a disk lists them."""
    source = write_example(tmp_path, "label-maps")
    (tmp_path / "images/test/c.jpg").write_bytes(picture(1, "jpeg"))
    with pytest.raises(DataError, match=r"has c\.jpg and c\.png, expected one image for each label map"):
        open_images(source, split="test")
    (tmp_path / "images/test/c.jpg").rename(tmp_path / "labels/test/c.jpg")
    assert open_images(source, split="test").samples.ids[0] == "c", "of maps only .png is read"


def test_cityscapes_has_maps_of_other_kinds(tmp_path: Path) -> None:
    source = write_example(tmp_path, "cityscapes")
    stem = tmp_path / "gtFine/train/aachen/aachen_000000_000019_gtFine"
    for kind in ("color", "instanceIds"):
        write_file(stem.with_name(f"{stem.name}_{kind}.png"), stripes(1)())
    write_file(tmp_path / "leftImg8bit/train/aachen/preview.png", picture(0))
    assert [sample.id for sample in open_images(source, split="train").samples] == ["aachen/aachen_000000_000019"]
    assert [*CITY_CLASSES] == [7, 8, 11, 12, 13, 17, 19, *range(20, 29), 31, 32, 33], "those that its authors score"


@pytest.mark.parametrize(
    ("form", "old", "new"),
    [
        ("coco-stuff", "val2017", "images/val2017"),
        ("coco-stuff", "stuffthingmaps", "annotations"),
        ("coco-panoptic", "annotations/panoptic_val2017", "panoptic_val2017"),
    ],
)
def test_folders_of_coco_in_the_other_places(form: str, old: str, new: str, tmp_path: Path) -> None:
    """Of pixel maps as their authors have them; of segments as their archive is unpacked into the folder of the data set."""
    source = write_example(tmp_path, form)
    digest = open_images(source, split="val2017").digest
    (tmp_path / "images").mkdir()
    (tmp_path / old).rename(tmp_path / new)
    images = open_images(source, split="val2017")
    assert (images.digest, images.all_problems()) == (digest, [])


def test_palettes_and_wide_indices(tmp_path: Path) -> None:
    """A palette is for people: its indices count."""
    coloured = Image.fromarray(MAP + 1)
    coloured.putpalette([9, 9, 9, 200, 0, 0])
    for content in (saved(coloured, "png"), encoded(MAP.astype(np.uint16) + 1)):
        assert opened(tmp_path, content).samples[0].labels == (1,)


def test_panoptic_segments_that_are_in_no_list(tmp_path: Path) -> None:
    source = write_example(tmp_path, "coco-panoptic")
    change(tmp_path / "annotations/panoptic_val2017.json", '"id": 258', '"id": 259')
    (line,) = open_images(source, split="val2017").all_problems()
    assert "000000000009.png has the colour [2, 1, 0] (number 258) in " in line


def test_objects_beside_panoptic_maps_make_it_coco_unless_it_is_named(tmp_path: Path) -> None:
    write_example(tmp_path, "coco")
    source = write_example(tmp_path, "coco-panoptic")
    assert list(open_images(source, "coco-panoptic", split="val2017").truths) == ["segmentation"]
    assert list(open_images(source, split="val2017").truths) == ["instances"]


VOC = "VOCdevkit/VOC2012"


class TestVoc:
    def test_objects(self, tmp_path: Path) -> None:
        """Difficult ones are kept as crowds, which count neither as found nor as missed."""
        source, first = write_example(tmp_path, "voc"), "<name>aeroplane</name>"
        change(tmp_path / VOC / "Annotations/2007_000032.xml", first, f"{first}<difficult>1</difficult>")
        images = open_images(source, split="train")
        arrays = images.truth_columns("instances").arrays
        assert arrays["first"].tolist() == [0, 3, 3]
        assert (arrays["label"].tolist(), arrays["crowd"].tolist()) == ([0, 14, 14], [1, 0, 0])
        assert arrays["box"][0].tolist() == [0, 0, 18, 40], "from 0, the end excluded"
        assert arrays["area"].tolist() == [8 * 40, 7 * 40, 7 * 40]
        assert images.truth_columns("segmentation").arrays["label"].tolist() == [0, 1, 15, 0]

    @pytest.mark.parametrize(
        ("file", "old", "new", "message"),
        [
            ("Annotations/2007_000033.xml", "cat", "unicorn", "an object is of class 'unicorn'; expected aeroplane, "),
            ("Annotations/2007_000033.xml", None, None, r"2007_000033\.xml is not there"),
            ("SegmentationObject/2007_000033.png", None, stripes(3)(), r"has number 3, its XML 2 objects"),
        ],
    )
    def test_wrong_objects(self, file: str, old: str | None, new: str | bytes | None, message: str, tmp_path: Path) -> None:
        source = write_example(tmp_path, "voc")
        change(tmp_path / VOC / file, old, new)
        with pytest.raises(DataError, match=rf"(?s){message}.*mend the annotations, .* --truths none"):
            open_images(source, split="val").truth_columns("instances")


class TestTable:
    @pytest.mark.parametrize(
        ("column", "ends", "labels", "classes"),
        [
            (",label", (",ape", ",bee"), [(0,), (1,)], ["ape", "bee"]),  # its own
            (",boxes", (",1 2 3 4; 5 6 7 8", ","), [(1,), (0, 1)], ["sky", "road"]),  # what the maps show
        ],
    )
    def test_labels(self, column: str, ends: tuple[str, str], labels: object, classes: object, tmp_path: Path) -> None:
        self._write(tmp_path, f"id,path,segmentation{column}", *ends)
        images = open_images(str(tmp_path / "t.csv"))
        assert (images.multilabel, images.classes) == (column != ",label", classes)
        assert [sample.labels for sample in images.samples] == labels
        assert images.truths["segmentation"].classes == ["sky", "road"]
        assert images.truth_columns("segmentation").arrays["label"].tolist() == [1, 0, 1]
        boxes = [((1, 2, 3, 4, -1), (5, 6, 7, 8, -1)), ()] if column == ",boxes" else [(), ()]
        assert [sample.boxes for sample in images.samples] == boxes, "they have no class"

    @pytest.mark.parametrize("path", ["../a.png", ""])
    def test_paths_that_lead_out(self, path: str, tmp_path: Path) -> None:
        self._write(tmp_path, "id,path,segmentation", "", f"\n3,a.png,{path}")
        with pytest.raises(DataError, match=f"names the image '{path}', which is not inside"):
            open_images(str(tmp_path / "t.csv"))

    def test_no_names(self, tmp_path: Path) -> None:
        self._write(tmp_path, "id,path,segmentation")
        with pytest.raises(DataError, match=r"has no labels but those of its label maps, .* leave out --classes"):
            open_images(str(tmp_path / "t.csv"), classes=tmp_path / "segmentation-classes.txt")
        (tmp_path / "segmentation-classes.txt").unlink()
        with pytest.raises(DataError, match=r"names label maps, but there is no .*segmentation-classes\.txt"):
            open_images(str(tmp_path / "t.csv"))

    @staticmethod
    def _write(folder: Path, header: str, *ends: str) -> None:
        write_text(folder / "segmentation-classes.txt", "sky", "road")
        for name, values in (("a", [255, 1]), ("b", [0, 1])):
            write_file(folder / f"{name}.png", picture(0))
            write_file(folder / f"{name}-map.png", stripes(*values)())
        rows = zip("ab", ends or ("", ""), strict=True)
        write_text(folder / "t.csv", header, *(f"{name},{name}.png,{name}-map.png{end}" for name, end in rows))


def test_progress_of_opening_counts_label_maps(tmp_path: Path) -> None:
    shown: list[object] = []

    @contextmanager
    def bars(*described: object) -> Iterator[Callable[[int], None]]:
        shown.append(described)
        yield shown.append

    open_images(write_example(tmp_path, "label-maps"), split="train", bars=bars)
    assert shown == [("label maps", 2, "maps"), 1, 1]


def test_objects_beside_label_maps(tmp_path: Path) -> None:
    """In COCO's form; they have classes of their own."""
    file, image = tmp_path / "instances/train.json", {"id": 5, "file_name": "a.png", "height": 40, "width": 36}
    mask = {"size": [40, 36], "counts": [0, 40, 40 * 35]}
    cart = {"image_id": 5, "category_id": 7, "bbox": [0, 0, 1, 40], "segmentation": mask}
    content = {"images": [image], "annotations": [cart], "categories": [{"id": 7, "name": "cart"}, {"id": 2, "name": "ass"}]}
    write_text(file, json.dumps(content))
    images = opened(tmp_path, encoded(MAP))
    assert images.truths["instances"].classes == ["ass", "cart"]
    arrays = images.truth_columns("instances").arrays
    assert (arrays["label"].tolist(), arrays["box"].tolist(), arrays["area"].tolist()) == ([1], [[0, 0, 1, 40]], [40])
    assert images.classes == ["sky", "road"], "labels of images are those of their maps"
    write_text(file, json.dumps({**content, "images": [{**image, "file_name": "b.png"}]}))
    with pytest.raises(DataError, match=r"train.json has no image for 'a' \(1 in all\)"):
        opened(tmp_path, encoded(MAP))
