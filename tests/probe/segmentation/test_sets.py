"""Feature sets that are read together: the same block of all of them, and images that could not be read."""

import numpy as np
import pytest

from probe.segmentation.sets import Sets
from store import StoreError
from tests.probe.segmentation.features import write_segmented


def test_all_sets_are_read_at_the_same_block(tmp_path):
    """That of the training set, though another may have deeper ones."""
    shallow, deep = write_segmented(tmp_path / "a", 4, blocks=(0,)), write_segmented(tmp_path / "b", 4, blocks=(0, 1))
    sets = Sets(shallow, deep, deep)
    assert {p.source.probed_block for p in (sets.learnt, sets.tested, *sets.compared)} == {0}
    with pytest.raises(StoreError, match=r"a has no array 'patch/block1/view0'; it has: patch/block0/view0"):
        Sets(deep, deep, shallow)


def test_images_that_could_not_be_read_are_left_out(tmp_path):
    some, none = write_segmented(tmp_path / "a", 6, invalid=(1, 4)), write_segmented(tmp_path / "b", 2, invalid=(0, 1))
    sets = Sets(some, none, share=0.5)
    assert sets.learnt.rows.tolist() == sorted(np.concatenate(sets.split).tolist()) == [0, 2, 3, 5]
    assert [len(rows) for rows in sets.split] == [2, 2], "the share that is held out"
    with pytest.raises(StoreError, match=r"b has no image that could be read"):
        _ = sets.tested


def test_grids_that_differ(tmp_path):
    one, other = write_segmented(tmp_path / "a", 2), write_segmented(tmp_path / "b", 2)
    other.__dict__["grid"] = (2, 8)
    with pytest.raises(StoreError, match=r"a has a grid of \(4, 4\) patches, .*b \(2, 8\)"):
        Sets(one, one, other)


def test_images_that_are_void_everywhere(tmp_path):
    """Nothing is learnt from them, and no setting is said to have diverged on them."""
    store, void = write_segmented(tmp_path / "a", 4), write_segmented(tmp_path / "b", 4, labelled=1)
    void.segmentation.patch_labels = lambda view=0: np.full((4, 16), -1, np.int16)
    with pytest.raises(StoreError, match=r"b: no patch of the 4 images has a label to learn from; give images with label maps"):
        _ = Sets(void, store).learnt
    with pytest.raises(StoreError, match=r"b: no patch of the 4 images has a label to select on; give another --val"):
        _ = Sets(store, store, void).compared
    sets = Sets(store, store, share=0.25)
    (held_out,) = sets.split[1]
    labels = store.segmentation.patch_labels()
    for rows, message in (
        (
            [held_out],
            r"no patch of the 1 image has a label to select on; give a larger share, --held-out, or other images, --val",
        ),
        (sets.split[0], r"no patch of the 3 images has a label to learn from beside those to select on; give a larger"),
    ):
        changed = labels.copy()
        changed[rows] = -1
        store.segmentation.patch_labels = lambda view=0, changed=changed: changed
        with pytest.raises(StoreError, match=message):
            _ = Sets(store, store, share=0.25).compared
