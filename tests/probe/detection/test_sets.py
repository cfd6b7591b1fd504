"""Which images a detector learns from, and the numbers that COCO's format knows them by."""

from types import SimpleNamespace

import numpy as np
import pytest

from probe.detection.sets import ImagesWithObjects, check_sets, images_with_objects
from probe.detection.targets import flips_of
from store import StoreError
from store.truths import Instance
from tests.features import write_features
from tests.probe.detection.features import write_objects

CROWD = Instance(0, (1, 1, 9, 9), 64.0, True)


@pytest.mark.parametrize(
    ("ids", "rows", "expected"),
    [
        (["val2017/000000000042", "000000000007.jpg"], [0, 1], [42, 7]),
        (["a/07", "b/7", "c/8"], [0, 1, 2], [1, 2, 3]),
        (["a/07", "b/7", "c/8"], [1, 2], [7, 8]),
        (["x", "12", "13"], [0, 2], [1, 3]),
        (["²", "5"], [0, 1], [1, 2]),
    ],
    ids=["named", "twice", "once", "names", "no-digit"],
)
def test_numbers_of_images(ids, rows, expected):
    """What they are named after, where each is; else rows, from 1."""
    assert ImagesWithObjects(SimpleNamespace(ids=ids), np.array(rows)).image_ids == expected


def test_images_with_objects(tmp_path):
    objects = [[CROWD], [Instance(1, (1, 1, 9, 9), 64.0)], [], [Instance(0, (1, 1, 9, 9), 64.0)], [CROWD]]
    store = write_objects(tmp_path / "set", n=5, objects=objects, masks=False, invalid=[3])
    assert images_with_objects(store).rows.tolist() == [0, 1, 2, 4], "crowds alone, and nothing at all, are negatives"
    assert images_with_objects(store, [4, 1, 1]).rows.tolist() == [1, 4]
    with pytest.raises(StoreError, match=r"none of 3 images of .* could be read and has an object; .* or name others"):
        images_with_objects(store, [0, 3, 4])


def test_classes_in_another_order(tmp_path):
    one, other = (write_objects(tmp_path / name, n=2, classes=classes) for name, classes in (("a", "xy"), ("b", "yx")))
    with pytest.raises(StoreError, match=r"have 2 classes, those of .*b 2: their order differs; extract both"):
        check_sets(one, other)


def test_a_set_that_does_not_say_how_it_is_mirrored_is_not(tmp_path):
    assert not flips_of(write_features(tmp_path / "set", n=3, crops=True), 0).any()
