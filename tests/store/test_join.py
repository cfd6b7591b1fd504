"""Two feature sets in step, by image id."""

from pathlib import Path

import numpy as np
import pytest

from store import Loader, StoreError
from store.loading.join import join
from tests.features import write_features


def test_same_images(tmp_path: Path) -> None:
    one = write_features(tmp_path / "one", 70, weights="a")
    other = write_features(tmp_path / "other", 70, weights="b", invalid=[3])
    assert join(one, other).tolist() == [i if i != 3 else -1 for i in range(70)]


def test_by_id(tmp_path: Path) -> None:
    """Ids are row numbers: the second set has the first 50 of the first one's images, and 20 more behind."""
    one = write_features(tmp_path / "one", 50, seed=1)
    other = write_features(tmp_path / "other", 70, seed=2)
    assert join(one, other).tolist() == list(range(50))
    assert join(other, one).tolist() == [*range(50), *[-1] * 20]


def test_an_image_that_the_other_lacks_must_be_left_out(tmp_path: Path) -> None:
    one, other = write_features(tmp_path / "one", 70, seed=1), write_features(tmp_path / "other", 50, seed=2)
    arrays, rows = {"map": other.array("attention/cls/block1/view0")}, join(one, other)
    with pytest.raises(
        StoreError, match=r"attention/cls/block1/view0 lacks 20 of the images, first that of row 50; leave out rows"
    ):
        Loader(arrays, one.labels, joined={"map": rows})
    assert len(list(Loader(arrays, one.labels, np.flatnonzero(rows >= 0), joined={"map": rows}).epoch())) == 1


def test_no_image_in_common(tmp_path: Path, written: Path) -> None:
    from store import FeatureStore

    with pytest.raises(StoreError, match=r"no image in common: the first has ids like '000000', the second like 'é0'"):
        join(write_features(tmp_path / "one"), FeatureStore.open(written))


def test_same_ids_but_other_labels(tmp_path: Path) -> None:
    one, other = write_features(tmp_path / "one", n_classes=3, seed=1), write_features(tmp_path / "other", n_classes=4, seed=2)
    with pytest.raises(StoreError, match=r"image '000003' has label 0 in .*one but 3 in .*other; are these the same images"):
        join(one, other)
