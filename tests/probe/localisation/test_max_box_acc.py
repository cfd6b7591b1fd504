"""Against plain calls of OpenCV at each of the 1,000 thresholds, and against numbers by hand."""

import cv2
import numpy as np
import pytest

from probe.localisation.boxes import candidates, centre_map, evaluation_map, into_view
from probe.localisation.max_box_acc import IOUS, measure, measure_one, predicted_box

SIZE = 48


def slow(maps, truths, size, largest_alone, iou_threshold):
    """Share of images in percent at each threshold, one after the other."""
    shares = []
    for threshold in np.arange(0, 1, 0.001):
        n_found = 0
        for scores, truth in zip(maps, truths, strict=True):
            big = cv2.resize(scores.astype(np.float64), (size, size), interpolation=cv2.INTER_CUBIC)
            big = big - big.min()
            grey = (big / big.max() * 255).astype(np.uint8) if scores.min() < scores.max() else np.zeros((size, size), np.uint8)
            _, bright = cv2.threshold(grey, int(threshold * grey.max()), 255, cv2.THRESH_BINARY)
            contours = cv2.findContours(bright, cv2.RETR_TREE, cv2.CHAIN_APPROX_SIMPLE)[0]
            if largest_alone and len(contours):
                contours = [max(contours, key=cv2.contourArea)]
            boxes = [(x, y, min(x + w, size - 1), min(y + h, size - 1)) for x, y, w, h in map(cv2.boundingRect, contours)]
            n_found += any(_iou(box, true) >= iou_threshold for box in boxes or [(0, 0, 0, 0)] for true in truth)
        shares.append(100 * n_found / len(maps))
    return shares


def _iou(a, b):
    width, height = (min(a[i + 2], b[i + 2]) - max(a[i], b[i]) + 1 for i in (0, 1))
    shared = max(width, 0) * max(height, 0)
    areas = [(c[2] - c[0] + 1) * (c[3] - c[1] + 1) for c in (a, b)]
    return shared / (sum(areas) - shared)


