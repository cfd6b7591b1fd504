"""Against plain calls of OpenCV at each of the 1,000 thresholds, and against numbers by hand."""

import cv2
import numpy as np
import pytest

from probe.localisation.boxes import centre_map
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


def square(x0, y0, x1, y1, size=SIZE):
    """Scores of single pixels, bright in a rectangle whose corners belong to it."""
    scores = np.zeros((size, size))
    scores[y0 : y1 + 1, x0 : x1 + 1] = 1
    return scores


def test_corners_that_belong_to_a_box_can_make_it_a_hit():
    scores = square(0, 0, 9, 9)  # offers 0, 0, 10, 10: 11 x 11 pixels
    # 8, 7, 6 and 5 of 11 rows; without corners 7, 6, 5 and 4 of 10.
    by_last_row = [measure_one(scores, [np.array([[0, 0, 10, y]])], SIZE) for y in (7, 6, 5, 4)]
    assert [by_last_row[i].by_iou for i in (0, 1)] == [(100, 100, 100), (100, 100, 0)]
    assert [by_last_row[i].max_box_acc for i in (2, 3)] == [100, 0]


def test_one_threshold_for_all_images():
    """Each image has a threshold at which its box is found, but no threshold is right for both."""
    scores = square(0, 0, 39, 39) + square(10, 10, 17, 17)  # 40 x 40 of half the height, 8 x 8 of the whole
    wide, narrow = np.array([[0, 0, 40, 40]]), np.array([[10, 10, 18, 18]])
    assert measure_one(scores, [wide, narrow], SIZE).by_iou == (50, 50, 50)
    both = measure(np.stack([scores, scores]), [narrow, narrow], SIZE)
    assert both.by_iou == (100, 100, 100)
    assert both.thresholds == (0.499, 0.499, 0.499)  # 0.499 x 255 is cut to 127, the value of the lower part


def test_the_centre_baseline_finds_what_is_central():
    middle, corner = np.array([[12, 12, 36, 36]]), np.array([[0, 0, 12, 12]])
    assert measure_one(centre_map(SIZE, SIZE), [middle], SIZE).max_box_acc_v2 == 100
    assert measure_one(centre_map(SIZE, SIZE), [corner], SIZE).max_box_acc_v2 == 0
