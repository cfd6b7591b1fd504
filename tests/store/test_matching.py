"""Which row an image has: in another set, by its id; in a list of ids."""

import numpy as np
import pytest

from store import FeatureStore, Loader, StoreError, read_ids, rows_of_ids
from store.loading.order import join, rows_named
from tests.features import write_features


def test_same_images(tmp_path):
    one = write_features(tmp_path / "one", 70, weights="a")
    other = write_features(tmp_path / "other", 70, weights="b", invalid=[3])
    assert join(one, other).tolist() == [i if i != 3 else -1 for i in range(70)]


def test_by_id(tmp_path):
    """Ids are row numbers: the second set has the first 50 of the first one's images. Those that it lacks must be left out."""
    one, other = write_features(tmp_path / "one", 70, seed=1), write_features(tmp_path / "other", 50, seed=2)
    arrays, rows = {"map": other.array("attention/cls/block1/view0")}, join(one, other)
    assert rows.tolist() == [*range(50), *[-1] * 20]
    assert join(other, one).tolist() == list(range(50))
    with pytest.raises(StoreError, match=r"attention/cls/block1/view0 lacks 20 of the images, first that of row 50"):
        Loader(arrays, one.labels, joined={"map": rows})
    assert len(list(Loader(arrays, one.labels, np.flatnonzero(rows >= 0), joined={"map": rows}).epoch())) == 1


def test_other_images(tmp_path, written):
    one, other = write_features(tmp_path / "one", n_classes=3, seed=1), write_features(tmp_path / "other", n_classes=4, seed=2)
    with pytest.raises(StoreError, match=r"no image in common: the first has ids like '000000', the second like 'é0'"):
        join(one, FeatureStore.open(written))
    with pytest.raises(StoreError, match=r"image '000003' has label 0 in .*one but 3 in .*other; are these the same images"):
        join(one, other)


TRAIN = ["n01440764/n01440764_10026", "n01440764/n01440764_9", "n01443537/n01443537_2", "a.b/n01443537_2", "plain"]


@pytest.mark.parametrize(
    ("known", "ids", "rows"),
    [
        (TRAIN, ["plain", "n01440764/n01440764_9"], [4, 1]),
        (TRAIN, ["n01440764_9.JPEG", "n01440764_10026.JPEG"], [1, 0]),  # as the published lists of 1 % call them
        (TRAIN, ["n01440764_10026", "n01443537/n01443537_2.jpg"], [0, 2]),
        (TRAIN, ["a.b/n01443537_2", "x/plain.png"], [3, 4]),
        (TRAIN, [], []),
        (["image.1", "image.2", "image"], ["image.2", "image", "image.1"], [1, 2, 0]),  # dots begin no ending
    ],
)
def test_ids_and_file_names(known, ids, rows):
    selected = rows_named(known, ids, "here")
    assert (selected.dtype, selected.tolist()) == (np.int64, rows)


@pytest.mark.parametrize(
    ("ids", "named"),
    [
        (["plain", "n0_1.JPEG", "n0_2.JPEG"], r"2 of 3 ids are not in here, first 'n0_1\.JPEG'; .*'n01440764/n01440764_10026'"),
        (["n01443537_2.JPEG"], r"'n01443537_2\.JPEG' could be several images of here: n01443537/n01443537_2, a\.b/n014"),
        (["n01440764/n01440764_9", "n01440764_9.JPEG"], r"'n01440764_9\.JPEG' appears twice .*'n01440764/n01440764_9'"),
    ],
)
def test_ids_that_name_no_image_of_their_own(ids, named):
    with pytest.raises(StoreError, match=named):
        rows_named(TRAIN, ids, "here")


def test_ids_of_a_set(written):
    assert rows_of_ids(FeatureStore.open(written), ["é7.JPEG", "é0"]).tolist() == [7, 0]


def test_list_of_ids(tmp_path):
    file = tmp_path / "1percent.txt"
    file.write_text("n01440764_10182.JPEG\r\n\nn01440764_10293.JPEG \n")
    assert read_ids(file) == ["n01440764_10182.JPEG", "n01440764_10293.JPEG"]


@pytest.mark.parametrize(("content", "named"), [(None, "cannot be read"), (b"\xff\xfe", "cannot be read"), (b"\n", "is empty")])
def test_list_that_is_none(content, named, tmp_path):
    if content is not None:
        (tmp_path / "x.txt").write_bytes(content)
    with pytest.raises(StoreError, match=rf"the list of ids '.*x\.txt' {named}"):
        read_ids(tmp_path / "x.txt")
