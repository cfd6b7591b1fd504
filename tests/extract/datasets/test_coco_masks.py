"""Masks of COCO's annotations: as pycocotools draws them; what is wrong is named before any C code sees it."""

import json
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pycocotools import mask as published

from extract.datasets import DataError, ImageSet, open_images
from extract.datasets.coco import reader
from extract.datasets.truths import Truths
from extract.requests import Request
from store.truths import rle
from tests.extract.pictures import picture, write_file
from tests.extract.tiny import tiny_encoder

SIZE = (40, 36)  # height and width
SQUARE = [2, 3, 12, 3, 12, 9, 2, 9]


def write(folder: Path, *annotations: dict[str, Any], **image: Any) -> str:
    files = [{"id": n, "file_name": f"{n}.png", "height": SIZE[0], "width": SIZE[1], **image} for n in (1, 2)]
    objects = [{"id": i, "image_id": 1, "category_id": 7, "bbox": [2, 3, 10, 6], **one} for i, one in enumerate(annotations)]
    content = {"images": files, "annotations": objects, "categories": [{"id": 7, "name": "cat"}, {"id": 3, "name": "ape"}]}
    write_file(folder / "annotations/instances_val2017.json", json.dumps(content).encode())
    for n in (1, 2):
        write_file(folder / f"val2017/{n}.png", picture(n))
    return str(folder)


def opened(*written: Any, **image: Any) -> ImageSet:
    return open_images(write(*written, **image), split="val2017")


def test_polygons_and_run_lengths(tmp_path: Path) -> None:
    uncompressed = [100, 5, 40 * 36 - 105]
    (compressed,) = rle.encode(np.ones((1, *SIZE), bool))
    images = opened(
        tmp_path,
        {"segmentation": [SQUARE, [20.5, 20, 30, 20, 25.2, 31.7]], "area": 60.25},
        {"segmentation": {"counts": uncompressed, "size": list(SIZE)}, "iscrowd": 1, "category_id": 3},
        {"segmentation": {"counts": compressed.decode(), "size": list(SIZE)}},
    )
    arrays = images.truth_columns("instances").arrays
    assert images.truths["instances"].classes == ["ape", "cat"]
    assert (arrays["first"].tolist(), arrays["label"].tolist()) == ([0, 3, 3], [1, 0, 1])
    assert (arrays["crowd"].tolist(), arrays["area"].tolist()) == ([0, 1, 0], [60.25, 5, 40 * 36])
    assert arrays["box"][0].tolist() == [2, 3, 12, 9]
    content, start = arrays["counts"].tobytes(), arrays["start"].tolist()
    drawn = [rle.decode(content[a:b], SIZE) for a, b in pairwise(start)]
    coded = published.frPyObjects([SQUARE, [20.5, 20, 30, 20, 25.2, 31.7]], *SIZE)
    np.testing.assert_array_equal(drawn[0], published.decode(published.merge(coded)))
    assert np.flatnonzero(drawn[1].T.ravel()).tolist() == list(range(100, 105))
    assert drawn[2].all()


def test_the_form_keeps_them_only_if_asked(tmp_path: Path) -> None:
    """So that features of COCO have the keys that they had before there were truths."""
    images = opened(tmp_path, {"segmentation": [SQUARE]})
    for part in (images, images.part([0])):
        assert Request.resolve(tiny_encoder(), part).truths == ()
    assert Request.resolve(tiny_encoder(), images, truths="all").truths == ("instances",)
    assert images.truth_columns("instances") is images.truth_columns("instances"), "read once"


@pytest.mark.parametrize(
    ("objects", "area"),
    [
        ([{}, {"area": 3}], [60, 3]),  # boxes alone
        ([{"segmentation": [[5.1, 5.1, 5.2, 5.1, 5.2, 5.2]]}], [0]),  # smaller than a pixel, as published sets have them
        ([{"segmentation": [[-3.0, 10, 50, 10, 50, 20, -3, 20]]}], [36 * 10]),  # a little beyond the image
    ],
)
def test_areas(objects: list[dict[str, Any]], area: list[int], tmp_path: Path) -> None:
    arrays = opened(tmp_path, *objects).truth_columns("instances").arrays
    assert arrays["area"].tolist() == area
    assert ("counts" in arrays) == ("segmentation" in objects[0])


