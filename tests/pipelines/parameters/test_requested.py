from pathlib import Path

import pytest

from pipelines.parameters.requested import requested_images
from store import BeyondClsError

PARAMS = """
data: data
datasets:
  birds: { train: train, test: val, classes: names.txt }
"""


def test_images_of_the_parameter_file_as_its_splits_are_called(tmp_path):
    params = tmp_path / "params.yaml"
    params.write_text(PARAMS)
    data, options = requested_images("mae", None, "birds", params, {"split": "test", "dtype": "int8"})
    assert (data, options) == ("data/birds", {"split": "val", "classes": Path("names.txt")})


@pytest.mark.parametrize(
    ("data", "dataset", "file", "split", "message"),
    [
        ("data/birds", "birds", "params.yaml", None, "--data data/birds and --dataset birds exclude"),
        (None, None, "params.yaml", None, "no images were named for mae; give --data"),
        (None, "birds", None, None, "--dataset birds is in a parameter file; name it with --params"),
        (None, "birds", "params.yaml", "val", "--split is 'val', expected train or test"),
    ],
)
def test_images_that_cannot_be_meant(data, dataset, file, split, message, tmp_path):
    (tmp_path / "params.yaml").write_text(PARAMS)
    with pytest.raises(BeyondClsError, match=message):
        requested_images("mae", data, dataset, file and tmp_path / file, {"split": split})
