"""Which part of each patch is foreground, and how much of a map's weight falls on it."""

import numpy as np
import pytest

from probe.localisation.maps import ScoreMaps
from probe.segmentation.foreground import foreground_of, measure, on_foreground
from store import BeyondClsError
from tests.features import write_features
from tests.probe.segmentation.features import CLASSES
from tests.truths import instances_of, with_truths

SHARE = np.zeros((2, 4, 4))  # of images 0 and 2, mirrored
SHARE[0, :, 2:] = 1
SHARE[1, 0, 2:] = 0.5, 1
MIRRORED = {"images/crop/view0": np.tile(np.float32([0, 0, 32, 32]), (3, 1)), "images/flip/view0": np.ones(3, np.uint8)}


@pytest.fixture
def plain(tmp_path):
    return write_features(tmp_path / "plain", 3, 16, 6)


def drawn() -> np.ndarray:
    """Cars in the left half of image 0, and in 8 x 12 pixels of image 2."""
    maps = np.zeros((3, 32, 32), np.int16)
    maps[0, :, :16] = maps[2, :8, :12] = 2
    return maps


def test_of_label_maps(plain, tmp_path):
    store = with_truths(plain, tmp_path / "set", maps=list(drawn()), map_classes=CLASSES, changed=MIRRORED, instances=[[]] * 3)
    foreground = foreground_of(store, ["car"])
    assert (foreground.rows.tolist(), foreground.n_without) == ([0, 2], 1), "an image that shows none is left out"
    np.testing.assert_allclose(foreground.share, SHARE)
    assert foreground_of(store, ["car", "sky"]).share.min() == 1
    with pytest.raises(BeyondClsError, match="has no class 'tree'; it has: sky, road, car"):
        foreground_of(store, ["car", "tree"])
    with pytest.raises(BeyondClsError, match="every labelled pixel would be foreground; choose classes of sky, road, car"):
        foreground_of(store)
    with pytest.raises(BeyondClsError, match=r"no image of .*set shows road; choose other classes"):
        foreground_of(store, ["road"])


def test_of_masks_where_there_are_no_label_maps(plain, tmp_path):
    masks = (drawn() == 2)[:, None]
    others = np.zeros((1, 32, 32), bool)
    others[:, 20:24, 20:24] = True
    objects = [instances_of(np.concatenate([masks[0], others]), [1, 0]), [], instances_of(masks[2], [1])]
    store = with_truths(plain, tmp_path / "set", instances=objects, instance_classes=("ape", "car"), changed=MIRRORED)
    np.testing.assert_allclose(foreground_of(store, ["car"]).share, SHARE)
    assert foreground_of(store).share[0].sum() == SHARE[0].sum() + 0.25, "all objects, if no classes are chosen"
    assert foreground_of(store, ["ape"]).rows.tolist() == [0]


def test_share_and_gain(plain, tmp_path):
    """Equal weights have the share of the area, and a gain of 1; an image without weight is left out."""
    store = with_truths(plain, tmp_path / "set", maps=list(drawn()), map_classes=CLASSES, changed=MIRRORED)
    foreground, equal, corner = foreground_of(store, ["car"]), np.full((2, 4, 4), 3.0), np.zeros((2, 4, 4))
    corner[:, 0, 3] = 0.2
    entry = measure(ScoreMaps("probe", "abmilp", (equal, corner), (4, 7)), foreground)
    areas = 0.5, 1.5 / 16
    assert entry["chance"] == pytest.approx(100 * sum(areas) / 2)
    assert entry["share"]["values"] == pytest.approx([100 * sum(areas) / 2, 100])
    assert entry["gain"]["values"] == pytest.approx([1, (1 / areas[0] + 1 / areas[1]) / 2])
    assert (entry["seeds"], entry["n_images"], entry["n_without"]) == ([4, 7], 2, 1)
    corner[0] = 0
    np.testing.assert_array_equal(on_foreground(corner, foreground.share), [np.nan, 1])
    entry = measure(ScoreMaps("probe", "abmilp", (corner,), (4,)), foreground)
    assert entry["share"]["values"] == [100]