@pytest.fixture(scope="module")
def scored():
    """Maps of 4 x 4 patches that know something of the boxes; one is constant, one image has two boxes, one has none."""
    generator = np.random.default_rng(3)
    corners = generator.integers(0, 12, (8, 2))
    truths = [np.array([[x, y, x + 12 + 3 * i, y + 20]]) for i, (x, y) in enumerate(corners)]
    truths[2] = np.concatenate([truths[2], [[20, 0, 30, 8]]])
    truths[5] = np.zeros((0, 4), np.int64)
    maps = generator.random((8, 4, 4))
    for scores, truth in zip(maps, truths, strict=True):
        for x0, y0, x1, y1 in truth:
            scores[y0 // 12 : y1 // 12 + 1, x0 // 12 : x1 // 12 + 1] += 0.7
    maps[4] = 0.1
    return maps, truths


def test_equal_to_every_threshold_by_itself(scored):
    maps, truths = scored
    localised = measure(maps, truths, 24)
    for i, iou in enumerate(IOUS):
        shares = slow(maps, truths, 24, False, iou)
        assert (localised.by_iou[i], localised.thresholds[i]) == (max(shares), np.arange(0, 1, 0.001)[int(np.argmax(shares))])
    shares = slow(maps, truths, 24, True, 0.5)
    assert (localised.max_box_acc, localised.threshold) == (max(shares), np.arange(0, 1, 0.001)[int(np.argmax(shares))])
    assert localised.max_box_acc_v2 == pytest.approx(np.mean(localised.by_iou))
    alike, progress = np.stack([maps[0]] * 80), list[int]()
    assert measure(alike, truths * 10, 24, progress=progress.append) == measure_one(maps[0], truths * 10, 24)
    assert len(progress) > 1
    assert sum(progress) == 80


def test_the_box_that_is_predicted_is_that_of_the_first_version(scored):
    maps, truths = scored
    localised = measure(maps, truths, 24)
    boxes = [predicted_box(scores, localised.threshold, 24) for scores in maps]
    hits = [any(_iou(box, true) >= 0.5 for true in truth.tolist()) for box, truth in zip(boxes, truths, strict=True)]
    assert 100 * np.mean(hits) == localised.max_box_acc
    assert 0 < localised.max_box_acc < 100


def test_the_first_version_takes_the_box_of_the_largest_contour():
    scores = np.zeros((SIZE, SIZE))
    scores[:20, :20] = scores[30:34, 30:34] = 1
    found = measure_one(scores, [np.array([[30, 30, 34, 34]])], SIZE)
    assert (found.by_iou[1], found.max_box_acc) == (100, 0)


def test_the_centre_baseline_finds_what_is_central():
    for box, found in (((12, 12, 36, 36), 100), ((0, 0, 12, 12), 0)):
        assert measure_one(centre_map(SIZE, SIZE), [np.array([box])], SIZE).max_box_acc_v2 == found
    assert np.allclose(centre_map(5, 15)[:, 1::3], centre_map(5, 5)), "as wide as the grid"


@pytest.mark.parametrize("scores", [np.full((7, 7), 1 / 49), np.full((7, 7), np.nan)])
def test_a_map_without_information_is_black(scores):
    with np.errstate(all="raise"):
        assert not evaluation_map(scores, 30).any()


SMALL = 20
# Rectangles x0, y0, x1, y1 (corners belong to them), each of a value, one over the other.
PICTURES = {
    "at the last pixel": [(10, 12, 19, 19, 255)],
    "an island in a hole": [(1, 1, 18, 18, 255), (4, 4, 15, 15, 0), (8, 8, 10, 10, 255)],
    "diagonal pixels": [(4, 4, 4, 4, 255), (5, 5, 5, 5, 255)],
    "a bay open to the border": [(0, 0, 19, 19, 255), (0, 8, 5, 11, 0)],
    "a thin cross with the larger box": [(0, 9, 10, 9, 255), (5, 4, 5, 14, 255), (12, 5, 19, 12, 255)],
}
CROPPED = {"crop": (20, 10, 60, 50), "size": 40}


@pytest.mark.parametrize("name", [*PICTURES, "noise"])
def test_boxes_of_every_level_are_opencvs(name):
    image = np.random.default_rng(0).integers(0, 256, (SMALL, SMALL)).astype(np.uint8)
    if name in PICTURES:
        image[:] = 0
    for x0, y0, x1, y1, value in PICTURES.get(name, ()):
        image[y0 : y1 + 1, x0 : x1 + 1] = value
    found = candidates(image)
    ends = [*found.starts[1:], len(found.boxes)]
    for level in range(int(image.max())):
        contours = cv2.findContours((image > level).astype(np.uint8), cv2.RETR_TREE, cv2.CHAIN_APPROX_SIMPLE)[0]
        expected = [[x, y, min(x + w, SMALL - 1), min(y + h, SMALL - 1)] for x, y, w, h in map(cv2.boundingRect, contours)]
        part = found.of_level[level]
        assert sorted(found.boxes[found.starts[part] : ends[part]].tolist()) == sorted(expected)
        largest = expected[int(np.argmax([cv2.contourArea(contour) for contour in contours]))]
        assert found.boxes[found.largest[part]].tolist() == largest


@pytest.mark.parametrize(
    ("boxes", "view", "expected", "counts"),
    [
        ([[10, 5, 60, 25], [0, 0, 100, 50]], {}, [[20, 20, 120, 100], [0, 0, 200, 200]], (0, 0, 48000, 48000)),
        ([[1.25, 1.5, 7.75, 7.5]], {"crop": (0, 0, 10, 10), "size": 10}, [[1, 1, 7, 7]], (0, 0, 39, 39)),
        ([[10, 5, 60, 25]], {"flip": True}, [[80, 20, 180, 100]], (0, 0, 8000, 8000)),
        ([[0, 0, 100, 50]], {"crop": (0, -25, 100, 75)}, [[0, 50, 200, 150]], (0, 0, 20000, 20000)),
        ([[0, 0, 30, 30], [25, 15, 45, 35]], CROPPED, [[0, 0, 10, 20], [5, 5, 25, 25]], (0, 1, 1300, 600)),
        ([[0, 0, 20, 50], [60, 10, 90, 50], [20, 0, 60, 10], [20, 50, 60, 90]], CROPPED, [], (4, 0, 4200, 0)),
    ],
    ids=["whole image", "whole numbers", "mirrored", "padded", "cut at the border", "outside"],
)
def test_boxes_are_where_a_view_shows_them(boxes, view, expected, counts):
    crop, flip, size = ({"crop": (0, 0, 100, 50), "flip": False, "size": 200} | view).values()
    shown = into_view(np.array(boxes, np.float32), np.array(crop, np.float32), flip, size)
    assert shown.boxes.tolist() == expected
    assert (shown.n_outside, shown.n_cut, shown.area, shown.area_shown) == counts
