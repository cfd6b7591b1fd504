"""Which row an image has: in another set, by its id; in a list of ids."""

import numpy as np
import pytest

from store import FeatureStore, Loader, StoreError, read_ids, rows_of_ids
from store.format.layout import ArrayLayout
from store.format.spec import FeatureSpec
from store.loading.order import join
from store.writing.writer import FeatureWriter
from tests.features import write_features


def test_same_images(tmp_path):
    one = write_features(tmp_path / "one", 70, weights="a")
    other = write_features(tmp_path / "other", 70, weights="b", invalid=[3])
    assert join(one, other).tolist() == [i if i != 3 else -1 for i in range(70)]


def test_by_id(tmp_path):
    """Ids are row numbers: the second set has the first 50 of the first one's images, and 20 more behind."""
    one = write_features(tmp_path / "one", 50, seed=1)
    other = write_features(tmp_path / "other", 70, seed=2)
    assert join(one, other).tolist() == list(range(50))
    assert join(other, one).tolist() == [*range(50), *[-1] * 20]


def test_an_image_that_the_other_lacks_must_be_left_out(tmp_path):
    one, other = write_features(tmp_path / "one", 70, seed=1), write_features(tmp_path / "other", 50, seed=2)
    arrays, rows = {"map": other.array("attention/cls/block1/view0")}, join(one, other)
    with pytest.raises(StoreError, match=r"attention/cls/block1/view0 lacks 20 of the images, first that of row 50"):
        Loader(arrays, one.labels, joined={"map": rows})
    assert len(list(Loader(arrays, one.labels, np.flatnonzero(rows >= 0), joined={"map": rows}).epoch())) == 1


def test_no_image_in_common(tmp_path, written):
    with pytest.raises(StoreError, match=r"no image in common: the first has ids like '000000', the second like 'é0'"):
        join(write_features(tmp_path / "one"), FeatureStore.open(written))


def test_same_ids_but_other_labels(tmp_path):
    one, other = write_features(tmp_path / "one", n_classes=3, seed=1), write_features(tmp_path / "other", n_classes=4, seed=2)
    with pytest.raises(StoreError, match=r"image '000003' has label 0 in .*one but 3 in .*other; are these the same images"):
        join(one, other)


TRAIN = ["n01440764/n01440764_10026", "n01440764/n01440764_9", "n01443537/n01443537_2", "a.b/n01443537_2", "plain"]


def of_ids(path, ids):
    width = max(map(len, ids))
    arrays = {
        "images/id": np.array([list(i.encode().ljust(width, b"\0")) for i in ids], np.uint8),
        "images/label": np.arange(len(ids)),
        "images/valid": np.ones(len(ids), np.uint8),
        "cls/block1/view0": np.arange(4 * len(ids), dtype=np.float32).reshape(-1, 4),
    }
    layouts = [ArrayLayout(n, v.shape, v.dtype.name, ("image", "of")[: v.ndim], 32) for n, v in arrays.items()]
    spec = FeatureSpec("w", "{}", {}, "d", len(ids), (1,), (), ())
    with FeatureWriter(path, spec, layouts) as writer:
        writer.write_unit(0, arrays)
        writer.finish({})
    return FeatureStore.open(path)


@pytest.fixture
def store(tmp_path):
    return of_ids(tmp_path / "s", TRAIN)


@pytest.mark.parametrize(
    ("ids", "rows"),
    [
        (["plain", "n01440764/n01440764_9"], [4, 1]),
        (["n01440764_9.JPEG", "n01440764_10026.JPEG"], [1, 0]),  # as the published lists of 1 % call them
        (["n01440764_10026", "n01443537/n01443537_2.jpg"], [0, 2]),
        (["a.b/n01443537_2", "x/plain.png"], [3, 4]),
        ([], []),
    ],
)
def test_ids_and_file_names(ids, rows, store):
    selected = rows_of_ids(store, ids)
    assert selected.dtype == np.int64
    assert selected.tolist() == rows


def test_an_id_with_a_dot_is_no_file_name(tmp_path):
    store = of_ids(tmp_path / "s", ["image.1", "image.2", "image"])
    assert rows_of_ids(store, ["image.2", "image", "image.1"]).tolist() == [1, 2, 0]


@pytest.mark.parametrize(
    ("ids", "named"),
    [
        (["plain", "n0_1.JPEG", "n0_2.JPEG"], r"2 of 3 ids are not in .*s, first 'n0_1\.JPEG'; .*'n01440764/n01440764_10026'"),
        (["n01443537_2.JPEG"], r"'n01443537_2\.JPEG' could be several images of .*: n01443537/n01443537_2, a\.b/n014"),
        (["n01440764/n01440764_9", "n01440764_9.JPEG"], r"'n01440764_9\.JPEG' appears twice .*'n01440764/n01440764_9'"),
    ],
)
def test_ids_that_name_no_image_of_their_own(ids, named, store):
    with pytest.raises(StoreError, match=named):
        rows_of_ids(store, ids)


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
