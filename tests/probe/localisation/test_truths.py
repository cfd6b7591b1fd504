"""True boxes as views show them, what is counted, and which part of images that is."""

from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from extract.transform import Views
from probe.localisation.truths import truths_of
from probe.views import View
from store import BeyondClsError
from tests.probe.localisation.features import write_boxed

COUNTS = (
    "n_images",
    "n_images_invalid",
    "n_images_without_box",
    "n_images_outside",
    "n_boxes",
    "n_boxes_outside",
    "n_boxes_cut",
)
VIEW = {"input_size": (3, 32, 32), "interpolation": "bicubic", "mean": (0.5,) * 3, "std": (0.5,) * 3}
WIDE = (24, 64)  # height, width


def test_boxes_in_the_frame_of_the_view(tmp_path):
    truths = truths_of(write_boxed(tmp_path / "set", boxes={1: [[0, 0, 8, 16], [16, 16, 32, 32]]}), 64)
    assert [truths.boxes[row].tolist() for row in (0, 1)] == [[[0, 0, 32, 32]], [[0, 0, 16, 32], [32, 32, 64, 64]]]
    assert truths.counts == dict(zip(COUNTS, (6, 0, 0, 0, 7, 0, 0), strict=True))
    assert truths_of(write_boxed(tmp_path / "mirrored", flip=True), 64).boxes[0].tolist() == [[32, 0, 64, 32]]


def test_what_is_not_measured_or_not_visible_is_counted(tmp_path):
    boxes = {0: [[20, 20, 30, 30]], 1: [], 2: [[4, 4, 14, 14], [26, 26, 30, 30]], 3: [[0, 0, 16, 16]], 4: [[8, 8, 9, 9]]}
    truths = truths_of(write_boxed(tmp_path / "set", boxes=boxes, crop=(0, 0, 16, 8), invalid=(5,)), 32)
    assert truths.rows.tolist() == [0, 2, 3, 4]
    assert [len(b) for b in truths.boxes] == [0, 1, 1, 0]  # images 0 and 4 stay, with nothing to be found
    assert truths.boxes[1].tolist() == [[8, 16, 28, 32]]
    assert truths.counts == dict(zip(COUNTS, (4, 1, 1, 2, 5, 3, 2), strict=True))


@pytest.mark.parametrize(
    ("size", "shape", "mode", "share", "shows", "official"),
    [
        (224, WIDE, "squash", 1.0, "whole", True),
        (224, (32, 32), "center", 1.0, "whole", True),  # a square is whole in its central crop
        (64, (32, 32), "center", 1.0, "whole", False),
        (224, WIDE, "squash", 0.875, "crop", False),
        (48, WIDE, "center", 1.0, "crop", False),
        (224, WIDE, "border", 1.0, "padded", False),
    ],
)
def test_what_a_frame_shows(tmp_path, size, shape, mode, share, shows, official):
    """Of images as extraction with these options shows them."""
    (height, width), box = shape, (0, 2, 32, 23)
    _, crop = Views({**VIEW, "crop_mode": mode, "crop_pct": share}).cut(Image.new("RGB", (width, height)), "x", 0)
    truths = truths_of(write_boxed(tmp_path / "set", 1, boxes={0: [box]}, size=shape, crop=crop.box), size)
    frame = truths.frame
    assert (frame.shows, frame.official) == (shows, official)
    assert ("squashed" in frame.words, "padded" in frame.words) == (shows == "whole", shows == "padded")
    if shows == "whole":
        scaled = [int(at * size / side) for at, side in zip(box, (width, height) * 2, strict=True)]
        assert (truths.boxes[0].tolist(), frame.percent_outside) == ([scaled], 0)
    if mode == "center" and shows == "crop":  # 24 x 24 from column 20 on: 12 of the box's 32
        assert (truths.boxes[0].tolist(), truths.counts["n_boxes_cut"]) == ([[0, 4, 24, 46]], 1)
        assert "62.5 %" in frame.words


def test_a_cut_image_makes_the_frame_a_crop_and_other_views_are_random():
    of_images = {"crops": np.array([[0.0, 0, 32, 32], [4, 0, 36, 32]]), "sizes": np.array([[32, 32], [32, 40]])}
    parts = [View.part(SimpleNamespace(**of_images, view=v), np.arange(n)) for v, n in ((0, 1), (0, 2), (1, 2))]
    assert parts == ["whole", "crop", "random"]


@pytest.mark.parametrize(
    ("given", "view", "message"),
    [
        ({"with_boxes": False}, 0, r"has no boxes.*extract images with boxes: a \.csv"),
        ({"n": 2, "boxes": {0: [], 1: []}}, 0, "none of a valid image"),
        ({}, 3, "no array 'images/crop/view3'"),
    ],
)
def test_sets_that_cannot_be_compared(given, view, message, tmp_path):
    with pytest.raises(BeyondClsError, match=message):
        truths_of(write_boxed(tmp_path / "set", **given), 64, view)
