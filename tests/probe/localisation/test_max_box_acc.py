"""Against plain calls of OpenCV at each of the 1,000 thresholds, and against numbers by hand."""

import cv2
import numpy as np
import pytest
from PIL import Image

from extract.transform import Views
from probe.localisation.boxes import candidates, centre_map, evaluation_map
from probe.localisation.max_box_acc import IOUS, best_ious, measure, measure_one, predicted_box
from probe.localisation.truths import truths_of
from tests.probe.localisation.features import write_boxed

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
        assert localised.by_iou[i] == max(shares)
        assert localised.thresholds[i] == np.arange(0, 1, 0.001)[int(np.argmax(shares))]
    shares = slow(maps, truths, 24, True, 0.5)
    assert (localised.max_box_acc, localised.threshold) == (max(shares), np.arange(0, 1, 0.001)[int(np.argmax(shares))])
    assert localised.max_box_acc_v2 == pytest.approx(np.mean(localised.by_iou))


def test_in_the_frame_of_whole_images_that_are_not_square(scored, tmp_path):
    """Boxes of the original through a feature set, compared with boxes that are scaled by hand."""
    maps, truths = scored
    height, width, size = 96, 384, 24
    stretch = np.array([width, height, width, height]) / SIZE
    originals = {i: (boxes * stretch).tolist() for i, boxes in enumerate(truths) if len(boxes)}
    maps = maps[list(originals)]
    by_hand = [
        [[int(v * size / side) for v, side in zip(box, (width, height) * 2, strict=True)] for box in boxes]
        for boxes in originals.values()
    ]
    config = {"input_size": (3, 16, 16), "interpolation": "bicubic", "mean": (0,) * 3, "std": (1,) * 3}
    _, crop = Views({**config, "crop_mode": "squash", "crop_pct": 1.0}).cut(Image.new("RGB", (width, height)), "x", 0)
    boxes = dict(enumerate(originals.values()))
    store = write_boxed(tmp_path / "set", len(maps), boxes=boxes, size=(height, width), crop=crop.box)
    localised = measure(maps, truths_of(store, size).boxes, size)
    shares = [slow(maps, by_hand, size, False, iou) for iou in IOUS]
    assert localised.by_iou == tuple(map(max, shares))
    assert localised.max_box_acc_v2 == pytest.approx(np.mean([max(share) for share in shares]))
    central = truths_of(
        write_boxed(tmp_path / "central", len(maps), boxes=boxes, size=(height, width), crop=(144, 0, 240, 96)), size
    )
    assert measure(maps, central.boxes, size).max_box_acc_v2 < localised.max_box_acc_v2


def test_the_box_that_is_predicted_is_that_of_the_first_version(scored):
    maps, truths = scored
    localised = measure(maps, truths, 24)
    boxes = [predicted_box(scores, localised.threshold, 24) for scores in maps]
    hits = [any(_iou(box, true) >= 0.5 for true in truth.tolist()) for box, truth in zip(boxes, truths, strict=True)]
    assert 100 * np.mean(hits) == localised.max_box_acc
    assert 0 < localised.max_box_acc < 100


def test_every_level_is_that_of_plain_calls():
    """Noise with hundreds of contours, rings and islands, at the size of the evaluation."""
    grey = evaluation_map(np.random.default_rng(0).random((20, 20)), 224)
    truth = np.array([[30, 40, 120, 200], [150, 10, 160, 25]])
    best = best_ious(candidates(grey), truth)
    for level in range(255):
        contours = cv2.findContours((grey > level).astype(np.uint8), cv2.RETR_TREE, cv2.CHAIN_APPROX_SIMPLE)[0]
        rectangles = [cv2.boundingRect(contour) for contour in contours]
        ious = [max(_iou((x, y, min(x + w, 223), min(y + h, 223)), t) for t in truth.tolist()) for x, y, w, h in rectangles]
        largest = max(range(len(contours)), key=lambda i: cv2.contourArea(contours[i]))
        assert best[:, level].tolist() == [max(ious), ious[largest]]


def square(x0, y0, x1, y1, size=SIZE):
    """Scores of single pixels, bright in a rectangle whose corners belong to it."""
    scores = np.zeros((size, size))
    scores[y0 : y1 + 1, x0 : x1 + 1] = 1
    return scores


def test_corners_that_belong_to_a_box_can_make_it_a_hit():
    scores = square(0, 0, 9, 9)  # offers 0, 0, 10, 10: 11 x 11 pixels
    exact, short = np.array([[0, 0, 10, 7]]), np.array([[0, 0, 10, 6]])  # 8 and 7 of 11 rows; without corners 7 and 6 of 10
    assert measure_one(scores, [exact], SIZE).by_iou == (100, 100, 100)
    assert measure_one(scores, [short], SIZE).by_iou == (100, 100, 0)
    # 6 and 5 of 11 rows; without corners 5 and 4 of 10.
    assert measure_one(scores, [np.array([[0, 0, 10, 5]])], SIZE).max_box_acc == 100
    assert measure_one(scores, [np.array([[0, 0, 10, 4]])], SIZE).max_box_acc == 0


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


def test_one_map_for_all_is_that_map_again_and_again(scored):
    maps, truths = scored
    assert measure_one(maps[0], truths, 24) == measure(np.stack([maps[0]] * len(truths)), truths, 24)


def test_progress_counts_every_image(scored):
    maps, truths = scored
    progress_calls = []
    measure(np.tile(maps, (10, 1, 1)), truths * 10, 24, progress=progress_calls.append)
    assert sum(progress_calls) == 80
    assert len(progress_calls) > 1
