"""What holds for every form of data set, by the example that it brings (beyondcls.testing)."""

from pathlib import Path

import pytest

from beyondcls.testing.checking import run
from beyondcls.testing.datasets import FORM_CHECKS, SPLIT_CHECKS, splits
from extract.datasets import DATASETS, DataError, open_images
from tests.extract.pictures import write_example


@pytest.mark.parametrize("case", [case for form in DATASETS for case in splits(form)], ids=str)
def test_every_split(case):
    run(SPLIT_CHECKS, case)


@pytest.mark.parametrize("form", DATASETS)
def test_every_form(form):
    run(FORM_CHECKS, form)


def test_two_data_sets_in_one_folder(tmp_path: Path) -> None:
    write_example(tmp_path, "food101")
    write_example(tmp_path, "pets")
    with pytest.raises(DataError, match="looks like food101 and like pets; say which with --form"):
        open_images(str(tmp_path), split="test")
    assert len(open_images(str(tmp_path), "pets", split="test")) == 1