@pytest.mark.parametrize(
    ("segmentation", "problem"),
    [
        ([], r"segmentation '\[\]', expected polygons or run lengths"),
        ([[1, 2, 3, 4]], "a polygon of 4 numbers, expected x and y of three points or more"),
        ([[40, 1, 50, 1, 50, 9]], "its polygons are outside of the image of 36 x 40 pixels"),
        ([[1, 1, 30, 1] * 80_000], r"a polygon whose outline has 4\.63997e\+06 pixels, expected 4,000,000 at most"),
        ([["a", 1, 9, 1, 9, 1]], "could not convert string to float"),
        ([[1, 1, 9, 1, 9, float("nan")]], "a polygon far outside of its image"),
        ({"counts": [-5, 1445], "size": [40, 36]}, r"run lengths \[-5, 1445\], expected counts"),
        ({"counts": [1440], "size": [36, 40]}, r"run lengths of a mask of \[36, 40\] pixels .*, its image has \[40, 36\]"),
        ({"counts": "é" * 500, "size": [40, 36]}, "are not run lengths of a mask"),
        ({"counts": [100.5, 1339.5], "size": [40, 36]}, r"run lengths \[100\.5, 1339\.5\], expected counts"),
        ([[1, 1, 9, 85, 9, 9]], "a polygon far outside of its image, 36 x 40 pixels: 1 to 85"),
    ],
)
def test_what_is_wrong_with_a_mask(segmentation: Any, problem: str, tmp_path: Path) -> None:
    images = opened(tmp_path, {"segmentation": segmentation, "area": 5})
    with pytest.raises(DataError, match=rf"'1' in .*1\.png: annotation 0 is not as expected: .*{problem}"):
        images.truth_columns("instances")


@pytest.mark.parametrize(
    ("objects", "image", "message"),
    [
        ([{"segmentation": [SQUARE]}, {}], {}, "annotation 1 is not as expected: it has no 'segmentation'"),
        ([{}], {"height": 30}, r"its annotations are of 36 x 30 pixels \(width x height\), it has 36 x 40\n"),
        ([{}], {"file_name": "a\0.png"}, r"names the image 'a\\x00\.png', which is not inside"),
        ([{"category_id": 9}], {}, "an annotation is of category 9, which is not among its categories"),
    ],
)
def test_what_is_wrong_with_the_file(objects: list[Any], image: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        opened(tmp_path, *objects, **image).truth_columns("instances")


def test_sizes_that_are_not_stated(tmp_path: Path) -> None:
    """The image knows its own; of one that is cut nothing is known."""
    unstated = {"height": None, "width": None}
    arrays = opened(tmp_path, {"segmentation": [SQUARE]}, **unstated).truth_columns("instances").arrays
    assert rle.decode(arrays["counts"].tobytes(), SIZE)[3:9, 2:12].all()
    images = opened(tmp_path, {"segmentation": [SQUARE]}, height="40")
    with pytest.raises(DataError, match=r"its annotations have height .* and width 36"):
        images.truth_columns("instances")
    images = opened(tmp_path, {"segmentation": [SQUARE]}, **unstated)
    (tmp_path / "val2017/1.png").write_bytes(b"cut")
    with pytest.raises(DataError, match=r"its annotations have height .* and width None"):
        images.truth_columns("instances")


@pytest.mark.parametrize(
    ("annotation", "problem"),
    [
        ({"area": float("inf")}, r"box \[2, 3, 10, 6\] \(x, y, width, height\) with area inf"),
        ({"bbox": [2, 3, -1, 6]}, r"box \[2, 3, -1, 6\]"),
    ],
)
def test_what_is_wrong_with_an_object(annotation: dict[str, Any], problem: str, tmp_path: Path) -> None:
    """Also where the form of the data set has not looked at boxes and classes before."""
    images = opened(tmp_path, {"segmentation": [SQUARE]})
    write(tmp_path, annotation)
    with pytest.raises(DataError, match=f"'1' in .*: annotation 0 is not as expected: {problem}"):
        images.truth_columns("instances")


def test_of_many_problems_the_first_are_named(tmp_path: Path) -> None:
    images = opened(tmp_path, {"segmentation": []})
    many = ImageSet("many", [replace(images.samples[0], id=f"{i}", labels=(0,)) for i in range(12)], ["cat"], multilabel=True)
    file = tmp_path / "annotations/instances_val2017.json"
    many.truths["instances"] = Truths(["cat"], partial(reader, file, dict.fromkeys(many.samples.ids, 1), {}))
    with pytest.raises(DataError, match=r"\(12 problems in all\)\nmend the annotations") as raised:
        many.truth_columns("instances")
    assert str(raised.value).count("expected polygons or run lengths") == 10
