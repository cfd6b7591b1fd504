"""Numbers of images: of those that are there, or as published."""

from pathlib import Path

import pytest

from extract.datasets import DATASETS
from extract.datasets.form import Published
from pipelines.planning.sizes import COUNTED, FACTS, PUBLISHED, Sizes, all_sizes, sizes_of
from store import BeyondClsError
from tests.extract.pictures import write_example


@pytest.mark.parametrize("form", FACTS)
def test_facts_are_of_the_splits_that_a_reader_has(form: str) -> None:
    reader = DATASETS[form]
    assert isinstance(reader, Published)
    assert set(FACTS[form].splits) <= set(reader.splits)
    assert len(FACTS[form].splits) >= 2


def test_as_published_where_there_are_no_images() -> None:
    params = {"data": "nowhere", "datasets": {"imagenet": {"test": "val"}, "mine": {"form": "coco"}, "pets": {}}}
    sizes, images = all_sizes(params)
    assert images is None
    assert sizes == {
        "imagenet": Sizes(1_281_167, 50_000, 1000, False, PUBLISHED),
        "mine": Sizes(118_287, 5_000, 80, True, PUBLISHED),
        "pets": Sizes(3_680, 3_669, 37, False, PUBLISHED),
    }


def test_what_is_there_is_counted(tmp_path: Path) -> None:
    write_example(tmp_path / "nus-wide", "nus-wide")
    params = {"data": str(tmp_path), "datasets": {"cub": {}, "nus-wide": {}}}
    sizes, images = all_sizes(params)
    assert sizes["nus-wide"] == Sizes(3, 1, 3, True, COUNTED)
    assert sizes["cub"].source == PUBLISHED
    assert images is not None
    assert len(images) == 3  # of the first that is there


def test_a_size_that_is_not_known() -> None:
    with pytest.raises(
        BeyondClsError, match=r"no images at 'nowhere/mine', .* not known; put them there, or give .* imagenet, "
    ):
        sizes_of({"data": "nowhere", "datasets": ["mine"]}, "mine")
    with pytest.raises(
        BeyondClsError, match=r"datasets\.cub names a split 'val', but cub has train, test; correct train or test"
    ):
        sizes_of({"data": "nowhere", "datasets": {"cub": {"test": "val"}}}, "cub")
