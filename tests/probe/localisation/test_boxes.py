import numpy as np
import pytest

from probe.localisation.boxes import into_view, iou


def shown(boxes, crop=(0, 0, 100, 50), flip=False, size=200):
    return into_view(np.array(boxes, np.float32), np.array(crop, np.float32), flip, size)


def test_a_whole_image_is_squeezed_into_the_frame():
    in_view = shown([[10, 5, 60, 25], [0, 0, 100, 50]])
    assert in_view.boxes.tolist() == [[20, 20, 120, 100], [0, 0, 200, 200]]
    assert (in_view.n_outside, in_view.n_cut) == (0, 0)


def test_corners_are_cut_to_whole_numbers():
    assert shown([[1.3, 1.4, 7.9, 7.9]], (0, 0, 10, 10), size=10).boxes.tolist() == [[1, 1, 7, 7]]


def test_through_a_crop():
    in_view = shown([[30, 20, 50, 40]], crop=(20, 10, 60, 50), size=80)
    assert in_view.boxes.tolist() == [[20, 20, 60, 60]]


def test_a_mirrored_view_mirrors_left_and_right():
    assert shown([[10, 5, 60, 25]], flip=True).boxes.tolist() == [[80, 20, 180, 100]]


def test_a_box_ends_at_the_border_of_the_crop_and_is_counted():
    in_view = shown([[0, 0, 30, 30], [25, 15, 45, 35]], crop=(20, 10, 60, 50), size=40)
    assert in_view.boxes.tolist() == [[0, 0, 10, 20], [5, 5, 25, 25]]
    assert (in_view.n_outside, in_view.n_cut) == (0, 1)
    assert (in_view.area, in_view.area_shown) == (30 * 30 + 20 * 20, 10 * 20 + 20 * 20)


@pytest.mark.parametrize("box", [[0, 0, 20, 50], [60, 10, 90, 50], [20, 0, 60, 10], [20, 50, 60, 90]])
def test_a_box_outside_of_the_crop_is_counted(box):
    in_view = shown([box], crop=(20, 10, 60, 50), size=40)
    assert in_view.boxes.shape == (0, 4)
    assert (in_view.n_outside, in_view.n_cut, in_view.area_shown) == (1, 0, 0)
    assert in_view.area > 0


def test_a_padded_view_reaches_beyond_the_image():
    assert shown([[0, 0, 100, 50]], crop=(0, -25, 100, 75)).boxes.tolist() == [[0, 50, 200, 150]]


def test_corners_belong_to_their_box():
    # Widths are 2 and 2, one column shared: 2 of 2 + 2 - 1 columns. Without + 1, they would share nothing.
    assert iou(np.array([[0, 0, 1, 9]]), np.array([[1, 0, 2, 9]])).item() == pytest.approx(1 / 3)
    assert iou(np.array([[0, 0, 1, 9]]), np.array([[2, 0, 3, 9]])).item() == 0
    assert iou(np.array([[5, 5, 5, 5]]), np.array([[5, 5, 5, 5]])).item() == 1


def test_every_box_with_every_other():
    a, b = np.array([[0, 0, 9, 9], [0, 0, 4, 9]]), np.array([[0, 0, 9, 9], [5, 0, 9, 9], [50, 50, 60, 60]])
    assert iou(a, b).tolist() == [[1, 0.5, 0], [0.5, 0, 0]]
    assert iou(a, np.zeros((0, 4), np.int64)).shape == (2, 0)
