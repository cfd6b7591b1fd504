import pytest

from probe.localisation.truths import truths_of
from store import BeyondClsError
from tests.probe.localisation.features import write_boxed


def test_boxes_in_the_frame_of_the_view(tmp_path):
    truths = truths_of(write_boxed(tmp_path / "set", boxes={1: [[0, 0, 8, 16], [16, 16, 32, 32]]}), 64)
    assert truths.boxes[0].tolist() == [[0, 0, 32, 32]]
    assert truths.boxes[1].tolist() == [[0, 0, 16, 32], [32, 32, 64, 64]]
    assert truths.counts == {
        "n_images": 6,
        "n_images_invalid": 0,
        "n_images_without_box": 0,
        "n_images_outside": 0,
        "n_boxes": 7,
        "n_boxes_outside": 0,
        "n_boxes_cut": 0,
    }


def test_a_stored_flip_mirrors_the_boxes(tmp_path):
    assert truths_of(write_boxed(tmp_path / "set", flip=True), 64).boxes[0].tolist() == [[32, 0, 64, 32]]


def test_what_is_not_measured_or_not_visible_is_counted(tmp_path):
    boxes = {0: [[20, 20, 30, 30]], 1: [], 2: [[4, 4, 14, 14], [26, 26, 30, 30]], 3: [[0, 0, 16, 16]], 4: [[8, 8, 9, 9]]}
    truths = truths_of(write_boxed(tmp_path / "set", boxes=boxes, crop=(0, 0, 16, 8), invalid=(5,)), 32)
    assert truths.rows.tolist() == [0, 2, 3, 4]
    assert [len(b) for b in truths.boxes] == [0, 1, 1, 0]  # images 0 and 4 stay, with nothing to be found
    assert truths.boxes[1].tolist() == [[8, 16, 28, 32]]
    counts = {name: value for name, value in truths.counts.items() if value}
    assert counts == {
        "n_images": 4,
        "n_images_invalid": 1,
        "n_images_without_box": 1,
        "n_images_outside": 2,
        "n_boxes": 5,
        "n_boxes_outside": 3,
        "n_boxes_cut": 2,
    }


def test_a_set_without_boxes_is_refused(tmp_path):
    with pytest.raises(BeyondClsError, match=r"has no boxes.*extract images with boxes: a \.csv"):
        truths_of(write_boxed(tmp_path / "set", with_boxes=False), 64)
    with pytest.raises(BeyondClsError, match="none of a valid image"):
        truths_of(write_boxed(tmp_path / "none", 2, boxes={0: [], 1: []}), 64)


def test_a_view_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(BeyondClsError, match="no array 'images/crop/view3'"):
        truths_of(write_boxed(tmp_path / "set"), 64, 3)
