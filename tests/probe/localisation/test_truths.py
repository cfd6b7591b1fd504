"""True boxes as views show them, which part of images that is, and the share of weight that falls on objects."""

from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from extract.transform import Views
from probe.localisation.foreground import foreground_of, weight_on
from probe.localisation.truths import truths_of
from probe.views import View
from store import BeyondClsError
from tests.features import write_features
from tests.probe.localisation.features import SIDE, write_boxed
from tests.truths import instances_of, with_truths

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


CLASSES = ("cat", "dog")


def grid(*patches: tuple[int, int, float]) -> list[list[float]]:
    """4 x 4 patches with these shares, 0 elsewhere."""
    shares = np.zeros((SIDE, SIDE))
    for row, column, share in patches:
        shares[row, column] = share
    return shares.tolist()


def test_the_union_of_boxes_is_foreground(tmp_path):
    """Their union, cut by patches; images that show none are left out."""
    boxes = {0: [[4, 8, 16, 16]], 1: [[0, 0, 8, 8], [0, 4, 8, 8]], 2: []}
    found = foreground_of(write_boxed(tmp_path / "set", 3, boxes=boxes))
    assert (found.truth, found.rows.tolist(), found.n_without) == ("boxes", [0, 1], 1)
    assert found.share.tolist() == [grid((1, 0, 0.5), (1, 1, 1)), grid((0, 0, 1))]
    seen = foreground_of(write_boxed(tmp_path / "crop", 3, boxes=boxes, crop=(0, 8, 16, 24), flip=True))
    assert seen.share.tolist() == [grid(*((row, column, 1) for row in (0, 1) for column in (0, 1, 2)))]
    assert foreground_of(write_boxed(tmp_path / "rows", 4), rows=np.array([1, 3])).rows.tolist() == [1, 3]


def test_masks_count_their_own_pixels_and_not_those_of_their_boxes(tmp_path):
    masks = np.zeros((2, 32, 32), bool)
    masks[0, :16, :8], masks[0, 8:16, 8:12] = True, True  # shaped like an L, within a box of 2 x 2 patches
    masks[1, 24:, 24:] = True
    plain = write_features(tmp_path / "plain", 2, SIDE**2, 4)
    objects = [instances_of(masks, [0, 1]), instances_of(masks[:1], [1])]
    store = with_truths(plain, tmp_path / "set", instances=objects, instance_classes=CLASSES)
    found = foreground_of(store)
    ell = ((0, 0, 1), (1, 0, 1), (1, 1, 0.5))
    assert found.truth == "masks"
    assert found.share.tolist() == [grid(*ell, (3, 3, 1)), grid(*ell)]
    cats = foreground_of(store, ["cat"])
    assert (cats.rows.tolist(), cats.n_without, cats.share.tolist()) == ([0], 1, [grid(*ell)])
    with pytest.raises(BeyondClsError, match="has no class 'owl'; it has: cat, dog"):
        foreground_of(store, ["owl"])


def test_label_maps_need_a_choice_of_classes(tmp_path):
    """Where the set has objects as well, these are what is meant without one."""
    label_map = np.full((32, 32), -1, np.int16)
    label_map[:8, :8], label_map[:8, 8:16] = 0, 1
    plain = write_features(tmp_path / "plain", 1, SIDE**2, 4)
    maps = {"maps": [label_map], "map_classes": CLASSES}
    store = with_truths(plain, tmp_path / "maps", **maps)
    assert foreground_of(store, ["dog"]).share.tolist() == [grid((0, 1, 1))]
    with pytest.raises(BeyondClsError, match="every labelled pixel would be foreground; choose classes of cat, dog"):
        foreground_of(store)
    objects = [instances_of(label_map[None] == 0, [0])]
    both = with_truths(plain, tmp_path / "both", **maps, instances=objects, instance_classes=("object",))
    assert foreground_of(both).truth == "masks"
    assert foreground_of(both, ["dog"]).truth == "label maps"
    with pytest.raises(BeyondClsError, match=r"neither label maps nor objects.*--truths segmentation"):
        foreground_of(plain)


def test_classes_of_boxes(tmp_path):
    store = write_boxed(tmp_path / "set", 2)
    with pytest.raises(BeyondClsError, match="has no class 'cat'; it has: none with a name"):
        foreground_of(store, ["cat"])
    store.attributes["classes"] = list(CLASSES)
    assert foreground_of(store, ["cat"]).rows.tolist() == [0, 1]
    with pytest.raises(BeyondClsError, match=r"no view of .* shows dog; choose other classes"):
        foreground_of(store, ["dog"])
    beside = write_boxed(tmp_path / "beside", 1, boxes={0: [[0, 0, 4, 4]]}, crop=(8, 8, 32, 32))
    with pytest.raises(BeyondClsError, match="shows an object; extract whole images: --crop-mode squash --crop-pct 1"):
        foreground_of(beside)


def test_shares_of_weight_by_hand(tmp_path):
    found = foreground_of(write_boxed(tmp_path / "set", 2, boxes={0: [[0, 0, 8, 8]], 1: [[0, 0, 16, 16]]}))
    one_patch, even, area = np.zeros((2, SIDE, SIDE)), np.ones((2, SIDE, SIDE)), 100 * (1 / 16 + 4 / 16) / 2
    one_patch[:, 1, 1] = 2.0
    result = weight_on([one_patch, even], found)
    assert (result["share"]["values"], result["chance"], result["gain"]["values"]) == ([50, area], area, [2, 1])
    assert (result["n_images"], result["n_without"]) == (2, 0)
    assert np.isnan(weight_on([np.zeros((2, SIDE, SIDE))], found)["share"]["mean"])
