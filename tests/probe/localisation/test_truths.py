import numpy as np
import pytest
from PIL import Image

from extract.transform import Views
from probe.localisation.truths import Frame, frame_of, truths_of
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


VIEW = {"input_size": (3, 32, 32), "interpolation": "bicubic", "mean": (0.5,) * 3, "std": (0.5,) * 3}
WIDE = (24, 64)  # height, width


def through(tmp_path, size, box, height_width=WIDE, **cut):
    """A box as extraction with these options shows it."""
    height, width = height_width
    _, crop = Views({**VIEW, **cut}).cut(Image.new("RGB", (width, height)), "x", 0)
    return truths_of(write_boxed(tmp_path / "set", 1, boxes={0: [box]}, size=height_width, crop=crop.box), size)


def test_the_whole_image_is_squashed_into_the_frame(tmp_path):
    box = (3, 2, 61, 23)
    truths = through(tmp_path, 224, box, crop_mode="squash", crop_pct=1.0)
    height, width = WIDE
    squashed = [int(at * 224 / side) for at, side in zip(box, (width, height) * 2, strict=True)]
    assert truths.boxes[0].tolist() == [squashed]
    assert truths.counts["n_boxes_cut"] == truths.counts["n_boxes_outside"] == 0
    assert truths.frame == Frame("whole", 224, 0.0)
    assert truths.frame.official
    assert truths.frame.words == "whole image, squashed to 224 x 224 pixels"


def test_a_central_crop_cuts_boxes_and_says_how_much_it_lost(tmp_path):
    truths = through(tmp_path, 48, (0, 0, 32, 24), crop_mode="center", crop_pct=1.0)
    assert truths.boxes[0].tolist() == [[0, 0, 24, 48]]  # 24 x 24 from 20 on: 12 of the box's 32 columns
    assert truths.counts["n_boxes_cut"] == 1
    assert not truths.frame.official
    assert truths.frame.words == "central crop, in 48 x 48 pixels; 62.5 % of the boxes' area lies outside of it"


@pytest.mark.parametrize(
    ("size", "shape", "cut", "shows", "official"),
    [
        (224, (32, 32), {"crop_mode": "center", "crop_pct": 1.0}, "whole", True),  # a square is whole in its central crop
        (64, (32, 32), {"crop_mode": "center", "crop_pct": 1.0}, "whole", False),
        (224, WIDE, {"crop_mode": "squash", "crop_pct": 0.875}, "crop", False),
        (224, WIDE, {"crop_mode": "border", "crop_pct": 1.0}, "padded", False),
    ],
)
def test_what_a_frame_shows(tmp_path, size, shape, cut, shows, official):
    frame = through(tmp_path, size, (8, 8, 24, 16), shape, **cut).frame
    assert (frame.shows, frame.official) == (shows, official)
    assert ("squashed" in frame.words, "padded" in frame.words) == (shows == "whole", shows == "padded")


def test_a_cut_image_makes_the_frame_a_crop_and_other_views_are_random(tmp_path):
    crops, sizes = np.array([[0.0, 0, 32, 32], [4, 0, 36, 32]]), np.array([[32, 32], [32, 40]])
    assert frame_of(crops[:1], sizes[:1], 224, 0, 1, 1).shows == "whole"
    assert frame_of(crops, sizes, 224, 0, 1, 1).shows == "crop"
    assert frame_of(crops, sizes, 224, 1, 4, 1) == Frame("random", 224, 75.0)


def test_a_set_without_boxes_is_refused(tmp_path):
    with pytest.raises(BeyondClsError, match=r"has no boxes.*extract images with boxes: a \.csv"):
        truths_of(write_boxed(tmp_path / "set", with_boxes=False), 64)
    with pytest.raises(BeyondClsError, match="none of a valid image"):
        truths_of(write_boxed(tmp_path / "none", 2, boxes={0: [], 1: []}), 64)


def test_a_view_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(BeyondClsError, match="no array 'images/crop/view3'"):
        truths_of(write_boxed(tmp_path / "set"), 64, 3)
