"""The share of weight on objects: of boxes, of masks, of classes in label maps, by the same arithmetic."""

import numpy as np
import pytest

from probe.localisation.foreground import foreground_of, weight_on
from store import BeyondClsError
from tests.features import write_features
from tests.probe.localisation.features import SIDE, write_boxed
from tests.truths import instances_of, with_truths

CLASSES = ("cat", "dog")


def grid(*patches: tuple[int, int, float]) -> list[list[float]]:
    """4 x 4 patches with these shares, 0 elsewhere."""
    shares = np.zeros((SIDE, SIDE))
    for row, column, share in patches:
        shares[row, column] = share
    return shares.tolist()


def test_boxes(tmp_path):
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
